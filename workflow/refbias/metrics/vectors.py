"""Checked matrices of embeddings and their unit rows.

Every method starts from cosines, so the checks live here: a zero vector has no direction, a NaN would spread silently
into every group, and an empty set has no mean. Each is refused by the name of the argument that carries it.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def checked_matrix(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return ``values`` as a float64 matrix of finite, non-zero rows.

    Parameters
    ----------
    values : array_like, shape (n, d)
        One embedding a row.
    name : str
        What the caller calls it; every error starts with it.

    Returns
    -------
    ndarray, shape (n, d)
        The same numbers in float64.

    Raises
    ------
    ValueError
        If it is not a numeric matrix, is empty, or holds a non-finite or zero row.
    """
    try:
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: not a matrix of numbers with rows of one length ({error})") from error
    if matrix.ndim != 2:
        raise ValueError(f"{name}: expected a matrix (n, d), got shape {matrix.shape}")
    if 0 in matrix.shape:
        raise ValueError(f"{name}: empty, shape {matrix.shape}")
    finite = np.isfinite(matrix).all(axis=1)
    if not finite.all():
        raise ValueError(f"{name}: NaN or infinite value in row {int(np.argmin(finite))}")
    nonzero = matrix.any(axis=1)
    if not nonzero.all():
        raise ValueError(f"{name}: zero vector in row {int(np.argmin(nonzero))}, it has no direction")
    return matrix


def unit_rows(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return the rows of ``values`` divided by their Euclidean length.

    Parameters
    ----------
    values : array_like, shape (n, d)
        One embedding a row.
    name : str
        Named in errors.

    Returns
    -------
    ndarray, shape (n, d)
        Rows of length 1.

    Raises
    ------
    ValueError
        As `checked_matrix`.
    """
    matrix = checked_matrix(values, name)
    # Dividing by the largest entry first keeps the squares of very long and very short vectors in range.
    scaled = matrix / np.abs(matrix).max(axis=1, keepdims=True)
    lengths: FloatArray = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    rows: FloatArray = scaled / lengths[:, np.newaxis]
    return rows


def cosines(left: npt.ArrayLike, right: npt.ArrayLike, left_name: str, right_name: str) -> FloatArray:
    """Return the cosine of every row of ``left`` with every row of ``right``.

    Parameters
    ----------
    left : array_like, shape (n, d)
        Embeddings.
    right : array_like, shape (m, d)
        Embeddings of the same model.
    left_name, right_name : str
        Named in errors.

    Returns
    -------
    ndarray, shape (n, m)
        Cosines, not clipped: rounding may leave 1 by a few units in the last place.

    Raises
    ------
    ValueError
        As `checked_matrix`, or if the widths differ.
    """
    left_unit, right_unit = unit_rows(left, left_name), unit_rows(right, right_name)
    if left_unit.shape[1] != right_unit.shape[1]:
        raise ValueError(f"{right_name}: width {right_unit.shape[1]} differs from {left_name}'s {left_unit.shape[1]}")
    result: FloatArray = left_unit @ right_unit.T
    return result
