"""Variants of the attribute and target sentences: the same rows in other words, for the ablations.

A variant file has the columns, ids, order and valences of its base file, so that a row can be compared with the row
that it rewords. The shipped ones lie in ``data/stimuli/variants``; a user's own go through the same checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.entries import (
    VALENCES,
    Entry,
    check_attribute,
    check_template,
    entries_of,
    refuse_repeats,
    sentence_key,
)
from refbias.stimuli.quality import Finding, check_quality
from refbias.stimuli.sentences import StimulusSet
from refbias.stimuli.table import Cleaning, Table, read_table, shown

Kind = Literal["attributes", "targets"]
CELLS: dict[Kind, tuple[str, ...]] = {
    "attributes": ("subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3"),
    "targets": ("passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3"),
}
# a sentence whose subject is already the one that the variant asks for stays as it is; everything else is reworded
MAY_KEEP = ("subj_v1", "subj_v2")
_COLUMNS: dict[Kind, tuple[str, ...]] = {"attributes": ("id", "valence", "text"), "targets": ("id", "template")}
_CLEANING: dict[Kind, int] = {"targets": 1, "attributes": 3}


@dataclass(frozen=True)
class Variant:
    """One variant of a set.

    `entries` go with the base file's rows one by one, `unchanged` counts those that read as in the base (case and
    blanks aside).
    """

    kind: Kind
    cell: str
    path: Path
    entries: tuple[Entry, ...]
    unchanged: int
    cleaning: Cleaning

    @property
    def share_unchanged(self) -> float:
        """Share of the rows that read as in the base, 0 to 1."""
        return self.unchanged / len(self.entries)


def base_rows(kind: Kind, base: StimulusSet) -> tuple[Entry, ...]:
    """Return the rows that a variant of `kind` has to follow, in the order of their file."""
    if kind == "targets":
        return base.targets
    return tuple(sorted((*base.positive, *base.negative), key=lambda entry: entry.line))


def align(table: Table, entries: Sequence[Entry], rows: Sequence[Entry]) -> None:
    """Refuse entries that do not follow the base's rows: same ids in the same order, same labels.

    Raises
    ------
    UserError
        At the first line of `table` that departs, naming the row of the base file that belongs there.
    """
    for entry, row in zip(entries, rows, strict=False):
        if entry.id != row.id:
            raise UserError(
                f"{entry.where}: id {entry.id!r} stands where the base file has {row.id!r} ({row.where}): "
                "keep its ids and their order"
            )
        if entry.label != row.label:
            raise UserError(
                f"{entry.where}: {entry.id!r} is {shown(entry.label)}, but {shown(row.label)} in the base file "
                f"({row.where}): write the same"
            )
    if len(entries) > len(rows):
        extra = entries[len(rows)]
        raise UserError(f"{extra.where}: id {extra.id!r} comes after the base file's last row: remove it")
    if len(entries) < len(rows):
        row, last = rows[len(entries)], table.rows[-1].line
        raise UserError(f"{table.path}:{last}: ends before id {row.id!r} ({row.where}): add the missing rows")


def load_variant(kind: Kind, cell: str, base: StimulusSet, path: Path | str | None = None) -> Variant:
    """Read a variant of the attributes or targets.

    Parameters
    ----------
    kind
        ``attributes`` or ``targets``.
    cell
        A name of ``CELLS[kind]``.
    base
        The whole base files, from `read_stimuli`.
    path
        The file; None = the shipped one.

    Returns
    -------
    Variant
        As many entries as the base has rows, in its order.

    Raises
    ------
    UserError
        With ``file:line``: see `read_table` and `align`; a valence, template or id that is none, a sentence that
        stands twice, that is another row's in the base, or that is not reworded (for the cells of `MAY_KEEP`: none
        is).
    ValueError
        If there is no such cell.
    """
    if cell not in CELLS[kind]:
        raise ValueError(f"no variant {cell!r} of the {kind}: {', '.join(CELLS[kind])}")
    shipped = ("stimuli", "variants", f"{kind}_{cell}.tsv")
    table = read_table(data_path(*shipped) if path is None else path, _COLUMNS[kind])
    if kind == "targets":
        entries = entries_of(table, check_template, text="template")
    else:
        entries = entries_of(table, check_attribute, label="valence")
    rows = base_rows(kind, base)
    refuse_repeats((), (), entries)
    align(table, entries, rows)
    of_base = {sentence_key(row.text): row for row in rows}
    unchanged = 0
    for entry in entries:
        row = of_base.get(sentence_key(entry.text))
        if row is None:
            continue
        if row.id != entry.id:
            raise UserError(f"{entry.where}: {shown(entry.text)} is the base's row {row.id!r} ({row.where}): reword it")
        if cell not in MAY_KEEP:
            raise UserError(f"{entry.where}: {shown(entry.text)} is as in the base ({row.where}): reword it")
        unchanged += 1
    if unchanged == len(entries):
        raise UserError(f"{table.path}:1: no row differs from the base file ({rows[0].path}): reword them")
    return Variant(kind, cell, table.path, entries, unchanged, table.cleaning)


def apply_variant(base: StimulusSet, variant: Variant) -> StimulusSet:
    """Return the base with the variant's sentences in the place of those that they reword."""
    cleaning = list(base.cleaning)
    cleaning[_CLEANING[variant.kind]] = variant.cleaning
    if variant.kind == "targets":
        return replace(base, targets=variant.entries, cleaning=tuple(cleaning))
    positive, negative = (tuple(e for e in variant.entries if e.label == valence) for valence in VALENCES)
    return replace(base, positive=positive, negative=negative, cleaning=tuple(cleaning))


def check_variant(base: StimulusSet, variant: Variant) -> list[Finding]:
    """Return every departure from the standard of the shipped sets that a variant brings in.

    Parameters
    ----------
    base
        The whole base files.
    variant
        A variant of them.

    Returns
    -------
    list of Finding
        See `check_quality`: mean length, positive and negative lengths alike (Kolmogorov-Smirnov, p > .05), no
        valenced word in targets, no group in attributes, plural agreement, no anchor that fills a target. Findings
        that the base has as well are left out.
    """
    of_base = set(check_quality(base))
    return [finding for finding in check_quality(apply_variant(base, variant)) if finding not in of_base]
