"""Compute the shift dB of the endpoints under several training seeds, the run's own among them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, read_json, write_rows
from refbias.cli.shift import cell, check_comparable, load_embeddings
from refbias.config.base import parse_json
from refbias.config.spectrum import checkpoint_slug
from refbias.config.training_seeds import SeedsStage
from refbias.metrics import chosen_methods, shift_rows

COLUMNS = ["model", "regime", "split", "seed", "group", "method", "n_anchors", "delta_b"]
# the endpoints are the two ends of the spectrum
CHECKPOINTS = {"unharmful": checkpoint_slug(0), "harmful": checkpoint_slug(1)}


def main(argv: Sequence[str]) -> None:
    """Write ``training_seeds.csv`` and its manifest."""
    parser = argparse.ArgumentParser(prog="refbias seeds", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--embeddings", type=Path, required=True, help="Folder MODEL/SOURCE/ of the run's embeddings.")
    parser.add_argument("--repeats", type=Path, required=True, help="Folder MODEL/REGIME/embeddings/sSEED/.")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--regimes", nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True, help="CSV file; its manifest lies beside it.")
    args = parser.parse_args(argv)
    settings = parse_json(SeedsStage, args.settings, "--settings")
    folders = {
        (model, regime, seed): args.embeddings / model / regime
        if seed == settings.seed
        else args.repeats / model / regime / "embeddings" / f"s{seed}"
        for model in args.models
        for regime in args.regimes
        for seed in (settings.seed, *settings.seeds)
    }
    inputs = {"/".join(map(str, key)): folder / "manifest.json" for key, folder in folders.items()}
    manifest = args.output.with_suffix(".manifest.json")
    with Stage("seeds", settings.model_dump(mode="json"), args.output.parent, inputs, manifest) as stage:
        rows = [row for key, folder in folders.items() for row in _rows(settings, args.embeddings, key, folder)]
        write_rows(args.output, COLUMNS, rows)
        stage.record(n_rows=len(rows))


def _rows(settings: SeedsStage, embeddings: Path, key: tuple[str, str, int], folder: Path) -> list[list[Any]]:
    """Return the rows of one model, regime and seed."""
    model, regime, seed = key
    methods = chosen_methods(
        settings.shift.methods,
        procrustes_fit=settings.shift.procrustes_fit,
        cka_kernel=settings.shift.cka_kernel,
    )
    base = embeddings / model / "reference"
    where = f"{model}/{regime}, seed {seed}"
    check_comparable(read_json(base / "manifest.json"), read_json(folder / "manifest.json"), where)
    reference = load_embeddings(base, "reference")
    rows = []
    for split, slug in CHECKPOINTS.items():
        head = {"model": model, "regime": regime, "split": split, "seed": seed}
        audited = load_embeddings(folder, slug)
        for found in shift_rows(reference, audited, methods, settings.shift.n_resamples, settings.seed):
            rows.append([cell({**head, **found}[column]) for column in COLUMNS])
    return rows
