"""The values that the paper prints, put beside computed ones in columns of their own.

They are read from ``data/paper/tables.json`` and never enter a computation: a computed column ``x`` gets the columns
``paper_x`` and ``diff_x`` (computed less paper's) at its side, both empty where the paper prints nothing.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from refbias.resources import data_path

FAMILIES = ("llama", "mistral", "gemma")
METHOD = "rr"
"""The method of the paper's tables 1 and 5."""


def paper_values() -> dict[str, Any]:
    """Return everything that ``data/paper/tables.json`` holds."""
    return cast(dict[str, Any], json.loads(data_path("paper", "tables.json").read_text(encoding="utf-8")))


def beside(frame: pd.DataFrame, column: str, paper: Sequence[float | None]) -> pd.DataFrame:
    """Put the paper's values beside a computed column.

    Parameters
    ----------
    frame
        Table with the column.
    column
        Name of the computed column.
    paper
        The paper's value of each row, None where it prints none.

    Returns
    -------
    DataFrame
        The table with ``paper_<column>`` and ``diff_<column>`` at its end.
    """
    printed = np.array([np.nan if value is None else value for value in paper], dtype=np.float64)
    difference = frame[column].astype(np.float64).to_numpy() - printed
    return frame.assign(**{f"paper_{column}": printed, f"diff_{column}": difference})


def table1_beside_paper(table: pd.DataFrame, families: Mapping[str, str | None]) -> pd.DataFrame:
    """Put the paper's Table 1 beside the computed one.

    Parameters
    ----------
    table
        From `refbias.analysis.table1`.
    families
        Model -> row of the paper's tables, None for a model that stands for none of them.

    Returns
    -------
    DataFrame
        The table with paper's and difference columns of r, AUC and MAE and with ``paper_stars``, filled for RR of
        models with a family. An AUC has a counterpart only at the paper's threshold.
    """
    values = paper_values()
    printed = {(row["benchmark"], row["model"], row["regime"]): row for row in values["table1"]}
    rows: list[dict[str, Any] | None] = []
    for _, row in table.iterrows():
        family = families.get(str(row["model"])) if row["method"] == METHOD else None
        rows.append(printed.get((row["benchmark"], family, row["regime"])) if family else None)
    at_threshold = [is_paper_threshold(values, row["benchmark"], row["threshold"]) for _, row in table.iterrows()]
    found = beside(table, "pearson_r", [row["pearson_r"] if row else None for row in rows])
    found["paper_stars"] = [row["stars"] if row else "" for row in rows]
    areas = [row["roc_auc"] if row and same else None for row, same in zip(rows, at_threshold, strict=True)]
    found = beside(found, "roc_auc", areas)
    return beside(found, "mae", [row["mae"] if row else None for row in rows])


def is_paper_threshold(values: Mapping[str, Any], benchmark: str, threshold: float) -> bool:
    """Tell whether a threshold is the one at which the paper labels a benchmark's changes of score."""
    return bool(abs(values["thresholds"].get(benchmark, np.nan) - threshold) < 1e-9)
