"""dB per group at the harmful endpoint, as formatted cells and drawn intervals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from refbias.tables import TextTable
from refbias.tables.formats import interval, shift
from refbias.tables.labels import CONTROL, METHOD_LABELS, REGIME_LABELS, GroupName, ordered, plain_name

CONTROL_NAME = "Group-free control"
# width of a drawn interval, in its own units
BAR_WIDTH = 200.0


@dataclass(frozen=True)
class Bar:
    """Where an interval and its middle are drawn, from 0 to `BAR_WIDTH`; None where there is no number."""

    low: float | None
    middle: float | None
    high: float | None


@dataclass(frozen=True)
class GroupTable:
    """dB per group of one model, regime and method at the harmful endpoint.

    Attributes
    ----------
    model, regime, method
        What it shows.
    rows
        One checkpoint's rows of ``delta_b.csv``, lowest dB first.
    table
        Their cells.
    bars
        Their drawn intervals.
    zero
        Where 0 is drawn.
    free
        Where the control's dB is drawn; None if there is none.
    control
        Which rows are the control's.
    """

    model: str
    regime: str
    method: str
    rows: pd.DataFrame
    table: TextTable
    bars: tuple[Bar, ...]
    zero: float
    free: float | None
    control: tuple[bool, ...]


def group_tables(delta_b: pd.DataFrame, groups: Mapping[str, GroupName]) -> Iterator[GroupTable]:
    """Format dB per group at the harmful endpoint, one table a model, regime and method.

    Parameters
    ----------
    delta_b
        The table of that name.
    groups
        Group id -> name and topic.

    Yields
    ------
    GroupTable
        Rows sorted from the lowest dB.
    """
    for model in sorted(delta_b["model"].unique()):
        for regime in ordered(delta_b["regime"], REGIME_LABELS):
            for method in ordered(delta_b["method"], METHOD_LABELS):
                rows = delta_b[
                    (delta_b["model"] == model) & (delta_b["regime"] == regime) & (delta_b["method"] == method)
                ]
                end = rows[rows["harmful_weight"] == rows["harmful_weight"].max()]
                if not end.empty:
                    yield _group_table(model, regime, method, end.sort_values(["delta_b", "group"]), groups)


def _group_table(
    model: str, regime: str, method: str, rows: pd.DataFrame, groups: Mapping[str, GroupName]
) -> GroupTable:
    free = rows.loc[rows["group"] == CONTROL, "delta_b"]
    base = float(free.iloc[0]) if len(free) else float("nan")
    cells = []
    for _, row in rows.iterrows():
        group = str(row["group"])
        named = groups.get(group, GroupName(plain_name(group), ""))
        name, topic = (CONTROL_NAME, "") if group == CONTROL else (named.name, named.topic)
        cells.append(
            (
                name,
                topic,
                shift(row["delta_b"]),
                interval(row["ci_low"], row["ci_high"], 4),
                shift(row["s_plus"]),
                shift(row["s_minus"]),
                "" if group == CONTROL else shift(row["delta_b"] - base),
            )
        )
    headers = ("Group", "Topic", "dB", "95 % CI", "change of S+", "change of S\u2212", "dB less control")
    edges = rows[["ci_low", "ci_high", "delta_b"]]
    low, high = min(0.0, float(edges.min().min())), max(0.0, float(edges.max().max()))
    scale = BAR_WIDTH / (high - low) if high > low else 0.0

    def place(value: Any) -> float | None:
        return None if pd.isna(value) else round((float(value) - low) * scale, 1)

    return GroupTable(
        model,
        regime,
        method,
        rows,
        TextTable(headers, (False, False, True, True, True, True, True), tuple(cells)),
        tuple(Bar(place(r["ci_low"]), place(r["delta_b"]), place(r["ci_high"])) for _, r in rows.iterrows()),
        place(0.0) or 0.0,
        place(base),
        tuple(group == CONTROL for group in rows["group"]),
    )
