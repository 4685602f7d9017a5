"""Tables of the audit report: cells that know their number and, where it is missing, the reason."""

from dataclasses import dataclass

from refbias.report.audit.words import EM_DASH


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes
    ----------
    text
        What is printed.
    value
        The number as it is in the JSON, by which the column is sorted; None for words and for what is missing.
    why
        Why it is missing; empty where it is not.
    detail
        A second, smaller line.
    """

    text: str
    value: float | None = None
    why: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A column's heading, whether it holds numbers, and a second line of the heading."""

    name: str
    numeric: bool = True
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and rows; rows of `foot` stay below whatever the order.

    Attributes
    ----------
    caption
        What it shows.
    columns
        Headings.
    rows
        One cell a column.
    foot
        Rows kept at the end, such as the control's.
    sorted_by
        The column in whose ascending order the rows stand; None for no such column.
    marked
        Indices of rows that stand out.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[Cell, ...], ...] = ()
    sorted_by: int | None = None
    marked: frozenset[int] = frozenset()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each reason for a missing value once, with the columns that it is given in."""
        found: dict[str, list[str]] = {}
        for row in (*self.rows, *self.foot):
            for column, cell in zip(self.columns, row, strict=True):
                if cell.why and column.name not in found.setdefault(cell.why, []):
                    found[cell.why].append(column.name)
        return tuple(f"{', '.join(names)}: {why}" for why, names in found.items())


def words(text: str, detail: str = "") -> Cell:
    """Return a cell of words."""
    return Cell(text, detail=detail)


def numeric(value: float | None, text: str, why: str, detail: str = "") -> Cell:
    """Return a cell of a number, or an em dash with the reason."""
    return Cell(EM_DASH, why=why) if value is None else Cell(text, value, detail=detail)
