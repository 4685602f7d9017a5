"""Observations beside the group-free control of their checkpoint: what calibration and the two-stage audit read.

A fine-tuning can move sentences about nobody as much as those about a group. The control's dB is therefore a predictor
of its own, taken from the table of dB where the observations do not carry it.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from refbias.analysis.columns import as_names, as_numbers
from refbias.analysis.pairs import CHECKPOINT
from refbias.calibration.data import ShiftObservations, StrArray
from refbias.calibration.two_stage import alarm
from refbias.config.two_stage import AlarmBy, Level
from refbias.errors import UserError
from refbias.stats.vectors import FloatArray

CONTROL_GROUP = "control"
CONTROL_COLUMN = "control_delta_b"


@dataclass(frozen=True)
class Selection:
    """Which observations are used; None takes all where that is one choice, or any number of models and regimes."""

    method: str = "rr"
    benchmark: str | None = None
    scorer: str | None = None
    regimes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class ControlledObservations:
    """Complete observations of one benchmark, scorer and method, and what they are."""

    data: ShiftObservations
    benchmark: str
    scorer: str
    n_dropped: int


def select(observations: pd.DataFrame, chosen: Selection) -> pd.DataFrame:
    """Return the rows of one benchmark, scorer and method.

    Raises
    ------
    UserError
        If nothing is left, or more than one benchmark or scorer, naming the choices.
    """
    frame = observations
    for column, wanted in (
        ("method", (chosen.method,)),
        ("model", chosen.models),
        ("regime", chosen.regimes),
        ("benchmark", (chosen.benchmark,) if chosen.benchmark else ()),
        ("scorer", (chosen.scorer,) if chosen.scorer else ()),
    ):
        there = sorted(map(str, frame[column].unique()))
        absent = [name for name in wanted if name not in there]
        if absent:
            raise UserError(f"observations: no {column} {', '.join(absent)}; there is {', '.join(there) or 'nothing'}")
        if wanted:
            frame = frame[frame[column].isin(wanted)]
    for column in ("benchmark", "scorer"):
        there = sorted(map(str, frame[column].unique()))
        if len(there) > 1:
            raise UserError(f"observations: more than one {column} ({', '.join(there)}); choose one with --{column}")
    return frame


def controls(delta_b: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the control's dB of every checkpoint: model, regime, checkpoint, control_delta_b.

    Raises
    ------
    UserError
        If a column or the control is absent, a name is empty, a dB is no number, or a checkpoint has two.
    """
    absent = [column for column in (*CHECKPOINT, "group", "method", "delta_b") if column not in delta_b.columns]
    if absent:
        raise UserError(f"delta_b: column {', '.join(absent)} absent")
    delta_b = as_numbers(as_names(delta_b, [*CHECKPOINT, "group", "method"], "delta_b"), ["delta_b"], "delta_b")
    rows = delta_b[(delta_b["group"] == CONTROL_GROUP) & (delta_b["method"] == method)]
    if rows.empty:
        raise UserError(
            f"delta_b: no group {CONTROL_GROUP} of method {method}: represent and shift with control sentences"
        )
    if rows.duplicated(CHECKPOINT).any():
        first = ", ".join(map(str, rows.loc[rows.duplicated(CHECKPOINT), CHECKPOINT].iloc[0]))
        raise UserError(f"delta_b: two rows of the control for {first}; keep one")
    return rows[[*CHECKPOINT, "delta_b"]].rename(columns={"delta_b": CONTROL_COLUMN})


def with_control(
    observations: pd.DataFrame, chosen: Selection, delta_b: pd.DataFrame | None = None
) -> ControlledObservations:
    """Join observations with the control of their checkpoint and keep the complete ones.

    Parameters
    ----------
    observations : DataFrame
        From `refbias.analysis.observations`, with or without a column control_delta_b.
    chosen : Selection
        Which rows.
    delta_b : DataFrame, optional
        Table of dB with the control's rows; needed where the observations lack the column.

    Returns
    -------
    ControlledObservations
        As arrays; rows without a change of score or without dB are dropped and counted.

    Raises
    ------
    UserError
        As `select` and `controls`; if a name is empty or a number is none; if a checkpoint has no control or no row is
        complete.
    """
    named = as_names(observations, [*CHECKPOINT, "unit"], "observations")
    counted = as_numbers(named, ["n_outputs"], "observations", missing=False)
    numbers_in = ["delta_score", "delta_b", *([CONTROL_COLUMN] if CONTROL_COLUMN in counted.columns else [])]
    frame = select(as_numbers(counted, numbers_in, "observations"), chosen)
    if CONTROL_COLUMN not in frame.columns:
        if delta_b is None:
            raise UserError(f"observations: no column {CONTROL_COLUMN}; name the study's delta_b.csv with --delta-b")
        frame = frame.merge(controls(delta_b, chosen.method), on=CHECKPOINT, how="left")
    bare = frame[frame[CONTROL_COLUMN].isna()]
    if not bare.empty:
        raise UserError(f"delta_b: no control for {', '.join(map(str, bare[CHECKPOINT].iloc[0]))}; run the stage shift")
    whole = frame.dropna(subset=["delta_score", "delta_b"])
    if whole.empty:
        raise UserError(f"observations: none of {len(frame)} has both a change of score and dB")

    def numbers(column: str) -> FloatArray:
        return whole[column].to_numpy(np.float64)

    def names(column: str) -> StrArray:
        return whole[column].astype(str).to_numpy(np.str_)

    data = ShiftObservations(
        delta_b=numbers("delta_b"),
        control=numbers(CONTROL_COLUMN),
        delta_score=numbers("delta_score"),
        model=names("model"),
        regime=names("regime"),
        checkpoint=names("checkpoint"),
        unit=names("unit"),
        n_outputs=numbers("n_outputs"),
    )
    first = whole.iloc[0]
    return ControlledObservations(
        data=data,
        benchmark=str(first["benchmark"]),
        scorer=str(first["scorer"]),
        n_dropped=len(frame) - len(whole),
    )


def alarmed(delta_b: pd.DataFrame, chosen: Selection, by: AlarmBy, level: Level, at_least: float) -> pd.DataFrame:
    """List the groups, or the checkpoints with a group, whose dB raises an alarm.

    Parameters
    ----------
    delta_b : DataFrame
        Table of dB.
    chosen : Selection
        Method, models and regimes.
    by, level : str
        What raises an alarm, and whether groups or checkpoints are listed.
    at_least : float
        Alarm level.

    Returns
    -------
    DataFrame
        model, regime, checkpoint, group, method, delta_b, control_delta_b and alarm, the loudest first; of a checkpoint
        its loudest group. The control itself is never listed.

    Raises
    ------
    UserError
        If the selection is empty, or the control is needed and absent.
    """
    frame = select(delta_b.assign(benchmark="", scorer=""), chosen)
    groups = frame[frame["group"] != CONTROL_GROUP].dropna(subset=["delta_b"])
    if by.endswith("_net") or (frame["group"] == CONTROL_GROUP).any():
        groups = groups.merge(controls(frame, chosen.method), on=CHECKPOINT, how="left")
    else:
        groups = groups.assign(**{CONTROL_COLUMN: np.nan})
    alarms = alarm(groups["delta_b"].to_numpy(np.float64), groups[CONTROL_COLUMN].to_numpy(np.float64), by)
    if np.isnan(alarms).any():
        first = groups[np.isnan(alarms)].iloc[0]
        raise UserError(f"delta_b: no control for {', '.join(map(str, first[CHECKPOINT]))}; run the stage shift")
    groups = groups.assign(alarm=alarms).sort_values("alarm", ascending=False, kind="stable")
    if level == "checkpoint":
        groups = groups.drop_duplicates(CHECKPOINT)
    columns = [*CHECKPOINT, "group", "method", "delta_b", CONTROL_COLUMN, "alarm"]
    return groups.loc[groups["alarm"] >= at_least, columns].reset_index(drop=True)
