"""Rows of ``answers.jsonl``, and what they say together with their questions."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refbias.artifacts import read_jsonl, write_jsonl
from refbias.errors import UserError
from refbias.metamorphic.data import LABELS, Material
from refbias.metamorphic.labeller import BIASED, UNUSABLE, Verdict, asked_of, label_answer
from refbias.metamorphic.questions import SOURCE, Question
from refbias.metamorphic.statistics import (
    Pairing,
    Resiliency,
    TableTest,
    benjamini_hochberg,
    holm,
    pairing,
    resiliency,
    two_by_two,
)

ALL = "all"


@dataclass(frozen=True)
class Answer:
    """One answer: as written, as read, its label, the rule that gave it; `biased` is None where unusable."""

    id: str
    raw: str
    answer: str
    label: str
    rule: str
    biased: bool | None


def finite(value: Any) -> Any:
    """Return JSON values with null for NaN."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def answer_row(identity: str, raw: str, verdict: Verdict) -> Answer:
    """Return the row of a labelled answer."""
    return Answer(identity, raw, verdict.answer, verdict.label, verdict.rule, verdict.biased)


def label_all(questions: Sequence[Question], raw: Mapping[str, str], material: Material) -> list[Answer]:
    """Label the raw answers by rules, in the order of the questions; a question without one is a `UserError`."""
    missing = [question.id for question in questions if question.id not in raw]
    if missing:
        raise UserError(f"{len(missing)} questions have no answer, the first is {missing[0]}: generate them")
    return [
        answer_row(question.id, raw[question.id], label_answer(raw[question.id], asked_of(question, material)))
        for question in questions
    ]


def write_answers(path: Path | str, answers: Iterable[Answer]) -> None:
    """Write one JSON row an answer, atomically."""
    write_jsonl(path, (asdict(answer) for answer in answers))


def read_answers(path: Path | str) -> dict[str, Answer]:
    """Read ``answers.jsonl`` by id.

    Raises
    ------
    UserError
        For a broken row, an unknown label, an id that stands twice, or a `biased` that contradicts the label.
    """
    found: dict[str, Answer] = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path}: row {number}"
        if not all(isinstance(row.get(name), str) for name in ("id", "raw", "answer", "label", "rule")):
            raise UserError(f"{where}: needs the texts id, raw, answer, label and rule: label the answers again")
        if row["label"] not in LABELS:
            raise UserError(f"{where}: unknown label {row['label']!r}: one of {', '.join(LABELS)}")
        if row["id"] in found:
            raise UserError(f"{where}: id {row['id']} stands twice: label the answers again")
        expected = None if row["label"] in UNUSABLE else row["label"] in BIASED
        if row.get("biased") is not expected:
            raise UserError(f"{where}: biased is {row.get('biased')!r} but the label {row['label']}: label them again")
        found[row["id"]] = Answer(row["id"], row["raw"], row["answer"], row["label"], row["rule"], expected)
    return found


def picked(question: Question, answer: Answer) -> str:
    """Return the id of the group that an answer picks; empty where it picks none."""
    return {"PICK_A": question.group_a, "PICK_B": question.group_b}.get(answer.label, "")


@dataclass(frozen=True)
class Cell:
    """A relation in a category (or ``all``): resiliency, and beside its sources the pairing and the tests.

    The adjusted p-values are over the cells of a scope: all categories together, or all relation x category cells.
    `pairs`, `test` and the p-values are None for the source questions themselves, and for the relation ``all``: source
    questions and all their rewordings together.
    """

    relation: str
    category: str
    resiliency: Resiliency
    pairs: Pairing | None = None
    test: TableTest | None = None
    mcnemar_holm: float | None = None
    mcnemar_bh: float | None = None
    chi2_holm: float | None = None


def _cell(
    rows: Sequence[tuple[Question, Answer]],
    sources: Mapping[str, tuple[Question, Answer]],
    category: str,
    seed: int,
    n_resamples: int,
) -> Cell:
    relation = rows[0][0].relation
    score = resiliency([a.biased for _, a in rows], [q.source_id for q, _ in rows], seed=seed, n_resamples=n_resamples)
    if relation == SOURCE:
        return Cell(relation, category, score)
    beside = [sources[question.source_id] for question, _ in rows]
    pairs = pairing(
        [answer.biased for _, answer in beside],
        [answer.biased for _, answer in rows],
        [picked(*row) for row in beside],
        [picked(*row) for row in rows],
    )
    return Cell(relation, category, score, pairs, two_by_two(pairs.table))


def _adjusted(cells: Sequence[Cell]) -> list[Cell]:
    tested = [cell for cell in cells if cell.pairs is not None and cell.test is not None]
    exact = np.array([cell.pairs.mcnemar_p for cell in tested if cell.pairs])
    table = np.array([cell.test.apt_p for cell in tested if cell.test])
    values = {
        id(cell): (float(a), float(b), float(c))
        for cell, a, b, c in zip(tested, holm(exact), benjamini_hochberg(exact), holm(table), strict=True)
    }
    return [
        Cell(cell.relation, cell.category, cell.resiliency, cell.pairs, cell.test, *values[id(cell)])
        if id(cell) in values
        else cell
        for cell in cells
    ]


def summarise(
    questions: Sequence[Question], answers: Mapping[str, Answer], *, seed: int = 0, n_resamples: int = 2000
) -> list[Cell]:
    """Return every relation over all categories, then every relation x category.

    Parameters
    ----------
    questions
        Sources and mutants.
    answers
        By question id; all must be there.
    seed, n_resamples
        Of the bootstrap.

    Raises
    ------
    UserError
        If a question has no answer.
    """
    missing = [question.id for question in questions if question.id not in answers]
    if missing:
        raise UserError(f"{len(missing)} of {len(questions)} questions have no answer, the first is {missing[0]}")
    rows = [(question, answers[question.id]) for question in questions]
    sources = {question.id: (question, answer) for question, answer in rows if question.relation == SOURCE}
    relations = dict.fromkeys(question.relation for question in questions)
    categories = dict.fromkeys(question.category for question in questions)
    whole, parts = [], []
    for relation in relations:
        own = [row for row in rows if row[0].relation == relation]
        whole.append(_cell(own, sources, ALL, seed, n_resamples))
        for category in categories:
            if of := [row for row in own if row[0].category == category]:
                parts.append(_cell(of, sources, category, seed, n_resamples))
    return [*_adjusted(whole), *_adjusted(parts)]


def pooled(
    questions: Sequence[Question], answers: Mapping[str, Answer], *, seed: int = 0, n_resamples: int = 2000
) -> list[Cell]:
    """Return source questions and rewordings together (relation ``all``), over all categories and then in each.

    Of their intervals that over source questions is the apt one: the wordings of a question are no further questions.

    Parameters
    ----------
    questions
        Sources and mutants; all must have an answer.
    answers
        By question id.
    seed, n_resamples
        Of the bootstrap.
    """
    found = []
    for category in (ALL, *dict.fromkeys(question.category for question in questions)):
        own = [question for question in questions if category in (ALL, question.category)]
        biased, sources = [answers[question.id].biased for question in own], [question.source_id for question in own]
        found.append(Cell(ALL, category, resiliency(biased, sources, seed=seed, n_resamples=n_resamples)))
    return found
