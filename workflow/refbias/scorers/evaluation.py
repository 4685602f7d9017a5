"""How well a classifier's probabilities fit labels given by hand: AUC with DeLong's interval."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, rankdata

_CONFIDENCE = 0.95


def delong_auc(probability: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error.

    The area is P(score of a positive > score of a negative), ties counted half. Its variance is the sum
    over both classes of the variance of each case's share of wins, divided by the size of the class
    (DeLong, DeLong and Clarke-Pearson 1988; midranks as in Sun and Xu 2014).

    Parameters
    ----------
    probability
        Scores, shape (n,).
    positive
        Labels, shape (n,), bool, with both classes.

    Returns
    -------
    tuple of float
        AUC and standard error; the latter is NaN where a class has one case.

    Raises
    ------
    ValueError
        If a class has no case.
    """
    high, low = probability[positive], probability[~positive]
    if not len(high) or not len(low):
        raise ValueError("positive must hold both classes")
    ranks = rankdata(np.concatenate([high, low]))
    wins_high = (ranks[: len(high)] - rankdata(high)) / len(low)
    wins_low = 1 - (ranks[len(high) :] - rankdata(low)) / len(high)
    if min(len(high), len(low)) < 2:
        return float(wins_high.mean()), float("nan")
    variance = wins_high.var(ddof=1) / len(high) + wins_low.var(ddof=1) / len(low)
    return float(wins_high.mean()), float(np.sqrt(variance))


def evaluate_classifier(
    probability: np.ndarray | Sequence[float], positive: np.ndarray | Sequence[bool], threshold: float
) -> dict[str, Any]:
    """Return how well probabilities fit labels.

    Parameters
    ----------
    probability
        P(positive), shape (n,).
    positive
        Labels, shape (n,).
    threshold
        A probability above it is a positive verdict.

    Returns
    -------
    dict
        n, n_positive, auc, auc_ci_low, auc_ci_high (95 %, DeLong, normal, kept in [0, 1]), accuracy,
        recall, specificity, and note. What cannot be told (no case, one class only, one case of a
        class) is None, with the reason in the note.
    """
    scores, labels = np.asarray(probability, dtype=float), np.asarray(positive, dtype=bool)
    if scores.shape != labels.shape:
        raise ValueError(f"probability {scores.shape} and positive {labels.shape} must have one shape")
    verdict = scores > threshold
    found: dict[str, Any] = {
        "n": int(labels.size),
        "n_positive": int(labels.sum()),
        "auc": None,
        "auc_ci_low": None,
        "auc_ci_high": None,
        "accuracy": float((verdict == labels).mean()) if labels.size else None,
        "recall": float(verdict[labels].mean()) if labels.any() else None,
        "specificity": float((~verdict[~labels]).mean()) if (~labels).any() else None,
        "note": "",
    }
    if not labels.size:
        found["note"] = "no labelled cases"
    elif labels.all() or not labels.any():
        found["note"] = "one class only"
    else:
        auc, error = delong_auc(scores, labels)
        found["auc"] = auc
        if np.isfinite(error) and error > 0:
            margin = float(norm.ppf(0.5 + _CONFIDENCE / 2)) * error
            found["auc_ci_low"], found["auc_ci_high"] = max(0.0, auc - margin), min(1.0, auc + margin)
        else:
            found["note"] = "no interval: too few cases, or scores that separate the classes fully"
    return found
