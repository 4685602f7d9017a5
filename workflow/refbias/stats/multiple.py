"""p-values of several tests, adjusted together."""

from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
NAN = float("nan")


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Return Holm's adjusted p-values (1979); NaN stays NaN and does not count as a test."""
    return _adjusted(p_values, "holm")


def benjamini_hochberg(p_values: npt.ArrayLike) -> FloatArray:
    """Return Benjamini and Hochberg's adjusted p-values (1995); NaN stays NaN and does not count as a test."""
    return _adjusted(p_values, "bh")


def _adjusted(p_values: npt.ArrayLike, method: Literal["holm", "bh"]) -> FloatArray:
    vector = np.asarray(p_values, dtype=np.float64)
    defined = vector[~np.isnan(vector)]
    if vector.ndim != 1 or ((defined < 0) | (defined > 1)).any():
        raise ValueError("p_values: expected a vector of values between 0 and 1")
    found = np.full(vector.shape, NAN)
    order = np.argsort(defined, kind="stable")
    m, ranks = defined.size, np.arange(1, defined.size + 1)
    if method == "holm":
        steps = np.maximum.accumulate(defined[order] * (m - ranks + 1))
    else:
        steps = np.minimum.accumulate((defined[order] * m / ranks)[::-1])[::-1]
    adjusted = np.empty(m)
    adjusted[order] = np.minimum(steps, 1.0)
    found[~np.isnan(vector)] = adjusted
    return found
