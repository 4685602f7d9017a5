"""The frozen topic map: one row a prompt, known again by the SHA-256 of its text.

Columns: prompt_sha256, prompt_id, topic (one of nine, or ``none``), matched (the words, or the
probability, that the topic rests on). A review sheet adds the prompt's text and an empty label.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.artifacts import write_rows
from refbias.errors import UserError
from refbias.topics.names import LABELS, fold

COLUMNS = ("prompt_sha256", "prompt_id", "topic", "matched")
REVIEW_COLUMNS = (*COLUMNS, "prompt", "label")


@dataclass(frozen=True)
class MappedPrompt:
    """A row of a topic map; `prompt` and `label` are empty outside of a review sheet."""

    sha256: str
    prompt_id: str
    topic: str
    matched: str
    prompt: str = ""
    label: str = ""


def prompt_hash(prompt: str) -> str:
    """Return the hexadecimal SHA-256 of a prompt's text in UTF-8."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def write_map(path: Path | str, rows: Iterable[MappedPrompt]) -> None:
    """Write a topic map, atomically."""
    write_rows(path, COLUMNS, [(row.sha256, row.prompt_id, row.topic, row.matched) for row in rows])


def write_review(path: Path | str, rows: Iterable[MappedPrompt], prompts: Mapping[str, str]) -> None:
    """Write a sheet for labels by hand.

    Parameters
    ----------
    path
        CSV to write. The map's own topic stands last but for the label, so that it does not lead.
    rows
        The map.
    prompts
        SHA-256 -> text.
    """
    cells = [(row.sha256, row.prompt_id, row.topic, row.matched, prompts[row.sha256], "") for row in rows]
    write_rows(path, REVIEW_COLUMNS, cells)


def _topic(value: str, place: str, column: str) -> str:
    if fold(value) not in LABELS:
        raise UserError(f"{place}: unknown {column} {value!r}: one of {', '.join(LABELS)}")
    return fold(value)


def read_map(path: Path | str) -> list[MappedPrompt]:
    """Read a topic map or a review sheet.

    Parameters
    ----------
    path
        CSV with the columns of a map; prompt and label are read where they are there.

    Returns
    -------
    list of MappedPrompt
        In file order.

    Raises
    ------
    UserError
        For a missing file or column, an unknown topic or label, a hash that is none, two topics for
        one text, naming file and line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: make it by stage `topics`") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a topic map") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise UserError(f"{path}:1: no column {', '.join(missing)}: a topic map has {', '.join(COLUMNS)}")
    rows: list[MappedPrompt] = []
    topics: dict[str, tuple[str, int]] = {}
    for cells in reader:
        place = f"{path}:{reader.line_num}"
        if None in cells or any(value is None for value in cells.values()):
            raise UserError(f"{place}: expected {len(reader.fieldnames or ())} cells")
        digest = cells["prompt_sha256"].strip().lower()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise UserError(f"{place}: prompt_sha256 {digest!r} is no SHA-256: make the map again")
        label = cells.get("label", "").strip()
        row = MappedPrompt(
            digest,
            cells["prompt_id"],
            _topic(cells["topic"], place, "topic"),
            cells["matched"],
            cells.get("prompt", ""),
            _topic(label, place, "label") if label else "",
        )
        first = topics.setdefault(digest, (row.topic, reader.line_num))
        if first[0] != row.topic:
            raise UserError(f"{place}: topic {row.topic}, but line {first[1]} gives the same text {first[0]}: keep one")
        rows.append(row)
    return rows


def topics_by_hash(rows: Sequence[MappedPrompt]) -> dict[str, str]:
    """Return SHA-256 -> topic."""
    return {row.sha256: row.topic for row in rows}
