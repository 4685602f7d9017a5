"""Stage `metamorphic evaluate`: label one model's answers, by rules and where wanted by a judge, and sum them up."""

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refbias.artifacts import Stage, read_json, read_jsonl, sha256_file, write_json
from refbias.config.base import parse_json
from refbias.config.metamorphic import EndpointSettings, JudgeSettings, LabelStage
from refbias.errors import UserError
from refbias.metamorphic.answers import Answer, answer_row, finite, label_all, pooled, summarise, write_answers
from refbias.metamorphic.biasasker import read_material
from refbias.metamorphic.data import Material
from refbias.metamorphic.endpoint import Endpoint
from refbias.metamorphic.forced_choice import read_choice
from refbias.metamorphic.judge import check_judge
from refbias.metamorphic.judging import judged, open_judge
from refbias.metamorphic.labeller import UNUSABLE
from refbias.metamorphic.questions import Question, first_sources, read_questions, write_questions


def refuse_same(settings: JudgeSettings, asked: dict[str, Any]) -> None:
    """Refuse a judge that is the model under test, by its service and name or by its weights."""
    tested = asked.get("endpoint")
    if settings.endpoint is not None and tested:
        mine = settings.endpoint.outcome()
        check_judge(f"{mine['model']} at {mine['base_url']}", f"{tested['model']} at {tested['base_url']}")
    manifest = Path(settings.directory or "") / "manifest.json"
    if settings.directory is not None and manifest.is_file():
        inputs = asked.get("inputs", {})
        # a checkpoint is not its reference: only the weights that answered count
        answered = inputs.get("checkpoint") or inputs.get("reference")
        if answered and answered["sha256"] == sha256_file(manifest):
            check_judge(settings.directory, settings.directory)


def _labelled(questions: list[Question], path: Path, settings: LabelStage, material: Material) -> list[Answer]:
    rows = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        if not isinstance(row.get("id"), str) or not isinstance(row.get("raw"), str):
            raise UserError(f"{path}: row {number} needs the texts id and raw: ask again")
        rows[row["id"]] = row
    if settings.reading == "generate":
        return label_all(questions, {name: row["raw"] for name, row in rows.items()}, material)
    missing = [question.id for question in questions if question.id not in rows]
    if missing:
        raise UserError(f"{len(missing)} questions have no answer, the first is {missing[0]}: ask again")
    return [
        answer_row(
            question.id,
            rows[question.id]["raw"],
            read_choice(rows[question.id], settings.min_margin, f"{path}: question {question.id}"),
        )
        for question in questions
    ]


def main(argv: list[str]) -> int:
    """Write ``answers.jsonl``, ``summary.json`` and the manifest."""
    parser = argparse.ArgumentParser(prog="refbias metamorphic evaluate", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--questions", required=True, type=Path, help="questions.jsonl")
    parser.add_argument("--judge-endpoint", help="JSON of the judge's interface with patience and budget.")
    parser.add_argument("--vllm-python", help="Interpreter that has vLLM, for a local judge with that backend.")
    parser.add_argument("--answers", required=True, type=Path, help="Folder with raw.jsonl and asked.json; written to.")
    args = parser.parse_args(argv)
    settings = parse_json(LabelStage, args.settings, "--settings")
    judge = settings.judge
    if args.judge_endpoint:
        endpoint = parse_json(EndpointSettings, args.judge_endpoint, "--judge-endpoint")
        judge = judge.model_copy(update={"endpoint": endpoint})
    raw, asked = args.answers / "raw.jsonl", args.answers / "asked.json"
    inputs = {"questions": args.questions, "raw": raw, "asked": asked}
    with Stage("metamorphic_evaluate", settings.model_dump(mode="json"), args.answers, inputs) as stage:
        refuse_same(judge, read_json(asked))
        files = (settings.groups_file, settings.properties_file)
        material = read_material(*(Path(path) if path else None for path in files))
        questions = read_questions(args.questions)
        if settings.first is not None:
            # a part of the run's questions: they lie beside the answers, for whoever reads both
            questions = list(first_sources(questions, settings.first))
            write_questions(args.answers / "questions.jsonl", questions)
        answers = _labelled(questions, raw, settings, material)
        generation = settings.generation
        if generation is not None and args.vllm_python:
            generation = generation.model_copy(update={"interpreter": args.vllm_python})
        backend = open_judge(judge, generation, settings.compute)
        if backend is not None:
            by_id = {answer.id: answer for answer in answers}
            answers = judged(questions, by_id, material, backend, judge.which)
        write_answers(args.answers / "answers.jsonl", answers)
        by_question = {answer.id: answer for answer in answers}
        cells = [
            cell
            for sum_up in (summarise, pooled)
            for cell in sum_up(questions, by_question, seed=settings.seed, n_resamples=settings.n_resamples)
        ]
        write_json(args.answers / "summary.json", [finite(asdict(cell)) for cell in cells])
        labels = Counter(answer.label for answer in answers)
        stage.record(
            labels=dict(sorted(labels.items())),
            rules=dict(sorted(Counter(answer.rule for answer in answers).items())),
            unusable_share=round(sum(labels[name] for name in UNUSABLE) / len(answers), 4),
            **({"judge": backend.facts()} if isinstance(backend, Endpoint) else {}),
        )
    return 0
