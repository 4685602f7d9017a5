"""Rows of the sentence files, and the checks that each of them and all of them together must pass."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.stimuli.groups import CONTROL, SLOT, Group, fill, slots
from refbias.stimuli.table import Row, Table, nearest, shown

VALENCES = ("positive", "negative")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Entry:
    """A row of a sentence file.

    `label` is the valence of an attribute, the group of an anchor, or that of a target sentence which is one group's
    alone; else empty.
    """

    id: str
    text: str
    label: str
    path: Path
    line: int

    @property
    def where(self) -> str:
        """``file:line``, for messages."""
        return f"{self.path}:{self.line}"


def sentence_key(text: str) -> str:
    """Return the form in which two sentences count as the same: compatibility-normalised, case and blanks folded."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def check_template(row: Row) -> None:
    """Raise unless the row's template holds one slot and no other braces; one group's own sentence may have none."""
    text = row["template"]
    names = slots(text)
    without = text.replace(f"{{{names[0]}}}", "", 1) if names else text
    if len(names) > 1 or not (names or row.cells.get("group")) or re.search(r"[{}]", without):
        raise UserError(
            f"{row.where}: template {shown(text)} must hold the slot {SLOT} exactly once and no other braces"
        )


def check_no_slot(row: Row) -> None:
    """Raise if the row's text holds a slot."""
    if names := slots(row["text"]):
        raise UserError(
            f"{row.where}: {{{names[0]}}} belongs in the target templates: write the sentence out or move the line"
        )


def check_attribute(row: Row) -> None:
    """Raise unless the row is a sentence with a known valence."""
    check_no_slot(row)
    if row["valence"] not in VALENCES:
        hint = nearest(row["valence"], VALENCES)
        raise UserError(f"{row.where}: valence {shown(row['valence'])}{hint}: write 'positive' or 'negative'")


def target_check(known: Iterable[str]) -> Callable[[Row], None]:
    """Return the check of a target template: also its group, where it has one, must be among the `known` ids."""
    allowed = [*known]

    def check(row: Row) -> None:
        check_template(row)
        own = row.cells.get("group", "")
        if own and own not in allowed:
            raise UserError(
                f"{row.where}: unknown group id {shown(own)}{nearest(own, allowed)}: use an id of the groups file, or "
                "leave the cell empty for a template of all groups"
            )

    return check


def anchor_check(known: Iterable[str]) -> Callable[[Row], None]:
    """Return the check of an anchor: a sentence without a slot, of one of the `known` groups or of none."""
    allowed = [*known, CONTROL]

    def check(row: Row) -> None:
        check_no_slot(row)
        if row["group"] not in allowed:
            raise UserError(
                f"{row.where}: unknown group id {shown(row['group'])}{nearest(row['group'], allowed)}: "
                f"use an id of the groups file, or {CONTROL!r} for a sentence without a group"
            )

    return check


def entries_of(table: Table, check: Callable[[Row], None], text: str = "text", label: str = "") -> tuple[Entry, ...]:
    """Return the rows of a table as entries; `text` and `label` name their columns, `check` may refuse a row."""
    for row in table.rows:
        if not _ID.fullmatch(row["id"]):
            raise UserError(
                f"{row.where}: id {shown(row['id'])}: use up to 64 letters, digits, hyphens and underscores"
            )
        check(row)
    return tuple(Entry(row["id"], row[text], row[label] if label else "", row.path, row.line) for row in table.rows)


def fillings(entry: Entry, groups: Iterable[Group]) -> Iterator[tuple[Group, str]]:
    """Yield the groups that a target template speaks of, each with its sentence."""
    for group in groups:
        if entry.label in ("", group.id):
            yield group, fill(entry.text, group) if slots(entry.text) else entry.text


def check_forms(targets: Iterable[Entry], groups: Sequence[Group], where: Path) -> None:
    """Refuse a slot that a group has no form for, and a group that no sentence speaks of."""
    spoken = set()
    for entry in targets:
        for group in groups:
            if entry.label not in ("", group.id):
                continue
            spoken.add(group.id)
            for slot in slots(entry.text):
                if group.form(slot) is None:
                    known = ["group", *(name for name, _ in group.forms)]
                    raise UserError(
                        f"{entry.where}: slot {{{slot}}}: group {group.id!r} has no such form{nearest(slot, known)}: "
                        f"fill column 'form_{slot}' of {where}, or write the slot {SLOT} exactly once and no other "
                        "braces"
                    )
    for group in groups:
        if group.id not in spoken:
            raise UserError(f"{where}: group {group.id!r} has no target sentence: add one, or remove the group")


def refuse_repeats(groups: Iterable[Group], templates: Iterable[Entry], others: Iterable[Entry]) -> None:
    """Refuse an id or a sentence that stands twice, in one file or in two; templates are compared filled."""
    ids: dict[str, Entry] = {}
    texts: dict[str, Entry] = {}
    groups = tuple(groups)
    filled = [(entry, [text for _, text in fillings(entry, groups)]) for entry in templates]
    for entry, sentences in [*filled, *((entry, [entry.text]) for entry in others)]:
        if entry.id in ids:
            raise UserError(f"{entry.where}: id {entry.id!r} is already used at {ids[entry.id].where}: choose another")
        ids[entry.id] = entry
        for text in sentences:
            first = texts.setdefault(sentence_key(text), entry)
            if first is not entry:
                raise UserError(f"{entry.where}: {shown(text)} is already at {first.where}: remove or reword one")
