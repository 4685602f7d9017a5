"""The scorers by name.

To add one: write a module with a class of the `Scorer` protocol and add its line below. A scorer is
made when it is used, since it may fit a classifier or load a model.
"""

import difflib
from collections.abc import Callable

from refbias.errors import UserError
from refbias.scorers.agreement import AgreementRule
from refbias.scorers.base import Score, ScoredItem, Scorer, describe, tally
from refbias.scorers.standin import StandinValence

SCORERS: dict[str, Callable[[], Scorer]] = {
    "agreement_rule": AgreementRule,
    "standin_valence": StandinValence,
}


def make_scorer(name: str) -> Scorer:
    """Make the scorer of that name.

    Raises
    ------
    UserError
        If there is none, naming the nearest.
    """
    if name not in SCORERS:
        near = difflib.get_close_matches(name, SCORERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(SCORERS)}"
        raise UserError(f"unknown scorer {name!r}: {hint}")
    return SCORERS[name]()


__all__ = ["SCORERS", "Score", "ScoredItem", "Scorer", "describe", "make_scorer", "tally"]
