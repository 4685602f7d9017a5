"""Paired differences in clusters: mean, effect size, interval, sign-flip test, equivalence.

Rows are units that are met under both conditions (a question, a résumé), columns are comparisons; clusters are what
units share (an occupation). All comparisons of one call draw the same resamples and sign patterns. A missing pair is
NaN and leaves its column only.

The sign-flip test holds the sharp null: that the condition changes nothing in any unit, so that a difference may as
well have the other sign. Its p speaks of these units; the interval, which draws whole clusters, of others like them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats as scipy_stats

from refbias.stats.vectors import FloatArray, checked_resamples

# up to this many pairs every pattern of signs is looked at
EXACT_PAIRS = 14
# with fewer pairs no sign-flip test can reach 0.05 (2 of 2^5 patterns are 0.0625), and a spread is hardly known
LEAST_PAIRS = 6
_CHUNK = 2_000_000
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Paired:
    """Effects of k comparisons, each field of shape (k,); what cannot be had is NaN.

    Attributes
    ----------
    n, n_missing
        Pairs used, and pairs with a side missing.
    mean
        Mean difference.
    d_z
        Mean over the standard deviation of the differences (Cohen 1988); NaN where they do not vary.
    low, high
        Interval at the level asked for: units drawn within drawn clusters. NaN where the column's known pairs lie in a
        single cluster.
    inner_low, inner_high
        The narrower interval that belongs to two one-sided tests: at 95 %, that of 90 %.
    p
        Two-sided p of the sign-flip test, exact for up to `EXACT_PAIRS` pairs.
    """

    n: npt.NDArray[np.int64]
    n_missing: npt.NDArray[np.int64]
    mean: FloatArray
    d_z: FloatArray
    low: FloatArray
    high: FloatArray
    inner_low: FloatArray
    inner_high: FloatArray
    p: FloatArray


def checked_differences(differences: npt.ArrayLike, cluster: npt.ArrayLike) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Return differences (n, k) as float64 and the cluster of each row as a number.

    Raises
    ------
    ValueError
        For another shape, an infinite value or clusters of another length.
    """
    matrix = np.asarray(differences, dtype=np.float64)
    names = np.asarray(cluster).astype(np.str_)
    if matrix.ndim != 2 or not matrix.size or np.isinf(matrix).any():
        raise ValueError(f"differences: expected a matrix (n, k) of numbers and NaN, got shape {matrix.shape}")
    if names.shape != (matrix.shape[0],):
        raise ValueError(f"cluster: shape {names.shape} for {matrix.shape[0]} rows")
    return matrix, np.unique(names, return_inverse=True)[1].astype(np.int64)


def paired_effects(
    differences: npt.ArrayLike,
    cluster: npt.ArrayLike,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
    n_permutations: int = 10_000,
    seed: int = 0,
) -> Paired:
    """Sum up and test the columns of a matrix of paired differences.

    Parameters
    ----------
    differences : array_like, shape (n, k)
        First condition less second; NaN where a side is missing.
    cluster : array_like, shape (n,)
        What units share.
    level
        Coverage of the interval.
    n_resamples, n_permutations, seed
        Of the bootstrap and of the sign-flip test.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    matrix, of = checked_differences(differences, cluster)
    checked_resamples(n_resamples, level)
    checked_resamples(n_permutations, level)
    known = ~np.isnan(matrix)
    filled = np.where(known, matrix, 0.0)
    n = known.sum(axis=0)
    mean = np.divide(filled.sum(axis=0), n, out=np.full(n.size, np.nan), where=n > 0)
    squares = (np.where(known, matrix - mean, 0.0) ** 2).sum(axis=0)
    deviation = np.sqrt(np.divide(squares, n - 1, out=np.full(n.size, np.nan), where=n > 1))
    varies = deviation > _ROUNDING * np.abs(filled).max(axis=0, initial=0.0)
    d_z = np.divide(mean, deviation, out=np.full(n.size, np.nan), where=varies)
    bootstrap, signs = np.random.default_rng(seed).spawn(2)
    outer, inner = (1 - level) / 2, 1 - level
    quantiles = [outer, 1 - outer, inner, 1 - inner]
    low, high, inner_low, inner_high = _bootstrap(filled, known, of, bootstrap, n_resamples, quantiles)
    p = _patterns(filled, known, signs, n_permutations)
    missing = (~known).sum(axis=0)
    return Paired(n, missing, mean, d_z, low, high, inner_low, inner_high, p)


def _bootstrap(
    filled: FloatArray,
    known: npt.NDArray[np.bool_],
    of: npt.NDArray[np.int64],
    generator: np.random.Generator,
    n_resamples: int,
    quantiles: list[float],
) -> FloatArray:
    sizes = np.bincount(of)
    if sizes.size < 2:
        return np.full((len(quantiles), filled.shape[1]), np.nan)
    order = np.argsort(of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values, present = filled[order], known[order].astype(np.float64)
    rows = max(1, _CHUNK // (sizes.size * int(sizes.max())))
    means = []
    for begin in range(0, n_resamples, rows):
        count = min(rows, n_resamples - begin)
        drawn = generator.integers(0, sizes.size, size=(count, sizes.size))
        places = generator.random((count, sizes.size, int(sizes.max())))
        units = starts[drawn][..., np.newaxis] + np.floor(places * sizes[drawn][..., np.newaxis]).astype(np.int64)
        # a smaller cluster gives as many units as it has
        used = np.arange(int(sizes.max())) < sizes[drawn][..., np.newaxis]
        flat = units + filled.shape[0] * np.arange(count)[:, np.newaxis, np.newaxis]
        weights = np.bincount(flat[used], minlength=count * filled.shape[0]).reshape(count, -1).astype(np.float64)
        total = weights @ present
        means.append(np.divide(weights @ values, total, out=np.full(total.shape, np.nan), where=total > 0))
    found = np.concatenate(means)
    result: FloatArray = np.full((len(quantiles), filled.shape[1]), np.nan)
    clusters = np.zeros((sizes.size, filled.shape[1]))
    np.add.at(clusters, of, known)
    # one cluster with data drawn over and over says nothing of others
    usable = (np.isnan(found).mean(axis=0) < 0.5) & ((clusters > 0).sum(axis=0) > 1)
    result[:, usable] = np.nanquantile(found[:, usable], quantiles, axis=0)
    return result


def sign_flip(values: npt.ArrayLike, *, n_permutations: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p of the sign-flip test of one vector of differences, exact for up to `EXACT_PAIRS`.

    Parameters
    ----------
    values : array_like, shape (n,)
        Differences that are independent of each other, such as the sums of whole clusters; NaN is left out.
    n_permutations, seed
        Of the test where not every pattern is looked at.

    Raises
    ------
    ValueError
        For another shape or an infinite value.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or np.isinf(vector).any():
        raise ValueError(f"values: expected a vector of numbers and NaN, got shape {vector.shape}")
    known = vector[~np.isnan(vector)][:, np.newaxis]
    if not known.size:
        return float("nan")
    return float(_patterns(known, np.ones(known.shape, bool), np.random.default_rng(seed), n_permutations)[0])


def _patterns(
    filled: FloatArray, known: npt.NDArray[np.bool_], generator: np.random.Generator, n_permutations: int
) -> FloatArray:
    n = known.sum(axis=0)
    observed = np.abs(filled.sum(axis=0)) - _ROUNDING * np.abs(filled).sum(axis=0)
    p = np.full(n.size, np.nan)
    exact = (n > 0) & (n <= EXACT_PAIRS)
    for column in np.flatnonzero(exact):
        values = filled[known[:, column], column]
        patterns = 1.0 - 2.0 * ((np.arange(2**values.size)[:, np.newaxis] >> np.arange(values.size)) & 1)
        p[column] = float((np.abs(patterns @ values) >= observed[column]).mean())
    drawn = np.flatnonzero(n > EXACT_PAIRS)
    if drawn.size:
        hits = np.zeros(drawn.size)
        rows = max(1, _CHUNK // filled.shape[0])
        for begin in range(0, n_permutations, rows):
            count = min(rows, n_permutations - begin)
            patterns = 1.0 - 2.0 * generator.integers(0, 2, size=(count, filled.shape[0]), dtype=np.int8)
            hits += (np.abs(patterns @ filled[:, drawn]) >= observed[drawn]).sum(axis=0)
        p[drawn] = (1 + hits) / (1 + n_permutations)
    return p


def tost(differences: npt.ArrayLike, bound: float) -> FloatArray:
    """Two one-sided t tests of equivalence (Schuirmann 1987), column by column.

    Parameters
    ----------
    differences : array_like, shape (n, k)
        Paired differences; NaN where a side is missing.
    bound
        Largest difference that still counts as none, in the unit of the differences.

    Returns
    -------
    ndarray, shape (k,)
        The larger p of "the mean is at most -bound" and "at least bound": small where the mean lies between. NaN with
        fewer than `LEAST_PAIRS` pairs.

    Raises
    ------
    ValueError
        If the bound is not positive.
    """
    if not bound > 0:
        raise ValueError(f"bound: must be positive, got {bound}")
    matrix, _ = checked_differences(differences, np.zeros(np.shape(differences)[:1]))
    found = np.full(matrix.shape[1], np.nan)
    for column in range(matrix.shape[1]):
        values = matrix[:, column][~np.isnan(matrix[:, column])]
        if values.size < LEAST_PAIRS:
            continue
        error = float(values.std(ddof=1)) / np.sqrt(values.size)
        gaps = np.array([values.mean() + bound, bound - values.mean()])
        if error <= _ROUNDING * max(bound, float(np.abs(values).max())):
            found[column] = 0.0 if (gaps > 0).all() else 1.0
        else:
            found[column] = float(scipy_stats.t.sf(gaps.min() / error, values.size - 1))
    return found
