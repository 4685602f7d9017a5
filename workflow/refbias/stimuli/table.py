"""Read a tab-separated file that a person may have edited anywhere, without guessing.

Traces of an editor (byte order mark, CRLF, blank lines, stray blanks) are cleaned and counted; whatever could change
a sentence is refused with file and line. There is no quoting: a cell is what stands between two tabs. A line that
begins with ``#`` is a comment (no id begins so).
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError

# control characters but tab, line feed and carriage return; soft hyphen, zero-width space, direction marks, inner BOM:
# two sentences that differ only in these look the same and are embedded differently
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Cleaning:
    """What was cleaned while a file was read: counts of lines (`bom`: 0 or 1, `folded_cells`: cells)."""

    path: Path
    bom: int = 0
    crlf_lines: int = 0
    blank_lines: int = 0
    folded_cells: int = 0

    def __bool__(self) -> bool:
        return bool(self.bom or self.crlf_lines or self.blank_lines or self.folded_cells)

    def __str__(self) -> str:
        return (
            f"{self.path}: cleaned byte order mark {self.bom}, CR line ends {self.crlf_lines}, "
            f"blank lines {self.blank_lines}, cells with surplus blanks {self.folded_cells}"
        )


@dataclass(frozen=True)
class Row:
    """One data row: its cells by column, and the line that it stands on (1-based)."""

    path: Path
    line: int
    cells: dict[str, str]

    @property
    def where(self) -> str:
        """``file:line``, for messages."""
        return f"{self.path}:{self.line}"

    def __getitem__(self, column: str) -> str:
        return self.cells[column]


@dataclass(frozen=True)
class Table:
    """The rows of one file and what was cleaned."""

    path: Path
    rows: tuple[Row, ...]
    cleaning: Cleaning


def shown(text: str) -> str:
    """Return `text` quoted, on one line and no longer than 60 characters, for messages."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def nearest(value: str, valid: Iterable[str]) -> str:
    """Return ``"; nearest: 'x'"`` for the valid value closest to `value`, or an empty string if none is close."""
    close = difflib.get_close_matches(value.casefold(), list(valid), n=1)
    return f"; nearest: {close[0]!r}" if close else ""


def _decode(path: Path) -> tuple[str, int]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name an existing TSV file") from error
    if raw.startswith(_UTF16):
        raise UserError(f"{path}:1: is UTF-16: save the file as UTF-8")
    bom = raw.startswith(_BOM)
    body = raw[len(_BOM) :] if bom else raw
    try:
        return body.decode("utf-8"), int(bom)
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte 0x{body[error.start]:02x} is not UTF-8: save the file as UTF-8"
        ) from error


def _check_header(where: str, header: Sequence[str], columns: Sequence[str], extra: str) -> None:
    for name in header:
        if name not in columns and not re.fullmatch(extra, name):
            raise UserError(
                f"{where}: unknown column {shown(name)}{nearest(name, columns)}: "
                f"the columns, separated by tabs, are {', '.join(columns)}"
            )
        if header.count(name) > 1:
            raise UserError(f"{where}: column {name!r} stands twice: remove one")
    missing = [name for name in columns if name not in header]
    if missing:
        raise UserError(f"{where}: column {missing[0]!r} is missing: add it (the columns are {', '.join(columns)})")


def read_table(path: Path | str, columns: Sequence[str], optional: Sequence[str] = (), extra: str = "") -> Table:
    r"""Read a UTF-8 TSV with a header line and exactly the given columns, in any order.

    Parameters
    ----------
    path
        The file.
    columns
        Names of the columns that must be there; no other may.
    optional
        Those of `columns` whose cells may be empty.
    extra
        Pattern of further columns that may be there, with cells that may be empty.

    Returns
    -------
    Table
        Rows with their line numbers, runs of white space folded to one blank, and the cleaning counts.

    Raises
    ------
    UserError
        With ``file:line``: unreadable, not UTF-8, control or invisible characters, wrong header, a row of another
        number of cells, an empty or spreadsheet-quoted cell, no rows.
    """
    path = Path(path)
    text, bom = _decode(path)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    blank = len(lines) - len(filled) - (not lines[-1])
    filled = [(number, line) for number, line in filled if not line.startswith("#")]
    for number, line in filled:
        found = _INVISIBLE.search(line)
        if found:
            raise UserError(
                f"{path}:{number}: invisible or control character U+{ord(found[0]):04X} "
                f"at column {found.start() + 1}: delete it"
            )
    if not filled:
        raise UserError(f"{path}:1: the file is empty: its first line names the columns {', '.join(columns)}")
    header = [" ".join(cell.split()) for cell in filled[0][1].split("\t")]
    _check_header(f"{path}:{filled[0][0]}", header, columns, extra)
    rows, folded = [], 0
    for number, line in filled[1:]:
        raw = line.split("\t")
        cells = [" ".join(cell.split()) for cell in raw]
        folded += sum(a != b for a, b in zip(raw, cells, strict=True))
        rows.append(_row(path, number, header, cells, (*optional, *(name for name in header if name not in columns))))
    if not rows:
        raise UserError(f"{path}:{filled[0][0]}: no rows below the header: add at least one")
    cleaning = Cleaning(path, bom, text.count("\r"), blank, folded)
    return Table(path, tuple(rows), cleaning)


def _row(path: Path, number: int, header: Sequence[str], cells: Sequence[str], optional: Sequence[str]) -> Row:
    where = f"{path}:{number}"
    if len(cells) != len(header):
        raise UserError(
            f"{where}: {len(cells)} cells, but the header names {len(header)} columns: put one tab between cells"
        )
    for name, cell in zip(header, cells, strict=True):
        if not cell and name not in optional:
            raise UserError(f"{where}: column {name!r} is empty: fill it or remove the line")
        if len(cell) > 1 and cell[0] == cell[-1] == '"':
            raise UserError(
                f"{where}: column {name!r} is wrapped in quotation marks: remove them (no quoting in a TSV)"
            )
    return Row(path, number, dict(zip(header, cells, strict=True)))
