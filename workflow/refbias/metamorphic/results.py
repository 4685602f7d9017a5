"""The answers of a run as they lie on disk: which model, which of its checkpoints, in which reading.

``questions/questions.jsonl`` holds the questions, ``answers/<model>/<subject>/<reading>/`` the answers. A subject is
``reference``, a checkpoint such as ``full-h030``, or ``mitigated``; a reading is ``plain`` or ``few_shot``. A subject
may have been asked a part of the questions. Below a reading's folder lie ``neutral/`` with the answers to neutral
questions and ``open/`` with answers in the model's own words, where the others were chosen among options.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.artifacts import read_jsonl
from refbias.errors import UserError
from refbias.metamorphic.answers import Answer, read_answers
from refbias.metamorphic.held_out import HeldOut, read_held_out
from refbias.metamorphic.questions import Question, read_questions
from refbias.metamorphic.side_effects import NeutralAnswer, read_neutral_answers

Rows = tuple[tuple[Question, Answer], ...]
_NEUTRAL = ("neutral/raw.jsonl", "neutral.jsonl")
REFERENCE, MITIGATED = "reference", "mitigated"
PLAIN, FEW_SHOT = "plain", "few_shot"
OPEN = "open"
"""Folder below a reading's: answers that serve their variety, no reading of their own."""


@dataclass(frozen=True)
class Asked:
    """What one subject answered.

    Parameters
    ----------
    model, subject, reading
        Slugs.
    rows
        The questions that were asked, with their answers, in the order of the questions.
    neutral
        Answers to neutral questions by id; None where none were asked.
    opened
        Questions that were asked openly too, where the others were read by options; None where none were.
    options
        Whether `rows` were chosen among given options, so that their words are not the model's.
    """

    model: str
    subject: str
    reading: str
    rows: Rows
    neutral: Mapping[str, NeutralAnswer] | None
    opened: Rows | None
    options: bool

    @property
    def answers(self) -> dict[str, Answer]:
        """Answers by question id."""
        return {answer.id: answer for _, answer in self.rows}

    @property
    def worded(self) -> Rows:
        """Questions whose answers are in the model's own words."""
        return (self.opened or ()) if self.options else self.rows


@dataclass(frozen=True)
class Run:
    """All subjects of a run, and by model what its mitigation held out."""

    questions: tuple[Question, ...]
    asked: tuple[Asked, ...]
    held_out: Mapping[str, HeldOut]

    @property
    def models(self) -> tuple[str, ...]:
        """Models in the order of the subjects."""
        return tuple(dict.fromkeys(one.model for one in self.asked))

    def find(self, model: str, subject: str, reading: str = PLAIN) -> Asked | None:
        """Return what a subject answered, None where it was not asked."""
        wanted = (model, subject, reading)
        return next((one for one in self.asked if (one.model, one.subject, one.reading) == wanted), None)


def _options(path: Path) -> bool:
    """Tell whether raw answers were chosen among options."""
    return path.is_file() and any("options" in row for row in read_jsonl(path)[:1])


def _joined(questions: Sequence[Question], answers: Mapping[str, Answer]) -> Rows:
    return tuple((question, answers[question.id]) for question in questions if question.id in answers)


def _asked(folder: Path, questions: Sequence[Question]) -> Asked:
    model, subject, reading = folder.parts[-3:]
    answers = read_answers(folder / "answers.jsonl")
    known = {question.id for question in questions}
    if strangers := [name for name in answers if name not in known]:
        raise UserError(
            f"{folder / 'answers.jsonl'}: answer {strangers[0]} belongs to no question of the run: ask again"
        )
    neutral = next((path for name in _NEUTRAL if (path := folder / name).is_file()), None)
    opened = folder / OPEN / "answers.jsonl"
    return Asked(
        model=model,
        subject=subject,
        reading=reading,
        rows=_joined(questions, answers),
        neutral=read_neutral_answers(neutral) if neutral else None,
        opened=_joined(questions, read_answers(opened)) if opened.is_file() else None,
        options=_options(folder / "raw.jsonl"),
    )


def read_run(folder: Path) -> Run:
    """Read the answers of a run.

    Parameters
    ----------
    folder
        ``results/<run>/metamorphic``.

    Raises
    ------
    UserError
        If there are no answers, or a file is broken.
    """
    questions = read_questions(folder / "questions" / "questions.jsonl")
    places = [path.parent for path in folder.glob("answers/*/*/*/answers.jsonl")]
    if not places:
        raise UserError(
            f"{folder}: holds no answers/<model>/<subject>/<reading>/answers.jsonl: ask the questions first"
        )
    rank = {REFERENCE: 0, MITIGATED: 2}
    places.sort(key=lambda at: (at.parts[-3], rank.get(at.parts[-2], 1), at.parts[-2], at.parts[-1] != PLAIN))
    asked = tuple(_asked(place, questions) for place in places)
    held = folder.glob("mitigation/*/training_set/held_out.json")
    return Run(tuple(questions), asked, {path.parts[-3]: read_held_out(path) for path in held})
