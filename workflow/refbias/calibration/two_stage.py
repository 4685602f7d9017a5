"""The two-stage audit: dB everywhere, output benchmarks only where dB raises an alarm.

Whether that is a good trade is a matter of the study at hand: how many of the units whose score rose would have been
benchmarked (recall), how many for nothing (precision), and what share of the cost is spared. A level read off the same
study flatters; `held_out` chooses it on the other checkpoints.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from refbias.calibration.costs import Costs
from refbias.calibration.data import ShiftObservations, StrArray
from refbias.config.two_stage import AlarmBy, AlarmLevel, HeldOut, Level
from refbias.stats import Interval, cluster_bootstrap
from refbias.stats.vectors import BoolArray, FloatArray

TARGETS = (0.8, 0.9, 0.95)
# alarm levels that a table shows, as shares of the distinct alarms
STEPS = np.linspace(0, 1, 21)


def alarm(delta_b: FloatArray, control: FloatArray | None, by: AlarmBy) -> FloatArray:
    """Return how loud dB is: |dB| or -dB, of dB or of dB net of the control.

    Parameters
    ----------
    delta_b : ndarray, shape (n,)
        Representational bias shift.
    control : ndarray, shape (n,), or None
        The control's dB; needed for the two that take it off.
    by : str
        ``abs``, ``down``, ``abs_net`` or ``down_net``.

    Raises
    ------
    ValueError
        If the control is needed and absent.
    """
    if by.endswith("_net"):
        if control is None:
            raise ValueError(f"control: needed for an alarm by {by}")
        delta_b = delta_b - control
    return np.abs(delta_b) if by.startswith("abs") else -delta_b


def raised(alarms: FloatArray, cluster: StrArray, level: Level) -> FloatArray:
    """Return the alarm that decides on each unit: its own, or the loudest of its checkpoint, shape (n,)."""
    if level == "unit":
        return alarms
    _, place = np.unique(cluster, return_inverse=True)
    loudest = np.full(int(place.max()) + 1, -np.inf)
    np.maximum.at(loudest, place, alarms)
    return loudest[place]


def alarm_levels(alarms: FloatArray) -> list[float]:
    """Return the distinct alarms nearest to the quantiles 0, 5, ..., 100 %, rising: the first takes in everything."""
    distinct = np.unique(alarms)
    places = np.unique(np.round(STEPS * (distinct.size - 1)).astype(int))
    return [float(value) for value in distinct[places]]


def sweep(
    data: ShiftObservations,
    rose: BoolArray,
    alarms: FloatArray,
    levels: Sequence[float],
    costs: Costs | None,
    level_of: Level,
    n_resamples: int,
    seed: int,
) -> list[AlarmLevel]:
    """Judge alarm levels on a study.

    Parameters
    ----------
    data : ShiftObservations
        Units of audited checkpoints.
    rose : ndarray of bool, shape (n,)
        Whose score rose beyond the threshold, at least one.
    alarms : ndarray, shape (n,)
        From `raised`.
    levels : sequence of float
        A unit with an alarm of at least the level is benchmarked.
    costs : Costs, optional
        Of the study.
    level_of : str
        Whether units or checkpoints were decided on.
    n_resamples, seed : int
        Of the two-way bootstrap over units and checkpoints.

    Returns
    -------
    list of AlarmLevel
        In the order of `levels`; a level above every alarm finds nothing and has no precision.

    Raises
    ------
    ValueError
        If no score rose.
    """
    if not rose.any():
        raise ValueError("rose: no positive")
    rows = []
    for level in levels:
        chosen = alarms >= level
        found = chosen & rose
        resample = partial(
            cluster_bootstrap, unit=data.unit, checkpoint=data.cluster, n_resamples=n_resamples, seed=seed
        )
        share_found = float(found.sum() / rose.sum())
        recall, precision = resample(partial(_share, found, rose)), resample(partial(_share, found, chosen))
        rows.append(
            AlarmLevel(
                level=level,
                n_benchmarked=int(chosen.sum()),
                share=float(chosen.mean()),
                n_found=int(found.sum()),
                recall=share_found,
                **_bounds("recall", recall),
                precision=float(found.sum() / chosen.sum()) if chosen.any() else None,
                **_bounds("precision", precision),
                seconds=costs.two_stage(chosen) if costs else None,
                saved=costs.saved(chosen) if costs else None,
                saved_by_coin=_coin(costs, share_found, level_of),
                break_even=costs.break_even(chosen) if costs else None,
            )
        )
    return rows


def held_out(
    data: ShiftObservations,
    rose: BoolArray,
    alarms: FloatArray,
    costs: Costs | None,
    level_of: Level,
    targets: Sequence[float] = TARGETS,
) -> list[HeldOut]:
    """Judge levels on checkpoints that they were not chosen on.

    For each checkpoint the level is the highest at which the others reach the target recall; where no score rose in the
    others there is no such level, and everything is benchmarked.

    Parameters
    ----------
    data, rose, alarms, costs, level_of
        As for `sweep`.
    targets : sequence of float
        Shares of recall to aim at, in (0, 1].

    Returns
    -------
    list of HeldOut
        One a target; empty with a single checkpoint.
    """
    names = np.unique(data.cluster)
    if names.size < 2:
        return []
    found = []
    for target in targets:
        chosen = np.zeros(rose.size, dtype=np.bool_)
        for name in names:
            inside = data.cluster == name
            chosen[inside] = alarms[inside] >= level_for(alarms[~inside], rose[~inside], target)
        hits = int((chosen & rose).sum())
        found.append(
            HeldOut(
                target=target,
                recall=hits / int(rose.sum()),
                share=float(chosen.mean()),
                precision=hits / int(chosen.sum()) if chosen.any() else None,
                saved=costs.saved(chosen) if costs else None,
                saved_by_coin=_coin(costs, hits / int(rose.sum()), level_of),
            )
        )
    return found


def level_for(alarms: FloatArray, rose: BoolArray, target: float) -> float:
    """Return the highest level at which at least the share `target` of the risen is benchmarked; -inf if none rose."""
    loud = np.sort(alarms[rose])[::-1]
    if loud.size == 0:
        return -np.inf
    # a share such as 0.7 of 10 must not become 8 by rounding
    return float(loud[int(np.ceil(target * loud.size - 1e-9)) - 1])


def _coin(costs: Costs | None, recall: float, level_of: Level) -> float | None:
    return costs.saved_by_coin(recall, whole_checkpoints=level_of == "checkpoint") if costs else None


def _share(part: BoolArray, whole: BoolArray, weights: FloatArray) -> FloatArray:
    total = weights @ whole.astype(np.float64)
    values: FloatArray = np.divide(
        weights @ part.astype(np.float64), total, out=np.full(total.shape, np.nan), where=total > 0
    )
    return values


def _bounds(name: str, interval: Interval) -> dict[str, float | None]:
    low, high = (value if np.isfinite(value) else None for value in (interval.low, interval.high))
    return {f"{name}_low": low, f"{name}_high": high}
