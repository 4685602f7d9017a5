"""Statistics of metamorphic tests: pure functions on arrays.

An answer is biased (True), unbiased (False) or unusable (NaN). Unusable answers leave both numerator and denominator;
their share is reported beside every number. Source and mutant are paired by the source question, so McNemar's test is
the apt one; the chi-square test of the two-by-two table, which takes them as independent, is given for comparison.
What cannot be had is NaN, never a stand-in number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import stats as scipy_stats

from refbias.stats.multiple import benjamini_hochberg, holm
from refbias.stats.proportions import Share, mcnemar_exact, wilson

FloatArray = npt.NDArray[np.float64]
NAN = float("nan")
LEAST_RARE = 5
"""Source questions with the rarer answer that a bootstrap over them needs."""

__all__ = [
    "Pairing",
    "Resiliency",
    "Share",
    "TableTest",
    "benjamini_hochberg",
    "biased_vector",
    "holm",
    "mcnemar_exact",
    "pairing",
    "resiliency",
    "two_by_two",
    "wilson",
]


def biased_vector(values: npt.ArrayLike | Sequence[bool | None]) -> FloatArray:
    """Return 1 for biased, 0 for unbiased, NaN for unusable (None).

    Raises
    ------
    ValueError
        If a value is something else.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not np.isin(vector[~np.isnan(vector)], (0.0, 1.0)).all():
        raise ValueError("values: expected a vector of true, false and None")
    return vector


@dataclass(frozen=True)
class Resiliency:
    """Bias resiliency in per cent, with the counts it rests on.

    `low` and `high` are Wilson bounds, which take answers as independent. `cluster_low` and `cluster_high` take the
    rewordings of a source question as one observation: bounds of the bootstrap over source questions, never narrower
    than Wilson's. Where fewer than `LEAST_RARE` questions got the rarer answer in any wording, draws differ too little
    (with none they do not differ at all): then the interval is no narrower either than Wilson's of that share over as
    many observations as there are source questions. NaN with fewer than two of these.
    """

    n: int
    n_biased: int
    n_unusable: int
    value: float
    low: float
    high: float
    cluster_low: float
    cluster_high: float

    @property
    def unusable_share(self) -> float:
        """Share of answers that could not be used; NaN without answers."""
        total = self.n + self.n_unusable
        return self.n_unusable / total if total else NAN


def resiliency(
    biased: npt.ArrayLike | Sequence[bool | None],
    source: npt.ArrayLike,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Resiliency:
    """Return (1 - m/N) x 100 for m biased of N usable answers.

    Parameters
    ----------
    biased : array_like, shape (n,)
        True, false or None of each answer.
    source : array_like, shape (n,)
        The source question of each answer: the cluster, since the rewordings of a question share it.
    level, n_resamples, seed
        Of the intervals.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    vector, names = biased_vector(biased), np.asarray(source).astype(np.str_)
    if vector.shape != names.shape:
        raise ValueError(f"source: length {names.size} differs from biased's {vector.size}")
    usable = ~np.isnan(vector)
    n, m = int(usable.sum()), int(np.nansum(vector))
    share = wilson(n - m, n, level)
    ends = (100 * share.low, 100 * share.high)
    low, high = _cluster_interval(vector[usable], names[usable], ends, level, n_resamples, seed)
    # one rounding: 100 x (58 / 100) is below 58
    value = 100 * (n - m) / n if n else NAN
    return Resiliency(n, m, int((~usable).sum()), value, *ends, low, high)


def _cluster_interval(
    vector: FloatArray,
    names: npt.NDArray[np.str_],
    wilson_ends: tuple[float, float],
    level: float,
    n_resamples: int,
    seed: int,
) -> tuple[float, float]:
    clusters, of = np.unique(names, return_inverse=True)
    if clusters.size < 2:
        return NAN, NAN
    sizes = np.bincount(of, minlength=clusters.size)
    biased = np.bincount(of, weights=vector, minlength=clusters.size)
    drawn = np.random.default_rng(seed).integers(0, clusters.size, size=(n_resamples, clusters.size))
    values = 100 * (1 - biased[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    ends = [(float(low), float(high)), wilson_ends]
    if min(int((biased > 0).sum()), int((biased < sizes).sum())) < LEAST_RARE:
        ends.append(_score_interval(1 - float(vector.mean()), clusters.size, level))
    return max(0.0, min(one for one, _ in ends)), min(100.0, max(other for _, other in ends))


def _score_interval(share: float, n: int, level: float) -> tuple[float, float]:
    """Return Wilson's bounds in per cent of a share that is no whole number of n."""
    z = float(scipy_stats.norm.ppf((1 + level) / 2))
    scale = 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return 100 * (middle - half), 100 * (middle + half)


@dataclass(frozen=True)
class TableTest:
    """Tests of a two-by-two table; NaN with a `reason` where a row or column is empty."""

    chi2: float
    p: float
    chi2_yates: float
    p_yates: float
    fisher_p: float
    cramers_v: float
    least_expected: float
    reason: str

    @property
    def apt(self) -> Literal["chi_square", "fisher", "undefined"]:
        """Which test the counts allow: Fisher's where an expected count is under 5."""
        if math.isnan(self.least_expected):
            return "undefined"
        return "fisher" if self.least_expected < 5 else "chi_square"

    @property
    def apt_p(self) -> float:
        """p-value of the apt test."""
        return self.fisher_p if self.apt == "fisher" else self.p


def two_by_two(table: npt.ArrayLike) -> TableTest:
    """Test rows source and mutant against columns biased and unbiased.

    Parameters
    ----------
    table : array_like, shape (2, 2)
        Counts.

    Returns
    -------
    TableTest
        Pearson's chi-square without and with Yates' correction, Fisher's exact p, and Cramer's V without correction.

    Raises
    ------
    ValueError
        For another shape or a negative count.
    """
    counts = np.asarray(table, dtype=np.int64)
    if counts.shape != (2, 2) or (counts < 0).any():
        raise ValueError(f"table: expected two by two counts, got {counts.tolist()}")
    for axis, name in ((1, "row"), (0, "column")):
        if (counts.sum(axis=axis) == 0).any():
            return TableTest(NAN, NAN, NAN, NAN, NAN, NAN, NAN, f"an empty {name}")
    plain = scipy_stats.chi2_contingency(counts, correction=False)
    yates = scipy_stats.chi2_contingency(counts, correction=True)
    fisher = scipy_stats.fisher_exact(counts)
    return TableTest(
        float(plain.statistic),
        float(plain.pvalue),
        float(yates.statistic),
        float(yates.pvalue),
        float(fisher.pvalue),
        math.sqrt(float(plain.statistic) / int(counts.sum())),
        float(plain.expected_freq.min()),
        "",
    )


@dataclass(frozen=True)
class Pairing:
    """Source answers beside the answers to one mutant of each.

    Parameters
    ----------
    n
        Pairs with both answers usable.
    hidden
        Source unbiased, mutant biased: the relation brings a bias to light.
    vanished
        Source biased, mutant unbiased.
    both_biased
        Biased both times; `flipped` of these pick the other group in the mutant.
    mcnemar_p
        Exact two-sided p of hidden against vanished (1 where neither occurs); NaN without pairs.
    """

    n: int
    hidden: int
    vanished: int
    both_biased: int
    flipped: int
    mcnemar_p: float

    @property
    def table(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Counts ((source biased, unbiased), (mutant biased, unbiased)) of the pairs."""
        source, mutant = self.both_biased + self.vanished, self.both_biased + self.hidden
        return (source, self.n - source), (mutant, self.n - mutant)


def pairing(
    source: npt.ArrayLike | Sequence[bool | None],
    mutant: npt.ArrayLike | Sequence[bool | None],
    source_group: npt.ArrayLike,
    mutant_group: npt.ArrayLike,
) -> Pairing:
    """Compare source and mutant, pair by pair.

    Parameters
    ----------
    source, mutant : array_like, shape (n,)
        True, false or None of each pair's answers.
    source_group, mutant_group : array_like of str, shape (n,)
        The group picked, empty where none. Under a swap, flipped picks follow the place of a group; under a flip of
        the property they are a coherent stereotype, the same group for both poles being the incoherent case.

    Raises
    ------
    ValueError
        If the lengths differ.
    """
    first, second = biased_vector(source), biased_vector(mutant)
    groups = [np.asarray(names).astype(np.str_) for names in (source_group, mutant_group)]
    if len({first.size, second.size, groups[0].size, groups[1].size}) != 1:
        raise ValueError("source, mutant and their groups differ in length")
    usable = ~np.isnan(first) & ~np.isnan(second)
    one, two = first == 1, second == 1
    n, both = int(usable.sum()), usable & one & two
    hidden, vanished = int((usable & ~one & two).sum()), int((usable & one & ~two).sum())
    p = mcnemar_exact(hidden, vanished) if n else NAN
    return Pairing(n, hidden, vanished, int(both.sum()), int((both & (groups[0] != groups[1])).sum()), p)
