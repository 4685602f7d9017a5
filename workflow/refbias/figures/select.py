"""Which rows of the result tables a panel shows."""

from typing import Any

import pandas as pd

from refbias.tables.labels import METHOD_LABELS, ordered


def panel_rows(observations: pd.DataFrame, model: str, regime: str, benchmark: str, method: str) -> pd.DataFrame:
    """Return one panel's observations that have both dB and a change of score."""
    rows = observations[
        (observations["model"] == model)
        & (observations["regime"] == regime)
        & (observations["benchmark"] == benchmark)
        & (observations["method"] == method)
    ]
    return rows.dropna(subset=["delta_b", "delta_score"])


def table1_row(table1: pd.DataFrame, model: str, regime: str, benchmark: str, method: str) -> "pd.Series[Any] | None":
    """Return a panel's row of table 1, None if it has none."""
    rows = table1[
        (table1["model"] == model)
        & (table1["regime"] == regime)
        & (table1["benchmark"] == benchmark)
        & (table1["method"] == method)
    ]
    return None if rows.empty else rows.iloc[0]


def methods_in(frame: pd.DataFrame) -> list[str]:
    """Return the methods of a table, in the order in which they are shown."""
    return ordered((str(method) for method in frame["method"]), METHOD_LABELS)
