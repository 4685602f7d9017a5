"""Groups, properties, neutral questions and labelled answers of the metamorphic tests, checked when read."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.table import Row, nearest, read_table, shown

POLES = ("negative", "positive")
FORMS = ("verb_phrase", "comparative", "superlative")
LABELS = ("PICK_A", "PICK_B", "BOTH", "NONE", "REFUSAL", "UNSURE", "EMPTY")
ANY_CATEGORY = "any"
"""Category of a property that is asked about the groups of every category."""

GROUP_COLUMNS = ("category", "group_id", "canonical", "plural", "singular", "adjective", "aliases")
PROPERTY_COLUMNS = (
    "category",
    "property_id",
    "topic",
    *(f"{pole}_{form}" for form in FORMS for pole in POLES),
    "flip_ok",
)
NEUTRAL_COLUMNS = ("id", "kind", "question", "answer")
LABELLED_COLUMNS = ("id", "category", "group_a", "group_b", "relation", "question", "answer", "label")
_SLUG = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Group:
    """A group of people: `plural` stands in a question, the other wordings are looked for in an answer.

    `singular` and `adjective` are empty where a user's data has none.
    """

    category: str
    id: str
    canonical: str
    plural: str
    singular: str = ""
    adjective: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def nouns(self) -> tuple[str, ...]:
        """Every wording that names the group wherever it stands, without repeats."""
        return tuple(
            dict.fromkeys(word for word in (self.canonical, self.plural, self.singular, *self.aliases) if word)
        )


@dataclass(frozen=True)
class Phrases:
    """One pole of a property; a form that a user's data lacks is empty, and templates that need it are not asked."""

    verb_phrase: str = ""
    comparative: str = ""
    superlative: str = ""
    statement: str = ""


@dataclass(frozen=True)
class Property:
    """A property with two poles.

    `verb_phrase` fits behind "likely to", `statement` behind "they" (the same words in the shipped data).
    """

    category: str
    id: str
    topic: str
    negative: Phrases
    positive: Phrases
    flip_ok: bool = True

    def pole(self, name: str) -> Phrases:
        """Return the phrases of pole ``negative`` or ``positive``."""
        return {"negative": self.negative, "positive": self.positive}[name]


@dataclass(frozen=True)
class Neutral:
    """A question about no group, with its answer."""

    id: str
    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class Labelled:
    """An answer with its label by hand; `group_a` is the group that the question names first."""

    id: str
    category: str
    group_a: str
    group_b: str
    relation: str
    question: str
    answer: str
    label: str


@dataclass(frozen=True)
class Material:
    """What questions are made of.

    Parameters
    ----------
    groups
        Ids are unique, each category has two or more.
    properties
        Ids are unique; category ``any`` goes with all groups.
    """

    groups: tuple[Group, ...]
    properties: tuple[Property, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order of the groups."""
        return tuple(dict.fromkeys(group.category for group in self.groups))

    @cached_property
    def _groups(self) -> Mapping[str, Group]:
        return {group.id: group for group in self.groups}

    @cached_property
    def _properties(self) -> Mapping[str, Property]:
        return {prop.id: prop for prop in self.properties}

    def group(self, identity: str, where: str = "question") -> Group:
        """Return a group by its id; an unknown one is a `UserError` that begins with `where`."""
        if identity not in self._groups:
            raise UserError(f"{where}: unknown group {identity!r}{nearest(identity, self._groups)}: use its own data")
        return self._groups[identity]

    def prop(self, identity: str, where: str = "question") -> Property:
        """Return a property by its id; an unknown one is a `UserError` that begins with `where`."""
        if identity not in self._properties:
            hint = nearest(identity, self._properties)
            raise UserError(f"{where}: unknown property {identity!r}{hint}: use its own data")
        return self._properties[identity]

    def pairs(self, category: str) -> tuple[tuple[Group, Group], ...]:
        """Return the unordered pairs of a category's groups, in the order of the groups."""
        return tuple(itertools.combinations((group for group in self.groups if group.category == category), 2))

    def properties_of(self, category: str) -> tuple[Property, ...]:
        """Return the properties that are asked about a category's groups."""
        return tuple(prop for prop in self.properties if prop.category in (category, ANY_CATEGORY))


def _checked(row: Row, *slugs: str) -> Row:
    for column in slugs:
        if not _SLUG.fullmatch(row[column]):
            raise UserError(
                f"{row.where}: {column} {shown(row[column])} is not a plain name: "
                "use lower-case letters, digits and underscores, a letter first"
            )
    return row


def _once(rows: Sequence[Row], column: str) -> None:
    first: dict[str, Row] = {}
    for row in rows:
        if row[column] in first:
            raise UserError(f"{row.where}: {column} {row[column]!r} stands on line {first[row[column]].line} too")
        first[row[column]] = row


def load_groups(path: Path | str | None = None) -> tuple[Group, ...]:
    """Read the groups.

    Parameters
    ----------
    path
        TSV with the columns of `GROUP_COLUMNS`; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, a wording that two groups of a category share, an empty alias, a
        category with one group only.
    """
    table = read_table(
        data_path("metamorphic", "groups.tsv") if path is None else path,
        GROUP_COLUMNS,
        optional=("singular", "adjective", "aliases"),
    )
    _once(table.rows, "group_id")
    groups = []
    claimed: dict[tuple[str, str], Row] = {}
    for row in table.rows:
        _checked(row, "category", "group_id")
        aliases = tuple(part.strip() for part in row["aliases"].split(";")) if row["aliases"] else ()
        if not all(aliases):
            raise UserError(f"{row.where}: an alias is empty: put exactly one ; between aliases")
        names = (row["canonical"], row["plural"], row["singular"], row["adjective"])
        group = Group(row["category"], row["group_id"], *names, aliases)
        for word in {term.casefold() for term in (*group.nouns, group.adjective) if term}:
            other = claimed.setdefault((group.category, word), row)
            if other is not row:
                raise UserError(
                    f"{row.where}: wording {word!r} belongs to group {other['group_id']!r} on line {other.line} too"
                )
        groups.append(group)
    for category, count in Counter(group.category for group in groups).items():
        if count < 2:
            raise UserError(f"{table.path}: category {category!r} has one group: a question compares two, add another")
    return tuple(groups)


def _phrases(row: Row, pole: str) -> Phrases:
    verb, comparative, superlative = (row[f"{pole}_{form}"] for form in FORMS)
    return Phrases(verb, comparative, superlative, statement=verb)


def load_properties(path: Path | str | None = None) -> tuple[Property, ...]:
    """Read the properties.

    Parameters
    ----------
    path
        TSV with the columns of `PROPERTY_COLUMNS`; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, a `flip_ok` that is neither yes nor no, two equal poles.
    """
    path = data_path("metamorphic", "properties.tsv") if path is None else path
    table = read_table(path, PROPERTY_COLUMNS)
    _once(table.rows, "property_id")
    found = []
    for row in table.rows:
        _checked(row, "category", "property_id")
        if row["flip_ok"] not in ("yes", "no"):
            raise UserError(f"{row.where}: flip_ok {shown(row['flip_ok'])}: write yes or no")
        for form in FORMS:
            if row[f"negative_{form}"].casefold() == row[f"positive_{form}"].casefold():
                raise UserError(f"{row.where}: both poles read {row[f'negative_{form}']!r} as {form}: change one")
        negative, positive = (_phrases(row, pole) for pole in POLES)
        flip = row["flip_ok"] == "yes"
        found.append(Property(row["category"], row["property_id"], row["topic"], negative, positive, flip))
    return tuple(found)


def load_material(groups: Path | str | None = None, properties: Path | str | None = None) -> Material:
    """Read groups and properties that belong together.

    Parameters
    ----------
    groups, properties
        TSV files; None = the shipped ones.

    Raises
    ------
    UserError
        For a mistake in a file, or where a category has groups or properties only.
    """
    found = Material(load_groups(groups), load_properties(properties))
    known = {*found.categories, ANY_CATEGORY}
    for prop in found.properties:
        if prop.category not in known:
            raise UserError(
                f"property {prop.id!r}: no groups of category {prop.category!r}{nearest(prop.category, known)}"
            )
    for category in found.categories:
        if not found.properties_of(category):
            raise UserError(f"category {category!r} has groups but no property: add some, or remove the groups")
    return found


def load_neutral(path: Path | str | None = None) -> tuple[Neutral, ...]:
    """Read the neutral questions (TSV with the columns of `NEUTRAL_COLUMNS`; None = the shipped ones)."""
    table = read_table(data_path("metamorphic", "neutral.tsv") if path is None else path, NEUTRAL_COLUMNS)
    _once(table.rows, "id")
    _once(table.rows, "question")
    for row in table.rows:
        if row["kind"] not in ("yes_no", "choice", "why"):
            raise UserError(f"{row.where}: kind {shown(row['kind'])}: write yes_no, choice or why")
    return tuple(Neutral(*(row[column] for column in NEUTRAL_COLUMNS)) for row in table.rows)


def load_labelled(path: Path | str | None = None) -> tuple[Labelled, ...]:
    """Read the answers labelled by hand.

    Parameters
    ----------
    path
        TSV with the columns of `LABELLED_COLUMNS`, an answer may be empty; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: an id that stands twice, an unknown label.
    """
    path = data_path("metamorphic", "labelled.tsv") if path is None else path
    table = read_table(path, LABELLED_COLUMNS, optional=("answer",))
    _once(table.rows, "id")
    for row in table.rows:
        if row["label"] not in LABELS:
            raise UserError(f"{row.where}: unknown label {shown(row['label'])}: one of {', '.join(LABELS)}")
    return tuple(Labelled(*(row[column] for column in LABELLED_COLUMNS)) for row in table.rows)
