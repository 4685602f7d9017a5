"""Bias as association by plain cosine, each model in its own space (SEAT, eq. 2 and 3).

The baseline of the relative representations: the mean cosine of a target sentence with the positive attribute
sentences, less that with the negative ones.
"""

import numpy.typing as npt

from refbias.metrics.shift import Embeddings, ShiftResult, association_shift
from refbias.metrics.vectors import FloatArray, cosines


def seat_association(
    targets: npt.ArrayLike, positive: npt.ArrayLike, negative: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Associate target sentences with both attribute sets by mean cosine (eq. 2).

    Parameters
    ----------
    targets : array_like, shape (n, d)
        Target sentences; the groups may be stacked.
    positive, negative : array_like, shape (p, d) and (q, d)
        Attribute sentences.

    Returns
    -------
    s_plus, s_minus : ndarray, shape (n,)
        Mean cosine with the positive and with the negative attributes.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite, zero or mismatched input.
    """
    s_plus: FloatArray = cosines(targets, positive, "targets", "positive").mean(axis=1)
    s_minus: FloatArray = cosines(targets, negative, "targets", "negative").mean(axis=1)
    return s_plus, s_minus


def seat_shift(reference: Embeddings, audited: Embeddings) -> dict[str, ShiftResult]:
    """Shift of the SEAT bias of every target group, each model in its own space (eq. 7 over eq. 3).

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models; anchors are not used.

    Returns
    -------
    dict of str to ShiftResult
        One result a group.

    Raises
    ------
    ValueError
        Naming model and argument.
    """

    def associate(targets: FloatArray, model: Embeddings) -> tuple[FloatArray, FloatArray]:
        return seat_association(targets, model.positive, model.negative)

    return association_shift(reference, audited, associate, uses_anchors=False)
