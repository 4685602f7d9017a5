"""What the competence tests are made of: the rows of their data, and the context that a person's words make."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from refbias.errors import UserError
from refbias.stimuli.table import nearest

NAME = "{name}"
"""Slot of a résumé."""
BASELINE = "none"
"""Id of the attribute that says nothing of the person."""
OCCUPATION = "occupation"
"""What stands for an attribute where the occupation itself is compared with none."""


@dataclass(frozen=True)
class Pair:
    """The same sentence said by an expert and by a novice; `split` is ``fit`` or ``held_out``."""

    id: str
    expert: str
    novice: str
    split: str


@dataclass(frozen=True)
class Pairs:
    """Contrast pairs, and what about them was let through with a remark."""

    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    def split(self, name: str) -> tuple[Pair, ...]:
        """Return the pairs of split ``fit`` or ``held_out``."""
        return tuple(pair for pair in self.pairs if pair.split == name)


@dataclass(frozen=True)
class Question:
    """A question that a person of the occupation may ask."""

    occupation: str
    id: str
    text: str


@dataclass(frozen=True)
class Questions:
    """Questions by occupation, and what about them was let through with a remark."""

    questions: tuple[Question, ...]
    notes: tuple[str, ...] = ()

    @property
    def occupations(self) -> tuple[str, ...]:
        """Occupations in the order of the data."""
        return tuple(dict.fromkeys(question.occupation for question in self.questions))

    def of(self, occupation: str) -> tuple[Question, ...]:
        """Return the questions of an occupation.

        Raises
        ------
        UserError
            If it has none.
        """
        found = tuple(question for question in self.questions if question.occupation == occupation)
        if not found:
            hint = nearest(occupation, self.occupations)
            raise UserError(f"occupation {occupation!r} has no questions{hint}: add some, or leave the occupation out")
        return found

    def first(self, occupations: Sequence[str] | int | None, per_occupation: int | None) -> "Questions":
        """Return the first questions of the named (or of the first so many) occupations; None = all."""
        if occupations is None:
            chosen: Sequence[str] = self.occupations
        elif isinstance(occupations, int):
            if occupations > len(self.occupations):
                raise UserError(
                    f"key 'competence.occupations': {occupations}, but the questions are of {len(self.occupations)}: "
                    "ask for fewer, or add questions"
                )
            chosen = self.occupations[:occupations]
        else:
            chosen = occupations
        picked = [self.of(occupation) for occupation in chosen]
        for occupation, found in zip(chosen, picked, strict=True):
            if per_occupation is not None and len(found) < per_occupation:
                raise UserError(
                    f"key 'competence.questions': {per_occupation}, but occupation {occupation!r} has {len(found)}: "
                    "ask for fewer, or add questions"
                )
        return Questions(tuple(itertools.chain(*(found[:per_occupation] for found in picked))), self.notes)


@dataclass(frozen=True)
class Attribute:
    """What a person says of himself, as a clause in the first person without a full stop."""

    id: str
    family: str
    role: str
    phrase: str


@dataclass(frozen=True)
class Contrast:
    """Two attributes to compare, the first expected higher where it is relevant.

    `first` may be the word ``occupation``: a context that names the occupation and nothing else, compared with one
    that names none. In every other contrast both contexts name the occupation.
    """

    id: str
    family: str
    role: str
    first: str
    second: str

    @property
    def cells(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """(attribute id, is the occupation named?) of both sides."""
        if self.first == OCCUPATION:
            return (BASELINE, True), (self.second, False)
        return (self.first, True), (self.second, True)


@dataclass(frozen=True)
class Resume:
    """A résumé with a slot ``{name}``, for a role; `quality` grades it within the role."""

    id: str
    quality: str
    role: str
    text: str

    def of(self, name: str) -> str:
        """Return the text with a person's name in place."""
        return self.text.replace(NAME, name)


@dataclass(frozen=True)
class Name:
    """A person's name and the group that readers take it for."""

    name: str
    group: str


@dataclass(frozen=True)
class Graded:
    """A passage; a greater `order` is harder to read."""

    id: str
    order: int
    text: str


def with_article(occupation: str) -> str:
    """Return an occupation with its indefinite article, unless it begins with one."""
    if re.match(r"(?:an?|the)\s", occupation, re.IGNORECASE):
        return occupation
    return f"{'an' if occupation[0].lower() in 'aeiou' else 'a'} {occupation}"


def context_of(attribute: Attribute, occupation: str | None) -> str:
    """Return what the person says of himself: the phrase, the occupation if it is named, and a full stop."""
    if occupation is None:
        return f"{attribute.phrase}."
    return f"{attribute.phrase}, and I work as {with_article(occupation)}."
