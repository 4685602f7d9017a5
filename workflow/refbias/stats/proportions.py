"""Proportions: Wilson's interval, and McNemar's exact test of paired ones."""

import math
from dataclasses import dataclass

from scipy import stats as scipy_stats

NAN = float("nan")


@dataclass(frozen=True)
class Share:
    """A proportion with an interval; all NaN where `n` is 0."""

    k: int
    n: int
    value: float
    low: float
    high: float


def wilson(k: int, n: int, level: float = 0.95) -> Share:
    """Return k/n with the Wilson score interval (Wilson 1927).

    Raises
    ------
    ValueError
        Unless 0 <= k <= n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"k: must lie between 0 and n = {n}, got {k}")
    if n == 0:
        return Share(0, 0, NAN, NAN, NAN)
    z = float(scipy_stats.norm.ppf((1 + level) / 2))
    p, scale = k / n, 1 + z * z / n
    middle = (p + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # exact at the ends, where rounding would leave a trace
    return Share(k, n, p, 0.0 if k == 0 else middle - half, 1.0 if k == n else middle + half)


def mcnemar_exact(hidden: int, vanished: int) -> float:
    """Return the exact two-sided p of McNemar's test: a binomial test of the discordant pairs against one half."""
    discordant = hidden + vanished
    if discordant == 0:
        return 1.0
    return min(1.0, 2 * float(scipy_stats.binom.cdf(min(hidden, vanished), discordant, 0.5)))
