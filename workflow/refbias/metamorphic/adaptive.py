"""Spend a budget of questions on the relations that reveal most: rounds of asking and choosing.

The sources are asked first. A mutant reveals something if the model picks a group where it picked none in the source,
or picks the other group; the next round goes to the arms (relations, or relation x category) by Thompson sampling
(`refbias.metamorphic.sampling.next_batch`). No share that comes of it is an estimate, neither of an arm nor over all:
an arm that began badly by chance is asked no more and keeps its low share, so shares within an arm lie too low.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.metamorphic.answers import Answer, picked
from refbias.metamorphic.questions import SOURCE, Question
from refbias.metamorphic.sampling import first_sample, next_batch

Ask = Callable[[Sequence[Question]], Sequence[Answer]]
Keep = Callable[[dict[str, Answer]], None]


RECORD = "asked_adaptively.json"
"""File beside the answers that says what they are answers of."""


def hash_of(value: Any) -> str:
    """Return the SHA-256 of JSON values, such as the rows of all questions that may be asked."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _named(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 40 else f"{text[:16]}..."


def check_record(path: Path, record: Mapping[str, Any]) -> None:
    """Refuse earlier answers that were not asked for in the same way.

    Parameters
    ----------
    path
        `RECORD` of the earlier start.
    record
        JSON values of this one; a mapping within it counts entry by entry.

    Raises
    ------
    UserError
        Naming the first thing that differs, or the file if it is absent or no record.
    """
    if not path.is_file():
        raise UserError(f"{path}: missing, so nothing tells whose answers lie beside it: use another --output")
    earlier = read_json(path)
    if not isinstance(earlier, dict):
        raise UserError(f"{path}: not a record of what was asked: use another --output")
    for name, value in json.loads(json.dumps(record)).items():
        before = earlier.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            inner = [key for key in {**value, **before} if value.get(key) != before.get(key)]
            name, value, before = (inner[0], value.get(inner[0]), before.get(inner[0])) if inner else (name, 0, 0)
        if value != before:
            told = f" ({_named(before)}, now {_named(value)})"
            raise UserError(f"{path}: the earlier answers are of another {name}{told}: use another --output")


@dataclass(frozen=True)
class Arm:
    """What an arm has revealed: usable answers, and how many of them reveal something.

    `share` is that of what was asked, no estimate: what was asked depends on it.
    """

    name: str
    asked: int
    usable: int
    revealed: int
    share: float | None


def reveals(source: Question, before: Answer, mutant: Question, after: Answer) -> bool | None:
    """Tell whether a mutant's answer reveals what its source's did not; None where one of the two is unusable."""
    if before.biased is None or after.biased is None:
        return None
    return after.biased and picked(mutant, after) != picked(source, before)


def outcomes(questions: Sequence[Question], answers: dict[str, Answer]) -> dict[str, bool | None]:
    """Return id of every answered mutant -> what it revealed."""
    by_id = {question.id: question for question in questions}
    return {
        question.id: reveals(by_id[question.source_id], answers[question.source_id], question, answers[question.id])
        for question in questions
        if question.relation != SOURCE and question.id in answers
    }


def explore(
    questions: Sequence[Question],
    ask: Ask,
    *,
    budget: int,
    first: int,
    batch: int,
    seed: int,
    arm: Callable[[Question], str],
    answers: dict[str, Answer] | None = None,
    keep: Keep = lambda answers: None,
) -> dict[str, Answer]:
    """Ask all sources, a first sample of mutants, then round after round what promises most.

    Parameters
    ----------
    questions
        Sources and mutants that may be asked.
    ask
        Questions -> labelled answers, in order.
    budget
        Mutants at most.
    first
        Mutants of each arm in the first sample.
    batch
        Mutants a round.
    seed
        With the answers it fixes every choice.
    arm
        What competes.
    answers
        Of an earlier start: they are not asked again.
    keep
        Called with all answers after every round.

    Returns
    -------
    dict of str to Answer
        By id, of every question asked.
    """
    found = dict(answers or {})
    mutants = [question for question in questions if question.relation != SOURCE]

    def put(chosen: Sequence[Question]) -> None:
        missing = [question for question in chosen if question.id not in found]
        if missing:
            found.update((answer.id, answer) for answer in ask(missing))
            keep(found)

    put([question for question in questions if question.relation == SOURCE])
    put(first_sample(mutants, first, seed, arm)[:budget])
    while True:
        known = outcomes(questions, found)
        left = budget - len(known)
        chosen = next_batch(mutants, known, min(batch, left), seed, arm) if left > 0 else []
        if not chosen:
            return found
        put(chosen)


def account(questions: Sequence[Question], answers: dict[str, Answer], arm: Callable[[Question], str]) -> list[Arm]:
    """Return what every arm has revealed, the most revealing first."""
    by_id = {question.id: question for question in questions}
    seen: dict[str, list[bool | None]] = {}
    for name, outcome in outcomes(questions, answers).items():
        seen.setdefault(arm(by_id[name]), []).append(outcome)
    arms = []
    for name, values in seen.items():
        usable = [value for value in values if value is not None]
        n, k = len(usable), sum(usable)
        arms.append(Arm(name, len(values), n, k, k / n if n else None))
    return sorted(arms, key=lambda one: (-(one.share if one.share is not None else -1.0), one.name))
