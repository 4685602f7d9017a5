"""Other anchors for the ablations: single words, and the base's anchors with their group terms masked.

Masking answers whether dB about a group only moves because the anchors name that group. Each mention becomes a neutral
word of the same number ("Muslims are reading." -> "People are reading."). Frames are used for up to three groups, so
their masked forms would coincide; the second and the third use of a frame take the next neutral word, and the masked
set has as many distinct sentences as the base. The shipped file is what `mask_anchors` returns for the shipped anchors.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.entries import Entry, check_no_slot, entries_of, refuse_repeats, sentence_key
from refbias.stimuli.groups import CONTROL, Group, Mentions
from refbias.stimuli.quality import Finding, anchor_findings
from refbias.stimuli.sentences import StimulusSet
from refbias.stimuli.table import Row, read_table, shown
from refbias.stimuli.variants import align

COLUMNS = ("id", "group", "text")
# singular and plural, in the order in which uses of a frame take them
NEUTRAL = (("person", "people"), ("individual", "individuals"), ("person", "persons"))
MAX_WORDS = 2


def _word(row: Row) -> None:
    check_no_slot(row)
    if row["group"] not in ("", CONTROL):
        raise UserError(
            f"{row.where}: a word anchor has no group, not {shown(row['group'])}: write {CONTROL!r}, or nothing"
        )
    words = len(row["text"].split())
    if words > MAX_WORDS:
        raise UserError(f"{row.where}: {shown(row['text'])} has {words} words: a word anchor has at most {MAX_WORDS}")


def load_word_anchors(path: Path | str | None = None) -> tuple[Entry, ...]:
    """Read anchors of one or two words each.

    Parameters
    ----------
    path
        TSV with the columns of `COLUMNS`, `group` being ``control`` or empty; None = the 1,000 shipped words.

    Returns
    -------
    tuple of Entry
        In file order, distinct; `label` is ``control``.

    Raises
    ------
    UserError
        With ``file:line``: see `read_table`; an id or a word that stands twice, a group, more than two words.
    """
    table = read_table(data_path("stimuli", "anchors_words.tsv") if path is None else path, COLUMNS, ("group",))
    entries = entries_of(table, _word)
    refuse_repeats((), (), entries)
    return tuple(replace(entry, label=CONTROL) for entry in entries)


def load_masked_anchors(base: StimulusSet, path: Path | str | None = None) -> tuple[Entry, ...]:
    """Read the anchors with masked group terms, row-aligned with the base's.

    Parameters
    ----------
    base
        The whole base files, from `read_stimuli`.
    path
        TSV with the columns of `COLUMNS`; None = the shipped one, which belongs to the shipped anchors.

    Returns
    -------
    tuple of Entry
        As many as the base has anchors, distinct; `label` is the group that was masked.

    Raises
    ------
    UserError
        With ``file:line``: see `read_table` and `align`; a sentence that stands twice or still names a group.
    """
    table = read_table(data_path("stimuli", "anchors_masked.tsv") if path is None else path, COLUMNS)
    entries = entries_of(table, check_no_slot, label="group")
    refuse_repeats((), (), entries)
    align(table, entries, base.anchors)
    mentions = Mentions(base.groups)
    for entry in entries:
        found = mentions.find(entry.text)
        if found:
            raise UserError(
                f"{entry.where}: {found[0][1]!r} names the group {found[0][0]} in {shown(entry.text)}: "
                "write a neutral word"
            )
    return entries


def check_anchors(entries: Iterable[Entry], groups: Iterable[Group]) -> list[Finding]:
    """Return the valenced words and the group terms in anchors that should hold neither."""
    return anchor_findings(entries, Mentions(groups))


def _numbers(groups: Iterable[Group]) -> dict[str, int]:
    """Return case-folded wording -> 0 (one member) or 1 (several), for wordings whose number is beyond doubt."""
    numbers = {}
    for group in groups:
        for term in group.terms:
            if term in (group.subject, group.name) or re.search(r"(?:^| )people(?: with |$)", term):
                numbers[term.casefold()] = 1
            elif term == group.singular_person or term.endswith(" person"):
                numbers[term.casefold()] = 0
    return numbers


def _masked(entry: Entry, mentions: Mentions, numbers: dict[str, int], neutral: tuple[str, str]) -> str:
    def new(wording: str, opens: bool) -> str:
        if wording.casefold() not in numbers:
            raise UserError(
                f"{entry.where}: {wording!r} can stand for a thing, one person or several, so no neutral word is "
                "certain to fit: mask this anchor by hand, or name the group by its plural"
            )
        word = neutral[numbers[wording.casefold()]]
        return word.capitalize() if opens else word

    text = mentions.replace(entry.text, new)
    # "an immigrant" must not become "an person", nor "a Muslim person" "a individual"
    text = re.sub(r"\b([Aa])n(?= person\b)", r"\1", text)
    return re.sub(r"\b([Aa])(?= individual\b)", r"\1n", text)


def mask_anchors(anchors: Sequence[Entry], groups: Sequence[Group]) -> list[str]:
    """Return the anchors' texts with every mention of a group replaced by a neutral word of the same number.

    Parameters
    ----------
    anchors
        Anchors that name groups, or none.
    groups
        Whose wordings are masked.

    Returns
    -------
    list of str
        One a row, in order, distinct (case and blanks aside).

    Raises
    ------
    UserError
        With ``file:line``: a wording without a certain number, or a frame used more often than there are neutral
        words.
    """
    mentions, numbers = Mentions(groups), _numbers(groups)
    seen: dict[str, Entry] = {}
    texts = []
    for anchor in anchors:
        forms = [_masked(anchor, mentions, numbers, neutral) for neutral in NEUTRAL]
        text = next((form for form in forms if sentence_key(form) not in seen), None)
        if text is None:
            raise UserError(
                f"{anchor.where}: masked, it coincides with {seen[sentence_key(forms[0])].where}: a frame can serve "
                f"{len(NEUTRAL)} groups at most, so reword this anchor"
            )
        seen[sentence_key(text)] = anchor
        texts.append(text)
    return texts
