"""Bootstrap intervals that respect what the observations share.

The observations of one model and regime form a table, units by checkpoints. Values in a row share a group: its
sentences, its prompts, its place in the reference model. Values in a column share a checkpoint: one set of weights.
Resampling single cells would treat 168 numbers that come from 24 groups and 7 checkpoints as 168 independent ones.
`cluster_bootstrap` therefore draws rows and columns, each with replacement, and keeps every cell as often as its row
times its column were drawn (the two-way or "pigeonhole" bootstrap; McCullagh 2000, Owen 2007). Where row and column
effects dominate it is about right, for cells that are truly independent it is too wide: it errs towards caution.

It cannot know all: the seven checkpoints of a spectrum are mixtures of the same two fine-tunings, from h000 (the
unharmful endpoint) to h100 (the harmful one), so they are nearer to one path than to seven draws, and with seven of
them the tails are coarse. The interval says how far a result leans on single groups or single checkpoints; it does not
cover another training seed, another model or other sentences.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refbias.stats.vectors import FloatArray, IntArray, checked_resamples

CHUNK_ELEMENTS = 2_000_000
# An interval from a minority of the resamples would describe those that happened to work.
LEAST_VALID_SHARE = 0.5


class Interval(NamedTuple):
    """Percentile interval; NaN bounds where fewer than half the resamples gave a value."""

    low: float
    high: float
    n_valid: int


def percentile_interval(values: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Percentile interval of bootstrap values (linear interpolation), without the undefined ones.

    Parameters
    ----------
    values : array_like, shape (k,)
        One value a resample, NaN where undefined.
    level : float
        Coverage.

    Returns
    -------
    Interval
        Bounds and the number of defined values; the bounds are NaN when fewer than half are defined.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"values: expected a non-empty vector (k,), got shape {vector.shape}")
    checked_resamples(vector.size, level)
    valid = vector[~np.isnan(vector)]
    if valid.size < max(1.0, LEAST_VALID_SHARE * vector.size):
        return Interval(float("nan"), float("nan"), int(valid.size))
    low, high = np.quantile(valid, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), int(valid.size))


def cluster_bootstrap(
    statistic: Callable[[FloatArray], FloatArray],
    unit: npt.ArrayLike,
    checkpoint: npt.ArrayLike,
    n_resamples: int,
    seed: int,
    level: float = 0.95,
) -> Interval:
    """Two-way bootstrap interval: units and checkpoints resampled together.

    With ``generator = numpy.random.default_rng(seed)``, the sorted distinct units are drawn first,
    ``generator.integers(0, U, size=(n_resamples, U))``, then the sorted distinct checkpoints,
    ``generator.integers(0, C, size=(n_resamples, C))``. An observation's weight in a resample is the number of draws
    of its unit times that of its checkpoint.

    Parameters
    ----------
    statistic : callable
        Maps weights (k, n) to k values, NaN where undefined (a partial `weighted_pearson` or `weighted_auc`).
    unit, checkpoint : array_like, shape (n,)
        Cluster names of each observation.
    n_resamples, seed : int
        Resamples and seed of the draws.
    level : float
        Coverage.

    Returns
    -------
    Interval
        Percentile bounds over the defined resamples. NaN with a single unit or a single checkpoint, whose draws
        would vary nothing and make the interval too narrow.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    checked_resamples(n_resamples, level)
    units, unit_of = np.unique(np.asarray(unit), return_inverse=True)
    checkpoints, checkpoint_of = np.unique(np.asarray(checkpoint), return_inverse=True)
    if unit_of.size == 0:
        raise ValueError("unit: empty")
    if unit_of.shape != checkpoint_of.shape:
        raise ValueError(f"checkpoint: length {checkpoint_of.size} differs from unit's {unit_of.size}")
    if units.size < 2 or checkpoints.size < 2:
        return Interval(float("nan"), float("nan"), 0)
    generator = np.random.default_rng(seed)
    unit_counts = _draw_counts(generator, units.size, n_resamples)
    checkpoint_counts = _draw_counts(generator, checkpoints.size, n_resamples)
    rows = max(1, CHUNK_ELEMENTS // unit_of.size)
    values = []
    for start in range(0, n_resamples, rows):
        chunk = slice(start, start + rows)
        weights = unit_counts[chunk, unit_of] * checkpoint_counts[chunk, checkpoint_of]
        values.append(statistic(weights.astype(np.float64)))
    return percentile_interval(np.concatenate(values), level)


def paired_bootstrap_diff(
    audited_score: npt.ArrayLike,
    audited_prompt: npt.ArrayLike,
    reference_score: npt.ArrayLike,
    reference_prompt: npt.ArrayLike,
    n_resamples: int,
    seed: int,
    level: float = 0.95,
) -> Interval:
    """Interval of a unit's change of score: prompts resampled, the same ones in both models.

    A prompt is a cluster: its samples of either model stay together. With the sorted distinct prompts of both models,
    resamples are the rows of ``numpy.random.default_rng(seed).integers(0, P, size=(n_resamples, P))``; the change is
    the mean of the audited model's scored outputs less that of the reference's.

    Parameters
    ----------
    audited_score, reference_score : array_like, shape (n,) and (k,)
        Score of each output, NaN where missing.
    audited_prompt, reference_prompt : array_like, shape (n,) and (k,)
        Prompt of each output.
    n_resamples, seed : int
        Resamples and seed of the draws.
    level : float
        Coverage.

    Returns
    -------
    Interval
        Percentile bounds; NaN with fewer than two prompts, or where most resamples leave a model without scored output.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    checked_resamples(n_resamples, level)
    sides: list[tuple[FloatArray, npt.NDArray[np.str_]]] = []
    for name, score, prompt in (
        ("audited", audited_score, audited_prompt),
        ("reference", reference_score, reference_prompt),
    ):
        scores = np.asarray(score, dtype=np.float64)
        prompts = np.asarray(prompt).astype(np.str_)
        if scores.ndim != 1 or scores.size == 0:
            raise ValueError(f"{name}_score: expected a non-empty vector, got shape {scores.shape}")
        if np.isinf(scores).any():
            raise ValueError(f"{name}_score: infinite value")
        if prompts.shape != scores.shape:
            raise ValueError(f"{name}_prompt: shape {prompts.shape} differs from the scores' {scores.shape}")
        sides.append((scores, prompts))
    names = np.unique(np.concatenate([prompts for _, prompts in sides]))
    if names.size < 2:
        return Interval(float("nan"), float("nan"), 0)
    counts = _draw_counts(np.random.default_rng(seed), names.size, n_resamples).astype(np.float64)
    means: list[FloatArray] = []
    for scores, prompts in sides:
        position = np.searchsorted(names, prompts)
        scored = ~np.isnan(scores)
        total = np.bincount(position[scored], weights=scores[scored], minlength=names.size)
        number = np.bincount(position[scored], minlength=names.size).astype(np.float64)
        weight = counts @ number
        means.append(np.divide(counts @ total, weight, out=np.full(n_resamples, np.nan), where=weight > 0))
    return percentile_interval(means[0] - means[1], level)


def _draw_counts(generator: np.random.Generator, size: int, n_resamples: int) -> IntArray:
    """Count how often each of ``size`` clusters is drawn in each resample, shape (n_resamples, size)."""
    draws = generator.integers(0, size, size=(n_resamples, size))
    offsets = size * np.arange(n_resamples)[:, np.newaxis]
    counts = np.bincount((draws + offsets).ravel(), minlength=n_resamples * size)
    result: IntArray = counts.reshape(n_resamples, size).astype(np.int64)
    return result
