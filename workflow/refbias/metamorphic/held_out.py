"""What a mitigation's training set has not seen, and how far a question is from what it has."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.metamorphic.questions import SOURCE, Question
from refbias.metamorphic.relations import parse_chain

Key = tuple[str, str, str]
"""Two groups in the order of their ids, and a property."""
Scope = Literal["held_out_keys", "held_out_relation", "held_out_both", "trained", "not_trained"]
SCOPES: tuple[Scope, ...] = ("held_out_keys", "held_out_relation", "held_out_both", "trained", "not_trained")
PARTS = ("keys", "trained_questions", "trained_neutral")
"""Fields of ``held_out.json`` beside the relation."""


def key_of(question: Question) -> Key:
    """Return the unit of the split that a question belongs to."""
    first, second = sorted((question.group_a, question.group_b))
    return first, second, question.property_id


def holds(relation: str, held_out: str) -> bool:
    """Tell whether a chain contains all relations of a held-out one, in any of their wordings; empty = none is."""
    if relation == SOURCE or not held_out:
        return False
    return {link.name for link in parse_chain(held_out)} <= {link.name for link in parse_chain(relation)}


@dataclass(frozen=True)
class HeldOut:
    """What the training set has not seen, and what it has.

    Parameters
    ----------
    relation
        The relation held out whole, in chains too; empty = none.
    keys
        The (pair, property) held out.
    trained_questions, trained_neutral
        Ids of what is in the set.
    """

    relation: str
    keys: frozenset[Key]
    trained_questions: frozenset[str]
    trained_neutral: frozenset[str]

    def scope(self, question: Question) -> Scope:
        """Return where a question stands to the training set.

        ``not_trained`` are wordings of a key on the training side that were never answered with a bias, or that the
        limit left out: neither held out nor trained.
        """
        held_key, held_relation = key_of(question) in self.keys, holds(question.relation, self.relation)
        if held_key:
            return "held_out_both" if held_relation else "held_out_keys"
        if held_relation:
            return "held_out_relation"
        return "trained" if question.id in self.trained_questions else "not_trained"

    def question_ids(self, questions: Iterable[Question]) -> frozenset[str]:
        """Return the ids that a re-test needs: held-out keys under all relations, the held-out relation on all keys."""
        return frozenset(row.id for row in questions if self.scope(row).startswith("held_out"))


def read_held_out(path: Path | str) -> HeldOut:
    """Read ``held_out.json``; a file that is none is a `UserError`."""
    data = read_json(path)
    try:
        if not all(isinstance(data[name], list) for name in PARTS):
            raise TypeError
        keys = frozenset((str(first), str(second), str(prop)) for first, second, prop in data["keys"])
        trained = (frozenset(map(str, data[name])) for name in PARTS[1:])
        return HeldOut(str(data["relation"]), keys, *trained)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: not a record of what is held out: make the training set again") from None
