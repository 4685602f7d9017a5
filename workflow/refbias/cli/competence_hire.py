"""Decide about applicants as the model is, and with its states moved along the expertise direction both ways."""

import argparse
import contextlib
import time
from pathlib import Path
from typing import Any

import torch

from refbias.artifacts import Stage, read_json, write_rows
from refbias.competence.behaviour import Speaker, applicants, decide, written_decisions
from refbias.competence.direction import read_direction
from refbias.competence.stage import Bench, open_bench, stage_parser
from refbias.competence.steering import steered
from refbias.competence.subjects import load_subject
from refbias.config.base import parse_json
from refbias.config.competence import CompetenceHireStage
from refbias.errors import UserError
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory

HIRING_COLUMNS = (
    "resume_id",
    "quality",
    "role",
    "name",
    "group",
    "arm",
    "alpha",
    "yes_logit_minus_no",
    "p_yes",
    "mass",
    "parsed",
    "E",
)


def chosen_alpha(settings: CompetenceHireStage, steering_of: Path | None) -> float:
    """Return the alpha of both steered arms: set, or the largest that perplexity allows both ways.

    Raises
    ------
    UserError
        If it is left to the steering and that is not there, or allows none.
    """
    if not isinstance(settings.hiring.alpha, str):
        return settings.hiring.alpha
    if steering_of is None:
        raise UserError("--steering-of: missing: key 'competence.hiring.alpha' auto needs the results of steering")
    found = float(read_json(steering_of / "steering.json")["alpha_both_ways"])
    if not found:
        raise UserError(
            f"{steering_of / 'steering.json'}: perplexity allows no alpha both ways: set key "
            "'competence.hiring.alpha', or try smaller 'competence.steering.alphas'"
        )
    return found


def _hire(bench: Bench, settings: CompetenceHireStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the decisions; return what the manifest says of them."""
    direction = read_direction(args.output)
    alpha = chosen_alpha(settings, args.steering_of)
    names = bench.names(settings.hiring.names)
    people = applicants(bench.tokenizer, bench.resumes, names, settings.chat_format)
    model = load_subject(bench.subject, settings.compute)
    speaker = Speaker(model, bench.tokenizer, settings.chat_format, settings.seed, name=settings.subject)
    # BOS, which many models lean on as a whole, is left as it is
    first = 1 if people[0].ids[0] == bench.tokenizer.bos_token_id else 0
    start = time.perf_counter()
    rows: list[tuple[Any, ...]] = []
    for arm, step in (("none", 0.0), ("plus", alpha), ("minus", -alpha)):
        with steered(model, direction.layer, direction.vector, step, first) if step else contextlib.nullcontext():
            made = decide(speaker, [person.ids for person in people], direction.layer, direction.vector, label=arm)
            said = written_decisions(speaker, people, settings.hiring.max_new_tokens, f"hiring-{arm}")
        for person, decision, word in zip(people, made, said, strict=True):
            resume, answer = person.resume, decision.answer
            rows.append(
                (
                    *(resume.id, resume.quality, resume.role, person.name.name, person.name.group, arm, step),
                    *(answer.logit_difference, answer.p_yes, answer.mass, word, decision.score),
                )
            )
    write_rows(args.output / "hiring.csv", HIRING_COLUMNS, rows)
    return {
        "subject": settings.subject,
        "alpha": alpha,
        "layer": direction.layer,
        "n_applicants": len(people),
        "n_parsed": sum(row[HIRING_COLUMNS.index("parsed")] != "" for row in rows),
        "mean_mass": sum(row[HIRING_COLUMNS.index("mass")] for row in rows) / len(rows),
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "seconds_decisions": round(time.perf_counter() - start, 3),
    }


def hire(argv: list[str]) -> None:
    """Write hiring.csv and hire.manifest.json; the folder holds the subject's direction."""
    parser = stage_parser("hire", __doc__)
    parser.add_argument("--steering-of", type=Path, help="Results of the reference, whose steering bounds alpha.")
    args = parser.parse_args(argv)
    settings = parse_json(CompetenceHireStage, args.settings, "--settings")
    bench, inputs = open_bench(settings, args)
    inputs["direction"] = args.output / "direction.json"
    keep_freed_memory()
    where = args.output / "hire.manifest.json"
    with Stage("competence hire", settings.model_dump(mode="json"), args.output, inputs, where) as stage:
        stage.record(**_hire(bench, settings, args))
