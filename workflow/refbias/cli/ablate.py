"""Compute dB of one model and regime in every cell of the ablations."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open

from refbias.ablations.cells import Cell, plan
from refbias.ablations.compute import Matrices, Shifts, by_site, model_biases, pair_shifts, shifts
from refbias.ablations.table import WHOLE, SentenceTable, read_sentences
from refbias.artifacts import Stage, read_json, sha256_file, write_rows
from refbias.cli.shift import check_comparable
from refbias.config.ablations import AblateStage
from refbias.config.base import parse_json
from refbias.config.spectrum import checkpoint_slug
from refbias.errors import UserError
from refbias.metrics import chosen_methods

COLUMNS = [
    "ablation",
    "cell",
    "n_anchors",
    "seed",
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "group",
    "method",
    "delta_b",
]


def site_reader(path: Path, table: SentenceTable) -> Matrices:
    """Return the function that reads one site of a checkpoint's embeddings.

    Raises
    ------
    UserError
        When called: if the file is missing, broken, or has other rows than the sentences need.
    """
    sizes = {True: len(set(table.texts)), False: table.n_base}

    def read(site: str) -> npt.NDArray[np.float32]:
        try:
            with safe_open(path, framework="numpy") as handle:
                matrix: npt.NDArray[np.float32] = handle.get_tensor(site)
        except (FileNotFoundError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be read ({error}): run the stage represent_ablations again") from None
        if len(matrix) != sizes[site == WHOLE]:
            raise UserError(
                f"{path}: {site} has {len(matrix)} rows for {sizes[site == WHOLE]} sentences: "
                "run the stage represent_ablations again"
            )
        return matrix

    return read


def _rows(cells: list[Cell], found: Shifts, methods: list[str], head: list[object]) -> list[list[object]]:
    rows: list[list[object]] = []
    for number, cell in enumerate(cells):
        seed = "" if cell.seed is None else cell.seed
        for method in methods:
            if (number, method) in found:
                shift = found[number, method]
                name = [cell.ablation, cell.cell, shift.n_anchors, seed, *head]
                # a method may have no value for a group: its cell stays empty
                texts = {group: "" if math.isnan(value) else f"{value:.10g}" for group, value in shift.delta_b.items()}
                rows += [[*name, group, method, text] for group, text in texts.items()]
    return rows


def _compute(
    settings: AblateStage,
    cells: list[Cell],
    table: SentenceTable,
    folders: tuple[Path, Path],
    advance: Callable[[], None],
) -> list[list[object]]:
    methods = chosen_methods(
        settings.ablations.methods, procrustes_fit=settings.procrustes_fit, cka_kernel=settings.cka_kernel
    )
    source = site_reader(folders[0] / "reference.safetensors", table)
    reference = model_biases(source, cells, table, methods, advance)
    rows: list[list[object]] = []
    for weight in settings.weights:
        slug = checkpoint_slug(weight)
        matrices = site_reader(folders[1] / f"{slug}.safetensors", table)
        try:
            found = shifts(reference, model_biases(matrices, cells, table, methods, advance), cells)
            found |= pair_shifts(source, matrices, cells, table, methods)
        except ValueError as error:
            raise UserError(f"{settings.model}/{settings.regime}/{slug}: {error}: check the weights") from error
        rows += _rows(cells, found, list(methods), [settings.model, settings.regime, slug, weight])
    return rows


def main(argv: list[str]) -> None:
    """Write ``delta_b.csv`` and its manifest."""
    parser = argparse.ArgumentParser(prog="refbias ablate", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--sentences", type=Path, required=True, help="folder of the stage ablation_sentences")
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference's embeddings")
    parser.add_argument("--audited", type=Path, required=True, help="folder of the spectrum's embeddings")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(AblateStage, options.settings, "--settings")
    manifests = {name: getattr(options, name) / "manifest.json" for name in ("sentences", "reference", "audited")}
    with Stage("ablate", settings.model_dump(mode="json"), options.output, manifests) as stage:
        facts = {name: read_json(path) for name, path in manifests.items()}
        where = f"{settings.model}/{settings.regime}"
        check_comparable(facts["reference"], facts["audited"], where)
        path = options.sentences / "sentences.tsv"
        for name in ("reference", "audited"):
            if facts[name]["sentences_sha256"] != sha256_file(path):
                raise UserError(f"{manifests[name]}: made from another {path}: run the stage represent_ablations again")
        if facts["reference"]["sites"] != facts["audited"]["sites"]:
            raise UserError(f"{where}: embedded at other sites than the reference: embed both alike")
        table = read_sentences(path)
        cells, left_out = plan(table, settings.ablations, facts["audited"]["sites"])
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            total = len(by_site(cells)) * (1 + len(settings.weights))
            task = progress.add_task(f"ablate {where}", total=total)
            folders = (options.reference, options.audited)
            rows = _compute(settings, cells, table, folders, lambda: progress.advance(task))
        write_rows(options.output / "delta_b.csv", COLUMNS, rows)
        known = {**facts["sentences"]["left_out"], **facts["audited"]["left_out"], **left_out}
        stage.record(n_cells=len(cells), n_rows=len(rows), left_out=known)
