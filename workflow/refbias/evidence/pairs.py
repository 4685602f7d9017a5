"""Changes of association of every target with every attribute sentence, for both association measures.

``D[t, a]`` is the audited model's association of target t with attribute a less the reference's: minus the distance of
their relative representations (``rr``, eq. 5) or their cosine (``seat``, eq. 2). All statistics of an audit are sums
over this one matrix, so dB is ``mean D[t, a]`` over targets and positive attributes less that over negative ones.

Rows are normalised a block at a time and distances come from matrix products, so that a model of width 4096 with 1,250
targets, 200 attributes and 1,000 anchors needs little more than its embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refbias.evidence.records import Method
from refbias.metrics.nested import prefix_distances
from refbias.metrics.shift import Embeddings, check_same_sentences
from refbias.metrics.vectors import FloatArray, unit_rows

BLOCK = 512
# Changes below this share of the associations are the rounding of double precision: a model that was only turned has no
# change, and a test of its rounding would be a test of noise.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Model:
    """Sentences of one model as the method describes them.

    Attributes
    ----------
    targets : ndarray, shape (n, k)
        Of all groups, stacked: relative representations (``rr``, k anchors) or unit embeddings (``seat``).
    attributes : ndarray, shape (p + q, k)
        The positive first.
    neutral : ndarray, shape (m, k), or None
        The anchors themselves, from which pseudo-attributes are drawn.
    mean_cosine : float
        Between two different attribute sentences.
    """

    targets: FloatArray
    attributes: FloatArray
    neutral: FloatArray | None
    mean_cosine: float


@dataclass(frozen=True)
class Pairs:
    """Associations of every target with every attribute in both models.

    Attributes
    ----------
    method : str
        ``rr`` or ``seat``.
    groups : dict of str to slice
        Rows of each group, the control among them.
    n_positive : int
        Columns that come first.
    models : tuple of Model
        The reference and the audited model.
    reference, audited, change : ndarray, shape (n, p + q)
        Associations, and D.
    """

    method: Method
    groups: dict[str, slice]
    n_positive: int
    models: tuple[Model, Model]
    reference: FloatArray
    audited: FloatArray
    change: FloatArray


def associations(method: Method, targets: FloatArray, others: FloatArray) -> FloatArray:
    """Association of described targets with described sentences of the same model.

    Parameters
    ----------
    method : str
        ``rr``: minus the Euclidean distance; ``seat``: the inner product.
    targets, others : ndarray, shape (n, k) and (a, k)
        Rows of a `Model`.

    Returns
    -------
    ndarray, shape (n, a)
        Larger is closer.
    """
    if method == "seat":
        products: FloatArray = targets @ others.T
        return products
    result = np.empty((len(targets), len(others)))
    for start in range(0, len(targets), BLOCK):
        rows = slice(start, start + BLOCK)
        (distances,) = prefix_distances(targets[rows], others, [others.shape[1]])
        np.negative(distances, out=result[rows])
    return result


def _described(values: npt.ArrayLike, name: str, anchors: FloatArray | None) -> FloatArray:
    """Return unit rows, or with anchors their cosines with them, a block of rows at a time."""
    if anchors is None:
        return unit_rows(values, name)
    matrix = np.asarray(values)
    if matrix.ndim != 2 or not len(matrix):
        return unit_rows(matrix, name)  # names what is wrong
    result = np.empty((len(matrix), len(anchors)))
    for start in range(0, len(matrix), BLOCK):
        rows = slice(start, start + BLOCK)
        try:
            unit = unit_rows(matrix[rows], name)
        except ValueError as error:
            raise ValueError(f"{error} (counted from row {start})" if start else str(error)) from error
        if unit.shape[1] != anchors.shape[1]:
            raise ValueError(f"{name}: width {unit.shape[1]} differs from the anchors' {anchors.shape[1]}")
        result[rows] = unit @ anchors.T
    return result


def _mean_cosine(unit: FloatArray) -> float:
    """Mean cosine of two different rows of unit length; NaN for a single one."""
    n = len(unit)
    total = unit.sum(axis=0)
    return float((total @ total - n) / (n * (n - 1))) if n > 1 else float("nan")


def describe(model: Embeddings, groups: Mapping[str, slice], method: Method, name: str) -> Model:
    """Describe one model's sentences as the method sees them.

    Parameters
    ----------
    model : Embeddings
        Embeddings of any float type.
    groups : mapping of str to slice
        Rows of the groups in the stack, in order.
    method : str
        ``rr`` or ``seat``.
    name : str
        What the model is called in errors.

    Returns
    -------
    Model
        Its sentences.

    Raises
    ------
    ValueError
        Naming model and argument.
    """
    try:
        if method == "rr" and model.anchors is None:
            raise ValueError("anchors: absent, relative representations need them")
        neutral = None if model.anchors is None else unit_rows(model.anchors, "anchors")
        basis = neutral if method == "rr" else None
        sets = [unit_rows(model.positive, "positive"), unit_rows(model.negative, "negative")]
        if sets[0].shape[1] != sets[1].shape[1]:
            raise ValueError(f"negative: width {sets[1].shape[1]} differs from positive's {sets[0].shape[1]}")
        unit = np.concatenate(sets)
        if neutral is not None and neutral.shape[1] != unit.shape[1]:
            raise ValueError(f"anchors: width {neutral.shape[1]} differs from the attributes' {unit.shape[1]}")
        stacked = [_described(model.targets[group], f"targets[{group}]", basis) for group in groups]
        targets = np.concatenate(stacked)
        if method == "seat" and targets.shape[1] != unit.shape[1]:
            raise ValueError(f"targets: width {targets.shape[1]} differs from the attributes' {unit.shape[1]}")
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error
    if basis is None:
        return Model(targets, unit, neutral, _mean_cosine(unit))
    return Model(targets, unit @ basis.T, basis @ basis.T, _mean_cosine(unit))


def pair_matrices(reference: Embeddings, audited: Embeddings, method: Method = "rr") -> Pairs:
    """Associate every target with every attribute in both models.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models; widths may differ between the models.
    method : str
        ``rr`` or ``seat``.

    Returns
    -------
    Pairs
        ``change`` is exactly 0 throughout where both models hold the same numbers, or differ by rounding alone.

    Raises
    ------
    ValueError
        Naming model and argument, on bad input or when the models hold different sentences.
    """
    if method not in ("rr", "seat"):
        raise ValueError(f"method: {method!r} has no pair matrix, only rr and seat have")
    check_same_sentences(reference, audited, uses_anchors=method == "rr")
    groups, start = {}, 0
    for group, matrix in reference.targets.items():
        groups[group] = slice(start, start + len(np.asarray(matrix)))
        start = groups[group].stop
    first = describe(reference, groups, method, "reference")
    # products of equal numbers need not agree in the last digit when they lie elsewhere in memory
    second = first if _equal(reference, audited) else describe(audited, groups, method, "audited")
    before = associations(method, first.targets, first.attributes)
    after = before if second is first else associations(method, second.targets, second.attributes)
    change = settled(after - before, before)
    return Pairs(method, groups, len(np.asarray(reference.positive)), (first, second), before, after, change)


def settled(change: FloatArray, associated: FloatArray) -> FloatArray:
    """Return the change, or zeros where all of it is rounding.

    Parameters
    ----------
    change : ndarray
        Differences of associations.
    associated : ndarray
        The associations.

    Returns
    -------
    ndarray
        Same shape.
    """
    if np.abs(change).max() <= ROUNDING * max(1.0, float(np.abs(associated).max())):
        return np.zeros_like(change)
    return change


def _equal(left: Embeddings, right: Embeddings) -> bool:
    pairs = [(left.targets[group], right.targets[group]) for group in left.targets]
    pairs += [(left.positive, right.positive), (left.negative, right.negative)]
    if (left.anchors is None) != (right.anchors is None):
        return False
    if left.anchors is not None and right.anchors is not None:
        pairs.append((left.anchors, right.anchors))
    return all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in pairs)
