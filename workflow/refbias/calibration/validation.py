"""How good predicted probabilities are: cross-validation over groups, errors, and the reliability curve.

Observations of one checkpoint share its weights, so a checkpoint is left out whole. A spectrum's checkpoints are
mixtures of two fine-tunings, and a left-out one lies between two that were seen; where several spectra were measured,
leaving out a whole one (`transfer` of a calibration) asks the harder and more useful question.
"""

from collections.abc import Callable

import numpy as np
from scipy.stats import binomtest

from refbias.calibration.curves import Curve
from refbias.calibration.data import StrArray
from refbias.config.calibration import ReliabilityBin
from refbias.stats import Interval, cluster_bootstrap
from refbias.stats.vectors import BoolArray, FloatArray, IntArray

Fit = Callable[[FloatArray, BoolArray], Curve]


def grouped_folds(groups: StrArray, max_folds: int, seed: int) -> IntArray:
    """Deal whole groups into folds: one a fold, or as evenly as whole groups allow where there are more.

    Parameters
    ----------
    groups : ndarray of str, shape (n,)
        Names of what must not be split.
    max_folds : int
        Most folds.
    seed : int
        Seed of the order in which groups are dealt.

    Returns
    -------
    ndarray of int, shape (n,)
        Fold of every observation.

    Raises
    ------
    ValueError
        With a single group, which leaves nothing to learn from.
    """
    names, group_of = np.unique(groups, return_inverse=True)
    if names.size < 2:
        raise ValueError("groups: one group only")
    fold_of_group = np.arange(names.size) % min(names.size, max_folds)
    order = np.random.default_rng(seed).permutation(names.size)
    dealt = np.empty_like(fold_of_group)
    dealt[order] = fold_of_group
    folds: IntArray = dealt[group_of].astype(np.int64)
    return folds


def out_of_fold(fit: Fit, columns: FloatArray, positive: BoolArray, folds: IntArray) -> tuple[FloatArray, int]:
    """Predict every fold from the others.

    A fold whose others hold one class only has nothing to fit: its prediction is ``(positives + 1/2) / (n + 1)`` of
    the others, and such folds are counted.

    Parameters
    ----------
    fit : callable
        Maps predictors (n, p) and outcomes (n,) to a curve.
    columns : ndarray, shape (n, p)
        Predictors.
    positive : ndarray of bool, shape (n,)
        Outcomes.
    folds : ndarray of int, shape (n,)
        From `grouped_folds`.

    Returns
    -------
    tuple of ndarray, shape (n,), and int
        Probabilities, and the number of folds without a fit.
    """
    predicted = np.empty(positive.size)
    unfitted = 0
    for fold in np.unique(folds):
        held, known = folds == fold, folds != fold
        if positive[known].all() or not positive[known].any():
            predicted[held] = (positive[known].sum() + 0.5) / (known.sum() + 1)
            unfitted += 1
        else:
            predicted[held] = fit(columns[known], positive[known]).predict(columns[held])
    return predicted, unfitted


def brier(predicted: FloatArray, positive: BoolArray) -> float:
    """Mean squared difference of probability and outcome (Brier 1950): 0 is perfect."""
    return float(np.mean((predicted - positive) ** 2))


def log_loss(predicted: FloatArray, positive: BoolArray) -> float:
    """Mean negative log-probability of what happened, in nats; probabilities must lie inside (0, 1)."""
    return float(-np.mean(np.log(np.where(positive, predicted, 1 - predicted))))


def bounded(predicted: FloatArray, n: int) -> FloatArray:
    """Keep probabilities at least ``1 / (2 n)`` from 0 and 1: `n` observations cannot tell more."""
    edge = 0.5 / n
    return np.clip(predicted, edge, 1 - edge)


def skill_interval(
    predicted: FloatArray, positive: BoolArray, cluster: StrArray, unit: StrArray, n_resamples: int, seed: int
) -> Interval:
    """Interval of the Brier skill against the base rate, by the two-way bootstrap over units and checkpoints.

    Parameters
    ----------
    predicted, positive : ndarray, shape (n,)
        Out-of-fold probabilities and outcomes.
    cluster, unit : ndarray of str, shape (n,)
        Checkpoint and unit of each.
    n_resamples, seed : int
        Of the bootstrap.

    Returns
    -------
    Interval
        At 95 %. Within a resample the base rate is that of the resample; where it is 0 or 1 there is no skill.
    """
    error = (predicted - positive) ** 2

    def skill(weights: FloatArray) -> FloatArray:
        total = weights.sum(axis=1)
        rate = weights @ positive.astype(np.float64) / np.where(total > 0, total, 1)
        base = rate * (1 - rate) * total
        ratio = np.divide(weights @ error, base, out=np.full(total.shape, np.nan), where=base > 1e-12)
        values: FloatArray = 1 - ratio
        return values

    return cluster_bootstrap(skill, unit, cluster, n_resamples, seed)


def reliability(predicted: FloatArray, positive: BoolArray, n_bins: int) -> list[ReliabilityBin]:
    """Reliability curve in bins of about equal counts; equal predictions share a bin.

    Parameters
    ----------
    predicted : ndarray, shape (n,)
        Probabilities.
    positive : ndarray of bool, shape (n,)
        Outcomes.
    n_bins : int
        Most bins.

    Returns
    -------
    list of ReliabilityBin
        From the lowest prediction up, with the share observed and its Wilson interval (95 %, observations taken as
        independent).
    """
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, n_bins + 1)[1:-1]))
    place = np.searchsorted(edges, predicted, side="left")
    found = []
    for at in np.unique(place):
        inside = place == at
        n, hits = int(inside.sum()), int(positive[inside].sum())
        interval = binomtest(hits, n).proportion_ci(method="wilson")
        found.append(
            ReliabilityBin(
                low=float(predicted[inside].min()),
                high=float(predicted[inside].max()),
                n=n,
                n_positive=hits,
                mean_predicted=float(predicted[inside].mean()),
                observed=hits / n,
                observed_low=float(interval.low),
                observed_high=float(interval.high),
            )
        )
    return found


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Mean distance of predicted and observed share over bins, weighted by their counts."""
    total = sum(row.n for row in bins)
    return sum(row.n * abs(row.mean_predicted - row.observed) for row in bins) / total
