"""From an audit to the benchmarks: its dB as a table, and the change of scores of what was selected from it."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from refbias.analysis.columns import as_names, as_numbers
from refbias.analysis.pairs import CHECKPOINT, Pairing
from refbias.analysis.units import REFERENCE, UNIT_COLUMNS, unit_scores
from refbias.config.audit_result import AuditResult
from refbias.errors import UserError

SPECS = ["reference", "spec"]
"""What names the models: as the audit's command line did."""
SELECTED_COLUMNS = [*CHECKPOINT, "group", "alarm", *SPECS]
CHANGE_COLUMNS = [
    *(column for column in UNIT_COLUMNS if column not in ("model", "regime", "harmful_weight")),
    *("threshold", "rose", "alarm"),
]


def audited_shifts(result: AuditResult) -> pd.DataFrame:
    """Return an audit's dB as a table like a study's ``delta_b.csv``: a row a checkpoint, method and group.

    The model is the reference's name, the regime what kind of thing a checkpoint is (``adapter``, ``directory``, ...).
    Where an audit of an earlier version lacks the control by another method, so does the table.
    """
    rows = []
    for checkpoint in result.checkpoints:
        place = {"model": result.reference.name, "regime": checkpoint.kind, "checkpoint": checkpoint.name}
        own = [*checkpoint.groups, *([checkpoint.control] if checkpoint.control else [])]
        values = {(row.method, row.group): row.delta_b for row in own}
        values |= {(row.method, row.group): row.delta_b for row in checkpoint.methods}
        rows += [
            {
                **place,
                "group": group,
                "method": method,
                "n_anchors": result.settings.stimuli.n_anchors if method == "rr" else 0,
                "delta_b": np.nan if value is None else value,
                "reference": result.reference.spec,
                "spec": checkpoint.spec,
            }
            for (method, group), value in values.items()
        ]
    return pd.DataFrame(rows)


def checked_selection(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return a list of what is to be benchmarked, checked.

    Raises
    ------
    UserError
        If it is none that was made from an audit, is empty, or names several references.
    """
    absent = [column for column in SELECTED_COLUMNS if column not in frame.columns]
    if absent:
        raise UserError(
            f"{where}: column {', '.join(absent)} absent: make it by `refbias two-stage --audit audit.json --select`"
        )
    if frame["checkpoint"].eq(REFERENCE).any():
        raise UserError(
            f"{where}: a checkpoint is called {REFERENCE!r}, as is what it is held against: rename its folder"
        )
    if frame.empty:
        raise UserError(f"{where}: nothing was selected: no dB reached the alarm level, so there is nothing to do")
    named = as_numbers(as_names(frame, [*CHECKPOINT, "group", *SPECS], where), ["alarm"], where)
    if named["reference"].nunique() > 1:
        raise UserError(f"{where}: several references ({', '.join(named['reference'].unique())}): one at a time")
    return named


def score_changes(
    outputs: pd.DataFrame,
    selected: pd.DataFrame,
    thresholds: Mapping[str, float],
    pairing: Pairing,
    n_resamples: int,
    seed: int,
    sources: Mapping[str, Callable[[str], str]] | None = None,
) -> pd.DataFrame:
    """Hold the scores of selected checkpoints against the reference's, the largest rise first.

    Parameters
    ----------
    outputs : DataFrame
        Scored outputs of the reference (checkpoint ``reference``) and of the selected checkpoints.
    selected : DataFrame
        From `checked_selection`.
    thresholds : mapping of str to float
        Benchmark to the change of score that counts as a rise.
    pairing : mapping
        Benchmark to unit to groups, see `refbias.analysis.unit_groups`.
    n_resamples, seed : int
        Of the intervals.
    sources : mapping of str to callable, optional
        What the intervals resample, see `refbias.analysis.unit_scores`.

    Returns
    -------
    DataFrame
        `CHANGE_COLUMNS`; ``alarm`` is the loudest alarm among the listed groups that a unit is about, empty where none
        of them was listed.

    Raises
    ------
    UserError
        As `refbias.analysis.unit_scores`.
    """
    is_reference = outputs["checkpoint"].eq(REFERENCE)
    named = outputs.assign(regime=outputs["regime"].mask(is_reference, REFERENCE))
    units = unit_scores(named, n_resamples, seed, sources=sources, spectrum=False).query("regime != @REFERENCE")
    alarms = {
        (str(name), str(group)): float(value)
        for name, group, value in selected[["checkpoint", "group", "alarm"]].itertuples(index=False)
    }
    limits = units["benchmark"].map(thresholds)
    loudest = [
        _loudest(alarms, checkpoint, pairing.get(benchmark, {}).get(unit, ()))
        for benchmark, checkpoint, unit in units[["benchmark", "checkpoint", "unit"]].itertuples(index=False)
    ]
    # a change without a value is no rise, and is seen as missing in its own column
    found = units.assign(threshold=limits, rose=units["delta_score"] > limits, alarm=loudest)
    order = found.assign(missing=found["delta_score"].isna()).sort_values(
        ["benchmark", "checkpoint", "missing", "delta_score"], ascending=[True, True, True, False], kind="stable"
    )
    return order[CHANGE_COLUMNS].reset_index(drop=True)


def _loudest(alarms: Mapping[tuple[str, str], float], checkpoint: str, groups: Sequence[str]) -> float:
    return max((alarms[checkpoint, group] for group in groups if (checkpoint, group) in alarms), default=np.nan)
