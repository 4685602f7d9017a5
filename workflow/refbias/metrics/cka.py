"""Drift of a group's target sentences between two models: 1 - CKA (centred kernel alignment).

With the centred Gram matrices K and L of the group's sentences in either model,
``CKA = <K, L> / (|K| |L|)`` (Kornblith et al. 2019). It is 1 for embeddings that differ by a rotation and a scale. The
drift says how much the sentences' similarities among themselves changed, and nothing of where they moved: it has no
direction, knows no attributes and needs no anchors.
"""

from typing import Literal

import numpy as np
from scipy.spatial.distance import pdist, squareform

from refbias.metrics.shift import Embeddings, IntArray, ShiftResult, check_same_sentences
from refbias.metrics.vectors import FloatArray, checked_matrix

Kernel = Literal["linear", "rbf"]
NAN = float("nan")


def gram(x: FloatArray, kernel: Kernel = "linear") -> FloatArray:
    """Centred Gram matrix of sentences, of Frobenius norm 1.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Embeddings.
    kernel : str
        ``linear``: inner products; ``rbf``: ``exp(-d^2 / (2 s^2))`` with s the median distance between two sentences.

    Returns
    -------
    ndarray, shape (n, n)
        ``H K H / |H K H|``; NaN throughout where all sentences are alike (or there is one), so that nothing is left
        to align.
    """
    n = len(x)
    if kernel == "rbf":
        distances = pdist(x)
        width = float(np.median(distances)) if distances.size else 0.0
        if width == 0.0:
            return np.full((n, n), NAN)
        matrix = np.exp(-0.5 * (squareform(distances) / width) ** 2)
    else:
        # Centred and scaled before the product: hidden states share a large mean that would swamp their differences.
        centred = x - x.mean(axis=0)
        largest = float(np.abs(centred).max())
        if largest <= n * np.finfo(np.float64).eps * float(np.abs(x).max()):
            return np.full((n, n), NAN)
        centred = centred / largest
        matrix = centred @ centred.T
    matrix = matrix - matrix.mean(axis=0)
    matrix = matrix - matrix.mean(axis=1, keepdims=True)
    norm = float(np.sqrt((matrix * matrix).sum()))
    result: FloatArray = matrix / norm if norm > 0 else np.full((n, n), NAN)
    return result


def cka(x: FloatArray, y: FloatArray, kernel: Kernel = "linear") -> float:
    """Centred kernel alignment of the same sentences in two models.

    Parameters
    ----------
    x : ndarray, shape (n, d)
        Embeddings in one model.
    y : ndarray, shape (n, e)
        Embeddings in the other; widths may differ.
    kernel : str
        See `gram`.

    Returns
    -------
    float
        In [0, 1]; NaN where `gram` has none.
    """
    return 1.0 - _drift(gram(x, kernel), gram(y, kernel))


def _drift(left: FloatArray, right: FloatArray) -> float:
    """1 - CKA from two Gram matrices of norm 1.

    ``|K - L|^2 / 2 = 1 - <K, L>`` keeps the digits of a small drift, is exactly 0 for equal matrices and never below.
    """
    difference = left - right
    return float((difference * difference).sum() / 2)


def _redrawn(left: FloatArray, right: FloatArray, draws: IntArray) -> FloatArray:
    """1 - CKA on resampled sentences: ``draws`` (k, n) to k values, NaN where all drawn sentences are alike.

    With c the number of times each sentence was drawn, ``<H K H, H L H>`` on the resample is
    ``sum c_i c_j K_ij L_ij - 2/n sum c_i (K c)_i (L c)_i + (c' K c)(c' L c) / n^2``. An RBF kernel keeps the width of
    the whole set.
    """
    resamples, n = draws.shape
    offsets = n * np.arange(resamples)[:, np.newaxis]
    counts = np.bincount((draws + offsets).ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
    sums = {name: counts @ matrix for name, matrix in (("left", left), ("right", right))}
    totals = {name: (counts * found).sum(axis=1) for name, found in sums.items()}

    def inner(a: str, b: str, product: FloatArray) -> FloatArray:
        whole = ((counts @ product) * counts).sum(axis=1)
        rows = (counts * sums[a] * sums[b]).sum(axis=1)
        value: FloatArray = whole - 2 * rows / n + totals[a] * totals[b] / n**2
        return value

    both, one, other = (
        inner("left", "right", left * right),
        inner("left", "left", left**2),
        inner("right", "right", right**2),
    )
    # the matrices have norm 1, so a resample with less than this left of it is rounding
    least = n**2 * np.finfo(np.float64).eps
    defined = (one > least) & (other > least)
    alignment = np.divide(
        both, np.sqrt(np.where(defined, one * other, 1.0)), out=np.full(resamples, NAN), where=defined
    )
    drift: FloatArray = 1.0 - np.clip(alignment, 0.0, 1.0)
    return drift


def cka_shift(reference: Embeddings, audited: Embeddings, *, kernel: Kernel = "linear") -> dict[str, ShiftResult]:
    """Drift 1 - CKA of every target group between the reference and the audited model.

    Fewer sentences align more easily, so drift is comparable at one number of sentences only. Resampling repeats some
    of them, which makes the distinct ones fewer: the interval leans towards smaller drift.

    Parameters
    ----------
    reference, audited : Embeddings
        The same target sentences in both models; widths may differ. Attributes and anchors are not used.
    kernel : str
        ``linear`` or ``rbf``, see `gram`.

    Returns
    -------
    dict of str to ShiftResult
        One result a group. ``value`` is the drift, at least 0; there is no B in either model and no association.

    Raises
    ------
    ValueError
        Naming model and argument.
    """
    check_same_sentences(reference, audited, uses_anchors=False)
    results: dict[str, ShiftResult] = {}
    for group, sentences in reference.targets.items():
        left = gram(checked_matrix(sentences, f"reference targets[{group}]"), kernel)
        right = gram(checked_matrix(audited.targets[group], f"audited targets[{group}]"), kernel)
        none = np.full(len(left), NAN)

        def redraw(draws: IntArray, left: FloatArray = left, right: FloatArray = right) -> FloatArray:
            return _redrawn(left, right, draws)

        results[group] = ShiftResult(none, none, NAN, NAN, redraw=redraw, value=_drift(left, right))
    return results
