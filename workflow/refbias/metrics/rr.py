"""Bias as association in the space of relative representations (eq. 4 to 6).

A sentence is described by its cosines with a set of anchor sentences that each model embeds itself. Two models that
differ by a rotation or a scale give the same description, so what changes between a reference and an audited model is
geometry that matters. The association with an attribute set is minus the mean Euclidean distance between descriptions.
Those distances grow like the square root of the number of anchors: values are comparable only at equal m.
"""

import numpy.typing as npt
from scipy.spatial.distance import cdist

from refbias.metrics.shift import Embeddings, ShiftResult, association_shift
from refbias.metrics.vectors import FloatArray, cosines


def relative_representation(x: npt.ArrayLike, anchors: npt.ArrayLike) -> FloatArray:
    """Describe embeddings by their cosines with anchors (eq. 4).

    Parameters
    ----------
    x : array_like, shape (n, d)
        Sentence embeddings.
    anchors : array_like, shape (m, d)
        Anchor embeddings of the same model.

    Returns
    -------
    ndarray, shape (n, m)
        ``r(x_i)_k = cos(x_i, anchors_k)``, float64.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite, zero or mismatched input.
    """
    return cosines(x, anchors, "x", "anchors")


def rr_association(
    targets: npt.ArrayLike, positive: npt.ArrayLike, negative: npt.ArrayLike, anchors: npt.ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Associate target sentences with both attribute sets through relative representations (eq. 5).

    The result is one value a sentence, so the targets of all groups may be stacked into one call; the attributes are
    then represented once.

    Parameters
    ----------
    targets : array_like, shape (n, d)
        Target sentences.
    positive, negative : array_like, shape (p, d) and (q, d)
        Attribute sentences.
    anchors : array_like, shape (m, d)
        Anchor sentences.

    Returns
    -------
    s_plus, s_minus : ndarray, shape (n,)
        Minus the mean distance to the positive and to the negative attributes; nearer to 0 is closer.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite, zero or mismatched input.
    """
    target_rr = cosines(targets, anchors, "targets", "anchors")
    positive_rr = cosines(positive, anchors, "positive", "anchors")
    negative_rr = cosines(negative, anchors, "negative", "anchors")
    # cdist takes differences first; expanding the square would cancel badly between close representations.
    s_plus: FloatArray = -cdist(target_rr, positive_rr).mean(axis=1)
    s_minus: FloatArray = -cdist(target_rr, negative_rr).mean(axis=1)
    return s_plus, s_minus


def rr_shift(reference: Embeddings, audited: Embeddings) -> dict[str, ShiftResult]:
    """Shift of the relative-representation bias of every target group (eq. 7).

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models; widths may differ between the models.

    Returns
    -------
    dict of str to ShiftResult
        One result a group.

    Raises
    ------
    ValueError
        Naming model and argument, also when the anchors are absent.
    """

    def associate(targets: FloatArray, model: Embeddings) -> tuple[FloatArray, FloatArray]:
        if model.anchors is None:
            raise ValueError("anchors: absent, relative representations need them")
        return rr_association(targets, model.positive, model.negative, model.anchors)

    return association_shift(reference, audited, associate, uses_anchors=True)
