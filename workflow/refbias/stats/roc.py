"""Area under the ROC curve: of one labelling, under weights, and along thresholds of the label.

The detector says "biased" where dB lies below a cutoff, so its score is -dB; the truth says so where the change of
score lies above a threshold. Every area here is the share of (positive, negative) pairs in which the positive has the
higher score, a tie counting one half.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from refbias.stats.vectors import BoolArray, FloatArray, checked_label, checked_pair, checked_vector

# Differences of rates carry rounding: 0.4 - 0.3 must not lie above 0.1.
THRESHOLD_TOLERANCE = 1e-9


class RocPoints(NamedTuple):
    """The ROC curve from (0, 0) to (1, 1), one point a distinct score."""

    false_positive_rate: FloatArray
    true_positive_rate: FloatArray


def above(change: npt.ArrayLike, threshold: float) -> BoolArray:
    """Label changes of score that exceed a threshold by more than rounding.

    Parameters
    ----------
    change : array_like, shape (n,)
        Changes of score.
    threshold : float
        In units of the score.

    Returns
    -------
    ndarray of bool, shape (n,)
        ``change > threshold + 1e-9``.

    Raises
    ------
    ValueError
        Naming ``change``, on empty or non-finite input.
    """
    labels: BoolArray = checked_vector(change, "change") > threshold + THRESHOLD_TOLERANCE
    return labels


def roc_auc(score: npt.ArrayLike, label: npt.ArrayLike) -> float:
    """Area under the ROC curve of "a higher score is positive".

    Parameters
    ----------
    score : array_like, shape (n,)
        Scores; for dB pass ``-delta_b``.
    label : array_like, shape (n,)
        Booleans or 0 and 1.

    Returns
    -------
    float
        The area; NaN with one class only.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite, mismatched or non-binary input.
    """
    scores = checked_vector(score, "score")
    positive = checked_label(label, scores.size)
    n_positive = int(positive.sum())
    n_negative = scores.size - n_positive
    if n_positive == 0 or n_negative == 0:
        return float("nan")
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def weighted_auc(score: npt.ArrayLike, label: npt.ArrayLike, weights: npt.ArrayLike) -> FloatArray:
    """Area under the ROC curve under each row of weights.

    Parameters
    ----------
    score : array_like, shape (n,)
        Scores.
    label : array_like, shape (n,)
        Booleans or 0 and 1.
    weights : array_like, shape (k, n)
        Non-negative weights, one resample a row.

    Returns
    -------
    ndarray, shape (k,)
        Areas; NaN where a row leaves one class without weight.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    scores = checked_vector(score, "score")
    positive = checked_label(label, scores.size)
    matrix = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if matrix.shape[1] != scores.size:
        raise ValueError(f"weights: {matrix.shape[1]} columns for {scores.size} scores")
    order, starts = _ties(scores)
    positive_weight = np.add.reduceat((matrix * positive)[:, order], starts, axis=1)
    negative_weight = np.add.reduceat((matrix * ~positive)[:, order], starts, axis=1)
    below = np.cumsum(negative_weight, axis=1) - negative_weight
    won = (positive_weight * (below + negative_weight / 2)).sum(axis=1)
    pairs = positive_weight.sum(axis=1) * negative_weight.sum(axis=1)
    areas: FloatArray = np.divide(won, pairs, out=np.full(won.shape, np.nan), where=pairs > 0)
    return areas


def auc_threshold_curve(score: npt.ArrayLike, change: npt.ArrayLike, thresholds: npt.ArrayLike) -> FloatArray:
    """Area under the ROC curve for each threshold that turns changes into labels.

    Parameters
    ----------
    score : array_like, shape (n,)
        Scores; for dB pass ``-delta_b``.
    change : array_like, shape (n,)
        Changes of score.
    thresholds : array_like, shape (t,)
        Thresholds, in units of the score.

    Returns
    -------
    ndarray, shape (t,)
        Areas; NaN where a threshold leaves one class only.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    scores, changes = checked_pair(score, change, "score", "change")
    grid = checked_vector(thresholds, "thresholds")
    return np.array([roc_auc(scores, above(changes, float(threshold))) for threshold in grid])


def roc_points(score: npt.ArrayLike, label: npt.ArrayLike) -> RocPoints:
    """Points of the ROC curve, from the highest score down.

    Parameters
    ----------
    score : array_like, shape (n,)
        Scores.
    label : array_like, shape (n,)
        Booleans or 0 and 1.

    Returns
    -------
    RocPoints
        Rates of false and of true positives, one point more than distinct scores; empty with one class only.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    scores = checked_vector(score, "score")
    positive = checked_label(label, scores.size)
    if positive.all() or not positive.any():
        return RocPoints(np.empty(0), np.empty(0))
    order, starts = _ties(-scores)
    hits = np.cumsum(np.add.reduceat(positive[order].astype(np.float64), starts))
    misses = np.cumsum(np.add.reduceat((~positive)[order].astype(np.float64), starts))
    return RocPoints(np.concatenate([[0.0], misses / misses[-1]]), np.concatenate([[0.0], hits / hits[-1]]))


def _ties(values: FloatArray) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Sorting order of ``values`` and where each run of equal values starts in it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return order, starts
