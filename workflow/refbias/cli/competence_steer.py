"""Steer a subject along its expertise direction and along controls, and take the direction out: what follows.

The grid of alphas ends where perplexity on neutral sentences passes a limit. Controls are as long as the direction:
some point anywhere, and one parts two placebo contexts.
"""

import argparse
import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from refbias.artifacts import Stage, write_json, write_rows
from refbias.benchmarks.base import Sampling
from refbias.competence.behaviour import (
    Applicant,
    Speaker,
    applicants,
    cell_requests,
    decide,
    grade,
    mean_or_empty,
)
from refbias.competence.direction import Direction, gaussian, read_direction, unit
from refbias.competence.prompts import Cell, place, up_to_place
from refbias.competence.reading import load_easy_words
from refbias.competence.records import BASELINE, Contrast, Question
from refbias.competence.scores import expertise
from refbias.competence.stage import Bench, open_bench, stage_parser
from refbias.competence.steering import ablated, bounded_alphas, perplexity, steered
from refbias.competence.subjects import load_subject, whole_states
from refbias.config.base import parse_json
from refbias.config.competence import CompetenceSteerStage
from refbias.embed import Tokenised
from refbias.errors import UserError
from refbias.models import resolve_device
from refbias.models.heap import keep_freed_memory
from refbias.stimuli.table import nearest

STEERING_COLUMNS = (
    "alpha",
    "direction",
    "number",
    "fkgl",
    "dcrs",
    "reading_level",
    "yes_logit",
    "perplexity",
    "n",
)
MITIGATION_COLUMNS = (
    "arm",
    "perplexity",
    "reading_level",
    "yes_logit",
    "layer",
    "contrast_id",
    "family",
    "role",
    "mean_E",
    "mean_E_normalised",
)
Vector = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Trial:
    """What is measured whatever is done to the states: answers, decisions and perplexity."""

    bench: Bench
    settings: CompetenceSteerStage
    speaker: Speaker
    direction: Direction
    easy: frozenset[str]
    neutral: Tokenised
    questions: tuple[Question, ...]
    people: Sequence[Applicant]

    @property
    def first(self) -> int:
        """Position from which on states are changed: BOS, which many models lean on as a whole, is left as it is."""
        return 1 if self.people[0].ids[0] == self.bench.tokenizer.bos_token_id else 0

    def steered(self, vector: Vector, alpha: float) -> AbstractContextManager[None]:
        """Steer along a vector inside the block."""
        if not alpha:
            return contextlib.nullcontext()
        return steered(self.speaker.model, self.direction.layer, vector, alpha, self.first)

    def perplexity(self) -> float:
        """Return the perplexity on neutral sentences."""
        return perplexity(self.speaker.model, self.neutral)

    def places(self, cells: Sequence[Cell]) -> list[Any]:
        """Return the prompts of cells with the place of their context's end."""
        form = self.settings.chat_format
        return [place(self.bench.tokenizer, cell.question.text, cell.context, form) for cell in cells]

    def measure(self) -> dict[str, Any]:
        """Return means of the reading level's parts over greedy answers, and of the yes-logit over applicants."""
        baseline = next(attribute for attribute in self.bench.attributes if attribute.id == BASELINE)
        asked = [Cell(baseline, question, True) for question in self.questions]
        requests = cell_requests(asked, [placed.ids for placed in self.places(asked)])
        sampling = Sampling(1, 0.0, 1.0, self.settings.steering.max_new_tokens)
        readings = [grade(output, self.easy) for output in self.speaker.answer(requests, sampling, "steering")]
        prompts = [person.ids for person in self.people]
        made = decide(self.speaker, prompts, self.direction.layer, self.direction.vector, label="steering")
        return {
            "fkgl": mean_or_empty(reading.fkgl for reading in readings),
            "dcrs": mean_or_empty(reading.dcrs for reading in readings),
            "reading_level": mean_or_empty(reading.level for reading in readings),
            "yes_logit": mean_or_empty(decision.answer.logit_difference for decision in made),
            "n": sum(reading.level is not None for reading in readings),
        }

    def states(self, cells: Sequence[Cell], layer: int) -> npt.NDArray[np.float32]:
        """Return the states (n, d) at the end of the cells' contexts."""
        bos = self.bench.tokenizer.bos_token_id
        base = self.speaker.model.base_model
        return whole_states(base, up_to_place(self.places(cells)), [layer], pooling="last", bos=bos)[layer]

    def sides(self, contrast: Contrast, layer: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the states of both sides of a contrast, row by row about the same question."""
        known = {attribute.id: attribute for attribute in self.bench.attributes}
        first, second = (
            [Cell(known[identity], question, named) for question in self.questions]
            for identity, named in contrast.cells
        )
        both = self.states([*first, *second], layer)
        return both[: len(first)], both[len(first) :]


def open_trial(bench: Bench, settings: CompetenceSteerStage, direction: Direction) -> Trial:
    """Load the model and what it is asked."""
    chosen = settings.steering
    known = [contrast.id for contrast in bench.contrasts]
    if chosen.placebo not in known:
        raise UserError(
            f"key 'competence.steering.placebo': no contrast {chosen.placebo!r}{nearest(chosen.placebo, known)}"
        )
    model = load_subject(bench.subject, settings.compute)
    people = applicants(bench.tokenizer, bench.resumes, bench.names(1)[:1], settings.chat_format)
    return Trial(
        bench,
        settings,
        Speaker(model, bench.tokenizer, settings.chat_format, settings.seed, name=settings.subject),
        direction,
        load_easy_words(bench.data.easy_words_file),
        bench.neutral(settings.stimuli, chosen.perplexity_sentences),
        bench.questions.first(None, chosen.questions).questions,
        people,
    )


def directions(trial: Trial) -> dict[tuple[str, int], Vector]:
    """Return (kind, number) -> vector: the expertise direction and, as long as it, the controls."""
    vector, chosen = trial.direction.vector, trial.settings.steering
    norm = float(np.linalg.norm(vector))
    named = {contrast.id: contrast for contrast in trial.bench.contrasts}
    first, second = trial.sides(named[chosen.placebo], trial.direction.layer)
    placebo = unit((first.astype(np.float64) - second).mean(0), f"contrast {chosen.placebo}")
    draws = gaussian(len(vector), chosen.n_random, trial.settings.seed)
    return {
        ("expertise", 0): vector,
        **{("random", number): norm * draw for number, draw in enumerate(draws)},
        ("placebo", 0): norm * placebo,
    }


def dose_response(
    trial: Trial, perplexities: Mapping[float, float], allowed: Sequence[float], plain: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Return rows of `STEERING_COLUMNS`; what costs more than the limit has its perplexity only.

    Controls are tried where the direction itself is allowed.
    """
    limit = trial.settings.steering.perplexity_limit * perplexities[0.0]
    rows = []
    for (kind, number), vector in directions(trial).items():
        for alpha in sorted(perplexities) if kind == "expertise" else allowed:
            row: dict[str, Any] = {"alpha": alpha, "direction": kind, "number": number}
            with trial.steered(vector, alpha):
                known = kind == "expertise" or not alpha
                row["perplexity"] = perplexities[alpha] if known else trial.perplexity()
                if not alpha:
                    row |= plain
                elif row["perplexity"] <= limit:
                    row |= trial.measure()
                else:
                    row |= {**dict.fromkeys(plain, ""), "n": 0}
            rows.append(tuple(row[column] for column in STEERING_COLUMNS))
    return rows


def mitigation(trial: Trial, plain: Mapping[str, Any], plain_perplexity: float) -> list[tuple[Any, ...]]:
    """Return rows of `MITIGATION_COLUMNS`: contrasts at the last block, with and without the direction taken out.

    Where it is taken out every context has the same score by construction; what counts is what later blocks know.
    """
    direction = trial.direction
    last = max(direction.vectors)
    gap = next(fact.gap_held_out for fact in direction.facts if fact.layer == last)
    rows = []
    taken_out = ablated(trial.speaker.model, direction.layer, direction.vector, direction.centre, trial.first)
    for arm, change in (("plain", contextlib.nullcontext()), ("ablated", taken_out)):
        with change:
            cost = plain_perplexity if arm == "plain" else trial.perplexity()
            found = plain if arm == "plain" else trial.measure()
            for contrast in trial.bench.contrasts:
                first, second = (expertise(states, direction.vectors[last]) for states in trial.sides(contrast, last))
                mean = float((first - second).mean())
                row = (arm, cost, found["reading_level"], found["yes_logit"], last)
                rows.append((*row, contrast.id, contrast.family, contrast.role, mean, mean / gap))
    return rows


def both_ways(allowed: Sequence[float]) -> float:
    """Return the largest alpha whose opposite is allowed too; 0 if there is none."""
    return max((alpha for alpha in allowed if -alpha in allowed), default=0.0)


def _steer(bench: Bench, settings: CompetenceSteerStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write what steering and ablation do; return what the manifest says of it."""
    start = time.perf_counter()
    trial = open_trial(bench, settings, read_direction(args.output))

    def cost(alpha: float) -> float:
        with trial.steered(trial.direction.vector, alpha):
            return trial.perplexity()

    chosen = settings.steering
    perplexities, allowed = bounded_alphas(chosen.alphas, cost, chosen.perplexity_limit)
    bounded = time.perf_counter()
    plain = trial.measure()
    write_rows(args.output / "steering.csv", STEERING_COLUMNS, dose_response(trial, perplexities, allowed, plain))
    rows = mitigation(trial, plain, perplexities[0.0])
    write_rows(args.output / "mitigation.csv", MITIGATION_COLUMNS, rows)
    write_json(
        args.output / "steering.json",
        {
            "alpha_both_ways": both_ways(allowed),
            "allowed": allowed,
            "perplexity": {str(alpha): found for alpha, found in sorted(perplexities.items())},
            "perplexity_limit": chosen.perplexity_limit,
            "norm": float(np.linalg.norm(trial.direction.vector)),
            "layer": trial.direction.layer,
        },
    )
    return {
        "subject": settings.subject,
        "layer": trial.direction.layer,
        "allowed": allowed,
        "first_position": trial.first,
        "n_questions": len(trial.questions),
        "n_neutral_tokens": trial.neutral.n_tokens,
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "seconds_grid": round(bounded - start, 3),
        "seconds_responses": round(time.perf_counter() - bounded, 3),
    }


def steer(argv: list[str]) -> None:
    """Write steering.csv, mitigation.csv, steering.json and steer.manifest.json; the folder holds the direction."""
    args = stage_parser("steer", __doc__).parse_args(argv)
    settings = parse_json(CompetenceSteerStage, args.settings, "--settings")
    bench, inputs = open_bench(settings, args)
    inputs["direction"] = args.output / "direction.json"
    keep_freed_memory()
    where = args.output / "steer.manifest.json"
    with Stage("competence steer", settings.model_dump(mode="json"), args.output, inputs, where) as stage:
        stage.record(**_steer(bench, settings, args))
