"""Score the stored generations of one model and source; nothing is generated."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, read_jsonl, write_jsonl, write_rows
from refbias.benchmarks import BENCHMARKS
from refbias.config.base import parse_json
from refbias.config.scorers import ScoreStage, WildGuardSettings
from refbias.errors import UserError
from refbias.scorers import Score, ScoredItem, Scorer, describe, make_scorer, tally
from refbias.scorers.base import UNREADABLE

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


def score_outputs(rows: Mapping[str, list[dict[str, Any]]], benchmark: str, scorer: Scorer) -> dict[str, list[Score]]:
    """Score the part of each output that the benchmark scores, all checkpoints at once: an engine starts once."""
    extract = BENCHMARKS[benchmark].extract
    items = [
        ScoredItem(f"{slug}/{benchmark}/{row['prompt_id']}/{row['sample']}", row["user"], extract(row["text"]))
        for slug, outputs in rows.items()
        for row in outputs
    ]
    scores = iter(scorer.score(items))
    return {slug: list(islice(scores, len(outputs))) for slug, outputs in rows.items()}


def evaluation(scorers: Mapping[str, Scorer]) -> dict[str, Any]:
    """Return the measured quality of every scorer that was fitted here."""
    return {name: scorer.evaluate() for name, scorer in scorers.items() if hasattr(scorer, "evaluate")}


def refuse_unreadable(counts: Mapping[str, Mapping[str, Any]], settings: ScoreStage, answers: Path) -> None:
    """Stop where too many of a guard's answers could not be read: its rate would stand on a few outputs.

    Raises
    ------
    UserError
        Naming checkpoint, benchmark, count and the file of the answers.
    """
    for slug, found in counts.items():
        for benchmark, tallied in found.items():
            name = settings.scorers[benchmark]
            chosen = settings.settings.get(name)
            unreadable, asked = tallied["verdicts"].get(UNREADABLE, 0), tallied["n"] - tallied["n_empty"]
            if isinstance(chosen, WildGuardSettings) and unreadable > chosen.max_unreadable * asked:
                raise UserError(
                    f"{slug}/{benchmark}: {unreadable} of {asked} answers of {name} cannot be read, above key "
                    f"'scorers.{name}.max_unreadable' ({chosen.max_unreadable:g}): see {answers}, check model and "
                    "prompt text"
                )


def by_rule(name: str, settings: ScoreStage, guards: Path | None) -> Scorer:
    """Make a scorer that runs no model.

    Raises
    ------
    UserError
        If the scorer is unknown, or runs a model.
    """
    if name in settings.settings:
        raise UserError(f"scorer {name} runs a model: use `refbias judge`, which takes the same options")
    return make_scorer(name)


@dataclass
class Scored:
    """What a stage found: rows of ``outputs.csv``, guards' answers, counts by checkpoint and benchmark."""

    table: list[list[Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, place: list[str], name: str, rows: list[dict[str, Any]], scores: list[Score], seconds: float) -> None:
        """Add the outputs of one benchmark and checkpoint; `place` is benchmark, model, regime, checkpoint.

        `seconds` is the checkpoint's share, by its outputs, of the time that the benchmark took.
        """
        benchmark, _, _, slug = place
        self.counts.setdefault(slug, {})[benchmark] = {**tally(scores), "seconds": seconds}
        for row, score in zip(rows, scores, strict=True):
            value = "" if score.value is None else score.value
            probability = "" if score.probability is None else f"{score.probability:.6f}"
            item = [row["unit"], row["prompt_id"], row["sample"]]
            self.table.append([*place, *item, name, value, probability])
            if score.answer is not None:
                keys = {"checkpoint": slug, "benchmark": benchmark, "scorer": name}
                output = {"prompt_id": row["prompt_id"], "sample": row["sample"]}
                self.answers.append({**keys, **output, "verdict": score.verdict, "answer": score.answer})

    def sort(self, checkpoints: Sequence[str]) -> None:
        """Put rows and answers into the order of the checkpoints, and of the benchmarks within each."""
        place = {slug: at for at, slug in enumerate(checkpoints)}
        self.table.sort(key=lambda row: place[row[3]])
        self.answers.sort(key=lambda answer: place[answer["checkpoint"]])


def run(
    argv: list[str],
    make: Callable[[str, ScoreStage, Path | None], Scorer],
    program: str,
    parents: Sequence[argparse.ArgumentParser] = (),
) -> None:
    """Score with the scorers that `make` makes; write ``outputs.csv``, guards' answers and the manifest.

    `parents` take options of the caller's own.
    """
    parser = argparse.ArgumentParser(prog=f"refbias {program}", description=__doc__, parents=list(parents))
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--generations", type=Path, required=True, help="folder CHECKPOINT/ of generations")
    parser.add_argument("--model", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--checkpoints", nargs="+", required=True)
    parser.add_argument("--guards", type=Path, help="folder SCORER/ of the scorers' models")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(ScoreStage, options.settings, "--settings")
    inputs = {slug: options.generations / slug / "manifest.json" for slug in options.checkpoints}
    if options.guards is not None:
        manifests = {f"guard_{name}": options.guards / name / "manifest.json" for name in settings.settings}
        inputs |= {role: path for role, path in manifests.items() if path.is_file()}
    with Stage("score", settings.model_dump(mode="json"), options.output, inputs) as stage:
        scorers = {name: make(name, settings, options.guards) for name in sorted(set(settings.scorers.values()))}
        found = Scored()
        for benchmark, name in settings.scorers.items():
            rows = {slug: read_outputs(options.generations / slug, benchmark) for slug in options.checkpoints}
            start = time.perf_counter()
            scores = score_outputs(rows, benchmark, scorers[name])
            share = (time.perf_counter() - start) / max(1, sum(map(len, rows.values())))
            for slug, outputs in rows.items():
                place = [benchmark, options.model, options.source, slug]
                found.add(place, name, outputs, scores[slug], round(share * len(outputs), 3))
        found.sort(options.checkpoints)
        if settings.settings:
            # first, so that a stage that refuses them leaves them to be looked at
            write_jsonl(options.output / "answers.jsonl", found.answers)
            refuse_unreadable(found.counts, settings, options.output / "answers.jsonl")
        write_rows(options.output / "outputs.csv", COLUMNS, found.table)
        stage.record(
            scorers={name: describe(scorer) for name, scorer in scorers.items()},
            scorer_evaluation=evaluation(scorers),
            outputs=found.counts,
        )


def main(argv: list[str]) -> None:
    """Write ``outputs.csv`` (a row an output, no text) and its manifest."""
    run(argv, by_rule, "score")
