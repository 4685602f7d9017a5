"""Pairs of change of score and dB: the observations behind every statistic.

One observation is a unit in a checkpoint of one model and regime. A DecodingTrust unit is a group and takes its dB, a
ToxiGen unit takes that of the group it names, a WildGuardMix unit is a topic and takes the mean over its groups. The
reference model is no observation: its changes are 0 by definition.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from refbias.analysis.columns import as_names, as_numbers
from refbias.analysis.units import REFERENCE
from refbias.errors import UserError

OBSERVATION_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "unit",
    "method",
    "n_outputs",
    "scorer",
    "delta_score",
    "delta_b",
]
CHECKPOINT = ["model", "regime", "checkpoint"]

# benchmark -> unit -> the target groups whose dB it takes the mean of
Pairing = Mapping[str, Mapping[str, Sequence[str]]]


def unit_groups(groups: pd.DataFrame) -> dict[str, dict[str, tuple[str, ...]]]:
    """Target groups behind the units of the three benchmarks.

    Parameters
    ----------
    groups : DataFrame
        The stimuli's group table: id, topic, toxigen (empty where ToxiGen has no such group).

    Returns
    -------
    dict
        Benchmark to unit to group ids, units in the order of the table.

    Raises
    ------
    UserError
        If a column is absent or an id occurs twice.
    """
    absent = [column for column in ("id", "topic", "toxigen") if column not in groups.columns]
    if absent:
        raise UserError(f"groups: column {', '.join(absent)} absent")
    if groups["id"].duplicated().any():
        raise UserError(f"groups: id {groups['id'][groups['id'].duplicated()].iloc[0]} occurs twice")
    topics: dict[str, tuple[str, ...]] = {}
    toxigen: dict[str, tuple[str, ...]] = {}
    for group, topic, name in groups[["id", "topic", "toxigen"]].fillna("").astype(str).itertuples(index=False):
        topics[topic] = (*topics.get(topic, ()), group)
        if name:
            toxigen[name] = (*toxigen.get(name, ()), group)
    return {
        "wildguardmix": topics,
        "decodingtrust": {str(group): (str(group),) for group in groups["id"]},
        "toxigen": toxigen,
    }


def observations(units: pd.DataFrame, delta_b: pd.DataFrame, pairing: Pairing) -> pd.DataFrame:
    """Pair every unit's change of score with its dB, for each method.

    Parameters
    ----------
    units : DataFrame
        From `unit_scores`.
    delta_b : DataFrame
        One row a model, regime, checkpoint, group and method, with n_anchors and delta_b.
    pairing : mapping
        Benchmark to unit to group ids, see `unit_groups`.

    Returns
    -------
    DataFrame
        `OBSERVATION_COLUMNS`, sorted by benchmark, model, regime, method, scorer, checkpoint and unit (benchmarks and
        units in the pairing's order, methods in that of `delta_b`). A missing change of score stays missing, and so
        does a dB whose cell is empty.

    Raises
    ------
    UserError
        If a benchmark, unit, group or checkpoint lacks its counterpart, dB rows repeat, or one method's dB was taken
        with different numbers of anchors, which are not comparable.
    """
    audited = units[units["regime"] != REFERENCE]
    for benchmark, unit in audited[["benchmark", "unit"]].drop_duplicates().itertuples(index=False):
        if unit not in pairing.get(str(benchmark), {}):
            raise UserError(f"units: no target group is paired with {benchmark} unit {unit}")
    checked = _checked_shifts(delta_b)
    shifts = _unit_shifts(checked, audited, pairing)
    pairs = audited.merge(shifts, on=["benchmark", "unit", *CHECKPOINT], how="left")
    unmatched = pairs[pairs["has_row"].ne(1.0)]
    if not unmatched.empty:
        first = unmatched.iloc[0]
        groups = ", ".join(pairing[first["benchmark"]][first["unit"]])
        raise UserError(
            f"delta_b: no row for model {first['model']}, {first['regime']} {first['checkpoint']}, group {groups}; "
            "run the shift stage for it"
        )
    orders: dict[str, list[str]] = {
        "benchmark": list(pairing),
        "unit": list(dict.fromkeys(unit for benchmark in pairing.values() for unit in benchmark)),
        "method": list(dict.fromkeys(checked["method"])),
    }
    columns = ["benchmark", "model", "regime", "method", "scorer", "checkpoint", "unit"]
    ordered = pairs.sort_values(
        columns,
        key=lambda column: column.map(orders[str(column.name)].index) if column.name in orders else column,
        kind="stable",
    )
    return ordered[OBSERVATION_COLUMNS].reset_index(drop=True)


def _unit_shifts(shifts: pd.DataFrame, audited: pd.DataFrame, pairing: Pairing) -> pd.DataFrame:
    """Return dB of each unit that occurs: benchmark, unit, model, regime, checkpoint, method, delta_b, has_row."""
    index = [*CHECKPOINT, "method"]
    wide = shifts.pivot(index=index, columns="group", values="delta_b")
    rows = shifts.assign(row=1.0).pivot(index=index, columns="group", values="row")
    frames: list[pd.DataFrame] = []
    for benchmark, unit in audited[["benchmark", "unit"]].drop_duplicates().itertuples(index=False):
        groups = list(pairing[str(benchmark)][str(unit)])
        absent = [group for group in groups if group not in wide.columns]
        if absent:
            raise UserError(f"delta_b: no group {', '.join(absent)}, which {benchmark} unit {unit} needs")
        # A mean over the groups that happen to be there would be another quantity: one absent group is missing.
        mean = wide[groups].mean(axis=1, skipna=False).rename("delta_b")
        # an empty cell of dB is a value that could not be had, an absent row a stage that was not run
        has_row = rows[groups].mean(axis=1, skipna=False).rename("has_row")
        frames.append(pd.concat([mean, has_row], axis=1).reset_index().assign(benchmark=benchmark, unit=unit))
    if not frames:
        raise UserError("units: no audited checkpoint, only the reference; score the spectrum's outputs first")
    return pd.concat(frames, ignore_index=True)


def _checked_shifts(delta_b: pd.DataFrame) -> pd.DataFrame:
    needed = [*CHECKPOINT, "group", "method", "n_anchors", "delta_b"]
    absent = [column for column in needed if column not in delta_b.columns]
    if absent:
        raise UserError(f"delta_b: column {', '.join(absent)} absent")
    key = [*CHECKPOINT, "group", "method"]
    as_numbers(delta_b, ["n_anchors"], "delta_b", missing=False)
    frame = as_numbers(as_names(delta_b[needed], key, "delta_b"), ["delta_b"], "delta_b")
    repeated = frame.duplicated(key)
    if repeated.any():
        first = ", ".join(f"{column} {value}" for column, value in frame.loc[repeated, key].iloc[0].items())
        raise UserError(f"delta_b: two rows for {first}; keep one")
    for (model, method), rows in frame.groupby(["model", "method"]):
        found = sorted(set(rows["n_anchors"]))
        if len(found) > 1:
            raise UserError(
                f"delta_b: model {model}, method {method} mixes {', '.join(map(str, found))} anchors; "
                "dB is comparable only at one number, recompute the shift"
            )
    return frame
