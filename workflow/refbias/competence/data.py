"""Pairs, questions, attributes, contrasts, résumés and passages of the competence tests, checked when read."""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from refbias.competence.public import enough_pairs, load_question_folder, unequal_lengths
from refbias.competence.records import (
    BASELINE,
    NAME,
    OCCUPATION,
    Attribute,
    Contrast,
    Graded,
    Name,
    Pair,
    Pairs,
    Question,
    Questions,
    Resume,
)
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.table import Row, nearest, read_table, shown

ROLES = ("relevant", "irrelevant", "placebo", "baseline")
"""Roles of an attribute; a contrast has one of the first three."""

PAIR_COLUMNS = ("pair_id", "expert", "novice", "split")
QUESTION_COLUMNS = ("occupation", "question_id", "question")
ATTRIBUTE_COLUMNS = ("attribute_id", "family", "role", "phrase")
CONTRAST_COLUMNS = ("contrast_id", "family", "role", "first", "second")
RESUME_COLUMNS = ("resume_id", "quality", "role", "text")
NAME_COLUMNS = ("name", "group")
GRADED_COLUMNS = ("passage_id", "grade_order", "text")
_SLUG = re.compile(r"[a-z][a-z0-9_]*")


def _slug(row: Row, *columns: str) -> None:
    for column in columns:
        if not _SLUG.fullmatch(row[column]):
            raise UserError(
                f"{row.where}: {column} {shown(row[column])} is not a plain name: "
                "use lower-case letters, digits and underscores, a letter first"
            )


def _once(rows: Sequence[Row], column: str) -> None:
    first: dict[str, Row] = {}
    for row in rows:
        if row[column] in first:
            raise UserError(f"{row.where}: {column} {row[column]!r} stands on line {first[row[column]].line} too")
        first[row[column]] = row


def _one_of(row: Row, column: str, valid: Sequence[str]) -> None:
    if row[column] not in valid:
        hint = nearest(row[column], valid)
        raise UserError(f"{row.where}: unknown {column} {shown(row[column])}{hint}: one of {', '.join(valid)}")


def _slots(text: str, where: str) -> set[str]:
    try:
        return {field for _, field, _, _ in string.Formatter().parse(text) if field is not None}
    except ValueError as error:
        raise UserError(
            f"{where}: a brace stands alone ({error}): write {NAME} for the slot, no other brace"
        ) from error


def load_pairs(path: Path | str | None = None, *, unequal: Literal["refuse", "note"] = "refuse") -> Pairs:
    """Read the expert/novice pairs.

    Parameters
    ----------
    path
        TSV with the columns of `PAIR_COLUMNS`; None = the shipped ones.
    unequal
        What to do about a pair whose sentences differ in their number of words: refuse it, or let it through with a
        note. (Of tokens, the length gap that a direction reports, see `refbias.competence.direction`.)

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, an unknown split, two equal sentences, an unequal pair; if a
        split has fewer than two pairs.
    """
    table = read_table(data_path("competence", "pairs.tsv") if path is None else path, PAIR_COLUMNS)
    _once(table.rows, "pair_id")
    notes = []
    for row in table.rows:
        _one_of(row, "split", ("fit", "held_out"))
        note = unequal_lengths(row["expert"], row["novice"], row.where)
        if note and unequal == "refuse":
            raise UserError(f"{note}: match them, or set key 'competence.data.unequal_pairs' to note")
        notes += [note] if note else []
    pairs = Pairs(tuple(Pair(*(row[column] for column in PAIR_COLUMNS)) for row in table.rows), tuple(notes))
    return enough_pairs(pairs, str(table.path))


def load_questions(path: Path | str | None = None) -> Questions:
    """Read the questions.

    Parameters
    ----------
    path
        TSV with the columns of `QUESTION_COLUMNS`, or a folder with one ``<occupation>.txt`` each, one question a line
        (underscores in a name stand for blanks); None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id or a question that stands twice in an occupation (in a folder, a question is taken
        once with a note); an occupation without questions; a folder without files.
    """
    path = data_path("competence", "questions.tsv") if path is None else Path(path)
    if path.is_dir():
        return load_question_folder(path)
    table = read_table(path, QUESTION_COLUMNS)
    _once(table.rows, "question_id")
    seen: dict[tuple[str, str], Row] = {}
    for row in table.rows:
        _slug(row, "question_id")
        other = seen.setdefault((row["occupation"], row["question"].casefold()), row)
        if other is not row:
            raise UserError(f"{row.where}: the question stands on line {other.line} too: {shown(row['question'])}")
    return Questions(tuple(Question(*(row[column] for column in QUESTION_COLUMNS)) for row in table.rows))


def load_attributes(path: Path | str | None = None) -> tuple[Attribute, ...]:
    """Read the attributes.

    Parameters
    ----------
    path
        TSV with the columns of `ATTRIBUTE_COLUMNS`; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, an unknown role, a phrase with a full stop; if there is not
        exactly one baseline, with id ``none``.
    """
    table = read_table(data_path("competence", "attributes.tsv") if path is None else path, ATTRIBUTE_COLUMNS)
    _once(table.rows, "attribute_id")
    _once(table.rows, "phrase")
    for row in table.rows:
        _slug(row, "attribute_id", "family")
        _one_of(row, "role", ROLES)
        if row["attribute_id"] == OCCUPATION:
            raise UserError(f"{row.where}: id {OCCUPATION!r} means the occupation itself: use another")
        if row["phrase"].endswith((".", "!", "?", ",")):
            raise UserError(f"{row.where}: phrase {shown(row['phrase'])} ends in {row['phrase'][-1]!r}: leave it out")
        if (row["role"] == "baseline") != (row["attribute_id"] == BASELINE):
            raise UserError(f"{row.where}: role baseline and id {BASELINE!r} belong together: change one")
    if not any(row["attribute_id"] == BASELINE for row in table.rows):
        raise UserError(
            f"{table.path}: no attribute {BASELINE!r} of role baseline: add one that says nothing of the person"
        )
    return tuple(Attribute(*(row[column] for column in ATTRIBUTE_COLUMNS)) for row in table.rows)


def load_contrasts(attributes: Iterable[Attribute], path: Path | str | None = None) -> tuple[Contrast, ...]:
    """Read the contrasts.

    Parameters
    ----------
    attributes
        What they may compare.
    path
        TSV with the columns of `CONTRAST_COLUMNS`; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, an unknown role, an attribute that does not exist or has another
        role, a contrast of a cell with itself.
    """
    known: Mapping[str, Attribute] = {attribute.id: attribute for attribute in attributes}
    table = read_table(data_path("competence", "contrasts.tsv") if path is None else path, CONTRAST_COLUMNS)
    _once(table.rows, "contrast_id")
    found = []
    for row in table.rows:
        _slug(row, "contrast_id", "family")
        _one_of(row, "role", ROLES[:3])
        if (row["first"] == OCCUPATION) != (row["second"] == BASELINE and row["family"] == OCCUPATION):
            raise UserError(f"{row.where}: {OCCUPATION!r} is compared with {BASELINE!r}, in family {OCCUPATION!r}")
        for side in ("first", "second")[row["first"] == OCCUPATION :]:
            if row[side] not in known:
                hint = nearest(row[side], known)
                raise UserError(f"{row.where}: {side} names an unknown attribute {shown(row[side])}{hint}: add it")
            role = known[row[side]].role
            if role not in (row["role"], "baseline"):
                raise UserError(f"{row.where}: {side} {row[side]!r} is {role}, the contrast {row['role']}: change one")
        contrast = Contrast(*(row[column] for column in CONTRAST_COLUMNS))
        if contrast.first == contrast.second:
            raise UserError(f"{row.where}: contrast {contrast.id!r} compares {row['first']!r} with itself: change one")
        found.append(contrast)
    return tuple(found)


def load_resumes(path: Path | str | None = None) -> tuple[Resume, ...]:
    """Read the résumés (TSV with the columns of `RESUME_COLUMNS`; None = the shipped ones).

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, a text without ``{name}`` or with another placeholder.
    """
    table = read_table(data_path("competence", "resumes.tsv") if path is None else path, RESUME_COLUMNS)
    _once(table.rows, "resume_id")
    for row in table.rows:
        _slug(row, "resume_id", "quality")
        slots = _slots(row["text"], row.where)
        if "name" not in slots:
            raise UserError(f"{row.where}: the text has no placeholder {NAME}: put it where the person's name stands")
        if slots - {"name"}:
            other = "{" + sorted(slots - {"name"})[0] + "}"
            raise UserError(f"{row.where}: unknown placeholder {other}: the only one is {NAME}")
    return tuple(Resume(*(row[column] for column in RESUME_COLUMNS)) for row in table.rows)


def load_names(path: Path | str | None = None) -> tuple[Name, ...]:
    """Read the names (TSV with the columns of `NAME_COLUMNS`; None = the shipped ones); two groups or more."""
    table = read_table(data_path("competence", "names.tsv") if path is None else path, NAME_COLUMNS)
    _once(table.rows, "name")
    for row in table.rows:
        _slug(row, "group")
    if len({row["group"] for row in table.rows}) < 2:
        raise UserError(f"{table.path}: names of one group only: add names of another, to compare them with")
    return tuple(Name(row["name"], row["group"]) for row in table.rows)


def load_graded(path: Path | str | None = None) -> tuple[Graded, ...]:
    """Read the graded passages, easiest first (TSV with the columns of `GRADED_COLUMNS`; None = the shipped ones)."""
    table = read_table(data_path("competence", "graded.tsv") if path is None else path, GRADED_COLUMNS)
    _once(table.rows, "passage_id")
    _once(table.rows, "grade_order")
    for row in table.rows:
        if not row["grade_order"].isdecimal():
            raise UserError(f"{row.where}: grade_order {shown(row['grade_order'])}: write a whole number")
    found = [Graded(row["passage_id"], int(row["grade_order"]), row["text"]) for row in table.rows]
    return tuple(sorted(found, key=lambda passage: passage.order))
