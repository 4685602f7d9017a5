"""SEAT in the reference's space, after the best orthogonal map of the audited model onto it (Procrustes-SEAT).

The map minimises ``||A R - B||_F`` over orthogonal R, for fitting sentences A (audited) and B (reference), without
centring. ``A' B`` decides R only where both models' fitting sentences have a component; everywhere else any orthogonal
completion fits equally well. Of all minimisers the one nearest to the identity is taken: it leaves what the sentences
say nothing about where it is, and it costs nothing outside of their joint span, which is all that is computed.
"""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import qr

from refbias.metrics.seat import seat_association
from refbias.metrics.shift import Embeddings, ShiftResult, check_same_sentences, shift_results, stacked_targets
from refbias.metrics.vectors import FloatArray, checked_matrix, unit_rows

Fit = Literal["anchors", "all"]


class OrthogonalMap(NamedTuple):
    """``R = I + J D J'``: the identity outside the span of the columns of J.

    Attributes
    ----------
    basis : ndarray, shape (d, k)
        J, orthonormal columns.
    change : ndarray, shape (k, k)
        D, what R does within the span, less the identity.
    """

    basis: FloatArray
    change: FloatArray

    def forward(self, rows: FloatArray) -> FloatArray:
        """Return ``rows @ R``, shape (n, d): audited embeddings in the reference's space."""
        moved: FloatArray = rows + self.displaced(rows, self.change)
        return moved

    def displaced(self, rows: FloatArray, change: FloatArray) -> FloatArray:
        """Return ``rows @ J @ change @ J'``, shape (n, d)."""
        result: FloatArray = ((rows @ self.basis) @ change) @ self.basis.T
        return result


def orthogonal_map(audited: npt.ArrayLike, reference: npt.ArrayLike) -> OrthogonalMap:
    """Best orthogonal map of the rows of ``audited`` onto those of ``reference``.

    The basis starts with the right singular vectors of ``audited``. There ``A' B = A' A + A' (B - A)`` is a diagonal
    matrix plus the part that the difference contributes, so equal inputs give the identity to the last bit: every
    factorisation below meets an exactly diagonal matrix.

    Parameters
    ----------
    audited, reference : array_like, shape (m, d)
        The same sentences in both models.

    Returns
    -------
    OrthogonalMap
        The minimiser of ``||audited @ R - reference||_F`` nearest to the identity.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite, zero or mismatched input.
    """
    source, target = checked_matrix(audited, "audited"), checked_matrix(reference, "reference")
    if source.shape != target.shape:
        raise ValueError(f"reference: shape {target.shape} differs from audited's {source.shape}")
    difference = target - source
    left, scale, right = np.linalg.svd(source, full_matrices=False)
    known = scale > max(source.shape) * np.finfo(np.float64).eps * scale[0]
    left, scale, right = left[:, known], scale[known], right[known]
    outside = difference - (difference @ right.T) @ right
    basis = np.concatenate([right.T, _row_space(outside, right, scale[0])], axis=1)
    rank, size = len(scale), basis.shape[1]
    cross = scale[:, np.newaxis] * (left.T @ (difference @ basis))
    cross[np.arange(rank), np.arange(rank)] += scale**2
    return OrthogonalMap(basis, _nearest_orthogonal(cross) - np.eye(size))


def _row_space(rows: FloatArray, taken: FloatArray, scale: float) -> FloatArray:
    """Orthonormal basis (d, j) of the row space of ``rows`` (m, d), orthogonal to the orthonormal rows ``taken``."""
    if not rows.any():
        return np.empty((rows.shape[1], 0))
    directions, triangle, _ = qr(rows.T, mode="economic", pivoting=True)
    lengths = np.abs(np.diagonal(triangle))
    # what is shorter than the rounding of the rows themselves is no direction of theirs
    found = directions[:, lengths > max(rows.shape) * np.finfo(np.float64).eps * max(scale, float(lengths[0]))].T
    # Once more, because the rows may be short against what was taken off them. A direction that this shortens was no
    # more than their rounding.
    found = found - (found @ taken.T) @ taken
    found = found[np.sqrt((found * found).sum(axis=1)) > 0.9]
    basis: FloatArray = np.linalg.qr(found.T)[0]
    return basis


def _nearest_orthogonal(cross: FloatArray) -> FloatArray:
    """Orthogonal (k, k) factor of ``cross`` (r, k), r <= k, completed as near to the identity as it can be."""
    rank, size = cross.shape
    rotation, triangle = np.linalg.qr(cross.T, mode="complete")
    left, values, right = np.linalg.svd(triangle[:rank].T)
    decided = int((values > size * np.finfo(np.float64).eps * values[0]).sum())
    sources = np.zeros((size, size))
    sources[:rank, :rank] = left
    sources[rank:, rank:] = np.eye(size - rank)
    images = rotation.copy()
    images[:, :rank] = rotation[:, :rank] @ right.T
    factor: FloatArray = sources[:, :decided] @ images[:, :decided].T
    if decided < size:
        free, open_images = sources[:, decided:], images[:, decided:]
        turn, _, back = np.linalg.svd(free.T @ open_images)
        factor = factor + (free @ (turn @ back)) @ open_images.T
    return factor


def procrustes_shift(reference: Embeddings, audited: Embeddings, *, fit: Fit = "anchors") -> dict[str, ShiftResult]:
    """Shift of the SEAT bias measured against the reference's attributes, the audited targets mapped onto them.

    Instead of the targets, the mean unit attribute vectors are carried back through the map, which gives the same
    cosines: an orthogonal map changes no length, and ``cos(x R, p) = cos(x, p R')``.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models, of one width. The audited model's attributes enter a fit on all sentences
        only.
    fit : str
        Fit the map on the ``anchors``, or on ``all`` sentences.

    Returns
    -------
    dict of str to ShiftResult
        One result a group; ``b_audited`` is the mapped targets' bias towards the reference's attributes.

    Raises
    ------
    ValueError
        Naming model and argument, also when the anchors are absent or the widths differ.
    """
    check_same_sentences(reference, audited, uses_anchors=True)
    groups = list(reference.targets)
    targets = {name: stacked_targets(model, groups, name) for name, model in _named(reference, audited)}
    if targets["reference"].shape[1] != targets["audited"].shape[1]:
        raise ValueError(
            f"audited targets: width {targets['audited'].shape[1]} differs from the reference's "
            f"{targets['reference'].shape[1]}: there is no orthogonal map"
        )
    rows = {name: _fitting_rows(model, targets[name], fit, name) for name, model in _named(reference, audited)}
    mapping = orthogonal_map(rows["audited"], rows["reference"])
    associations = {}
    for name in targets:
        try:
            associations[name] = seat_association(targets[name], reference.positive, reference.negative)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    direction = unit_rows(targets["audited"], "audited targets")
    moved = []
    for values, attributes in zip(associations["audited"], (reference.positive, reference.negative), strict=True):
        mean = unit_rows(attributes, "reference attributes").mean(axis=0, keepdims=True)
        moved.append(values + direction @ mapping.displaced(mean, mapping.change.T)[0])
    return shift_results(
        reference.targets, associations["reference"], (moved[0], moved[1]), len(np.asarray(reference.anchors))
    )


def _named(reference: Embeddings, audited: Embeddings) -> tuple[tuple[str, Embeddings], tuple[str, Embeddings]]:
    return ("reference", reference), ("audited", audited)


def _fitting_rows(model: Embeddings, targets: FloatArray, fit: Fit, name: str) -> FloatArray:
    if model.anchors is None:
        raise ValueError(f"{name} anchors: absent, the map is fitted on them")
    anchors = checked_matrix(model.anchors, f"{name} anchors")
    if fit == "anchors":
        return anchors
    attributes = [
        checked_matrix(model.positive, f"{name} positive"),
        checked_matrix(model.negative, f"{name} negative"),
    ]
    return np.concatenate([anchors, *attributes, targets])
