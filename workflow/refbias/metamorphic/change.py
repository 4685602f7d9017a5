"""How far resiliency moved between two models that were asked the same questions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refbias.metamorphic.statistics import NAN, biased_vector, wilson
from refbias.stats.paired import sign_flip


@dataclass(frozen=True)
class Change:
    """Change of resiliency in points over the pairs usable on both sides; NaN where there are none.

    `low` and `high` are those of the bootstrap over clusters (NaN with fewer than two). Where all clusters changed
    alike no draw differs from another; then Wilson's bound says which share of clusters may change otherwise, and the
    interval is what the change could be if these changed as far as can be, one way or the other.

    `p` is that of the sign-flip test of whole clusters, two-sided: under its null hypothesis before and after may
    change places in any of them. It cannot fall below 2 / 2^k where k clusters changed, so fewer than six can never
    show a change at 0.05.
    """

    n: int
    value: float
    low: float
    high: float
    p: float


def paired_change(
    before: npt.ArrayLike | Sequence[bool | None],
    after: npt.ArrayLike | Sequence[bool | None],
    cluster: npt.ArrayLike,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Change:
    """Return how far resiliency rose from one model to another on the same questions.

    Parameters
    ----------
    before, after : array_like, shape (n,)
        True, false or None of each question.
    cluster : array_like, shape (n,)
        The source question, drawn as a whole.
    level, n_resamples, seed
        Of the interval; the test takes the seed too where it draws.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    first, second, names = biased_vector(before), biased_vector(after), np.asarray(cluster).astype(np.str_)
    if not first.shape == second.shape == names.shape:
        raise ValueError("before, after and cluster differ in length")
    usable = ~np.isnan(first) & ~np.isnan(second)
    gain = 100 * (first[usable] - second[usable])
    if not gain.size:
        return Change(0, NAN, NAN, NAN, NAN)
    value = float(gain.mean())
    found, of = np.unique(names[usable], return_inverse=True)
    sums, sizes = np.bincount(of, weights=gain), np.bincount(of)
    # a cluster that did not change is the same under either sign
    p = sign_flip(sums[sums != 0], seed=seed) if sums.any() else 1.0
    if found.size < 2:
        return Change(gain.size, value, NAN, NAN, p)
    if np.unique(sums / sizes).size == 1:
        alike = wilson(found.size, found.size, level).low
        other = 100 * (1 - alike)
        return Change(gain.size, value, alike * value - other, alike * value + other, p)
    draws = np.random.default_rng(seed).integers(0, found.size, size=(n_resamples, found.size))
    means = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Change(gain.size, value, float(low), float(high), p)
