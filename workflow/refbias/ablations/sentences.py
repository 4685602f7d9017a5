"""Collect every sentence that some ablation embeds: the run's own, variants, other anchors.

A variant is row-aligned with the file that it varies: the same ids in the same order. So a run that
uses the first n sentences of a set uses the variants of just those. The collection is a table; equal
texts are embedded once. What cannot be had (a source that no file is named for) is left out and
its reason is kept.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from refbias.ablations.instructions import Source, sample_sentences
from refbias.ablations.table import BASE
from refbias.config.ablations import AblationSettings
from refbias.config.stimuli import StimuliSettings
from refbias.stimuli import (
    Group,
    Mentions,
    Sentence,
    StimulusSet,
    Variant,
    fill,
    load_masked_anchors,
    load_stimuli,
    load_variant,
    load_word_anchors,
    read_stimuli,
)
from refbias.stimuli.entries import VALENCES
from refbias.stimuli.variants import Kind


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
        With file and line, for a mistake in a file: see `read_stimuli`, `load_variant`, `load_word_anchors` and
        `load_masked_anchors`.
    """
    whole = read_stimuli(stimuli)
    chosen = load_stimuli(stimuli)
    named = _Named(whole.groups)
    collection = Collection()
    for sentence in chosen:
        found = named.find(sentence.text) if sentence.kind == "anchor" else ()
        collection.rows.append(SetSentence(BASE, sentence, found))
    sets: tuple[tuple[Kind, Sequence[str], str | None], ...] = (
        ("attributes", ablations.attributes, stimuli.attributes_file),
        ("targets", ablations.targets, stimuli.targets_file),
    )
    for kind, cells, base_file in sets:
        for cell in cells if kind in ablations.run else ():
            if base_file and not ablations.variants_dir:
                collection.left_out[f"{kind}/{cell}"] = (
                    f"the shipped variants belong to the shipped {kind}: name key 'ablations.variants_dir'"
                )
                continue
            own = Path(ablations.variants_dir) / f"{kind}_{cell}.tsv" if ablations.variants_dir else None
            collection.add(f"{kind}_{cell}", _reworded(chosen, load_variant(kind, cell, whole, own), whole.groups))
    _add_anchors(collection, chosen, whole, stimuli, ablations, seed)
    return collection


def _add_anchors(
    collection: Collection,
    chosen: Sequence[Sentence],
    whole: StimulusSet,
    stimuli: StimuliSettings,
    ablations: AblationSettings,
    seed: int,
) -> None:
    if "anchors" in ablations.run:
        size = ablations.sample.size
        if "words" in ablations.anchors:
            words = load_word_anchors(ablations.words_file)[:size]
            collection.add("anchors_words", (Sentence(word.id, "anchor", "", word.text) for word in words))
        files: dict[Source, str | None] = {"alpaca": ablations.alpaca_file, "tulu": ablations.tulu_file}
        for source, file in files.items():
            if source not in ablations.anchors:
                continue
            if file is None:
                collection.left_out[f"anchors/{source}"] = f"key 'ablations.{source}_file' names no file"
                continue
            texts, counts = sample_sentences(file, source, ablations.sample, Mentions(whole.groups), seed)
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
        # row-aligned with the file of the anchors, of which the run uses the first so many
        new = {entry.id: entry.text for entry in load_masked_anchors(whole, ablations.masked_file)}
        collection.add(
            "anchors_masked",
            (replace(sentence, text=new[sentence.id]) for sentence in chosen if sentence.kind == "anchor"),
        )


def _reworded(chosen: Iterable[Sentence], variant: Variant, groups: Iterable[Group]) -> Iterator[Sentence]:
    """Yield the run's sentences of the variant's kind in the variant's words."""
    texts = {entry.id: entry.text for entry in variant.entries}
    by_id = {group.id: group for group in groups}
    for sentence in chosen:
        if variant.kind == "attributes" and sentence.kind in VALENCES:
            yield replace(sentence, text=texts[sentence.id])
        elif variant.kind == "targets" and sentence.kind == "target":
            template = sentence.id.partition(".")[0]
            yield replace(sentence, text=fill(texts[template], by_id[sentence.group]))


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
