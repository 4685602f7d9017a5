"""Answer the questions in every context, and measure the reading level of the answers."""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch

from refbias.artifacts import Stage, write_jsonl, write_rows
from refbias.benchmarks.base import Sampling
from refbias.competence.behaviour import BEHAVIOUR_COLUMNS, Speaker, behaviour_rows, cell_requests
from refbias.competence.prompts import Cell, cells, place
from refbias.competence.reading import load_easy_words
from refbias.competence.stage import Bench, open_bench, stage_parser
from refbias.competence.subjects import load_subject
from refbias.config.base import parse_json
from refbias.config.competence import CompetenceAnswerStage
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory


def _asked(bench: Bench, settings: CompetenceAnswerStage) -> Iterator[Cell]:
    """Yield the cells that are answered: all, or those that a contrast needs and the others with the occupation."""
    questions = bench.questions.first(None, settings.answer.questions).questions
    needed = {side for contrast in bench.contrasts for side in contrast.cells}
    for cell in cells(bench.attributes, questions):
        if cell.with_occupation or settings.answer.without_occupation or (cell.attribute.id, False) in needed:
            yield cell


def _answer(bench: Bench, settings: CompetenceAnswerStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the answers' grades and, apart, their text; return what the manifest says of them."""
    easy = load_easy_words(bench.data.easy_words_file)
    asked = list(_asked(bench, settings))
    tokenizer, chosen = bench.tokenizer, settings.answer
    ids = [place(tokenizer, cell.question.text, cell.context, settings.chat_format).ids for cell in asked]
    model = load_subject(bench.subject, settings.compute)
    speaker = Speaker(model, tokenizer, settings.chat_format, settings.seed, chosen.batch_size, settings.subject)
    start = time.perf_counter()
    sampling = Sampling(chosen.samples, chosen.temperature, chosen.top_p, chosen.max_new_tokens)
    outputs = speaker.answer(cell_requests(asked, ids), sampling, "competence")
    seconds = time.perf_counter() - start
    rows = list(behaviour_rows(asked, outputs, easy))
    write_rows(args.output / "behaviour.csv", BEHAVIOUR_COLUMNS, rows)
    write_jsonl(
        args.output / "raw.jsonl",
        (
            {"prompt": output.prompt_id, "sample": output.sample, "text": output.text, "finish": output.finish}
            for output in outputs
        ),
    )
    ungraded = sum(row[BEHAVIOUR_COLUMNS.index("reading_level")] == "" for row in rows)
    return {
        "subject": settings.subject,
        "n_cells": len(asked),
        "n_answers": len(outputs),
        "n_too_short_to_grade": ungraded,
        "n_new_tokens": sum(output.n_tokens for output in outputs),
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "seconds_answers": round(seconds, 3),
    }


def answer(argv: list[str]) -> None:
    """Write behaviour.csv, raw.jsonl (the text) and answer.manifest.json."""
    args = stage_parser("answer", __doc__).parse_args(argv)
    settings = parse_json(CompetenceAnswerStage, args.settings, "--settings")
    bench, inputs = open_bench(settings, args)
    keep_freed_memory()
    where = args.output / "answer.manifest.json"
    with Stage("competence answer", settings.model_dump(mode="json"), args.output, inputs, where) as stage:
        stage.record(**_answer(bench, settings, args))
