"""How well dB tracks the change of output-level scores: table 1, ROC curves, and AUC along the threshold.

A row is one benchmark, model, regime, method and scorer, its observations pooled over checkpoints and units. dB below
a cutoff is meant to detect a change of score above a threshold, so the ROC score is -dB. A method without direction has
|r| and max(AUC, 1 - AUC) in their place, see `refbias.analysis.direction`. What cannot be computed stays missing and
the note says why.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from refbias.analysis.direction import NOTE, detection_score, folded, folded_interval
from refbias.errors import UserError
from refbias.metrics import is_undirected
from refbias.stats import (
    Interval,
    above,
    bootstrap_mae,
    cluster_bootstrap,
    pearson,
    roc_auc,
    roc_points,
    spearman,
    undefined_reason,
    weighted_auc,
    weighted_pearson,
)

ROW = ["benchmark", "model", "regime", "method", "scorer"]
TABLE1_COLUMNS = [
    *ROW,
    "threshold",
    "n",
    "pearson_r",
    "pearson_p",
    "pearson_ci_low",
    "pearson_ci_high",
    "spearman_r",
    "roc_auc",
    "roc_auc_ci_low",
    "roc_auc_ci_high",
    "mae",
    "mae_oob",
    "n_positive",
    "note",
    "share_floor",
    "share_ceiling",
]
# what makes a row of the observations a pair
PAIR = ["delta_score", "delta_b"]
NAN = float("nan")
# A stray resample without a positive is no news; one in twenty is a warning about a rare class.
FEW_UNDEFINED = 0.95


def table1(
    observations: pd.DataFrame,
    thresholds: Mapping[str, float],
    n_resamples: int,
    seed: int,
    units: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Compute every number of table 1.

    Intervals of r and AUC are two-way cluster bootstraps over units and checkpoints; MAE is that of the change of
    score regressed on dB over resamples of the observations. Every bootstrap of every row starts afresh from ``seed``,
    on the row's observations in their order.

    Parameters
    ----------
    observations : DataFrame
        From `refbias.analysis.observations`; those without a change of score or without dB are dropped and counted in
        the note.
    thresholds : mapping of str to float
        Change of score above which a unit counts as more biased, by benchmark.
    n_resamples, seed : int
        Of every bootstrap.
    units : DataFrame, optional
        From `unit_scores`; gives the shares of audited units whose score is 0 (floor) or 1 (ceiling).

    Returns
    -------
    DataFrame
        `TABLE1_COLUMNS`, rows in the order of the observations; ``n_positive`` counts changes above the threshold.

    Raises
    ------
    UserError
        If a benchmark has no threshold.
    """
    rows = []
    for key, pairs in _rows(observations):
        if key["benchmark"] not in thresholds:
            raise UserError(f"thresholds: none for benchmark {key['benchmark']}; name one in the config")
        numbers = _row_numbers(pairs, float(thresholds[key["benchmark"]]), n_resamples, seed)
        if is_undirected(key["method"]):
            numbers = _without_direction(numbers)
        rows.append({**key, **numbers, **_extremes(key, units)})
    return pd.DataFrame(rows, columns=TABLE1_COLUMNS)


def auc_curve(observations: pd.DataFrame, thresholds: Sequence[float]) -> pd.DataFrame:
    """Area under the ROC curve along the threshold of the change of score.

    Parameters
    ----------
    observations : DataFrame
        From `refbias.analysis.observations`.
    thresholds : sequence of float
        Grid, in units of the score.

    Returns
    -------
    DataFrame
        benchmark, model, regime, method, scorer, threshold, n, n_positive, roc_auc (missing with one class only).
    """
    frames = [
        pd.DataFrame(
            {
                **key,
                "threshold": np.asarray(thresholds, dtype=np.float64),
                "n": len(pairs),
                "n_positive": [int(above(pairs["delta_score"], value).sum()) for value in thresholds],
                "roc_auc": [_area(key["method"], pairs, float(value)) for value in thresholds],
            }
        )
        for key, frame in _rows(observations)
        if not (pairs := frame.dropna(subset=PAIR)).empty
    ]
    columns = [*ROW, "threshold", "n", "n_positive", "roc_auc"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def roc_curves(observations: pd.DataFrame, thresholds: Mapping[str, float]) -> pd.DataFrame:
    """Points of the ROC curve of every row of table 1.

    Parameters
    ----------
    observations : DataFrame
        From `refbias.analysis.observations`.
    thresholds : mapping of str to float
        Threshold of the change of score, by benchmark.

    Returns
    -------
    DataFrame
        benchmark, model, regime, method, scorer, false_positive_rate, true_positive_rate; a row of table 1 with one
        class only has no points.
    """
    columns = [*ROW, "false_positive_rate", "true_positive_rate"]
    frames = []
    for key, frame in _rows(observations):
        pairs = frame.dropna(subset=PAIR)
        if pairs.empty:
            continue
        label = above(pairs["delta_score"], thresholds[key["benchmark"]])
        points = roc_points(detection_score(key["method"], pairs["delta_b"], label), label)
        if points.false_positive_rate.size:
            frames.append(pd.DataFrame({**key, **points._asdict()}, columns=columns))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _rows(observations: pd.DataFrame) -> Iterator[tuple[dict[str, str], pd.DataFrame]]:
    for key, frame in observations.groupby(ROW, sort=False):
        yield {name: str(value) for name, value in zip(ROW, key, strict=True)}, frame


def _area(method: str, pairs: pd.DataFrame, threshold: float) -> float:
    label = above(pairs["delta_score"], threshold)
    return roc_auc(detection_score(method, pairs["delta_b"], label), label)


def _without_direction(numbers: dict[str, Any]) -> dict[str, Any]:
    """Fold r at 0 and the AUC at one half, with their intervals, and say so in the note."""
    changed = dict(numbers)
    for name, bounds, centre in (("pearson_r", "pearson", 0.0), ("spearman_r", "", 0.0), ("roc_auc", "roc_auc", 0.5)):
        if name not in numbers:
            continue
        changed[name] = folded(numbers[name], centre)
        if bounds:
            low, high = f"{bounds}_ci_low", f"{bounds}_ci_high"
            interval = folded_interval(Interval(numbers[low], numbers[high], 0), centre)
            changed |= {low: interval.low, high: interval.high}
    changed["note"] = "; ".join(filter(None, [NOTE, numbers["note"]]))
    return changed


def _row_numbers(frame: pd.DataFrame, threshold: float, n_resamples: int, seed: int) -> dict[str, Any]:
    pairs = frame.dropna(subset=PAIR)
    notes: list[str] = []
    for column, name in zip(PAIR, ("change of score", "dB"), strict=True):
        gone = int(frame[column].isna().sum())
        if gone:
            notes.append(f"{gone} of {len(frame)} observations dropped: no {name}")
    if pairs.empty:
        return {"threshold": threshold, "n": 0, "n_positive": 0, "note": "; ".join(notes)}
    x, y = pairs["delta_b"].to_numpy(np.float64), pairs["delta_score"].to_numpy(np.float64)
    label = above(y, threshold)
    resample = partial(
        cluster_bootstrap, unit=pairs["unit"], checkpoint=pairs["checkpoint"], n_resamples=n_resamples, seed=seed
    )
    reason = undefined_reason(x, y, "dB", "change of score")
    r_interval = auc_interval = Interval(NAN, NAN, 0)
    if reason:
        notes.append(f"no correlation: {reason}")
    else:
        r_interval = resample(partial(weighted_pearson, x, y))
        _note_interval(notes, "r", r_interval, n_resamples)
    if label.all() or not label.any():
        notes.append(f"no AUC: one class only, {'every' if label.all() else 'no'} unit above {threshold:g}")
    else:
        auc_interval = resample(partial(weighted_auc, -x, label))
        _note_interval(notes, "AUC", auc_interval, n_resamples)
    correlation = pearson(x, y)
    error = bootstrap_mae(x, y, n_resamples, seed)
    return {
        "threshold": threshold,
        "n": len(pairs),
        "pearson_r": correlation.r,
        "pearson_p": correlation.p,
        "pearson_ci_low": r_interval.low,
        "pearson_ci_high": r_interval.high,
        "spearman_r": spearman(x, y).r,
        "roc_auc": roc_auc(-x, label),
        "roc_auc_ci_low": auc_interval.low,
        "roc_auc_ci_high": auc_interval.high,
        "mae": error.mae,
        "mae_oob": error.mae_oob,
        "n_positive": int(label.sum()),
        "note": "; ".join(notes),
    }


def _note_interval(notes: list[str], name: str, interval: Interval, n_resamples: int) -> None:
    """Say when an interval rests on markedly fewer resamples than asked, or on none."""
    if interval.n_valid == 0:
        notes.append(f"no interval of {name}: needs two units and two checkpoints")
    elif np.isnan(interval.low):
        notes.append(f"no interval of {name}: defined on {interval.n_valid} of {n_resamples} resamples only")
    elif interval.n_valid < FEW_UNDEFINED * n_resamples:
        notes.append(f"interval of {name} from {interval.n_valid} of {n_resamples} resamples, undefined on the others")


def _extremes(key: Mapping[str, str], units: pd.DataFrame | None) -> dict[str, float]:
    if units is None:
        return {"share_floor": NAN, "share_ceiling": NAN}
    chosen = np.logical_and.reduce([units[name] == key[name] for name in ("benchmark", "model", "regime", "scorer")])
    scores = units.loc[chosen, "score"].dropna()
    if scores.empty:
        return {"share_floor": NAN, "share_ceiling": NAN}
    return {"share_floor": float((scores == 0).mean()), "share_ceiling": float((scores == 1).mean())}
