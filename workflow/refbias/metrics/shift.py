"""From associations to the representational bias shift dB of each target group (eq. 3, 6 and 7).

A method compares two models on the same sentences and returns one `ShiftResult` a group. The result keeps the change
of every single target sentence, because its interval comes from resampling those sentences, the same ones in both
models. A method whose value is no mean over sentences hands over its own way of recomputing it on resampled sentences.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refbias.metrics.vectors import FloatArray, checked_matrix

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Embeddings:
    """Sentence embeddings of one model.

    Attributes
    ----------
    targets : mapping of str to array_like, shape (n, d)
        Target sentences of each group (the group-free control is one more group).
    positive, negative : array_like, shape (p, d) and (q, d)
        Attribute sentences.
    anchors : array_like, shape (m, d), or None
        Anchor sentences, for the methods that use them.
    """

    targets: Mapping[str, npt.ArrayLike]
    positive: npt.ArrayLike
    negative: npt.ArrayLike
    anchors: npt.ArrayLike | None = None


@dataclass(frozen=True)
class ShiftResult:
    """What one method finds for one target group.

    Attributes
    ----------
    s_plus, s_minus : ndarray, shape (n,)
        Change of each target sentence's association, audited less reference; NaN where a method has none.
    b_reference, b_audited : float
        Bias of the group in either model.
    n_anchors : int
        Anchors used, 0 for a method without.
    redraw : callable or None
        Maps sentence indices (k, n) to the k values of dB on those sentences; None where dB is the mean of
        ``s_plus - s_minus``.
    value : float or None
        What stands for dB in a method that has no B in either model; None where dB is their difference.
    """

    s_plus: FloatArray
    s_minus: FloatArray
    b_reference: float
    b_audited: float
    n_anchors: int = 0
    redraw: Callable[[IntArray], FloatArray] | None = None
    value: float | None = None

    @property
    def delta_b(self) -> float:
        """Shift dB = B_audited - B_reference (eq. 7); below 0 is a move towards the negative attributes."""
        return self.b_audited - self.b_reference if self.value is None else self.value


Method = Callable[[Embeddings, Embeddings], dict[str, ShiftResult]]
Association = Callable[[FloatArray, Embeddings], tuple[FloatArray, FloatArray]]


class DeltaB(NamedTuple):
    """dB with its interval over target sentences."""

    value: float
    low: float
    high: float


def bias(s_plus: npt.ArrayLike, s_minus: npt.ArrayLike) -> float:
    """Mean difference of the two associations over target sentences (eq. 3 and 6).

    Parameters
    ----------
    s_plus, s_minus : array_like, shape (n,)
        Association with the positive and with the negative attributes.

    Returns
    -------
    float
        B; larger is closer to the positive attributes.

    Raises
    ------
    ValueError
        Naming the argument, on empty, non-finite or mismatched input.
    """
    plus, minus = (np.asarray(values, dtype=np.float64) for values in (s_plus, s_minus))
    for name, values in (("s_plus", plus), ("s_minus", minus)):
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"{name}: expected a non-empty vector (n,), got shape {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name}: NaN or infinite value at {int(np.argmin(np.isfinite(values)))}")
    if plus.shape != minus.shape:
        raise ValueError(f"s_minus: length {minus.size} differs from s_plus's {plus.size}")
    return float(np.mean(plus - minus))


def association_shift(
    reference: Embeddings, audited: Embeddings, associate: Association, *, uses_anchors: bool
) -> dict[str, ShiftResult]:
    """Compare two models through an association that is computed within each of them.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models.
    associate : callable
        Maps the stacked targets (n, d) and a model to ``s_plus`` and ``s_minus``, each (n,).
    uses_anchors : bool
        Whether the anchors take part: then their number must agree, and is recorded.

    Returns
    -------
    dict of str to ShiftResult
        One result a group, in the reference's order.

    Raises
    ------
    ValueError
        Naming model and argument, on bad input or when the models hold different sentences.
    """
    check_same_sentences(reference, audited, uses_anchors=uses_anchors)
    associations: list[tuple[FloatArray, FloatArray]] = []
    for name, model in (("reference", reference), ("audited", audited)):
        targets = stacked_targets(model, reference.targets, name)
        try:
            # One stacked call: the attributes are represented once for all groups.
            associations.append(associate(targets, model))
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    n_anchors = len(np.asarray(reference.anchors)) if uses_anchors else 0
    return shift_results(reference.targets, associations[0], associations[1], n_anchors)


def stacked_targets(model: Embeddings, groups: Iterable[str], name: str) -> FloatArray:
    """Stack the target sentences of all groups.

    Parameters
    ----------
    model : Embeddings
        The model.
    groups : iterable of str
        Order of the groups.
    name : str
        What the model is called in errors.

    Returns
    -------
    ndarray, shape (n, d)
        All target sentences.

    Raises
    ------
    ValueError
        Naming model and group.
    """
    try:
        return np.concatenate([checked_matrix(model.targets[group], f"targets[{group}]") for group in groups])
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error


def shift_results(
    targets: Mapping[str, npt.ArrayLike],
    reference: tuple[FloatArray, FloatArray],
    audited: tuple[FloatArray, FloatArray],
    n_anchors: int,
) -> dict[str, ShiftResult]:
    """Sort the associations of stacked targets into one result a group.

    Parameters
    ----------
    targets : mapping of str to array_like, shape (n, d)
        The groups, in the order in which their sentences were stacked.
    reference, audited : tuple of ndarray, each of all sentences
        ``s_plus`` and ``s_minus`` in either model.
    n_anchors : int
        Anchors used.

    Returns
    -------
    dict of str to ShiftResult
        One result a group.
    """
    results: dict[str, ShiftResult] = {}
    start = 0
    for group, matrix in targets.items():
        rows = slice(start, start + len(np.asarray(matrix)))
        start = rows.stop
        results[group] = ShiftResult(
            s_plus=audited[0][rows] - reference[0][rows],
            s_minus=audited[1][rows] - reference[1][rows],
            b_reference=bias(reference[0][rows], reference[1][rows]),
            b_audited=bias(audited[0][rows], audited[1][rows]),
            n_anchors=n_anchors,
        )
    return results


def check_same_sentences(reference: Embeddings, audited: Embeddings, *, uses_anchors: bool) -> None:
    """Refuse two models that were not given the same numbers of sentences.

    Parameters
    ----------
    reference, audited : Embeddings
        The models to compare.
    uses_anchors : bool
        Whether the anchors are compared too.

    Raises
    ------
    ValueError
        Naming the set that differs, or ``targets`` when there is no group.
    """
    if not reference.targets:
        raise ValueError("targets: no group")
    if set(reference.targets) != set(audited.targets):
        differing = ", ".join(sorted(set(reference.targets) ^ set(audited.targets)))
        raise ValueError(f"targets: groups in one model only: {differing}")
    pairs: list[tuple[str, npt.ArrayLike | None, npt.ArrayLike | None]] = [
        (f"targets[{group}]", reference.targets[group], audited.targets[group]) for group in reference.targets
    ]
    pairs += [
        ("positive", reference.positive, audited.positive),
        ("negative", reference.negative, audited.negative),
    ]
    if uses_anchors:
        pairs.append(("anchors", reference.anchors, audited.anchors))
    for name, left, right in pairs:
        if left is None or right is None:
            raise ValueError(f"{name}: absent")
        sizes = (np.shape(left)[:1], np.shape(right)[:1])
        if sizes[0] != sizes[1]:
            raise ValueError(f"{name}: the audited model has shape {np.shape(right)}, the reference {np.shape(left)}")


def delta_b(result: ShiftResult, n_resamples: int, seed: int, level: float = 0.95) -> DeltaB:
    """Return dB of one group with a percentile bootstrap interval over its target sentences.

    A sentence is drawn together with its value in both models, so the interval speaks of the sentence set alone: not
    of the attributes, the anchors or the training seed. Draws are
    ``numpy.random.default_rng(seed).integers(0, n, size=(n_resamples, n))``; groups of equal size get the same draws,
    hence the same templates.

    Parameters
    ----------
    result : ShiftResult
        Output of a method for one group.
    n_resamples : int
        Bootstrap resamples.
    seed : int
        Seed of the draws.
    level : float
        Coverage, in (0, 1).

    Returns
    -------
    DeltaB
        Value and bounds; the bounds are NaN for a single sentence, which has no spread, and where most resamples
        have no value.

    Raises
    ------
    ValueError
        Naming the argument, if ``n_resamples`` is below 1 or ``level`` is not in (0, 1).
    """
    if n_resamples < 1:
        raise ValueError(f"n_resamples: must be at least 1, got {n_resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level: must be between 0 and 1, got {level}")
    n = result.s_plus.size
    if n < 2:
        return DeltaB(result.delta_b, float("nan"), float("nan"))
    draws = np.random.default_rng(seed).integers(0, n, size=(n_resamples, n))
    contributions = result.s_plus - result.s_minus
    values = contributions[draws].mean(axis=1) if result.redraw is None else result.redraw(draws)
    defined = values[~np.isnan(values)]
    if defined.size < n_resamples / 2:
        return DeltaB(result.delta_b, float("nan"), float("nan"))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return DeltaB(result.delta_b, float(low), float(high))


def shift_rows(
    reference: Embeddings,
    audited: Embeddings,
    methods: Mapping[str, Method],
    n_resamples: int,
    seed: int,
) -> list[dict[str, str | int | float]]:
    """Apply methods to a pair of models: one row a group and method, as in ``delta_b.csv``.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models.
    methods : mapping of str to Method
        Methods by name.
    n_resamples, seed : int
        Of the interval, see `delta_b`.

    Returns
    -------
    list of dict
        Keys group, method, n_anchors, s_plus, s_minus (mean changes), b_reference, b_audited, delta_b, ci_low, ci_high;
        NaN where a method has no such quantity.

    Raises
    ------
    ValueError
        Naming model and argument.
    """
    rows: list[dict[str, str | int | float]] = []
    for method, shift in methods.items():
        for group, result in shift(reference, audited).items():
            interval = delta_b(result, n_resamples, seed)
            rows.append(
                {
                    "group": group,
                    "method": method,
                    "n_anchors": result.n_anchors,
                    "s_plus": float(np.mean(result.s_plus)),
                    "s_minus": float(np.mean(result.s_minus)),
                    "b_reference": result.b_reference,
                    "b_audited": result.b_audited,
                    "delta_b": result.delta_b,
                    "ci_low": interval.low,
                    "ci_high": interval.high,
                }
            )
    return rows
