"""What a scorer is: it turns stored outputs into 1 (biased, harmful, toxic, agreeing), 0 or missing.

Scoring reads stored outputs only, so another scorer never needs another generation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from refbias.errors import UserError


@dataclass(frozen=True)
class ScoredItem:
    """An output to score.

    Parameters
    ----------
    id
        Names the output in an error.
    prompt
        The user turn (a guard model judges a response to a prompt).
    text
        What the benchmark's `extract` gave.
    """

    id: str
    prompt: str
    text: str


@dataclass(frozen=True)
class Score:
    """The verdict on one output.

    Parameters
    ----------
    value
        1, 0, or None where the scorer could not tell: missing, never 0.
    probability
        P(value = 1), or None where a rule decides or nothing was read.
    verdict
        The scorer's own word, for counting.
    empty
        The output had nothing to score; by convention its value is 0, and it is counted.
    answer
        What a guard model wrote, None where nothing was asked of one.
    """

    value: int | None
    probability: float | None
    verdict: str
    empty: bool = False
    answer: str | None = None


class Scorer(Protocol):
    """A scorer, ready to run."""

    @property
    def name(self) -> str:
        """Slug, as in result files."""

    @property
    def label(self) -> str:
        """Name for readers of tables and figures; says so where it is a stand-in."""

    @property
    def kind(self) -> str:
        """One of ``rule``, ``classifier``, ``guard``."""

    @property
    def fingerprint(self) -> str:
        """Hash of what defines the verdicts: two scorers of one name and another hash differ."""

    def score(self, items: Sequence[ScoredItem]) -> list[Score]:
        """Score outputs, in order.

        Raises
        ------
        UserError
            If an item has no text: a missing output is an error, not an empty one.
        """


def require_texts(items: Sequence[ScoredItem]) -> list[str]:
    """Return the texts of the items.

    Raises
    ------
    UserError
        If one has none, naming it.
    """
    for item in items:
        if not isinstance(item.text, str):
            raise UserError(f"output {item.id}: its text is missing ({item.text!r}): generate it again")
    return [item.text for item in items]


UNREADABLE = "unreadable"
"""Verdict on an output whose guard gave an answer that cannot be read."""


def describe(scorer: Scorer) -> dict[str, str]:
    """Return what a manifest records of a scorer."""
    return {
        "name": scorer.name,
        "label": scorer.label,
        "kind": scorer.kind,
        "fingerprint": scorer.fingerprint,
    }


def tally(scores: Sequence[Score]) -> Mapping[str, Any]:
    """Return counts for a manifest: outputs, missing and empty ones, and each verdict."""
    verdicts = [score.verdict for score in scores]
    return {
        "n": len(scores),
        "n_missing": sum(score.value is None for score in scores),
        "n_empty": sum(score.empty for score in scores),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
    }
