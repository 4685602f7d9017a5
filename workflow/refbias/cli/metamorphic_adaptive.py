"""Put questions to one model where they reveal most, within a budget; a stopped run goes on where it was."""

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refbias.artifacts import write_json
from refbias.cli.metamorphic_ask import local_model
from refbias.config.base import parse
from refbias.config.metamorphic import AskStage
from refbias.config.root import Config, from_yaml
from refbias.config.slices import metamorphic_ask_slice
from refbias.errors import UserError
from refbias.metamorphic.adaptive import RECORD, Ask, account, check_record, explore, hash_of
from refbias.metamorphic.answers import Answer, answer_row, label_all, read_answers, write_answers
from refbias.metamorphic.asking import Local, Row, asked_openly, chooser, requests_of, writer
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import Material
from refbias.metamorphic.forced_choice import read_choice
from refbias.metamorphic.judging import open_endpoint
from refbias.metamorphic.questions import Question, write_questions
from refbias.metamorphic.relations import flips, parse_chains, with_mutants
from refbias.metamorphic.sampling import by_cell, by_relation, sample_sources


def _stage(config: Config, model: str) -> AskStage:
    if model not in config.metamorphic_models() and model not in config.metamorphic.endpoints:
        known = ", ".join([*config.metamorphic_models(), *config.metamorphic.endpoints])
        raise UserError(f"--model {model!r}: not tested in this run: one of {known}")
    stage = parse(AskStage, json.loads(metamorphic_ask_slice(config, model, "plain")), "metamorphic adaptive")
    whole = config.metamorphic.endpoints.get(model)
    # the slice leaves patience and budget out
    return stage.model_copy(update={"endpoint": whole}) if whole else stage


@contextlib.contextmanager
def _opened(
    stage: AskStage, model: Local | None, min_margin: float, material: Material, all_of: Sequence[Question]
) -> Iterator[Ask]:
    """Load the model once; yields a function from questions to labelled answers."""

    def labelled(questions: Sequence[Question], rows: Sequence[Row]) -> list[Answer]:
        if stage.reading == "generate":
            return label_all(questions, {row["id"]: row["raw"] for row in rows}, material)
        return [answer_row(row["id"], row["raw"], read_choice(row, min_margin)) for row in rows]

    if model is None:
        if stage.endpoint is None:
            raise ValueError("neither a model nor an interface")
        service = open_endpoint(stage.endpoint, stage.max_new_tokens, stage.temperature, stage.seed)

        def through(questions: Sequence[Question]) -> list[Answer]:
            replies = service.chat([item.turns for item in asked_openly(questions)])
            rows = [{"id": q.id, "raw": reply.text} for q, reply in zip(questions, replies, strict=True)]
            return labelled(questions, rows)

        yield through
        return
    if stage.reading == "forced_choice":
        with chooser(material, (), stage, model) as choose:
            yield lambda questions: labelled(questions, choose(questions))
        return
    longest = max(len(request.ids) for request in requests_of(asked_openly(all_of), stage, model))
    with writer(longest, stage, model) as write:
        yield lambda questions: labelled(questions, write(requests_of(asked_openly(questions), stage, model)))


def _questions(config: Config, material: Material) -> list[Question]:
    chosen = config.metamorphic
    chains = parse_chains(chosen.relations)
    sources = sample_sources(material, chosen.per_category, config.seed, flip=flips(chains), poles=list(chosen.poles))
    return with_mutants(sources, chains, config.seed)


def _record(config: Config, name: str, model: Local | None, questions: Sequence[Question]) -> dict[str, Any]:
    """Return what the answers depend on, as JSON values."""
    weights = [] if model is None else [hash_of(one) for one in model.identity]
    settings = json.loads(metamorphic_ask_slice(config, name, "plain"))
    chosen = settings["reading"] == "forced_choice"
    return {
        "model": name,
        "reference": weights[0] if weights else None,
        "checkpoint": weights[1] if len(weights) > 1 else None,
        "seed": config.seed,
        "settings": settings,
        "min_margin": config.metamorphic.forced_choice.min_margin if chosen else None,
        "questions": hash_of([asdict(question) for question in questions]),
    }


def _earlier(folder: Path, questions: Sequence[Question], record: dict[str, Any]) -> dict[str, Answer]:
    """Return the answers of an earlier start, if there are any and they are of what is asked now."""
    path = folder / "answers.jsonl"
    if not path.is_file():
        return {}
    check_record(folder / RECORD, record)
    found = read_answers(path)
    known = {question.id for question in questions}
    if strangers := [name for name in found if name not in known]:
        raise UserError(f"{path}: answer {strangers[0]} belongs to other questions: use another --output")
    return found


def main(argv: list[str]) -> int:
    """Write ``questions.jsonl`` (those asked), ``answers.jsonl``, what they are answers of, and ``adaptive.json``."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic adaptive", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="configuration with a section metamorphic")
    parser.add_argument("--model", required=True, help="slug of a model or of an interface of it")
    parser.add_argument("--reference", type=Path, help="folder of the reference model; not for an interface")
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint or adapter; absent: the reference")
    parser.add_argument("--budget", type=int, required=True, help="mutants at most")
    parser.add_argument("--first", type=int, default=10, help="mutants of each arm in the first sample")
    parser.add_argument("--batch", type=int, default=50, help="mutants of a round")
    parser.add_argument("--by", choices=("relation", "cell"), default="relation", help="cell: relation and category")
    parser.add_argument("--output", type=Path, required=True, help="folder")
    args = parser.parse_args(argv)
    for name in ("budget", "first", "batch"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be positive")
    config = from_yaml(args.config)
    args.name, args.work = args.model, args.output / "work"
    stage, chosen = _stage(config, args.model), config.metamorphic
    files = (chosen.groups_file, chosen.properties_file)
    material = read_material(*(Path(path) if path else None for path in files))
    questions = _questions(config, material)
    arm = by_cell if args.by == "cell" else by_relation
    model = None if stage.endpoint is not None else local_model(args)
    record = _record(config, args.model, model, questions)
    earlier = _earlier(args.output, questions, record)
    # before the first answer: a run that is killed leaves none without it
    write_json(args.output / RECORD, record)

    def keep(answers: dict[str, Answer]) -> None:
        asked = [question for question in questions if question.id in answers]
        write_questions(args.output / "questions.jsonl", asked)
        write_answers(args.output / "answers.jsonl", [answers[question.id] for question in asked])

    with _opened(stage, model, chosen.forced_choice.min_margin, material, questions) as ask:
        answers = explore(
            questions,
            ask,
            budget=args.budget,
            first=args.first,
            batch=args.batch,
            seed=config.seed,
            arm=arm,
            answers=earlier,
            keep=keep,
        )
    arms = account(questions, answers, arm)
    write_json(
        args.output / "adaptive.json", {"by": args.by, "seed": config.seed, "arms": [asdict(one) for one in arms]}
    )
    for one in arms:
        print(f"{one.name}: asked {one.asked}, revealed {one.revealed} of {one.usable} usable")
    print("what was asked depends on what was revealed: none of these is an estimate of a share")
    return 0
