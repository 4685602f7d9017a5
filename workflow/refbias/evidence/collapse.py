"""Whether a model's sentences drew together or apart as a whole, and what that alone does to dB.

If all distances shrink by a factor c, every bias shrinks with them, ``B_audited = c B_reference``, and dB is
``(c - 1) B_reference``: a number with a sign, a narrow interval and a small p-value, though nothing moved towards
either set of attributes. So dB is looked at again with that part taken off, ``B_audited - c B_reference``, for each of
two measures of c: the slope of the audited on the reference associations within target sentences (a common change of
scale or a blurring of all of them), and the ratio of the distance between the positive and the negative centroid (a
model that tells the two sets less apart). What is significant as it stands and under both of them is more than a change
of scale.

The correction takes off what such a change predicts; a shift that happens to be proportional to the groups' bias in the
reference cannot be told from it.
"""

import numpy as np

from refbias.evidence.pairs import Model, Pairs, settled
from refbias.evidence.records import CollapseMeasures
from refbias.metrics.vectors import FloatArray

NAN = float("nan")


def centroid_gap(attributes: FloatArray, n_positive: int) -> float:
    """Squared distance of the two sets' centroids, less what sets of these sizes have by chance.

    Parameters
    ----------
    attributes : ndarray, shape (p + q, k)
        The positive first.
    n_positive : int
        p.

    Returns
    -------
    float
        Unbiased; about 0 or below where the sets are not apart, NaN with a single sentence in a set.
    """
    sets = attributes[:n_positive], attributes[n_positive:]
    if min(map(len, sets)) < 2:
        return NAN
    means = [rows.mean(axis=0) for rows in sets]
    by_chance = sum(float(rows.var(axis=0, ddof=1).sum()) / len(rows) for rows in sets)
    return float(((means[0] - means[1]) ** 2).sum()) - by_chance


def slope_within_targets(reference: FloatArray, audited: FloatArray) -> float:
    """Least-squares slope of the audited on the reference associations, each target's mean taken off.

    Parameters
    ----------
    reference, audited : ndarray, shape (n, p + q)
        Associations.

    Returns
    -------
    float
        1 for equal associations, NaN where the reference's do not differ within targets.
    """
    before = reference - reference.mean(axis=1, keepdims=True)
    after = audited - audited.mean(axis=1, keepdims=True)
    squares = float(np.einsum("ij,ij->", before, before))
    return float(np.einsum("ij,ij->", before, after)) / squares if squares > 0 else NAN


def collapse_measures(pairs: Pairs) -> CollapseMeasures:
    """Measure the change of the common scale.

    Parameters
    ----------
    pairs : Pairs
        Both models.

    Returns
    -------
    CollapseMeasures
        Exactly 1 throughout (equal cosines) where nothing changed.
    """
    reference, audited = pairs.models
    if not pairs.change.any():
        centroid = 1.0 if _apart(reference, pairs.n_positive) else NAN
        return CollapseMeasures(1.0, centroid, 1.0, reference.mean_cosine, reference.mean_cosine)
    distances = [
        -float(found.mean()) if pairs.method == "rr" else float((1 - found).mean())
        for found in (pairs.reference, pairs.audited)
    ]
    gaps = [centroid_gap(model.attributes, pairs.n_positive) for model in pairs.models]
    return CollapseMeasures(
        distance_ratio=distances[1] / distances[0] if distances[0] > 0 else NAN,
        centroid_ratio=float(np.sqrt(max(gaps[1], 0.0) / gaps[0])) if _apart(reference, pairs.n_positive) else NAN,
        slope=slope_within_targets(pairs.reference, pairs.audited),
        mean_cosine_reference=reference.mean_cosine,
        mean_cosine_audited=audited.mean_cosine,
    )


def _apart(model: Model, n_positive: int) -> bool:
    """Tell whether the two sets' centroids lie apart by more than rounding and chance."""
    gap = centroid_gap(model.attributes, n_positive)
    return gap > 1e-12 * float((model.attributes**2).sum(axis=1).mean())


def beyond_scale(pairs: Pairs, measures: CollapseMeasures) -> list[FloatArray]:
    """Return D without the part that a common change of scale explains, once for each measure of the scale.

    Parameters
    ----------
    pairs : Pairs
        Both models.
    measures : CollapseMeasures
        Of these pairs.

    Returns
    -------
    list of ndarray, shape (n, p + q)
        ``audited - c reference``; a measure that is NaN takes nothing off and is left out.
    """
    scales = [scale for scale in (measures.slope, measures.centroid_ratio) if not np.isnan(scale)]
    return [settled(pairs.change - (scale - 1) * pairs.reference, pairs.reference) for scale in scales]
