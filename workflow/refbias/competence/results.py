"""The result files of a subject as checked tables: which columns they need, and what their words mean."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from refbias.errors import UserError

KEY = ("attribute_id", "with_occupation", "occupation", "question_id")
SCORE_COLUMNS = (*KEY, "E", "E_normalised")
BEHAVIOUR_COLUMNS = (*KEY, "sample", "fkgl", "dcrs", "reading_level", "words", "sentences")
RANDOM_COLUMNS = ("attribute_id", "with_occupation", "direction", "kind", "E")
HIRING_COLUMNS = ("resume_id", "quality", "role", "name", "group", "arm", "yes_logit_minus_no", "p_yes", "parsed", "E")
STEERING_COLUMNS = ("alpha", "direction", "reading_level", "yes_logit", "perplexity", "n")
ARMS = ("none", "plus", "minus")
_NAMES = frozenset(
    {
        *("attribute_id", "occupation", "question_id", "contrast_id", "family", "measure", "kind", "direction"),
        *("resume_id", "quality", "role", "name", "group", "arm", "parsed"),
        *("model", "subject", "task", "outcome", "representation", "behaviour"),
    }
)
_TRUTH = {"true": True, "false": False}


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a result table; only an empty cell is missing, and names stay text.

    Raises
    ------
    UserError
        If the file or a column is missing, a number is none, or a truth value neither true nor false.
    """
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: run the stage that writes it") from None
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a CSV table: {str(error).strip()}") from None
    if missing := [column for column in columns if column not in frame.columns]:
        raise UserError(f"{path}:1: column {missing[0]!r} is missing: make the table again")
    for column in columns:
        if column == "with_occupation":
            frame[column] = _truth(frame[column], path)
        elif column not in _NAMES:
            frame[column] = _numbers(frame[column], path)
    return frame


def _truth(column: "pd.Series[str]", path: Path) -> "pd.Series[bool]":
    found = column.str.lower().map(_TRUTH)
    if found.isna().any():
        at = int(np.argmax(found.isna()))
        raise UserError(f"{path}:{at + 2}: {column.name} {column.iloc[at]!r}: must be true or false")
    return found.astype(bool)


def _numbers(column: "pd.Series[str]", path: Path) -> "pd.Series[float]":
    found = pd.to_numeric(column.where(column != "", None), errors="coerce").astype(float)
    wrong = found.isna() & (column != "") | np.isinf(found)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UserError(f"{path}:{at + 2}: {column.name} {column.iloc[at]!r}: not a number: make the table again")
    return found
