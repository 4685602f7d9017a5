"""Pearson and Spearman correlation, and Pearson's under weights for the bootstrap."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats as scipy_stats

from refbias.stats.vectors import FloatArray, checked_pair, constant_rows

# Weighted variance, as a share of the unweighted one, below which a resample counts as constant.
VARIANCE_SHARE = 1e-12


class Correlation(NamedTuple):
    """A correlation coefficient and its two-tailed p-value, both NaN where undefined."""

    r: float
    p: float


def undefined_reason(x: npt.ArrayLike, y: npt.ArrayLike, x_name: str = "x", y_name: str = "y") -> str:
    """Say why a correlation of ``x`` and ``y`` is undefined.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        The pairs.
    x_name, y_name : str
        What the reason and errors call them.

    Returns
    -------
    str
        The reason, empty where the correlation exists.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input.
    """
    left, right = checked_pair(x, y, x_name, y_name)
    if left.size < 3:
        return f"only {left.size} pairs"
    constant = [name for name, values in ((x_name, left), (y_name, right)) if constant_rows(values)]
    return f"{' and '.join(constant)} constant" if constant else ""


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation:
    """Pearson correlation with its two-tailed p-value.

    The p-value takes the pairs for independent; observations that share a group or a checkpoint are not, so
    `cluster_bootstrap` stands beside it.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        The pairs.

    Returns
    -------
    Correlation
        ``r`` and ``p``; both NaN for fewer than three pairs or a constant side (`undefined_reason` says which).

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input.
    """
    left, right = checked_pair(x, y, "x", "y")
    if undefined_reason(left, right):
        return Correlation(float("nan"), float("nan"))
    result = scipy_stats.pearsonr(left, right)
    return Correlation(float(result.statistic), float(result.pvalue))


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation:
    """Spearman rank correlation (mean ranks of ties) with its two-tailed p-value.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        The pairs.

    Returns
    -------
    Correlation
        ``r`` and ``p``; both NaN for fewer than three pairs or a constant side.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input.
    """
    left, right = checked_pair(x, y, "x", "y")
    if undefined_reason(left, right):
        return Correlation(float("nan"), float("nan"))
    result = scipy_stats.spearmanr(left, right)
    return Correlation(float(result.statistic), float(result.pvalue))


def weighted_pearson(x: npt.ArrayLike, y: npt.ArrayLike, weights: npt.ArrayLike) -> FloatArray:
    """Pearson correlation under each row of weights.

    Whole-number weights give the correlation of the sample in which every pair is repeated that often.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        The pairs.
    weights : array_like, shape (k, n)
        Non-negative weights, one resample a row.

    Returns
    -------
    ndarray, shape (k,)
        Correlations; NaN where a row has no weight, or its weighted variance of either side is at most 1e-12 of the
        unweighted one.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    left, right = checked_pair(x, y, "x", "y")
    matrix = np.atleast_2d(np.asarray(weights, dtype=np.float64))
    if matrix.shape[1] != left.size:
        raise ValueError(f"weights: {matrix.shape[1]} columns for {left.size} pairs")
    # Centred and scaled first, so that the products below do not cancel.
    left, right = _standardised(left), _standardised(right)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = matrix / matrix.sum(axis=1, keepdims=True)
        mean_left, mean_right = share @ left, share @ right
        variance_left = share @ left**2 - mean_left**2
        variance_right = share @ right**2 - mean_right**2
        covariance = share @ (left * right) - mean_left * mean_right
        r = covariance / np.sqrt(variance_left * variance_right)
        defined = (variance_left > VARIANCE_SHARE) & (variance_right > VARIANCE_SHARE)
    result: FloatArray = np.where(defined, np.clip(r, -1.0, 1.0), np.nan)
    return result


def _standardised(values: FloatArray) -> FloatArray:
    centred = values - values.mean()
    if constant_rows(values):
        return np.zeros_like(values)
    scaled: FloatArray = centred / centred.std()
    return scaled
