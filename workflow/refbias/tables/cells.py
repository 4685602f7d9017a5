"""Tables of text cells, as Markdown and LaTeX, and the reading of result tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from refbias.errors import UserError
from refbias.tables.formats import DASH, MINUS

# Columns that hold names: never parsed as numbers, however a slug is spelt.
_NAMES = frozenset(
    {
        "ablation",
        "benchmark",
        "cell",
        "checkpoint",
        "claim",
        "device",
        "group",
        "id",
        "kind",
        "method",
        "model",
        "name",
        "note",
        "paper_stars",
        "part",
        "prompt_id",
        "regime",
        "scorer",
        "split",
        "statistic",
        "task",
        "text",
        "topic",
        "unit",
        "verdict",
    }
)

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    MINUS: r"$-$",
    DASH: "--",
}


@dataclass(frozen=True)
class TextTable:
    """A table of formatted cells.

    Attributes
    ----------
    columns
        Headers.
    numeric
        For each column, whether its cells are numbers (set to the right).
    rows
        Cells as text, one tuple a row, as long as `columns`.
    """

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


def read_csv(path: Path | str, columns: Sequence[str]) -> pd.DataFrame:
    """Read a result table; only an empty cell is missing, and names stay text.

    Parameters
    ----------
    path
        CSV file.
    columns
        Columns that must be there.

    Raises
    ------
    UserError
        If the file or a column is missing, naming it.
    """
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(_NAMES, str), keep_default_na=False, na_values=[""])
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a CSV table") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{path}: not a CSV table: {' '.join(str(error).split())}") from None
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise UserError(f"{path}:1: column {missing[0]!r} is missing: make the table again")
    names = [column for column in frame.columns if column in _NAMES]
    frame[names] = frame[names].fillna("")
    return frame


def _flat(text: str) -> str:
    return " ".join(text.split())


def markdown(table: TextTable) -> str:
    """Return a table in GitHub's Markdown, pipes and backslashes escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(markdown_cell(cell) for cell in cells) + " |"

    rule = "|" + "|".join(" ---: " if numeric else " --- " for numeric in table.numeric) + "|"
    return "\n".join([line(table.columns), rule, *(line(row) for row in table.rows)]) + "\n"


def markdown_cell(text: str) -> str:
    """Escape one cell or sentence for Markdown."""
    escaped = _flat(text)
    for character in "\\|*_<`":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def latex_escape(text: str) -> str:
    """Escape text for LaTeX; the true minus becomes ``$-$``."""
    return "".join(_LATEX.get(character, character) for character in _flat(text.replace("\u00a0", " ")))


def latex(table: TextTable, caption: str, label: str) -> str:
    """Return a table as a LaTeX float (needs the packages booktabs and graphicx).

    Parameters
    ----------
    table
        The cells.
    caption
        Plain text, escaped here.
    label
        The float's label.
    """
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [" & ".join(latex_escape(cell) for cell in row) + r" \\" for row in (table.columns, *table.rows)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,graphicx}",
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{latex_escape(caption)}}}",
            rf"\label{{{label}}}",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table*}",
            "",
        ]
    )
