"""Columns of tables that a user may have touched: names as text, finite numbers, or one line that says where."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from refbias.errors import UserError


def as_names(frame: pd.DataFrame, columns: Sequence[str], what: str) -> pd.DataFrame:
    """Return the table with some columns as text: ids that look like numbers are ids.

    Parameters
    ----------
    frame
        A table as read, a header and a row a line.
    columns
        Their names.
    what
        What to call the table in an error.

    Raises
    ------
    UserError
        If a cell is empty, naming its line.
    """
    for column in columns:
        empty = frame[column].isna().to_numpy()
        if empty.any():
            raise UserError(f"{what}:{_line(empty)}: column {column!r} is empty: give every row its {column}")
    return frame.astype(dict.fromkeys(columns, str))


def as_numbers(frame: pd.DataFrame, columns: Sequence[str], what: str, *, missing: bool = True) -> pd.DataFrame:
    """Return the table with some columns as float64.

    Parameters
    ----------
    frame, columns, what
        As in `as_names`.
    missing
        Whether a cell may be empty.

    Raises
    ------
    UserError
        If a cell holds no finite number, naming its line.
    """
    found = {}
    for column in columns:
        given = frame[column]
        values = pd.to_numeric(given, errors="coerce").astype("float64")
        wrong = ~np.isfinite(values.to_numpy()) & (given.notna().to_numpy() | (not missing))
        if wrong.any():
            shown = repr(str(given.to_numpy()[wrong][0]))[:60] if given.notna().to_numpy()[wrong][0] else "empty"
            raise UserError(f"{what}:{_line(wrong)}: column {column!r} is {shown}: expected a finite number")
        found[column] = values
    return frame.assign(**found)


def _line(wrong: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> int:
    """Return the line of the first wrong row; the header is line 1."""
    return int(np.argmax(wrong)) + 2
