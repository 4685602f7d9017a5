"""Intervals of dB over target and attribute sentences: a studentised two-way bootstrap.

With D[t, a] the change of the association of target t and attribute a, dB is the mean over all cells of the positive
attributes less that over the negative ones. Cells in a row share a target sentence, cells in a column an attribute.
Resampling rows and columns and reading off percentiles (the "pigeonhole" bootstrap; McCullagh 2000, Owen 2007) counts
the noise of single cells three times, so it is far too wide where nothing but noise is left. Here every resample is
divided by its own standard error, which carries the same threefold noise, and the quantiles of that ratio are
multiplied by the standard error of the data, which counts it once:

``V = V_targets + V_positive + V_negative - V_cells``

with ``V_targets`` the variance of the targets' contributions over their number, ``V_positive`` and ``V_negative`` those
of the attributes' mean changes, and ``V_cells`` the interaction's share, which the sum of the others counts twice
(Cameron, Gelbach & Miller 2011). V is never put below one of its two sides, each of which is a lower bound of the
variance on average. Positive and negative attributes are drawn apart, so their numbers stay.

The interval covers another draw of target sentences and of attribute sentences from where these came from: in crossed
random-effects data of 50 targets and 100 + 100 attributes, and of 10 and 40 + 40, it holds the true dB in about 95 of
100 samples. It does not cover other anchors, another training seed, sentences of another kind, nor what templates that
all come from one hand have in common. Below about eight targets or attributes of a kind it is rough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refbias.metrics.vectors import FloatArray
from refbias.stats.vectors import checked_resamples

NAN = float("nan")
# with less of the resamples defined, the quantiles would describe those that happened to work
LEAST_VALID_SHARE = 0.5


class Bounds(NamedTuple):
    """dB with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AttributeDraws:
    """Weights of the attributes in every resample, one row each summing to 1.

    Attributes
    ----------
    positive, negative : ndarray, shape (k + 1, p) and (k + 1, q)
        The first row is the data itself: equal weights.
    """

    positive: FloatArray
    negative: FloatArray


@dataclass(frozen=True)
class Redrawn:
    """What the interval needs of one block of targets in every resample, the data itself first.

    Attributes
    ----------
    positive, negative : ndarray, shape (k + 1, p) and (k + 1, q)
        Mean change of each attribute over the drawn targets.
    targets, cells_positive, cells_negative : ndarray, shape (k + 1,)
        ``V_targets`` and the interaction's variance in either set of attributes.
    """

    positive: FloatArray
    negative: FloatArray
    targets: FloatArray
    cells_positive: FloatArray
    cells_negative: FloatArray


def _weights(generator: np.random.Generator, size: int, n_resamples: int) -> FloatArray:
    """Share of each of ``size`` sentences in the data (first row) and in ``n_resamples`` draws with replacement."""
    draws = generator.integers(0, size, size=(n_resamples, size))
    offsets = size * np.arange(n_resamples)[:, np.newaxis]
    counts = np.bincount((draws + offsets).ravel(), minlength=n_resamples * size).reshape(n_resamples, size)
    weights: FloatArray = np.concatenate([np.ones((1, size)), counts]) / size
    return weights


def attribute_draws(n_positive: int, n_negative: int, n_resamples: int, seed: int) -> AttributeDraws:
    """Draw attributes, positive and negative apart: once for all groups, which share them.

    Parameters
    ----------
    n_positive, n_negative : int
        Attribute sentences.
    n_resamples, seed : int
        Resamples and seed of the draws.

    Returns
    -------
    AttributeDraws
        The weights.

    Raises
    ------
    ValueError
        If ``n_resamples`` is below 1.
    """
    checked_resamples(n_resamples)
    generator = np.random.default_rng([seed, 1])
    return AttributeDraws(_weights(generator, n_positive, n_resamples), _weights(generator, n_negative, n_resamples))


def target_draws(n_targets: int, n_resamples: int, seed: int, *, stream: int = 0) -> FloatArray:
    """Draw target sentences: the same seed, number and stream give the same draws, hence the same templates.

    Parameters
    ----------
    n_targets : int
        Target sentences.
    n_resamples, seed : int
        Resamples and seed of the draws.
    stream : int
        Another number for targets that share no templates with the others.

    Returns
    -------
    ndarray, shape (n_resamples + 1, n_targets)
        Weights, rows summing to 1; the first row is the data itself.
    """
    return _weights(np.random.default_rng([seed, 2, stream]), n_targets, n_resamples)


def redraw(change: FloatArray, targets: FloatArray, attributes: AttributeDraws) -> Redrawn:
    """Recompute one block of targets on all resamples by matrix products.

    Parameters
    ----------
    change : ndarray, shape (T, p + q)
        D, the positive attributes first.
    targets : ndarray, shape (k + 1, T)
        Of `target_draws`.
    attributes : AttributeDraws
        The same for every block.

    Returns
    -------
    Redrawn
        One entry a resample.
    """
    n_positive = attributes.positive.shape[1]
    # the common part of all cells cancels in dB; without it the squares below keep their digits
    centred = change - change.mean()
    sides = []
    halves = (centred[:, :n_positive], attributes.positive), (centred[:, n_positive:], attributes.negative)
    for block, weights in halves:
        by_attribute = targets @ block
        by_target = weights @ block.T
        mean = _dot(weights, by_attribute)
        # interaction: what is left of the squares when rows, columns and the mean are taken off
        squares = _dot(targets @ (block * block), weights)
        left = squares - _dot(targets, by_target**2) - _dot(weights, by_attribute**2) + mean**2
        freedom = (block.shape[0] - 1) * (block.shape[1] - 1)
        sides.append((by_attribute, by_target, mean, np.maximum(left, 0.0) / max(freedom, 1)))
    plus, minus = sides
    contributions = plus[1] - minus[1]
    contributions -= (plus[2] - minus[2])[:, np.newaxis]
    of_targets = _dot(targets, contributions**2) / max(change.shape[0] - 1, 1)
    return Redrawn(plus[0], minus[0], of_targets, plus[3], minus[3])


def _dot(left: FloatArray, right: FloatArray) -> FloatArray:
    result: FloatArray = np.einsum("ij,ij->i", left, right)
    return result


@dataclass(frozen=True)
class Studentised:
    """A weighted sum of blocks' dB and how it varies in units of its own standard error.

    Attributes
    ----------
    value, error : float
        Of the data; the error is 0 where nothing varies.
    ratios : ndarray, shape (k,)
        Each resample's distance from ``value`` over its own standard error, NaN where it has none.
    """

    value: float
    error: float
    ratios: FloatArray

    @property
    def has_quantiles(self) -> bool:
        """Whether anything varies, and enough resamples have a spread of their own."""
        valid = int((~np.isnan(self.ratios)).sum())
        return self.error > 0 and valid > 0 and valid >= LEAST_VALID_SHARE * self.ratios.size

    def bounds(self, low: float, high: float) -> Bounds:
        """Return the interval between two quantiles of ratios; the value alone where nothing varies, or NaN."""
        if not self.has_quantiles:
            return Bounds(self.value, self.value, self.value) if self.error == 0 else Bounds(self.value, NAN, NAN)
        return Bounds(self.value, self.value - high * self.error, self.value - low * self.error)


def studentised(blocks: Sequence[tuple[float, Redrawn]], attributes: AttributeDraws) -> Studentised:
    """Weighted sum of blocks' dB on all resamples: one group, one group less the control, or the mean over groups.

    Parameters
    ----------
    blocks : sequence of (float, Redrawn)
        Weights and blocks, redrawn with the same attributes.
    attributes : AttributeDraws
        Those draws.

    Returns
    -------
    Studentised
        Value, standard error and ratios.
    """
    values = np.zeros(len(attributes.positive))
    sides, cells = np.zeros_like(values), np.zeros_like(values)
    for sign, weights, name in ((1.0, attributes.positive, "positive"), (-1.0, attributes.negative, "negative")):
        means = sum(weight * getattr(block, name) for weight, block in blocks)
        centre = _dot(weights, means)
        values += sign * centre
        spread = _dot(weights, (means - centre[:, np.newaxis]) ** 2)
        sides += spread / max(weights.shape[1] - 1, 1)
        cells += sum(weight**2 * getattr(block, f"cells_{name}") for weight, block in blocks)
    of_targets = sum(weight**2 * block.targets for weight, block in blocks)
    errors = np.sqrt(np.maximum(sides + of_targets - cells, np.maximum(sides, of_targets)))
    ratios = np.full(len(values) - 1, NAN)
    np.divide(values[1:] - values[0], errors[1:], out=ratios, where=errors[1:] > 0)
    return Studentised(float(values[0]), float(errors[0]), ratios)


def interval(blocks: Sequence[tuple[float, Redrawn]], attributes: AttributeDraws, level: float = 0.95) -> Bounds:
    """Interval of a weighted sum of blocks' dB.

    Parameters
    ----------
    blocks : sequence of (float, Redrawn)
        As of `studentised`.
    attributes : AttributeDraws
        The blocks' draws.
    level : float
        Coverage.

    Returns
    -------
    Bounds
        Value and bounds. Both bounds are the value where nothing varies, and NaN where most resamples have no spread
        of their own.

    Raises
    ------
    ValueError
        If ``level`` is not in (0, 1).
    """
    return joint_intervals([studentised(blocks, attributes)], level)[0]


def joint_intervals(sums: Sequence[Studentised], level: float = 0.95) -> list[Bounds]:
    """Intervals that hold for all of several sums at once, from common draws.

    Of each resample the lowest and the highest ratio over the sums are kept; their quantiles take the place of a single
    sum's ("max-T"; Westfall & Young 1993, Romano & Wolf 2005). The draws being common, sums that move together cost
    less than by Bonferroni's rule. Of a single sum it is the ordinary interval.

    Parameters
    ----------
    sums : sequence of Studentised
        Of the same resamples.
    level : float
        Probability that no interval misses its truth.

    Returns
    -------
    list of Bounds
        In the order given. A sum that does not vary, or most of whose resamples have no spread, is as in `interval`
        and no part of the family.

    Raises
    ------
    ValueError
        If ``level`` is not in (0, 1).
    """
    checked_resamples(1, level)
    family = [found.ratios for found in sums if found.has_quantiles]
    low = high = NAN
    if family:
        ratios = np.stack(family)
        lost = np.isnan(ratios)
        drawn = ~lost.all(axis=0)
        lowest = np.where(lost, np.inf, ratios).min(axis=0)[drawn]
        highest = np.where(lost, -np.inf, ratios).max(axis=0)[drawn]
        low, high = float(np.quantile(lowest, (1 - level) / 2)), float(np.quantile(highest, (1 + level) / 2))
    return [found.bounds(low, high) for found in sums]
