"""Collect every sentence that some ablation embeds: the run's own, variants, other anchors.

A variant is row-aligned with the file that it varies: the same ids in the same order. So a run that
uses the first n sentences of a set uses the variants of just those. The collection is a table; equal
texts are embedded once. What cannot be had (a source that no file is named for) is left out and
its reason is kept.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from refbias.ablations.instructions import Source, sample_sentences
from refbias.ablations.table import BASE
from refbias.config.ablations import AblationSettings
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli import Entry, Group, Mentions, Sentence, Table, fill, load_stimuli, read_stimuli, read_table
from refbias.stimuli.groups import SLOT

SAMPLED: tuple[Source, ...] = ("alpaca", "tulu")


@dataclass(frozen=True)
class SetSentence:
    """A sentence in one of the sets.

    `mentions` are the groups of which some wording stands in an anchor of the base, as whole words,
    be it within the wording of another group.
    """

    set: str
    sentence: Sentence
    mentions: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, ...]:
        """The row in `COLUMNS`."""
        row = self.sentence
        return (self.set, row.id, row.kind, row.group, "|".join(self.mentions), row.text)


@dataclass
class Collection:
    """All sentences, base first; why something is missing; what was drawn from the data sets."""

    rows: list[SetSentence] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    drawn: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, name: str, sentences: Iterable[Sentence]) -> None:
        """Append a set."""
        self.rows += [SetSentence(name, sentence) for sentence in sentences]


def collect(stimuli: StimuliSettings, ablations: AblationSettings, seed: int) -> Collection:
    """Return the sentences of every ablation that runs.

    Parameters
    ----------
    stimuli
        The run's own sets.
    ablations
        What is ablated, and the files.
    seed
        Of the draws from Alpaca and Tulu.

    Returns
    -------
    Collection
        Base sentences in the order of `load_stimuli`, then set after set.

    Raises
    ------
    UserError
        With file and line, for a mistake in a file or a variant that is not aligned with its base.
    """
    whole = read_stimuli(stimuli)
    chosen = load_stimuli(stimuli)
    named = _Named(whole.groups)
    collection = Collection()
    for sentence in chosen:
        found = named.find(sentence.text) if sentence.kind == "anchor" else ()
        collection.rows.append(SetSentence(BASE, sentence, found))
    if "attributes" in ablations.run:
        entries = sorted([*whole.positive, *whole.negative], key=lambda entry: entry.line)
        kept = {sentence.id: sentence for sentence in chosen if sentence.kind in ("positive", "negative")}
        for cell in ablations.attributes:
            path = _variant(f"attributes_{cell}", ablations.variants_dir, stimuli.attributes_file, collection)
            if path:
                table = _aligned(path, ("id", "valence", "text"), entries, label="valence")
                texts = {row["id"]: row["text"] for row in table.rows}
                collection.add(f"attributes_{cell}", (_reworded(kept[key], texts[key]) for key in kept))
    if "targets" in ablations.run:
        for name in ablations.targets:
            path = _variant(f"targets_{name}", ablations.variants_dir, stimuli.targets_file, collection)
            if path:
                templates = _templates(_aligned(path, ("id", "template"), whole.targets))
                sentences = _filled(templates, chosen, {group.id: group for group in whole.groups})
                collection.add(f"targets_{name}", sentences)
    _add_anchors(collection, chosen, whole.anchors, stimuli, ablations, Mentions(whole.groups), seed)
    return collection


def _add_anchors(
    collection: Collection,
    chosen: Sequence[Sentence],
    anchors: Sequence[Entry],
    stimuli: StimuliSettings,
    ablations: AblationSettings,
    mentions: Mentions,
    seed: int,
) -> None:
    if "anchors" in ablations.run:
        size = ablations.sample.size
        if "words" in ablations.anchors:
            words = ablations.words_file or data_path("stimuli", "anchors_words.tsv")
            rows = read_table(words, ("id", "group", "text"), optional=("group",)).rows[:size]
            collection.add("anchors_words", (Sentence(row["id"], "anchor", "", row["text"]) for row in rows))
        for source in SAMPLED:
            file = getattr(ablations, f"{source}_file")
            if source in ablations.anchors and file is None:
                collection.left_out[f"anchors/{source}"] = f"key 'ablations.{source}_file' names no file"
            elif source in ablations.anchors:
                texts, counts = sample_sentences(file, source, ablations.sample, mentions, seed)
                collection.drawn[source] = counts.as_json()
                collection.add(
                    f"anchors_{source}",
                    (Sentence(f"{source}{n:04d}", "anchor", "", text) for n, text in enumerate(texts, start=1)),
                )
    if "circularity" in ablations.run and "masked" in ablations.circularity:
        if stimuli.anchors_file and not ablations.masked_file:
            collection.left_out["circularity/masked"] = (
                "the shipped masked anchors belong to the shipped anchors: name key 'ablations.masked_file'"
            )
            return
        masked = ablations.masked_file or data_path("stimuli", "anchors_masked.tsv")
        table = _aligned(Path(masked), ("id", "group", "text"), anchors)
        new = {row["id"]: row["text"] for row in table.rows}
        kept = [sentence for sentence in chosen if sentence.kind == "anchor"]
        collection.add("anchors_masked", (_reworded(sentence, new[sentence.id]) for sentence in kept))


def _variant(name: str, folder: str | None, base_file: str | None, collection: Collection) -> Path | None:
    """Return the file of a variant; None, with the reason kept, where the shipped ones do not fit."""
    if folder:
        return Path(folder) / f"{name}.tsv"
    if base_file:
        ablation, _, cell = name.partition("_")
        collection.left_out[f"{ablation}/{cell}"] = (
            f"the shipped variants belong to the shipped {ablation}: name key 'ablations.variants_dir'"
        )
        return None
    return data_path("stimuli", "variants", f"{name}.tsv")


def _aligned(path: Path, columns: tuple[str, ...], base: Sequence[Entry], label: str = "") -> Table:
    """Read a variant and refuse it unless its rows are those of the base, one by one."""
    table = read_table(path, columns)
    for row, entry in zip(table.rows, base, strict=False):
        if row["id"] != entry.id or (label and row[label] != entry.label):
            said = f"{row['id']!r} {row[label]!r}" if label else f"{row['id']!r}"
            wanted = f"{entry.id!r} {entry.label!r}" if label else f"{entry.id!r}"
            raise UserError(f"{row.where}: {said} stands where {entry.where} has {wanted}: keep the rows aligned")
    if len(table.rows) != len(base):
        raise UserError(f"{path}: {len(table.rows)} rows for the {len(base)} of {base[0].path}: keep the rows aligned")
    return table


def _templates(table: Table) -> Mapping[str, str]:
    for row in table.rows:
        if row["template"].count(SLOT) != 1:
            raise UserError(f"{row.where}: the template must hold the slot {SLOT} exactly once")
    return {row["id"]: row["template"] for row in table.rows}


def _filled(
    templates: Mapping[str, str], chosen: Sequence[Sentence], groups: Mapping[str, Group]
) -> Iterable[Sentence]:
    for sentence in chosen:
        if sentence.kind == "target":
            template = sentence.id.partition(".")[0]
            yield _reworded(sentence, fill(templates[template], groups[sentence.group]))


def _reworded(sentence: Sentence, text: str) -> Sentence:
    return Sentence(sentence.id, sentence.kind, sentence.group, text)


class _Named:
    """Finds every group of which a wording stands in a text as whole words."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._patterns = {
            group.id: re.compile(rf"(?<!\w)(?:{'|'.join(re.escape(term.casefold()) for term in group.terms)})(?!\w)")
            for group in groups
        }

    def find(self, text: str) -> tuple[str, ...]:
        folded = text.casefold()
        return tuple(name for name, pattern in self._patterns.items() if pattern.search(folded))
