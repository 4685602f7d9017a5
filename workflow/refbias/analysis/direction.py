"""Numbers of a method without direction: |r|, and the area under the ROC curve from the better side.

CKA drift says how far a group's representation moved, not whether towards the positive or the negative attributes.
Whether a large drift should go with a higher or a lower score is not for it to say, so its r is taken without the sign
and its AUC as max(AUC, 1 - AUC). An interval is folded likewise, as the set of values that it holds: |r| gets a lower
bound of 0, and the AUC one of 0.5, just where the interval of the signed number includes 0 or 0.5.
"""

import numpy as np
import numpy.typing as npt

from refbias.metrics import is_undirected
from refbias.stats import Interval, roc_auc
from refbias.stats.vectors import FloatArray

NOTE = "undirected: |r|, max(AUC, 1 - AUC)"


def folded(value: float, centre: float) -> float:
    """Return `value` mirrored at `centre` where it lies below; NaN stays NaN."""
    return centre + abs(value - centre)


def folded_interval(interval: Interval, centre: float) -> Interval:
    """Return the interval of the values of `interval`, mirrored at `centre` where they lie below."""
    low, high = folded(interval.low, centre), folded(interval.high, centre)
    inside = interval.low <= centre <= interval.high
    return Interval(centre if inside else min(low, high), max(low, high), interval.n_valid)


def detection_score(method: str, delta_b: npt.ArrayLike, label: npt.ArrayLike) -> FloatArray:
    """Score whose high values are meant to detect a unit that became more biased.

    Parameters
    ----------
    method : str
        Key of `refbias.metrics.METHODS`.
    delta_b : array_like, shape (n,)
        Values of the method.
    label : array_like, shape (n,)
        Whether the change of score lies above the threshold.

    Returns
    -------
    ndarray, shape (n,)
        ``-delta_b``; for an undirected method ``delta_b`` where that has the larger area.
    """
    score: FloatArray = -np.asarray(delta_b, dtype=np.float64)
    return -score if is_undirected(method) and roc_auc(score, label) < 0.5 else score
