"""Any result table as Markdown and LaTeX: which columns are printed, under which name and in which format."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from refbias.artifacts import write_csv, write_text
from refbias.tables.cells import TextTable, latex, markdown, markdown_cell
from refbias.tables.formats import DASH, number

Formatter = Callable[[float], str]


def digits(places: int) -> Formatter:
    """Return a format of fixed decimals."""
    return lambda value: number(value, places)


def printed(
    frame: pd.DataFrame, headers: Mapping[str, str], formats: Mapping[str, Formatter] | None = None
) -> TextTable:
    """Format a table.

    Parameters
    ----------
    frame
        The table.
    headers
        Column -> printed name, in the order of printing. A column that is not in the table, or in which no row has a
        value, is left out.
    formats
        Column -> format of its numbers; the others are text.

    Returns
    -------
    TextTable
        Its cells; a missing number is a dash.
    """
    formats = formats or {}
    shown = [name for name in headers if name in frame.columns and _has_values(frame[name])]
    columns = [_cells(frame[name], formats.get(name)) for name in shown]
    rows: Sequence[tuple[str, ...]] = list(zip(*columns, strict=True)) if columns else []
    return TextTable(tuple(headers[name] for name in shown), tuple(name in formats for name in shown), tuple(rows))


def _has_values(column: "pd.Series[float]") -> bool:
    return bool((column.notna() & (column.astype(str) != "")).any())


def _cells(column: "pd.Series[float]", formatter: Formatter | None) -> list[str]:
    if formatter is None:
        return ["" if pd.isna(value) else str(value) for value in column]
    return [DASH if pd.isna(value) else formatter(float(value)) for value in column]


def write_table(stem: Path, frame: pd.DataFrame, table: TextTable, caption: str) -> None:
    """Write a table as CSV, Markdown and LaTeX.

    Parameters
    ----------
    stem
        Path without extension; its name labels the LaTeX float.
    frame
        All columns, for the CSV.
    table
        The printed ones.
    caption
        Plain text.
    """
    write_csv(stem.with_suffix(".csv"), frame)
    write_text(stem.with_suffix(".md"), f"{markdown(table)}\n{markdown_cell(caption)}\n")
    write_text(stem.with_suffix(".tex"), latex(table, caption, f"tab:{stem.name}"))
