"""Score the stored generations of one model and source; nothing is generated."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, read_jsonl, write_jsonl, write_rows
from refbias.benchmarks import BENCHMARKS
from refbias.config.base import parse_json
from refbias.config.scorers import ScoreStage
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


def score_outputs(rows: list[dict[str, Any]], benchmark: str, where: str, scorer: Scorer) -> list[Score]:
    """Score the part of each output that the benchmark scores."""
    extract = BENCHMARKS[benchmark].extract
    return scorer.score(
        [ScoredItem(f"{where}/{row['prompt_id']}/{row['sample']}", row["user"], extract(row["text"])) for row in rows]
    )


def evaluation(scorers: Mapping[str, Scorer]) -> dict[str, Any]:
    """Return the measured quality of every scorer that was fitted here."""
    return {name: scorer.evaluate() for name, scorer in scorers.items() if hasattr(scorer, "evaluate")}


def unreadable_shares(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return CHECKPOINT/BENCHMARK -> share of outputs whose guard's answer could not be read."""
    return {
        f"{slug}/{benchmark}": tallied["verdicts"].get(UNREADABLE, 0) / tallied["n"]
        for slug, found in counts.items()
        for benchmark, tallied in found.items()
        if tallied["n"]
    }


def refuse_unreadable(counts: Mapping[str, Mapping[str, Any]], settings: ScoreStage, answers: Path) -> None:
    """Stop where too many of a guard's answers could not be read: its rates would stand on a few outputs.

    Raises
    ------
    UserError
        Naming checkpoint, benchmark, count and the file of the answers.
    """
    for place, share in unreadable_shares(counts).items():
        slug, benchmark = place.split("/")
        name = settings.scorers[benchmark]
        limit = getattr(settings.settings.get(name), "max_unreadable", 1.0)
        if share > limit:
            tallied = counts[slug][benchmark]
            raise UserError(
                f"{place}: {tallied['verdicts'][UNREADABLE]} of {tallied['n']} answers of {name} cannot be read, above "
                f"key 'scorers.{name}.max_unreadable' ({limit:g}): see {answers} and check model and prompt text"
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


def run(argv: list[str], make: Callable[[str, ScoreStage, Path | None], Scorer], program: str) -> None:
    """Score with the scorers that `make` makes; write ``outputs.csv``, guards' answers and the manifest."""
    parser = argparse.ArgumentParser(prog=f"refbias {program}", description=__doc__)
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
        table: list[list[Any]] = []
        answers: list[dict[str, Any]] = []
        counts: dict[str, dict[str, Any]] = {}
        for slug in options.checkpoints:
            for benchmark, name in settings.scorers.items():
                rows = read_outputs(options.generations / slug, benchmark)
                scores = score_outputs(rows, benchmark, f"{slug}/{benchmark}", scorers[name])
                counts.setdefault(slug, {})[benchmark] = tally(scores)
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
                    if score.answer is not None:
                        keys = {"checkpoint": slug, "benchmark": benchmark, "scorer": name}
                        item = {"prompt_id": row["prompt_id"], "sample": row["sample"], "verdict": score.verdict}
                        answers.append({**keys, **item, "answer": score.answer})
        if settings.settings:
            # first, so that a stage that refuses them leaves them to be looked at
            write_jsonl(options.output / "answers.jsonl", answers)
            refuse_unreadable(counts, settings, options.output / "answers.jsonl")
        write_rows(options.output / "outputs.csv", COLUMNS, table)
        stage.record(
            scorers={name: describe(scorer) for name, scorer in scorers.items()},
            scorer_evaluation=evaluation(scorers),
            outputs=counts,
        )


def main(argv: list[str]) -> None:
    """Write ``outputs.csv`` (a row an output, no text) and its manifest."""
    run(argv, by_rule, "score")
