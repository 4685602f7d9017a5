"""Checked vectors, and when one counts as constant."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

# Relative spread at which differences are rounding: 0.1 + 0.2 and 0.3 are the same score.
SPREAD = 1e-12


def checked_vector(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return ``values`` as a non-empty vector of finite float64.

    Parameters
    ----------
    values : array_like, shape (n,)
        Numbers.
    name : str
        Named in errors.

    Returns
    -------
    ndarray, shape (n,)
        The same numbers.

    Raises
    ------
    ValueError
        If it is not a numeric vector, is empty, or holds NaN or infinity.
    """
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: not a vector of numbers ({error})") from error
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{name}: expected a non-empty vector (n,), got shape {vector.shape}")
    finite = np.isfinite(vector)
    if not finite.all():
        raise ValueError(f"{name}: NaN or infinite value at {int(np.argmin(finite))}")
    return vector


def checked_pair(x: npt.ArrayLike, y: npt.ArrayLike, x_name: str, y_name: str) -> tuple[FloatArray, FloatArray]:
    """Return two checked vectors of one length.

    Parameters
    ----------
    x, y : array_like, shape (n,)
        Numbers.
    x_name, y_name : str
        Named in errors.

    Returns
    -------
    tuple of ndarray
        Both vectors.

    Raises
    ------
    ValueError
        As `checked_vector`, or if the lengths differ.
    """
    left, right = checked_vector(x, x_name), checked_vector(y, y_name)
    if left.size != right.size:
        raise ValueError(f"{y_name}: length {right.size} differs from {x_name}'s {left.size}")
    return left, right


def checked_label(label: npt.ArrayLike, size: int, name: str = "label") -> BoolArray:
    """Return binary labels as booleans.

    Parameters
    ----------
    label : array_like, shape (n,)
        Booleans or 0 and 1.
    size : int
        Length expected.
    name : str
        Named in errors.

    Returns
    -------
    ndarray of bool, shape (n,)
        The positives.

    Raises
    ------
    ValueError
        If the length differs or a value is neither 0 nor 1.
    """
    vector = checked_vector(label, name)
    if vector.size != size:
        raise ValueError(f"{name}: length {vector.size} differs from the scores' {size}")
    if not np.isin(vector, (0.0, 1.0)).all():
        raise ValueError(f"{name}: must be 0 or 1")
    positive: BoolArray = vector == 1.0
    return positive


def constant_rows(values: FloatArray) -> BoolArray:
    """Tell along the last axis whether the numbers are equal up to rounding.

    Parameters
    ----------
    values : ndarray, shape (..., n)
        Numbers.

    Returns
    -------
    ndarray of bool, shape (...)
        True where max - min is at most 1e-12 of the largest magnitude.
    """
    constant: BoolArray = np.asarray(np.ptp(values, axis=-1) <= SPREAD * np.abs(values).max(axis=-1))
    return constant


def checked_resamples(n_resamples: int, level: float = 0.95) -> None:
    """Refuse a number of resamples below 1 or a level outside (0, 1).

    Parameters
    ----------
    n_resamples : int
        Bootstrap resamples.
    level : float
        Coverage of an interval.

    Raises
    ------
    ValueError
        Naming the argument.
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples: must be at least 1, got {n_resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level: must be between 0 and 1, got {level}")
