"""Permutation p-values over the attribute labels, and Holm's correction over groups.

The null hypothesis is that the labels say nothing about the change: whether an attribute sentence is called positive or
negative has no bearing on how the group's association with it changed, so that all divisions of the same attributes
into a positive and a negative set are equally likely (exchangeability of the labels in the columns of D). A common
change of all associations, or one that differs from sentence to sentence without regard to valence, satisfies it. The
target sentences are taken as they are: p says nothing of other target sentences, which the interval does.

The statistic is ``|dB|``, or with sets of unequal size dB over its standard error (Welch), which keeps the p-value
right in large sets if only the spread of the changes depends on the label (Janssen 1997); with equal sizes both order
the divisions alike. Divisions are drawn without replacement within a set, the observed one counts as one of them:
``p = (1 + #{as large}) / (1 + N)`` (Phipson & Smyth 2010). With at most N divisions in all, each is looked at once
and p is exact.

Groups share the attributes and so their permutations; Holm's correction holds whatever the dependence.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from refbias.metrics.vectors import FloatArray

# equal statistics of two divisions may differ by rounding; it must not decide between them
TIE = 1e-10
_CHUNK = 2_000_000


@dataclass(frozen=True)
class Labels:
    """Divisions of the attributes.

    Attributes
    ----------
    positive : ndarray of bool, shape (N, p + q)
        Which attributes are positive, p in every row.
    exact : bool
        Whether the rows are all the divisions there are, the observed one among them.
    """

    positive: npt.NDArray[np.bool_]
    exact: bool


def label_draws(n_positive: int, n_negative: int, n_permutations: int, seed: int) -> Labels:
    """Divide the attributes anew, or in all ways where these are few.

    Parameters
    ----------
    n_positive, n_negative : int
        Attribute sentences.
    n_permutations : int
        Divisions drawn, and the largest number that is enumerated.
    seed : int
        Seed of the draws.

    Returns
    -------
    Labels
        The divisions.

    Raises
    ------
    ValueError
        If a number is below 1.
    """
    for name, number in (("n_positive", n_positive), ("n_negative", n_negative), ("n_permutations", n_permutations)):
        if number < 1:
            raise ValueError(f"{name}: must be at least 1, got {number}")
    size = n_positive + n_negative
    if math.comb(size, n_positive) <= n_permutations:
        chosen = np.array(list(combinations(range(size), n_positive)))
        return Labels(_marked(chosen, size), exact=True)
    generator = np.random.default_rng([seed, 3])
    order = generator.permuted(np.tile(np.arange(size), (n_permutations, 1)), axis=1)
    return Labels(_marked(order[:, :n_positive], size), exact=False)


def _marked(chosen: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.bool_]:
    marked = np.zeros((len(chosen), size), dtype=np.bool_)
    np.put_along_axis(marked, chosen, values=True, axis=1)
    return marked


def permutation_p(changes: npt.ArrayLike, n_positive: int, labels: Labels) -> FloatArray:
    """Two-sided p-value of each column's difference between positive and negative attributes.

    Parameters
    ----------
    changes : array_like, shape (p + q, g)
        Mean change of each attribute (rows, the positive first) in each of g groups.
    n_positive : int
        p.
    labels : Labels
        Divisions, of the same numbers.

    Returns
    -------
    ndarray, shape (g,)
        p-values, at least 1 / (N + 1); exactly 1 where all changes are equal.

    Raises
    ------
    ValueError
        If the numbers do not fit the divisions.
    """
    matrix = np.asarray(changes, dtype=np.float64)
    size = labels.positive.shape[1]
    if matrix.ndim != 2 or len(matrix) != size or int(labels.positive[0].sum()) != n_positive:
        raise ValueError(f"changes: shape {matrix.shape} with {n_positive} positive does not fit the labels")
    # the statistic knows no offset or unit, and the squares of centred numbers keep their digits
    centred = matrix - matrix.mean(axis=0)
    spread = np.abs(centred).max(axis=0)
    centred = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
    observed = np.zeros((1, size), dtype=np.bool_)
    observed[0, :n_positive] = True
    least = _statistic(centred, observed)[0] * (1 - TIE)
    count = np.zeros(matrix.shape[1], dtype=np.int64)
    rows = max(1, _CHUNK // (size + matrix.shape[1]))
    for start in range(0, len(labels.positive), rows):
        count += (_statistic(centred, labels.positive[start : start + rows]) >= least).sum(axis=0)
    total = len(labels.positive)
    result: FloatArray = count / total if labels.exact else (count + 1) / (total + 1)
    return np.where(spread > 0, result, 1.0)


def _statistic(centred: FloatArray, positive: npt.NDArray[np.bool_]) -> FloatArray:
    """Return ``|dB|``, or Welch's statistic for unequal sets, of each division (rows) and group (columns)."""
    weights = positive.astype(np.float64)
    n_positive = int(positive[0].sum())
    n_negative = positive.shape[1] - n_positive
    # the columns sum to zero, so the negative sum is minus the positive one
    sums = weights @ centred
    difference: FloatArray = np.abs(sums) * (1 / n_positive + 1 / n_negative)
    if n_positive == n_negative or min(n_positive, n_negative) < 2:
        return np.where(difference > TIE, difference, 0.0)
    squares = weights @ centred**2
    rest = (centred**2).sum(axis=0) - squares
    variance = (squares - sums**2 / n_positive) / (n_positive * (n_positive - 1))
    variance += (rest - sums**2 / n_negative) / (n_negative * (n_negative - 1))
    error = np.sqrt(np.maximum(variance, TIE**2))
    return np.where(difference > TIE, difference / error, 0.0)


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's step-down correction: reject where the result is at most the wanted family-wise error.

    Parameters
    ----------
    p_values : array_like, shape (g,)
        One p-value a group.

    Returns
    -------
    ndarray, shape (g,)
        Adjusted p-values in the same order, at most 1.

    Raises
    ------
    ValueError
        If a value is not in [0, 1].
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise ValueError("p_values: expected a vector of numbers from 0 to 1")
    order = np.argsort(values, kind="stable")
    factors = np.arange(values.size, 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * factors), 1.0)
    return adjusted
