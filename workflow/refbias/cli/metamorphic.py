"""Metamorphic tests of bias: make questions, label answers, check the labeller, sum up, gate."""

import argparse
import datetime
import importlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from refbias.artifacts import read_jsonl, write_json, write_text
from refbias.errors import UserError
from refbias.metamorphic.answers import Cell, finite, label_all, pooled, read_answers, summarise, write_answers
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import Material, load_labelled
from refbias.metamorphic.gate import (
    PASS,
    Criteria,
    append_history,
    as_json,
    check_baseline,
    check_complete,
    evaluate,
    exit_code,
    junit,
    markdown,
    not_compared,
    read_baseline,
)
from refbias.metamorphic.held_out import key_of, read_held_out
from refbias.metamorphic.questions import Question, read_questions, write_questions
from refbias.metamorphic.relations import DEFAULT, flips, parse_chains, with_mutants
from refbias.metamorphic.results import FEW_SHOT, MITIGATED, OPEN, PLAIN
from refbias.metamorphic.sampling import PER_CATEGORY, sample_sources
from refbias.metamorphic.validation import validate


def _add_material(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--groups", type=Path, help="TSV of groups, or CSV of a BiasAsker copy; shipped by default")
    parser.add_argument("--properties", type=Path, help="TSV of properties, or CSV of a BiasAsker copy")


def _material(options: argparse.Namespace) -> Material:
    return read_material(options.groups, options.properties)


def _questions(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="refbias metamorphic questions")
    _add_material(parser)
    parser.add_argument("--per-category", type=int, default=PER_CATEGORY, help="source questions of each category")
    parser.add_argument("--relations", nargs="+", default=list(DEFAULT), help="such as MR1 MR3>MR6 MR4@2")
    parser.add_argument("--poles", nargs="+", default=["negative"], help="poles of the source questions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="questions.jsonl")
    options = parser.parse_args(argv)
    if options.per_category < 1:
        raise UserError(f"--per-category {options.per_category}: must be positive")
    chains = parse_chains(options.relations)
    sources = sample_sources(
        _material(options), options.per_category, options.seed, flip=flips(chains), poles=options.poles
    )
    rows = with_mutants(sources, chains, options.seed)
    write_questions(options.output, rows)
    print(f"{len(sources)} source questions, {len(rows) - len(sources)} mutants")
    return PASS


def _label(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="refbias metamorphic label")
    _add_material(parser)
    parser.add_argument("--questions", type=Path, required=True, help="questions.jsonl")
    parser.add_argument("--raw", type=Path, required=True, help="JSONL with id and raw of each answer")
    parser.add_argument("--output", type=Path, required=True, help="answers.jsonl")
    options = parser.parse_args(argv)
    raw = {}
    for number, row in enumerate(read_jsonl(options.raw), start=1):
        if not isinstance(row.get("id"), str) or not isinstance(row.get("raw"), str):
            raise UserError(f"{options.raw}: row {number} needs the texts id and raw")
        raw[row["id"]] = row["raw"]
    answers = label_all(read_questions(options.questions), raw, _material(options))
    write_answers(options.output, answers)
    unusable = sum(answer.biased is None for answer in answers)
    print(f"{len(answers)} answers, {unusable} of them could not be read")
    return PASS


def _validate(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="refbias metamorphic validate")
    _add_material(parser)
    parser.add_argument("--labelled", type=Path, help="TSV of answers labelled by hand; shipped by default")
    parser.add_argument("--output", type=Path, help="JSON report")
    options = parser.parse_args(argv)
    report = validate(load_labelled(options.labelled), _material(options))
    if options.output:
        write_json(options.output, report)
    low, high = report["accuracy_low"], report["accuracy_high"]
    kappa = "undefined" if report["kappa"] is None else f"{report['kappa']:.3f}"
    print(f"accuracy {report['accuracy']:.3f} [{low:.3f}, {high:.3f}] of {report['n']}, kappa {kappa}")
    print("\n".join(f"warning: {text}" for text in report["warnings"]), end="\n" if report["warnings"] else "")
    return PASS


def _questions_of(folder: Path) -> Path:
    """Return the questions of a folder of answers: beside them, or those of the run that it lies in."""
    run = (parent / "questions" / "questions.jsonl" for parent in folder.absolute().parents)
    places = [folder / "questions.jsonl", *run]
    return next((path for path in places if path.is_file()), places[0])


def _cells(folder: Path, seed: int, sum_up: Callable[..., list[Cell]] = summarise) -> list[Cell]:
    questions = _new_to(folder, read_questions(_questions_of(folder)))
    return sum_up(questions, read_answers(folder / "answers.jsonl"), seed=seed)


def _new_to(folder: Path, questions: list[Question]) -> list[Question]:
    """Return the questions on which a mitigated model of a run is judged: held-out keys, as in the tables."""
    whole = folder.absolute()
    for place in (whole, *whole.parents):
        if place.parent.name == MITIGATED and len(place.parents) > 3:
            run, model = place.parents[3], place.parents[1].name
            record = run / "mitigation" / model / "training_set" / "held_out.json"
            if record.is_file():
                keys = read_held_out(record).keys
                return [question for question in questions if key_of(question) in keys]
    return questions


def _summary(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="refbias metamorphic summary")
    parser.add_argument("results", type=Path, help="folder with questions.jsonl and answers.jsonl")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    parser.add_argument("--output", type=Path, required=True, help="summary.json")
    options = parser.parse_args(argv)
    cells = [cell for sum_up in (summarise, pooled) for cell in _cells(options.results, options.seed, sum_up)]
    write_json(options.output, [finite(asdict(cell)) for cell in cells])
    return PASS


def _beside_a_reading(folder: Path, found: set[Path]) -> bool:
    """Tell whether answers are the open ones of a reading, which are asked for their variety."""
    above = folder.absolute().parent
    return folder.name == OPEN and (folder.parent in found or above.name in (PLAIN, FEW_SHOT))


def _subjects(folder: Path) -> dict[str, Path]:
    found = {path.parent for path in folder.rglob("answers.jsonl")} if folder.is_dir() else set()
    found -= {path for path in found if path != folder and _beside_a_reading(path, found)}
    if not found:
        raise UserError(f"{folder}: holds no answers.jsonl, but for open questions: give a folder of results")
    return {str(path.relative_to(folder)) if path != folder else folder.name: path for path in sorted(found)}


def _gate(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="refbias metamorphic gate")
    parser.add_argument(
        "results",
        type=Path,
        help="folder that holds questions.jsonl and answers.jsonl, at any depth; open/ of a reading is left out",
    )
    parser.add_argument("--min-resiliency", type=float, required=True, help="per cent")
    parser.add_argument("--per-category", action="store_true", help="check every relation in every category too")
    parser.add_argument("--lower-bound", action="store_true", help="compare the lower bound, not the value")
    parser.add_argument("--baseline", type=Path, help="gate.json of an earlier run")
    parser.add_argument("--max-drop", type=float, default=5.0, help="points below the baseline that are allowed")
    parser.add_argument("--min-answers", type=int, default=10, help="usable answers that a check needs")
    parser.add_argument("--max-unusable", type=float, default=0.3, help="largest share of unusable answers")
    parser.add_argument("--output", type=Path, help="folder for gate.json, gate.xml (JUnit) and gate.md")
    parser.add_argument("--history", type=Path, help="JSONL that a dated row is added to")
    options = parser.parse_args(argv)
    names = ("min_resiliency", "per_category", "lower_bound", "max_drop", "min_answers", "max_unusable")
    criteria = Criteria(**{name: getattr(options, name) for name in names})
    baseline = read_baseline(options.baseline) if options.baseline else None
    cells = {subject: _cells(folder, seed=0) for subject, folder in _subjects(options.results).items()}
    checks = [check for subject, own in cells.items() for check in evaluate(subject, own, criteria, baseline)]
    if baseline is not None:
        check_baseline(checks, baseline, options.baseline)
    apart = not_compared(checks, cells, baseline) if baseline is not None else []
    outcome, text = as_json(checks, criteria, apart), markdown(checks, apart)
    if options.output:
        write_json(options.output / "gate.json", outcome)
        write_text(options.output / "gate.xml", junit(checks, apart))
        write_text(options.output / "gate.md", text)
    if options.history:
        append_history(options.history, outcome, datetime.datetime.now(datetime.UTC))
    print(text, end="")
    # last: what was found is on record before it is refused
    check_complete(apart, options.baseline)
    return exit_code(checks, apart)


def _mitigation_set(argv: list[str]) -> int:
    from refbias.cli import metamorphic_mitigation

    return metamorphic_mitigation.main(argv)


def _pictures(name: str) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        # the other commands need no matplotlib
        from refbias.cli import metamorphic_pictures

        command: Callable[[list[str]], int] = getattr(metamorphic_pictures, name)
        return command(argv)

    return run


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "questions": _questions,
    "label": _label,
    "validate": _validate,
    "summary": _summary,
    "gate": _gate,
    "mitigation-set": _mitigation_set,
    "tables": _pictures("make_tables"),
    "figures": _pictures("make_figures"),
    "report": _pictures("make_report"),
}


# by name, and imported when asked for: what a stage's results depend on is the closure of its own module
_MODULES = {
    "sample": "refbias.cli.metamorphic_sample",
    "ask": "refbias.cli.metamorphic_ask",
    "evaluate": "refbias.cli.metamorphic_evaluate",
    "judge": "refbias.cli.metamorphic_judge",
    "adaptive": "refbias.cli.metamorphic_adaptive",
}


def main(argv: list[str]) -> int:
    """Run a sub-command; the gate's exit code is 0 passed, 1 failed, 2 refused, 3 undefined."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: refbias metamorphic {{{','.join((*_COMMANDS, *_MODULES))}}} [options]\n\n{__doc__}")
        raise SystemExit(PASS)
    known = (*_COMMANDS, *_MODULES)
    if not argv or argv[0] not in known:
        named = f"unknown command {argv[0]!r}" if argv else "no command"
        raise UserError(f"metamorphic: {named}: name one of {', '.join(known)}")
    if argv[0] in _MODULES:
        return int(importlib.import_module(_MODULES[argv[0]]).main(argv[1:]) or PASS)
    return _COMMANDS[argv[0]](argv[1:])
