"""Errors that carry the choice among models: what chose and what was fitted never saw the part that is predicted.

The candidate with the smallest cross-validated error has won partly by luck on those very folds, so its error there
flatters (Varma & Simon 2006). Here the candidates are compared anew within the training part of every fold, by a
cross-validation of its own, the best is fitted on that part, and it predicts the fold.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refbias.calibration.data import StrArray
from refbias.calibration.validation import Fit, bounded, brier, grouped_folds, log_loss, out_of_fold
from refbias.stats.vectors import BoolArray, FloatArray, IntArray

# folds of the inner cross-validation: it only has to rank a handful of models, once for every outer fold
INNER_FOLDS = 5


class Choice(NamedTuple):
    """A way of fitting and the predictors that it takes, shape (n, p)."""

    fit: Fit
    columns: FloatArray


class NestedPrediction(NamedTuple):
    """Out-of-fold probabilities, shape (n,), and in how many folds each choice was taken."""

    predicted: FloatArray
    n_chosen: tuple[int, ...]


def best_of(errors: Sequence[tuple[float, float]]) -> int:
    """Return the place of the smallest Brier score; log-loss breaks ties."""
    return min(range(len(errors)), key=lambda at: errors[at])


def nested_predictions(
    choices: Sequence[Choice], positive: BoolArray, folds: IntArray, groups: StrArray, seed: int
) -> NestedPrediction | None:
    """Predict every fold by the choice that is best within the others.

    Parameters
    ----------
    choices : sequence of Choice
        The candidates.
    positive : ndarray of bool, shape (n,)
        Outcomes.
    folds : ndarray of int, shape (n,)
        The outer folds.
    groups : ndarray of str, shape (n,)
        What the inner folds must not split: checkpoints.
    seed : int
        Seed of the inner folds.

    Returns
    -------
    NestedPrediction or None
        None where the others of some fold are a single group, which leaves nothing to compare the candidates on. A
        fold whose others hold one class only is predicted as in `out_of_fold`, and no choice is counted for it.
    """
    predicted = np.empty(positive.size)
    n_chosen = [0] * len(choices)
    for fold in np.unique(folds):
        held, known = folds == fold, folds != fold
        if np.unique(groups[known]).size < 2:
            return None
        some = positive[known]
        if some.all() or not some.any():
            predicted[held] = (some.sum() + 0.5) / (known.sum() + 1)
            continue
        inner = grouped_folds(groups[known], INNER_FOLDS, seed)
        errors = []
        for choice in choices:
            raw, _ = out_of_fold(choice.fit, choice.columns[known], some, inner)
            tried = bounded(raw, some.size)
            errors.append((brier(tried, some), log_loss(tried, some)))
        at = best_of(errors)
        n_chosen[at] += 1
        predicted[held] = choices[at].fit(choices[at].columns[known], some).predict(choices[at].columns[held])
    return NestedPrediction(predicted, tuple(n_chosen))
