"""Relative-representation distances by matrix products, for many cells of the same sentences.

The plain functions take differences first, which is exact and slow. Here the square is expanded,
|l - r|^2 = |l|^2 + |r|^2 - 2 l.r, about the mean of one side, which takes away most of what would
cancel; the few pairs that are still close are computed from their differences. A prefix of the
anchors is a prefix of the sum over columns, so nested anchor sets cost no more than the largest.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from refbias.metrics.vectors import FloatArray

# Squared distance, as a share of both squared lengths, below which the expansion has too few digits.
CLOSE = 1e-6
_PAIRS = 1 << 14


def fast_unit_rows(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return single-precision embeddings as float64 rows of length 1, in few passes over memory.

    Parameters
    ----------
    values : array_like, shape (n, d)
        One embedding a row, of a magnitude whose square float64 can hold.
    name : str
        Named in errors.

    Returns
    -------
    ndarray, shape (n, d)
        Rows of length 1.

    Raises
    ------
    ValueError
        If a row is zero or not finite.
    """
    matrix = np.array(values, dtype=np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
    bad = ~np.isfinite(lengths) | (lengths == 0)
    if bad.any():
        raise ValueError(f"{name}: zero, NaN or infinite vector in row {int(np.argmax(bad))}")
    matrix /= lengths[:, np.newaxis]
    return matrix


def prefix_distances(left: FloatArray, right: FloatArray, counts: Sequence[int]) -> Iterator[FloatArray]:
    """Yield Euclidean distances over the first ``counts[0]``, ``counts[1]``, ... columns.

    Parameters
    ----------
    left, right : ndarray, shape (n, m) and (p, m)
        Relative representations over the same anchors in the same order.
    counts : sequence of int
        Ascending, the last at most m.

    Yields
    ------
    ndarray, shape (n, p)
        Distances, equal to those of differences to about 1e-12.
    """
    centre = right.mean(axis=0)
    rows, columns = left - centre, right - centre
    squares = np.zeros((len(left), len(right)))
    scale = np.zeros_like(squares)
    start = 0
    for stop in counts:
        a, b = rows[:, start:stop], columns[:, start:stop]
        added = np.einsum("ij,ij->i", a, a)[:, np.newaxis] + np.einsum("ij,ij->i", b, b)
        scale += added
        added -= 2 * (a @ b.T)
        squares += added
        start = stop
        yield _roots(squares, scale, left[:, :stop], right[:, :stop])


def _roots(squares: FloatArray, scale: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    result: FloatArray = np.sqrt(np.maximum(squares, 0.0))
    i, j = np.nonzero(squares <= CLOSE * scale)
    for at in range(0, len(i), _PAIRS):
        part = slice(at, at + _PAIRS)
        difference = left[i[part]] - right[j[part]]
        result[i[part], j[part]] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
    return result


def bias_of_distances(
    distances: FloatArray, n_positive: int, groups: Mapping[str, npt.NDArray[np.int64]]
) -> dict[str, float]:
    """Bias of every group from distances to the attributes (eq. 5 and 6).

    Parameters
    ----------
    distances : ndarray, shape (n, p + q)
        Of each target sentence to the positive, then the negative attributes.
    n_positive : int
        p.
    groups : mapping of str to ndarray of int
        Rows of each group.

    Returns
    -------
    dict of str to float
        B of each group.
    """
    each = distances[:, n_positive:].mean(axis=1) - distances[:, :n_positive].mean(axis=1)
    return {group: float(each[rows].mean()) for group, rows in groups.items()}
