"""Intersectional groups: the product of two axes, where English has a plain wording for it.

Two groups combine when one can stand before the other: *old* before *women*, *Muslim* before *men*. What a group can be
is stated in a table of terms (its modifier, its head noun in plural and singular, either of which may be absent), and
which pairs are meant in a second table; nothing is combined that is not listed there. The anchors are the base's own
frames, each used once, with the new groups in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.stimuli.entries import Entry, sentence_key
from refbias.stimuli.groups import COLUMNS, SLOT, Group, Mentions, fill
from refbias.stimuli.sentences import StimulusSet
from refbias.stimuli.table import Row, nearest, read_table, shown

TERM_COLUMNS = ("group", "axis", "modifier", "plural", "singular")
PAIR_COLUMNS = ("first", "second", "aliases")
TERMS, PAIRS = "terms.tsv", "pairs.tsv"


@dataclass(frozen=True)
class Term:
    """What a group can be in a combination: `modifier` before a noun, `plural` and `singular` as that noun.

    Empty where the language has no such use: *women* is no modifier here, *old* no noun.
    """

    group: str
    axis: str
    modifier: str
    plural: str
    singular: str


def read_terms(path: Path | str, groups: Iterable[Group]) -> dict[str, Term]:
    """Read the table of terms.

    Parameters
    ----------
    path
        TSV with the columns of `TERM_COLUMNS`; `modifier`, `plural` and `singular` may be empty.
    groups
        The groups that may be named.

    Returns
    -------
    dict
        Group id -> term, in file order.

    Raises
    ------
    UserError
        With ``file:line``: an unknown group, one that stands twice, a plural without a singular, no use at all.
    """
    known = [group.id for group in groups]
    terms: dict[str, Term] = {}
    for row in read_table(path, TERM_COLUMNS, ("modifier", "plural", "singular")).rows:
        term = Term(**{name: row[name] for name in TERM_COLUMNS})
        if term.group not in known:
            raise UserError(f"{row.where}: unknown group id {shown(term.group)}{nearest(term.group, known)}")
        if term.group in terms:
            raise UserError(f"{row.where}: group {term.group!r} stands twice: remove one")
        if bool(term.plural) != bool(term.singular):
            raise UserError(f"{row.where}: {term.group!r} needs both 'plural' and 'singular', or neither")
        if not (term.modifier or term.plural):
            raise UserError(f"{row.where}: {term.group!r} has neither a modifier nor a noun: remove the line")
        terms[term.group] = term
    return terms


def _combine(row: Row, terms: dict[str, Term]) -> Group:
    for name in ("first", "second"):
        if row[name] not in terms:
            raise UserError(f"{row.where}: {name} {shown(row[name])} is not in the terms{nearest(row[name], terms)}")
    first, second = terms[row["first"]], terms[row["second"]]
    if first.axis == second.axis:
        raise UserError(f"{row.where}: {first.group!r} and {second.group!r} lie on one axis ({first.axis}): take two")
    if not first.modifier:
        raise UserError(f"{row.where}: {first.group!r} cannot stand before a noun (no modifier): swap or remove them")
    if not second.plural:
        raise UserError(f"{row.where}: {second.group!r} cannot be the noun (no plural): swap or remove them")
    subject = f"{first.modifier} {second.plural}"
    aliases = tuple(alias.strip() for alias in row["aliases"].split("|")) if row["aliases"] else ()
    return Group(
        id=f"{first.group}_{second.group}",
        name=subject[0].upper() + subject[1:],
        topic=f"{first.axis}_{second.axis}",
        toxigen="",
        singular_person=f"{first.modifier} {second.singular}",
        subject=subject,
        aliases=aliases,
        number="plural",
    )


def combine(terms: dict[str, Term], pairs: Path | str) -> list[Group]:
    """Return the groups of the listed pairs.

    Parameters
    ----------
    terms
        From `read_terms`.
    pairs
        TSV with the columns of `PAIR_COLUMNS`: the modifier's group, the noun's, and other wordings (may be empty).

    Returns
    -------
    list of Group
        In file order; the id is ``<first>_<second>``, the topic the two axes.

    Raises
    ------
    UserError
        With ``file:line``: a pair of one axis, one that has no wording, one that stands twice.
    """
    found: dict[str, Group] = {}
    for row in read_table(pairs, PAIR_COLUMNS, ("aliases",)).rows:
        group = _combine(row, terms)
        if group.id in found:
            raise UserError(f"{row.where}: {row['first']!r} before {row['second']!r} stands twice: remove one")
        found[group.id] = group
    return list(found.values())


def frames(base: StimulusSet) -> list[str]:
    """Return the distinct frames of the base's anchors that name their group by its plural, in file order."""
    subjects = {group.id: group.subject.casefold() for group in base.groups}
    mentions = Mentions(base.groups)
    found: dict[str, str] = {}
    for anchor in base.anchors:
        wordings = [wording for _, wording in mentions.find(anchor.text)]
        if wordings == [subjects.get(anchor.label)]:
            frame = mentions.replace(anchor.text, lambda _wording, _opens: SLOT)
            found.setdefault(sentence_key(frame), frame)
    return list(found.values())


def build_anchors(groups: Sequence[Group], base: StimulusSet, per_group: int) -> list[tuple[str, str, str]]:
    """Return anchors (id, group id, text) that go round the groups, each on a frame of its own.

    Raises
    ------
    UserError
        If the base has fewer frames than anchors are asked for.
    """
    pool = frames(base)
    wanted = len(groups) * per_group
    if wanted > len(pool):
        first: Entry = base.anchors[0]
        raise UserError(
            f"{len(groups)} groups with {per_group} anchors each need {wanted} frames, but {first.path} has "
            f"{len(pool)}: lower --anchors-per-group"
        )
    rows = []
    for number, frame in enumerate(pool[:wanted]):
        group = groups[number % len(groups)]
        rows.append((f"x{number + 1:04d}", group.id, fill(frame, group)))
    return rows


def group_table(groups: Sequence[Group]) -> str:
    """Return groups as the text of a ``groups.tsv``."""
    lines = ["\t".join(COLUMNS)]
    for group in groups:
        cells = {name: getattr(group, name) for name in COLUMNS if name != "aliases"}
        lines.append("\t".join({**cells, "aliases": "|".join(group.aliases)}[name] for name in COLUMNS))
    return "\n".join(lines) + "\n"
