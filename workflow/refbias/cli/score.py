"""Score the stored generations of one model and source; nothing is generated."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, read_jsonl, write_rows
from refbias.benchmarks import BENCHMARKS
from refbias.config.base import parse_json
from refbias.config.benchmarks import ScoreStage
from refbias.errors import UserError
from refbias.scorers import Score, ScoredItem, Scorer, describe, make_scorer, tally

COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "checkpoint",
    "unit",
    "prompt_id",
    "sample",
    "scorer",
    "score",
    "probability",
]


def read_outputs(folder: Path, benchmark: str) -> list[dict[str, Any]]:
    """Read one benchmark's stored outputs and put the user turn of each prompt beside it.

    Raises
    ------
    UserError
        If a file is missing or broken, or an output belongs to no stored prompt.
    """
    prompts = {
        row["prompt_id"]: row["user"] for row in read_jsonl(folder / "prompts.jsonl") if row["benchmark"] == benchmark
    }
    path = folder / f"{benchmark}.jsonl"
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        if row.get("prompt_id") not in prompts:
            raise UserError(f"{path}: output {number} names no prompt of prompts.jsonl: generate it again")
        row["user"] = prompts[row["prompt_id"]]
    return rows


def score_outputs(rows: list[dict[str, Any]], benchmark: str, where: str, scorer: Scorer) -> list[Score]:
    """Score the part of each output that the benchmark scores."""
    extract = BENCHMARKS[benchmark].extract
    return scorer.score(
        [ScoredItem(f"{where}/{row['prompt_id']}/{row['sample']}", row["user"], extract(row["text"])) for row in rows]
    )


def evaluation(scorers: Mapping[str, Scorer]) -> dict[str, Any]:
    """Return the measured quality of every scorer that was fitted here."""
    return {name: scorer.evaluate() for name, scorer in scorers.items() if hasattr(scorer, "evaluate")}


def main(argv: list[str]) -> None:
    """Write ``outputs.csv`` (a row an output, no text) and its manifest."""
    parser = argparse.ArgumentParser(prog="refbias score", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--generations", type=Path, required=True, help="folder CHECKPOINT/ of generations")
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--checkpoints", nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(ScoreStage, options.settings, "--settings")
    inputs = {slug: options.generations / slug / "manifest.json" for slug in options.checkpoints}
    with Stage("score", settings.model_dump(mode="json"), options.output, inputs) as stage:
        scorers = {name: make_scorer(name) for name in sorted(set(settings.scorers.values()))}
        table: list[list[Any]] = []
        counts: dict[str, dict[str, Any]] = {}
        for slug in options.checkpoints:
            for benchmark, name in settings.scorers.items():
                rows = read_outputs(options.generations / slug, benchmark)
                start = time.perf_counter()
                scores = score_outputs(rows, benchmark, f"{slug}/{benchmark}", scorers[name])
                seconds = round(time.perf_counter() - start, 3)
                counts.setdefault(slug, {})[benchmark] = {**tally(scores), "seconds": seconds}
                for row, score in zip(rows, scores, strict=True):
                    value = "" if score.value is None else score.value
                    probability = "" if score.probability is None else f"{score.probability:.6f}"
                    place = [
                        benchmark,
                        options.model,
                        options.source,
                        slug,
                        row["unit"],
                        row["prompt_id"],
                        row["sample"],
                    ]
                    table.append([*place, name, value, probability])
        write_rows(options.output / "outputs.csv", COLUMNS, table)
        stage.record(
            scorers={name: describe(scorer) for name, scorer in scorers.items()},
            scorer_evaluation=evaluation(scorers),
            outputs=counts,
        )
