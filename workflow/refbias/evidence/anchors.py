"""What the anchors say: dB on random halves of them, and which of them a group moved towards or away from."""

import math

import numpy as np
import numpy.typing as npt

from refbias.evidence.pairs import Model, Pairs
from refbias.evidence.records import AnchorShift
from refbias.metrics.nested import bias_of_distances, prefix_distances
from refbias.metrics.shift import Embeddings
from refbias.metrics.vectors import FloatArray, cosines, unit_rows

IntArray = npt.NDArray[np.int64]


def half_shifts(pairs: Pairs, n_halves: int, seed: int) -> FloatArray | None:
    """Recompute every group's dB with random halves of the anchors.

    Distances grow like the square root of the number of anchors, so the result is multiplied by
    ``sqrt(m / (m // 2))`` to stand beside the dB of all m.

    Parameters
    ----------
    pairs : Pairs
        Both models, method ``rr``.
    n_halves, seed : int
        Halves and the seed of their draws.

    Returns
    -------
    ndarray, shape (n_halves, groups), or None
        None for another method, or with fewer than four anchors.
    """
    n_anchors = pairs.models[0].attributes.shape[1]
    if pairs.method != "rr" or n_anchors < 4:
        return None
    if not pairs.change.any():
        return np.zeros((n_halves, len(pairs.groups)))
    generator = np.random.default_rng([seed, 5])
    rows = {group: np.arange(at.start, at.stop) for group, at in pairs.groups.items()}
    size = n_anchors // 2
    result = np.empty((n_halves, len(rows)))
    for number in range(n_halves):
        half = np.sort(generator.permutation(n_anchors)[:size])
        before, after = (_biases(model, half, pairs.n_positive, rows) for model in pairs.models)
        result[number] = [after[group] - before[group] for group in rows]
    result *= math.sqrt(n_anchors / size)
    return result


def _biases(model: Model, half: IntArray, n_positive: int, rows: dict[str, IntArray]) -> dict[str, float]:
    attributes = model.attributes[:, half]
    (distances,) = prefix_distances(model.targets[:, half], attributes, [len(half)])
    return bias_of_distances(distances, n_positive, rows)


def anchor_shifts(reference: Embeddings, audited: Embeddings, n_most: int = 10) -> dict[str, tuple[AnchorShift, ...]]:
    """Find for each group the anchors whose mean cosine with its targets changed most.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models; widths may differ.
    n_most : int
        Anchors a group.

    Returns
    -------
    dict of str to tuple of AnchorShift
        The largest changes first, of either sign; equal ones in the order of the anchors.

    Raises
    ------
    ValueError
        Naming model and argument, also when the anchors are absent or differ in number.
    """
    found = {}
    for name, model in (("reference", reference), ("audited", audited)):
        if model.anchors is None:
            raise ValueError(f"{name} anchors: absent")
        anchors = unit_rows(model.anchors, f"{name} anchors")
        found[name] = {
            group: cosines(model.targets[group], anchors, f"{name} targets[{group}]", "anchors").mean(axis=0)
            for group in reference.targets
        }
    result = {}
    for group in reference.targets:
        before, after = found["reference"][group], found["audited"][group]
        if before.shape != after.shape:
            raise ValueError(f"anchors: {after.size} in the audited model, {before.size} in the reference")
        change = after - before
        most = np.argsort(-np.abs(change), kind="stable")[:n_most]
        result[group] = tuple(
            AnchorShift(int(at), float(change[at]), float(before[at]), float(after[at])) for at in most
        )
    return result
