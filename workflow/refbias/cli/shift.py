"""Compute the shift dB of every group, checkpoint and method from stored embeddings."""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from refbias.artifacts import Stage, read_json, write_rows
from refbias.config.base import parse_json
from refbias.config.shift import ShiftStage
from refbias.config.spectrum import checkpoint_slug
from refbias.errors import UserError
from refbias.metrics import Embeddings, chosen_methods, shift_rows

COLUMNS = [
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "group",
    "method",
    "n_anchors",
    "s_plus",
    "s_minus",
    "b_reference",
    "b_audited",
    "delta_b",
    "ci_low",
    "ci_high",
]
# two models are comparable only if these facts of their manifests agree
COMPARABLE = ("dtype", "layer", "final_norm", "pooling", "exclude_bos", "width", "tokenizer_sha256", "sentences_sha256")


def read_sentences(path: Path) -> list[tuple[str, str, str]]:
    """Return (id, kind, group) of every embedded sentence, in the order of the rows of the embeddings.

    Raises
    ------
    UserError
        If the file is missing or has other columns.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file: run the stage represent again")
    header, *lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if header.split("\t") != ["id", "kind", "group", "text"]:
        raise UserError(f"{path}:1: expected the columns id, kind, group, text: run the stage represent again")
    rows = [line.split("\t") for line in lines]
    return [(row[0], row[1], row[2]) for row in rows]


def split_sets(matrix: npt.NDArray[np.float32], sentences: Sequence[tuple[str, str, str]]) -> Embeddings:
    """Sort the rows of a model's embeddings into targets by group, attributes and anchors.

    Parameters
    ----------
    matrix
        Shape (n, d), a row a sentence.
    sentences
        (id, kind, group) of the n sentences.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    for index, (_, kind, group) in enumerate(sentences):
        rows.setdefault((kind, group if kind in ("target", "control") else ""), []).append(index)
    wide = matrix.astype(np.float64)
    targets = {(group or kind): wide[at] for (kind, group), at in rows.items() if kind in ("target", "control")}
    sets = {kind: wide[rows[kind, ""]] for kind in ("positive", "negative", "anchor")}
    return Embeddings(targets=targets, positive=sets["positive"], negative=sets["negative"], anchors=sets["anchor"])


def load_embeddings(folder: Path, checkpoint: str) -> Embeddings:
    """Read one checkpoint's embeddings.

    Raises
    ------
    UserError
        If the file is missing, broken, or has another number of rows than there are sentences.
    """
    path = folder / f"{checkpoint}.safetensors"
    try:
        matrix = load_file(path)["embeddings"]
    except (FileNotFoundError, SafetensorError, KeyError) as error:
        raise UserError(f"{path}: cannot be read ({error}): run the stage represent again") from None
    sentences = read_sentences(folder / "sentences.tsv")
    if len(sentences) != len(matrix):
        raise UserError(f"{path}: {len(matrix)} rows for {len(sentences)} sentences: run the stage represent again")
    return split_sets(matrix, sentences)


def check_comparable(reference: Mapping[str, Any], audited: Mapping[str, Any], where: str) -> None:
    """Refuse two models that were embedded differently.

    Raises
    ------
    UserError
        Naming the first fact that differs.
    """
    for fact in COMPARABLE:
        if fact not in reference or fact not in audited:
            raise UserError(f"{where}: manifest lacks {fact}: run the stage represent again")
        if reference[fact] != audited[fact]:
            raise UserError(
                f"{where}: {fact} is {audited[fact]!r}, the reference's is {reference[fact]!r}: embed both alike"
            )


def cell(value: Any) -> Any:
    """Return a value as tables of dB hold it: ten digits, and an empty cell for what a method does not have."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.10g}"


def main(argv: list[str]) -> None:
    """Write ``delta_b.csv`` and its manifest."""
    parser = argparse.ArgumentParser(prog="refbias shift", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--embeddings", type=Path, required=True, help="folder MODEL/SOURCE/ of embeddings")
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--regimes", nargs="*", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(ShiftStage, options.settings, "--settings")
    methods = chosen_methods(
        settings.shift.methods,
        procrustes_fit=settings.shift.procrustes_fit,
        cka_kernel=settings.shift.cka_kernel,
    )
    sources = [(model, source) for model in options.models for source in ("reference", *options.regimes)]
    manifests = {key: options.embeddings / key[0] / key[1] / "manifest.json" for key in sources}
    inputs = {"/".join(key): path for key, path in manifests.items()}
    with Stage("shift", settings.model_dump(mode="json"), options.output, inputs) as stage:
        rows: list[list[Any]] = []
        clocks: dict[str, float] = {}
        for model in options.models:
            start = time.perf_counter()
            facts = read_json(manifests[model, "reference"])
            reference = load_embeddings(options.embeddings / model / "reference", "reference")
            for regime in options.regimes:
                where = f"{model}/{regime}"
                check_comparable(facts, read_json(manifests[model, regime]), where)
                for weight in settings.weights:
                    slug = checkpoint_slug(weight)
                    audited = load_embeddings(options.embeddings / model / regime, slug)
                    found = shift_rows(reference, audited, methods, settings.shift.n_resamples, settings.seed)
                    head = {"model": model, "regime": regime, "checkpoint": slug, "harmful_weight": weight}
                    rows.extend([[{**head, **row}[column] for column in COLUMNS] for row in found])
            clocks[model] = round(time.perf_counter() - start, 3)
        text = [[cell(value) for value in row] for row in rows]
        write_rows(options.output / "delta_b.csv", COLUMNS, text)
        stage.record(n_rows=len(rows), model_seconds=clocks)
