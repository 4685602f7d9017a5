"""Load and validate the sentence sets, and choose the fixed part of them that a run embeds.

The subset is a function of the settings alone: the first n of each file, in its order. The shipped files are ordered
so that a beginning of them is a fair part (anchors go round the groups, attributes mix scenes and traits).
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.entries import (
    VALENCES,
    Entry,
    anchor_check,
    check_attribute,
    check_forms,
    check_no_slot,
    entries_of,
    fillings,
    refuse_repeats,
    target_check,
)
from refbias.stimuli.groups import CONTROL, Group, load_groups, read_groups
from refbias.stimuli.table import Cleaning, Table, read_table

if TYPE_CHECKING:
    from refbias.config.stimuli import StimuliSettings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sentence:
    """A sentence to embed: `kind` is target, control, positive, negative or anchor.

    `group` is the group's id for targets and anchors, ``control`` for group-free sentences of either kind, and empty
    for attributes.
    """

    id: str
    kind: str
    group: str
    text: str


@dataclass(frozen=True)
class StimulusSet:
    """Everything in the files, validated, before a part of it is chosen."""

    groups: tuple[Group, ...]
    targets: tuple[Entry, ...]
    control: tuple[Entry, ...]
    positive: tuple[Entry, ...]
    negative: tuple[Entry, ...]
    anchors: tuple[Entry, ...]
    cleaning: tuple[Cleaning, ...]


def read_stimuli(settings: "StimuliSettings") -> StimulusSet:
    """Read and validate all five files in full.

    Parameters
    ----------
    settings
        Which files; None = the shipped one.

    Returns
    -------
    StimulusSet
        Every row of every file with its line, and what was cleaned.

    Raises
    ------
    UserError
        With ``file:line``: see `read_table`; an id, sentence or wording that stands twice (in any two files), an
        unknown group or valence, a template without its slot.
    """

    def table(name: str, chosen: str | None, columns: tuple[str, ...], optional: str = "") -> Table:
        path = data_path("stimuli", f"{name}.tsv") if chosen is None else chosen
        return read_table(path, columns, extra=optional)

    groups, groups_cleaning = read_groups(settings.groups_file)
    targets = table("targets", settings.targets_file, ("id", "template"), "group")
    attributes = table("attributes", settings.attributes_file, ("id", "valence", "text"))
    anchors = table("anchors", settings.anchors_file, ("id", "group", "text"))
    control = table("control", settings.control_file, ("id", "text"))
    # the shipped anchors stay usable beside a user's own groups: their group column only keeps the books
    known = [*groups, *load_groups()] if settings.anchors_file is None else groups
    owned = "group" if "group" in targets.rows[0].cells else ""
    target_entries = entries_of(targets, target_check(group.id for group in groups), text="template", label=owned)
    check_forms(target_entries, groups, groups_cleaning.path)
    control_entries = entries_of(control, check_no_slot)
    attribute_entries = entries_of(attributes, check_attribute, label="valence")
    anchor_entries = entries_of(anchors, anchor_check(group.id for group in known), label="group")
    refuse_repeats(groups, target_entries, [*control_entries, *attribute_entries, *anchor_entries])
    positive, negative = (tuple(e for e in attribute_entries if e.label == valence) for valence in VALENCES)
    cleaning = (groups_cleaning, *(part.cleaning for part in (targets, control, attributes, anchors)))
    return StimulusSet(tuple(groups), target_entries, control_entries, positive, negative, anchor_entries, cleaning)


def validate_stimuli(settings: "StimuliSettings") -> dict[str, int]:
    """Validate the files and return the number of rows of each set and of everything that was cleaned.

    Parameters
    ----------
    settings
        Files and sizes.

    Returns
    -------
    dict
        groups, targets, control, positive, negative, anchors (rows in the files), sentences (chosen by the settings),
        bom, crlf_lines, blank_lines, folded_cells (cleaned, over all files).

    Raises
    ------
    UserError
        As `load_stimuli`.
    """
    stimuli = read_stimuli(settings)
    names = ("groups", "targets", "control", "positive", "negative", "anchors")
    counts = {name: len(getattr(stimuli, name)) for name in names}
    counts["sentences"] = len(_select(stimuli, settings))
    for name in ("bom", "crlf_lines", "blank_lines", "folded_cells"):
        counts[name] = sum(getattr(part, name) for part in stimuli.cleaning)
    return counts


def _select(stimuli: StimulusSet, settings: "StimuliSettings") -> list[Sentence]:
    def first(key: str, entries: tuple[Entry, ...], what: str, files: Mapping[str, Path]) -> tuple[Entry, ...]:
        asked: int = getattr(settings, key)
        if asked > len(entries):
            raise UserError(
                f"stimuli.{key} asks for {asked}, but {files[key]} holds {len(entries)} {what}: lower it or add rows"
            )
        return entries[:asked]

    paths = [part.path for part in stimuli.cleaning[1:]]
    files = dict(zip(("targets", "control", "attributes", "anchors"), paths, strict=True))
    targets = []
    for group in stimuli.groups:
        own = tuple(entry for entry in stimuli.targets if entry.label in ("", group.id))
        what = "templates" if len(own) == len(stimuli.targets) else f"target sentences of group {group.id!r}"
        targets += [(entry, group) for entry in first("targets", own, what, files)]
    control = first("control", stimuli.control, "control sentences", files)
    positive = first("attributes", stimuli.positive, "positive sentences", files)
    negative = first("attributes", stimuli.negative, "negative sentences", files)
    anchors = first("anchors", stimuli.anchors, "anchors", files)
    return [
        # a dot cannot stand in an id of a file, so the joined ids stay unique
        *(Sentence(f"{t.id}.{g.id}", "target", g.id, text) for t, own in targets for g, text in fillings(t, [own])),
        *(Sentence(e.id, "control", CONTROL, e.text) for e in control),
        *(Sentence(e.id, "positive", "", e.text) for e in positive),
        *(Sentence(e.id, "negative", "", e.text) for e in negative),
        *(Sentence(e.id, "anchor", e.label, e.text) for e in anchors),
    ]


def load_stimuli(settings: "StimuliSettings") -> list[Sentence]:
    """Return the sentences that a run embeds, in a fixed order.

    Parameters
    ----------
    settings
        Files and sizes.

    Returns
    -------
    list of Sentence
        Targets by group then template, control, positive, negative, anchors; no id and no sentence stands twice. What
        was cleaned in a file is logged as a warning.

    Raises
    ------
    UserError
        As `read_stimuli`, and where a file holds fewer sentences than the settings ask for.
    """
    stimuli = read_stimuli(settings)
    for part in stimuli.cleaning:
        if part:
            _logger.warning("%s", part)
    return _select(stimuli, settings)


def sentence_table(sentences: Sequence[Sentence]) -> str:
    """Return the sentences as the text of ``sentences.tsv``: a header, then a line a sentence."""
    rows = [("id", "kind", "group", "text"), *((row.id, row.kind, row.group, row.text) for row in sentences)]
    return "".join("\t".join(row) + "\n" for row in rows)


def stimuli_sha256(sentences: Sequence[Sentence]) -> str:
    """Return the SHA-256 by which two results are known to rest on the same sentences: that of `sentence_table`."""
    return hashlib.sha256(sentence_table(sentences).encode()).hexdigest()
