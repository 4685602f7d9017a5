"""The expertise score: E(C) = h . e/||e|| at the last token of a context C, projected in float64.

Two normalised variants let models compare: E over the held-out gap between experts and novices along e, and over the
norm of the state. Random directions say what a contrast along a direction that means nothing would be.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from refbias.competence.direction import Direction, gaussian, sign_flips, unit
from refbias.competence.prompts import Cell

SCORE_COLUMNS = (
    "attribute_id",
    "family",
    "role",
    "occupation",
    "with_occupation",
    "question_id",
    "E",
    "E_normalised",
    "E_relative",
)
RANDOM_COLUMNS = ("attribute_id", "with_occupation", "kind", "direction", "E")
Array = npt.NDArray[np.floating[Any]]


def expertise(states: Array, vector: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return E of each state.

    Parameters
    ----------
    states
        Shape (n, d).
    vector
        A direction (d,) of any length.

    Returns
    -------
    numpy.ndarray
        Shape (n,).
    """
    result: npt.NDArray[np.float64] = states.astype(np.float64) @ unit(vector)
    return result


def truth(value: bool) -> str:
    """Return how a csv file spells a truth value."""
    return "true" if value else "false"


def score_rows(cells: Sequence[Cell], states: Array, direction: Direction) -> list[tuple[Any, ...]]:
    """Return a row of `SCORE_COLUMNS` a cell."""
    scores = expertise(states, direction.vector)
    norms = np.linalg.norm(states.astype(np.float64), axis=1)
    return [
        (
            cell.attribute.id,
            cell.attribute.family,
            cell.attribute.role,
            cell.question.occupation,
            truth(cell.with_occupation),
            cell.question.id,
            float(score),
            float(score / direction.gap),
            float(score / norm),
        )
        for cell, score, norm in zip(cells, scores, norms, strict=True)
    ]


def random_rows(
    cells: Sequence[Cell], states: Array, direction: Direction, n: int, seed: int
) -> list[tuple[str, str, str, int, float]]:
    """Return each attribute's mean score along `n` random directions of both kinds, a row of `RANDOM_COLUMNS` each.

    `gaussian` ones point anywhere; `sign_flip` ones are the pairs' own differences with experts and novices exchanged
    at random.
    """
    groups: dict[tuple[str, bool], list[int]] = {}
    for number, cell in enumerate(cells):
        groups.setdefault((cell.attribute.id, cell.with_occupation), []).append(number)
    means = np.stack([states[members].mean(0, dtype=np.float64) for members in groups.values()])
    flipped = sign_flips(direction.differences, n, seed)
    rows = []
    for kind, draws in (("gaussian", gaussian(states.shape[1], n, seed)), ("sign_flip", flipped)):
        along = means @ np.stack([unit(draw, kind) for draw in draws]).T
        for (attribute, named), scores in zip(groups, along, strict=True):
            rows += [(attribute, truth(named), kind, number, float(score)) for number, score in enumerate(scores)]
    return rows
