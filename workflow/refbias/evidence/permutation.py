"""Permutation p-values over the attribute labels, and Holm's correction over groups.

The null hypothesis is that the labels say nothing about the change: whether an attribute sentence is called positive or
negative has no bearing on how the group's association with it changed, so that all divisions of the same attributes
into a positive and a negative set are equally likely (exchangeability of the labels in the columns of D). A common
change of all associations, or one that differs from sentence to sentence without regard to valence, satisfies it.
Then p is exact for any statistic.

The statistic is dB over its standard error over targets and attributes (the variance of `refbias.evidence.interval`),
read as the tail of a t distribution whose degrees of freedom come from the same parts (Satterthwaite). Dividing by that
error extends the test, in sets that are not too small, to two weaker hypotheses (Janssen 1997; Chung & Romano 2013):
that the labels matter for the spread of the changes alone, and that single target sentences lean towards either set by
chance but their kind does not. With plain ``|dB|``, the second would be rejected far too often: some target sentences'
accidents would pass for the group's. A group of a single target sentence has no such error: there p speaks of that
sentence alone.

Divisions are drawn without replacement within a set and the observed one counts as one of them:
``p = (1 + #{as large}) / (1 + N)`` (Phipson & Smyth 2010). With at most N divisions in all, each is looked at once
and p is exact without drawing. Groups share the attributes and so their permutations; Holm's correction holds whatever
the dependence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from refbias.metrics.vectors import FloatArray

# tails of two divisions that are equal but for rounding; it must not decide between them
TIE = 1e-7
# variance, of changes that are at most 1, below which there is none but for rounding
NO_VARIANCE = 1e-14
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


def permutation_p(changes: Sequence[npt.ArrayLike], n_positive: int, labels: Labels) -> FloatArray:
    """Two-sided p-value of each group's dB.

    Parameters
    ----------
    changes : sequence of array_like, shape (T, p + q)
        D of each group, the positive attributes first.
    n_positive : int
        p.
    labels : Labels
        Divisions, of the same numbers.

    Returns
    -------
    ndarray, shape (groups,)
        p-values, at least 1 / (N + 1); exactly 1 where nothing differs between attributes.

    Raises
    ------
    ValueError
        If the numbers do not fit the divisions.
    """
    size = labels.positive.shape[1]
    blocks = [_scaled(np.asarray(change, dtype=np.float64)) for change in changes]
    for block in blocks:
        if block.ndim != 2 or block.shape[1] != size or int(labels.positive[0].sum()) != n_positive:
            raise ValueError(f"changes: shape {block.shape} with {n_positive} positive does not fit the labels")
    sums = _Sums.of(blocks)
    observed = np.zeros((1, size), dtype=np.bool_)
    observed[0, :n_positive] = True
    largest = _tails(sums, observed)[0] * (1 + TIE)
    count = np.zeros(len(blocks), dtype=np.int64)
    rows = max(1, _CHUNK // (size + len(sums.stacked)))
    for start in range(0, len(labels.positive), rows):
        count += (_tails(sums, labels.positive[start : start + rows]) <= largest).sum(axis=0)
    total = len(labels.positive)
    result: FloatArray = count / total if labels.exact else (count + 1) / (total + 1)
    return np.where([block.any() for block in blocks], result, 1.0)


def _scaled(change: FloatArray) -> FloatArray:
    """Take each target's mean off and divide by the largest change; zeros where targets do not tell attributes apart.

    dB and its error know neither offset nor unit, and squares of centred numbers keep their digits.
    """
    centred: FloatArray = change - change.mean(axis=-1, keepdims=True)
    largest = float(np.abs(centred).max())
    rounding = change.shape[-1] * np.finfo(np.float64).eps * float(np.abs(change).max())
    return centred / largest if largest > rounding else np.zeros_like(centred)


@dataclass(frozen=True)
class _Sums:
    """What the statistic needs of all groups: centred targets stacked, and sums over the targets of each group."""

    stacked: FloatArray
    starts: npt.NDArray[np.int64]
    counts: FloatArray
    squared_means: FloatArray
    mean_squares: FloatArray

    @classmethod
    def of(cls, blocks: Sequence[FloatArray]) -> "_Sums":
        counts = np.array([len(block) for block in blocks])
        return cls(
            stacked=np.concatenate(blocks),
            starts=np.concatenate([[0], np.cumsum(counts)[:-1]]),
            counts=counts.astype(np.float64),
            squared_means=np.stack([block.mean(axis=0) ** 2 for block in blocks], axis=1),
            mean_squares=np.stack([(block**2).mean(axis=0) for block in blocks], axis=1),
        )


def _tails(sums: _Sums, positive: npt.NDArray[np.bool_]) -> FloatArray:
    """Tail of the t statistic of each division (rows) and group (columns), two-sided.

    The targets' means are zero, so a target's mean over the negative set is ``-p / q`` times that over the positive.
    """
    p = int(positive[0].sum())
    q = positive.shape[1] - p
    n = sums.counts
    weights = positive.astype(np.float64)
    of_targets = (weights @ sums.stacked.T) / p
    mean = np.add.reduceat(of_targets, sums.starts, axis=1) / n
    square = np.add.reduceat(of_targets**2, sums.starts, axis=1) / n
    difference = np.abs(mean) * (1 + p / q)
    targets = np.maximum(square - mean**2, 0.0) * (1 + p / q) ** 2 / np.maximum(n - 1, 1)
    by_attribute, by_cell = weights @ sums.squared_means, weights @ sums.mean_squares
    parts = [(targets, np.maximum(n - 1, 1))]
    sides, cells = np.zeros_like(targets), np.zeros_like(targets)
    whole_attribute, whole_cell = sums.squared_means.sum(axis=0), sums.mean_squares.sum(axis=0)
    for size, ratio, attribute, cell in (
        (p, 1.0, by_attribute, by_cell),
        (q, p / q, whole_attribute - by_attribute, whole_cell - by_cell),
    ):
        centre = (ratio * mean) ** 2
        side = np.maximum(attribute / size - centre, 0.0) / max(size - 1, 1)
        left = np.maximum(cell / size - ratio**2 * square - attribute / size + centre, 0.0)
        freedom = np.maximum((n - 1) * (size - 1), 1)
        parts += [(side, np.full_like(n, max(size - 1, 1))), (left / freedom, freedom)]
        sides += side
        cells += left / freedom
    variance = np.maximum(targets + sides - cells, np.maximum(targets, sides))
    certain = variance < NO_VARIANCE
    spread = sum(part**2 / freedom for part, freedom in parts)
    freedom = np.where(certain, 1.0, variance**2) / np.where(certain, 1.0, spread)
    ratio = difference / np.sqrt(np.where(certain, 1.0, variance))
    tails: FloatArray = 2 * stdtr(freedom, -ratio)
    # without any variance, every difference beyond rounding is infinitely large
    return np.where(certain, np.where(difference > np.sqrt(NO_VARIANCE), 0.0, 1.0), tails)


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
