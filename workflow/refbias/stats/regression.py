"""Prediction of the change of score from dB by ordinary least squares, and its error over bootstrap resamples."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refbias.stats.vectors import FloatArray, checked_pair, checked_resamples, constant_rows

# Elements of the largest work array: 16 MB in float64.
CHUNK_ELEMENTS = 2_000_000


class BootstrapMae(NamedTuple):
    """Mean absolute error in score units: on the resample fitted, and on the observations left out of it."""

    mae: float
    mae_oob: float


class Line(NamedTuple):
    """``y = intercept + slope * x``."""

    intercept: float
    slope: float


def ols_line(x: npt.ArrayLike, y: npt.ArrayLike) -> Line:
    """Least squares line of ``y`` on ``x``; a constant ``x`` gives slope 0 through the mean of ``y``.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        The pairs.

    Returns
    -------
    Line
        Intercept and slope.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input.
    """
    left, right = checked_pair(x, y, "x", "y")
    intercept, slope = _lines(left[np.newaxis], right[np.newaxis])
    return Line(float(intercept[0]), float(slope[0]))


def bootstrap_mae(delta_b: npt.ArrayLike, delta_score: npt.ArrayLike, n_resamples: int, seed: int) -> BootstrapMae:
    """Mean absolute error of the change of score predicted from dB, over bootstrap resamples of the pairs.

    On each resample the line ``delta_score ~ delta_b`` is fitted by least squares. ``mae`` averages over resamples the
    mean absolute residual on the resample itself (in-sample, as the paper's figures), ``mae_oob`` that on the pairs
    which the resample left out (resamples that left out none are skipped). A resample whose dB is constant has no
    slope: it predicts the mean of its changes. Resamples are the rows of
    ``numpy.random.default_rng(seed).integers(0, n, size=(n_resamples, n))``.

    Parameters
    ----------
    delta_b : array_like, shape (n,)
        Representational bias shift.
    delta_score : array_like, shape (n,)
        Change of score.
    n_resamples : int
        Resamples.
    seed : int
        Seed of the draws.

    Returns
    -------
    BootstrapMae
        Both errors, in score units; ``mae_oob`` is NaN when no resample leaves a pair out.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input, or fewer than 1 resample.
    """
    x, y = checked_pair(delta_b, delta_score, "delta_b", "delta_score")
    checked_resamples(n_resamples)
    n = x.size
    generator = np.random.default_rng(seed)
    inside = np.empty(n_resamples)
    outside = np.full(n_resamples, np.nan)
    rows = max(1, CHUNK_ELEMENTS // n)
    for start in range(0, n_resamples, rows):
        chunk = slice(start, min(start + rows, n_resamples))
        # Successive draws continue one stream, so the chunk size does not change the resamples.
        draws = generator.integers(0, n, size=(chunk.stop - chunk.start, n))
        intercept, slope = _lines(x[draws], y[draws])
        error = np.abs(y - intercept[:, np.newaxis] - slope[:, np.newaxis] * x)
        inside[chunk] = np.take_along_axis(error, draws, axis=1).mean(axis=1)
        left_out = np.ones(draws.shape, dtype=np.bool_)
        np.put_along_axis(left_out, draws, False, axis=1)
        counts = left_out.sum(axis=1)
        outside[chunk] = np.divide(
            (error * left_out).sum(axis=1), counts, out=np.full(counts.shape, np.nan), where=counts > 0
        )
    some = ~np.isnan(outside)
    return BootstrapMae(float(inside.mean()), float(outside[some].mean()) if some.any() else float("nan"))


def _lines(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit intercepts and slopes of the least squares lines along the last axis."""
    mean_x, mean_y = x.mean(axis=1), y.mean(axis=1)
    centred = x - mean_x[:, np.newaxis]
    spread = (centred**2).sum(axis=1)
    products = (centred * (y - mean_y[:, np.newaxis])).sum(axis=1)
    sloped = ~constant_rows(x) & (spread > 0)
    slope: FloatArray = np.divide(products, spread, out=np.zeros_like(spread), where=sloped)
    return mean_y - slope * mean_x, slope
