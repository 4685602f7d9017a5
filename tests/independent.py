"""Table 1 recomputed from ``observations.csv`` by lines that share nothing with the package.

Whole-sample numbers come from scipy and scikit-learn; bootstrap numbers from plain loops over explicit resamples, with
the draws that the package documents: a fresh ``numpy.random.default_rng(seed)`` for each interval.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import linregress, pearsonr, spearmanr
from sklearn.metrics import roc_auc_score

NAN = float("nan")


def recompute_table1(
    observations: pd.DataFrame, thresholds: dict[str, float], n_resamples: int, seed: int
) -> pd.DataFrame:
    """Return the numeric columns of table 1, one row a benchmark, model, regime, method and scorer, in their order."""
    rows = []
    names = ["benchmark", "model", "regime", "method", "scorer"]
    for key in observations[names].drop_duplicates().itertuples(index=False):
        chosen = observations
        for name, value in zip(names, key, strict=True):
            chosen = chosen[chosen[name] == value]
        chosen = chosen[chosen["delta_score"].notna() & chosen["delta_b"].notna()]
        threshold = thresholds[key.benchmark]
        row = dict(zip(names, key, strict=True)) | {"threshold": threshold, "n": len(chosen)}
        numbers = _numbers(chosen, threshold, n_resamples, seed) if len(chosen) else {"n_positive": 0}
        rows.append(row | (_unsigned(numbers) if key.method == "cka_drift" and len(chosen) else numbers))
    return pd.DataFrame(rows)


def _unsigned(numbers: dict[str, float]) -> dict[str, float]:
    """Take r without sign and AUC from the better side, and their intervals as the values that then lie in them."""
    found = dict(numbers)
    for name in ("pearson_r", "spearman_r"):
        found[name] = abs(numbers[name])
    found["roc_auc"] = max(numbers["roc_auc"], 1 - numbers["roc_auc"])
    low, high = numbers["pearson_ci_low"], numbers["pearson_ci_high"]
    found["pearson_ci_low"] = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    found["pearson_ci_high"] = max(abs(low), abs(high))
    low, high = numbers["roc_auc_ci_low"], numbers["roc_auc_ci_high"]
    found["roc_auc_ci_low"] = 0.5 if low <= 0.5 <= high else min(max(low, 1 - low), max(high, 1 - high))
    found["roc_auc_ci_high"] = max(low, 1 - low, high, 1 - high)
    return found


def _numbers(chosen: pd.DataFrame, threshold: float, n_resamples: int, seed: int) -> dict[str, float]:
    x, y = chosen["delta_b"].tolist(), chosen["delta_score"].tolist()
    label = [change - threshold > 1e-9 for change in y]
    varies = len(x) > 2 and not _flat(x) and not _flat(y)
    both = 0 < sum(label) < len(label)
    r, p = pearsonr(x, y) if varies else (NAN, NAN)
    samples = _two_way(chosen["unit"].tolist(), chosen["checkpoint"].tolist(), n_resamples, seed)
    r_low, r_high = _bounds([_r(x, y, sample) for sample in samples]) if varies else (NAN, NAN)
    auc_low, auc_high = _bounds([_auc(x, label, sample) for sample in samples]) if both else (NAN, NAN)
    mae, mae_oob = loop_mae(x, y, n_resamples, seed)
    return {
        "n_positive": sum(label),
        "pearson_r": r,
        "pearson_p": p,
        "pearson_ci_low": r_low,
        "pearson_ci_high": r_high,
        "spearman_r": spearmanr(x, y).statistic if varies else NAN,
        "roc_auc": roc_auc_score(label, [-value for value in x]) if both else NAN,
        "roc_auc_ci_low": auc_low,
        "roc_auc_ci_high": auc_high,
        "mae": mae,
        "mae_oob": mae_oob,
    }


def loop_mae(x: list[float], y: list[float], n_resamples: int, seed: int) -> tuple[float, float]:
    """In-sample and out-of-bag bootstrap MAE, one fit at a time."""
    generator = np.random.default_rng(seed)
    inside, outside = [], []
    for _ in range(n_resamples):
        drawn = [int(i) for i in generator.integers(0, len(x), size=len(x))]
        xs, ys = [x[i] for i in drawn], [y[i] for i in drawn]
        slope, intercept = (0.0, sum(ys) / len(ys)) if _flat(xs) else linregress(xs, ys)[:2]
        inside.append(sum(abs(b - intercept - slope * a) for a, b in zip(xs, ys, strict=True)) / len(xs))
        left_out = sorted(set(range(len(x))) - set(drawn))
        if left_out:
            outside.append(sum(abs(y[i] - intercept - slope * x[i]) for i in left_out) / len(left_out))
    return sum(inside) / len(inside), sum(outside) / len(outside) if outside else NAN


def _two_way(units: list[str], checkpoints: list[str], n_resamples: int, seed: int) -> list[list[int]]:
    """Positions of the observations in each two-way resample, repeated as often as they are in it."""
    unit_names, checkpoint_names = sorted(set(units)), sorted(set(checkpoints))
    if len(unit_names) < 2 or len(checkpoint_names) < 2:
        return []
    generator = np.random.default_rng(seed)
    unit_draws = generator.integers(0, len(unit_names), size=(n_resamples, len(unit_names)))
    checkpoint_draws = generator.integers(0, len(checkpoint_names), size=(n_resamples, len(checkpoint_names)))
    samples = []
    for drawn_units, drawn_checkpoints in zip(unit_draws.tolist(), checkpoint_draws.tolist(), strict=True):
        sample = []
        for position, (unit, checkpoint) in enumerate(zip(units, checkpoints, strict=True)):
            times = drawn_units.count(unit_names.index(unit)) * drawn_checkpoints.count(
                checkpoint_names.index(checkpoint)
            )
            sample += [position] * times
        samples.append(sample)
    return samples


def _r(x: list[float], y: list[float], sample: list[int]) -> float:
    xs, ys = np.take(x, sample), np.take(y, sample)
    if len(sample) == 0 or xs.var() <= 1e-12 * np.var(x) or ys.var() <= 1e-12 * np.var(y):
        return NAN
    return float(np.corrcoef(xs, ys)[0, 1])


def _auc(x: list[float], label: list[bool], sample: list[int]) -> float:
    positive = np.array([-x[i] for i in sample if label[i]])
    negative = np.array([-x[i] for i in sample if not label[i]])
    if positive.size == 0 or negative.size == 0:
        return NAN
    difference = positive[:, None] - negative[None, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def _bounds(values: list[float]) -> tuple[float, float]:
    defined = [value for value in values if value == value]
    if not defined or len(defined) < len(values) / 2:
        return NAN, NAN
    return float(np.percentile(defined, 2.5)), float(np.percentile(defined, 97.5))


def _flat(values: list[float]) -> bool:
    return max(values) - min(values) <= 1e-12 * max(abs(value) for value in values)
