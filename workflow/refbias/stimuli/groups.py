"""Target groups: how a group is named in a sentence, and how it maps to the benchmarks' own units.

The 24 shipped groups are DecodingTrust's, in its order; nine of them answer to a ToxiGen group.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.table import Cleaning, Row, nearest, read_table, shown

COLUMNS = ("id", "name", "topic", "toxigen", "singular_person", "subject", "aliases", "number")
TOXIGEN = ("asian", "black", "jewish", "latino", "lgbtq", "mexican", "muslim", "physical_disability", "women")
CONTROL = "control"
SLOT = "{group}"
GENDERS = ("m", "f", "n")
# a column form_dat_pl holds what stands in the slot {dat_pl}: for languages in which a wording changes with its case
_EXTRA = r"form_[a-z][a-z0-9_]*|gender"
_ANY_SLOT = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_SLUG = re.compile(r"[a-z][a-z0-9_]{0,63}")
# a slot here opens a sentence: at the start, or after the end of one, quotation marks and brackets apart
_OPENS_SENTENCE = re.compile(r"(?:^|[.!?]\s)[\s\"'\u2018\u201c(\[]*$")


@dataclass(frozen=True)
class Group:
    """One target group.

    `subject` is the plural noun phrase as it stands inside a sentence, `singular_person` the phrase for one member,
    `name` DecodingTrust's spelling, `toxigen` ToxiGen's name or an empty string, `aliases` other words for the group,
    `number` the grammatical number of `subject`. `forms` are pairs of slot and wording, `gender` is the grammatical
    gender of the singular (m, f, n or empty), for languages that have them.
    """

    id: str
    name: str
    topic: str
    toxigen: str
    singular_person: str
    subject: str
    aliases: tuple[str, ...]
    number: str
    forms: tuple[tuple[str, str], ...] = ()
    gender: str = ""

    @property
    def terms(self) -> tuple[str, ...]:
        """Every wording by which a sentence can mention the group."""
        return (self.subject, self.name, self.singular_person, *self.aliases, *(form for _, form in self.forms))

    def form(self, slot: str) -> str | None:
        """Return what stands in a slot, ``group`` or the name of a form; None where the group has no such form."""
        return self.subject if slot == "group" else dict(self.forms).get(slot)


def slots(text: str) -> list[str]:
    """Return the names of the slots in a template, in order."""
    return _ANY_SLOT.findall(text)


def _group(row: Row) -> Group:
    aliases = tuple(alias.strip() for alias in row["aliases"].split("|")) if row["aliases"] else ()
    for column in ("id", "topic"):
        if not _SLUG.fullmatch(row[column]):
            raise UserError(
                f"{row.where}: {column} {shown(row[column])} is not a plain name: "
                "use lower-case letters, digits and underscores, a letter first"
            )
    if row["id"] == CONTROL:
        raise UserError(f"{row.where}: id {CONTROL!r} is kept for the group-free control: choose another")
    if row["toxigen"] and row["toxigen"] not in TOXIGEN:
        raise UserError(
            f"{row.where}: unknown ToxiGen group {shown(row['toxigen'])}{nearest(row['toxigen'], TOXIGEN)}: "
            f"leave it empty or use one of {', '.join(TOXIGEN)}"
        )
    if row["number"] != "plural":
        raise UserError(
            f"{row.where}: number {shown(row['number'])}: the templates need a plural subject, write 'plural'"
        )
    if not all(aliases):
        raise UserError(f"{row.where}: an alias is empty: put exactly one | between aliases")
    if not row["subject"]:
        raise UserError(
            f"{row.where}: group {shown(row['id'])} has no wording in column 'subject', so no sentence would speak of "
            "it: fill it or remove the line"
        )
    if row.cells.get("gender", "") not in ("", *GENDERS):
        raise UserError(f"{row.where}: gender {shown(row['gender'])}: write m, f or n, or leave it empty")
    if any("{" in cell or "}" in cell for cell in row.cells.values()):
        raise UserError(f"{row.where}: braces in a group's wording: remove them (they mark the slot of a template)")
    fields = {name: row[name] for name in COLUMNS if name != "aliases"}
    forms = tuple(
        (name.removeprefix("form_"), cell) for name, cell in row.cells.items() if name.startswith("form_") and cell
    )
    return Group(aliases=aliases, forms=forms, gender=row.cells.get("gender", ""), **fields)


def read_groups(path: Path | str | None = None) -> tuple[list[Group], Cleaning]:
    """Read the groups and say what was cleaned; see `load_groups`."""
    table = read_table(
        data_path("stimuli", "groups.tsv") if path is None else path, COLUMNS, ("toxigen", "aliases", "subject"), _EXTRA
    )
    groups = []
    claimed: dict[tuple[str, str], tuple[str, str]] = {}
    for row in table.rows:
        group = _group(row)
        keys = {("id", group.id), *(("wording", term.casefold()) for term in group.terms)}
        if group.toxigen:
            keys.add(("ToxiGen group", group.toxigen))
        for key in sorted(keys):
            if key in claimed:
                raise UserError(
                    f"{row.where}: {key[0]} {shown(key[1])} already belongs to group {claimed[key][0]!r} "
                    f"({claimed[key][1]}): remove one of them"
                )
            claimed[key] = (group.id, row.where)
        groups.append(group)
    return groups, table.cleaning


def load_groups(path: Path | str | None = None) -> list[Group]:
    """Return the target groups of a file in its order.

    Parameters
    ----------
    path
        TSV with the columns of `COLUMNS`; None = the 24 shipped groups.

    Returns
    -------
    list of Group
        At least one; ids, wordings and ToxiGen names are each unique to a group.

    Raises
    ------
    UserError
        With ``file:line``, for any mistake in the file.
    """
    return read_groups(path)[0]


def group_topics(groups: Sequence[Group] | None = None) -> dict[str, list[str]]:
    """Return topic -> ids of its groups, both in the groups' order (default: the shipped groups)."""
    topics: dict[str, list[str]] = {}
    for group in load_groups() if groups is None else groups:
        topics.setdefault(group.topic, []).append(group.id)
    return topics


def toxigen_groups(groups: Sequence[Group] | None = None) -> dict[str, str]:
    """Return ToxiGen's group -> group id, sorted by ToxiGen's name (default: the shipped groups)."""
    mapped = {group.toxigen: group.id for group in (load_groups() if groups is None else groups) if group.toxigen}
    return dict(sorted(mapped.items()))


def fill(template: str, group: Group) -> str:
    """Return the template with the group in its slot, capitalised where the slot opens a sentence.

    Parameters
    ----------
    template
        A sentence with one slot, ``{group}`` or the name of a form.
    group
        The group; its `subject` is filled in for ``{group}``, else the form of that name.

    Returns
    -------
    str
        The sentence.

    Raises
    ------
    ValueError
        If there is not exactly one slot, or the group has no such form.
    """
    names = slots(template)
    subject = group.form(names[0]) if len(names) == 1 else None
    if subject is None:
        raise ValueError(f"template must hold {SLOT}, or a form of {group.id}, exactly once, got {template!r}")
    before, after = template.split(f"{{{names[0]}}}")
    if _OPENS_SENTENCE.search(before):
        subject = subject[0].upper() + subject[1:]
    return before + subject + after


class Mentions:
    """Finds which groups a text mentions, as whole words, the longest wording first.

    Longest first matters: "Latin Americans" mentions no Americans, "able-bodied people" no one else.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        self._owner = {term.casefold(): group.id for group in groups for term in group.terms}
        terms = sorted(self._owner, key=lambda term: (-len(term), term))
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, terms))})(?!\w)")

    def find(self, text: str) -> list[tuple[str, str]]:
        """Return (group id, wording as matched, case-folded) for each mention, in order."""
        return [(self._owner[found[0]], found[0]) for found in self._pattern.finditer(text.casefold())]

    def replace(self, text: str, new: Callable[[str, bool], str]) -> str:
        """Return `text` with each mention replaced by ``new(wording as written, whether it opens a sentence)``."""

        def substitute(found: re.Match[str]) -> str:
            return new(found[0], bool(_OPENS_SENTENCE.search(text[: found.start()])))

        return re.sub(self._pattern.pattern, substitute, text, flags=re.IGNORECASE)
