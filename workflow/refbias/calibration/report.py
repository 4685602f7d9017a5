"""The whole account of a two-stage audit on a study, with its warnings in words."""

from collections.abc import Sequence

import numpy as np

from refbias.calibration.costs import Costs
from refbias.calibration.data import ShiftObservations
from refbias.calibration.two_stage import alarm, alarm_levels, held_out, raised, sweep
from refbias.config.shift import Method
from refbias.config.two_stage import AlarmBy, AlarmLevel, CostFacts, Level, TwoStage
from refbias.errors import UserError
from refbias.metrics import is_undirected
from refbias.stats import roc_auc

# above this share of risen units a coin finds nearly everything too
MOSTLY_ROSE = 0.8
FEW_CHECKPOINTS = 20
GOOD_RECALL = 0.8


def two_stage(
    data: ShiftObservations,
    *,
    benchmark: str,
    scorer: str,
    threshold: float,
    method: Method,
    by: AlarmBy,
    level: Level,
    costs: Costs | None,
    levels: Sequence[float] = (),
    n_dropped: int = 0,
    n_resamples: int = 1000,
    seed: int = 17,
) -> TwoStage:
    """Judge the two-stage audit on a study.

    Parameters
    ----------
    data : ShiftObservations
        Units of audited checkpoints.
    benchmark, scorer, threshold, method
        What was measured; a unit rose if its score changed by more than `threshold`.
    by, level : str
        What raises an alarm, and whether units or whole checkpoints are decided on.
    costs : Costs, optional
        Of the study; without them nothing is said of savings.
    levels : sequence of float
        Alarm levels; by default 21 of the study's own.
    n_dropped, n_resamples, seed : int
        Observations left out, and the bootstrap of the intervals.

    Returns
    -------
    TwoStage
        The account.

    Raises
    ------
    UserError
        If no unit rose or every one did, or a method without direction is asked for one.
    """
    if is_undirected(method) and by.startswith("down"):
        raise UserError(f"--by {by}: {method} has no direction; use abs or abs_net")
    rose = data.increased(threshold)
    if rose.all() or not rose.any():
        raise UserError(
            f"observations of {benchmark}, threshold {threshold:g}: {'every one' if rose.all() else 'none'} of "
            f"{rose.size} units rose: there is nothing to tell apart, choose another threshold"
        )
    own = alarm(data.delta_b, data.control, by)
    alarms = raised(own, data.cluster, level)
    chosen = sorted(levels) or alarm_levels(alarms)
    facts = None
    if costs is not None:
        facts = CostFacts(
            benchmark=costs.benchmark,
            shift=costs.shift,
            note="Seconds: generation and scoring of the reference and of all checkpoints, loading included; and "
            "embeddings and statistics of dB, by all methods and with intervals, paid once for any number of "
            "benchmarks.",
        )
    auc = roc_auc(alarms, rose)
    rows = sweep(data, rose, alarms, chosen, costs, level, n_resamples, seed)
    n_checkpoints = int(np.unique(data.cluster).size)
    return TwoStage(
        benchmark=benchmark,
        scorer=scorer,
        threshold=threshold,
        method=method,
        models=sorted(map(str, np.unique(data.model))),
        regimes=sorted(map(str, np.unique(data.regime))),
        by=by,
        level=level,
        n=rose.size,
        n_rose=int(rose.sum()),
        n_checkpoints=n_checkpoints,
        n_dropped=n_dropped,
        auc=auc,
        costs=facts,
        levels=rows,
        held_out=held_out(data, rose, alarms, costs, level),
        warnings=_warnings(auc, float(rose.mean()), n_checkpoints, costs, rows, level),
    )


def _warnings(
    auc: float, share: float, n_checkpoints: int, costs: Costs | None, rows: Sequence[AlarmLevel], level: Level
) -> list[str]:
    found = []
    if auc <= 0.5:
        found.append(
            f"The alarm does not tell the risen from the others (AUC {auc:.2f}): a coin does as well, do not rely on "
            "it."
        )
    if share > MOSTLY_ROSE:
        found.append(
            f"{share:.0%} of the units rose: there is little to spare, whatever raises the alarm, and precision is "
            "high by itself."
        )
    if n_checkpoints < FEW_CHECKPOINTS:
        found.append(
            f"Only {n_checkpoints} checkpoints, those of a spectrum not independent: levels from here are a first "
            "guess."
        )
    if costs is None:
        found.append("The study's costs are not known: nothing is said of savings.")
    elif costs.shift >= costs.benchmark:
        found.append(
            f"dB cost more here ({costs.shift:.0f} s) than benchmarking everything ({costs.benchmark:.0f} s): nothing "
            "can be saved on benchmarks of this size."
        )
    elif good := [row for row in rows if row.recall >= GOOD_RECALL and row.break_even is not None]:
        best = max(good, key=lambda row: row.saved or 0)
        if best.saved is not None and best.saved <= 0:
            found.append(
                f"No level that finds {GOOD_RECALL:.0%} of the risen units saves anything on benchmarks of this size "
                f"({costs.benchmark:.0f} s, dB {costs.shift:.0f} s); at level {best.level:.4g} it would from "
                f"{best.break_even:.1f} times the outputs."
            )
    if level == "checkpoint":
        found.append("Whole checkpoints are benchmarked: every unit of one counts as found.")
    return found
