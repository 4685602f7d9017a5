"""Quality of a sentence set: what the shipped sentences promise and a user's own may choose to break.

Nothing here stops a run. A finding says where a set departs from the standard: 7 +- 1 words on average, positive and
negative lengths alike, no valenced word in targets, control or anchors, no group in attributes or control, anchors
that mention their own group only and go round the groups, plural agreement.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.entries import Entry, fillings, sentence_key
from refbias.stimuli.groups import CONTROL, SLOT, Mentions, slots
from refbias.stimuli.sentences import StimulusSet

MEAN_LENGTH = (6.0, 8.0)
KS_ALPHA = 0.05
_WORD = re.compile(r"[\w'-]+")
# an article or a determiner of the singular before the slot, or a singular verb after it
_SINGULAR = re.compile(
    r"\b(?:an?|one|this|that|each|every|another) \{group\}|\{group\} (?:is|was|has|does|goes|isn't|wasn't|hasn't)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Finding:
    """One departure from the standard; findings about a whole set point at line 1 of its file."""

    path: Path
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def read_words(path: Path) -> frozenset[str]:
    """Return the words of a list, one a line, lower-case; ``#`` opens a comment.

    Raises
    ------
    UserError
        If the file is not UTF-8.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    return frozenset(line.strip().casefold() for line in lines if line.strip() and not line.startswith("#"))


def load_valenced_words() -> frozenset[str]:
    """Return the shipped list of valenced words, lower-case."""
    return read_words(data_path("stimuli", "valenced_words.txt"))


def word_count(text: str) -> int:
    """Return the number of words: runs between blanks."""
    return len(text.split())


def _at(entry: Entry, rule: str, message: str) -> Finding:
    return Finding(entry.path, entry.line, rule, message)


def _lengths(path: Path, name: str, texts: Sequence[str]) -> Iterator[Finding]:
    mean = sum(map(word_count, texts)) / len(texts) if texts else 0.0
    if not MEAN_LENGTH[0] <= mean <= MEAN_LENGTH[1]:
        low, high = MEAN_LENGTH
        yield Finding(path, 1, "length", f"{name}: mean length is {mean:.2f} words, outside {low:g} to {high:g}")


def _set_findings(stimuli: StimulusSet) -> Iterator[Finding]:
    _, targets, control, attributes, anchors = (part.path for part in stimuli.cleaning)
    filled = [text for entry in stimuli.targets for _, text in fillings(entry, stimuli.groups)]
    positive, negative = ([entry.text for entry in part] for part in (stimuli.positive, stimuli.negative))
    yield from _lengths(targets, "targets", filled)
    yield from _lengths(control, "control", [entry.text for entry in stimuli.control])
    yield from _lengths(attributes, "positive", positive)
    yield from _lengths(attributes, "negative", negative)
    yield from _lengths(anchors, "anchors", [entry.text for entry in stimuli.anchors])
    if positive and negative:
        # every stage that reads the sentences would pay for the import
        from scipy import stats as scipy_stats

        p = float(scipy_stats.ks_2samp(list(map(word_count, positive)), list(map(word_count, negative))).pvalue)
        if p <= KS_ALPHA:
            yield Finding(
                attributes, 1, "length", f"positive and negative lengths differ (Kolmogorov-Smirnov p = {p:.3g})"
            )


def _valenced(entries: Iterable[Entry], words: frozenset[str]) -> Iterator[Finding]:
    for entry in entries:
        found = sorted(words.intersection(_WORD.findall(entry.text.casefold())))
        if found:
            yield _at(entry, "valence", f"valenced word {', '.join(found)} in {entry.text!r}")


def _group_free(entries: Iterable[Entry], mentions: Mentions) -> Iterator[Finding]:
    for entry in entries:
        found = mentions.find(entry.text)
        if found:
            yield _at(entry, "group", f"{found[0][1]!r} names the group {found[0][0]} in {entry.text!r}")


def anchor_findings(entries: Iterable[Entry], mentions: Mentions) -> list[Finding]:
    """Return the valenced words and the group terms in group-free anchors, which should hold neither."""
    entries = tuple(entries)
    return [*_valenced(entries, load_valenced_words()), *_group_free(entries, mentions)]


def _plain_slot(template: str) -> str:
    for name in slots(template):
        template = template.replace(f"{{{name}}}", SLOT)
    return template


def _anchor_findings(stimuli: StimulusSet, mentions: Mentions) -> Iterator[Finding]:
    templates = {sentence_key(_plain_slot(entry.text)): entry for entry in stimuli.targets}
    for entry in stimuli.anchors:
        found = mentions.find(entry.text)
        others = sorted({group for group, _ in found} - {entry.label})
        if others:
            yield _at(entry, "group", f"an anchor of {entry.label} mentions {', '.join(others)}")
        own = [wording for group, wording in found if group == entry.label]
        if not own and entry.label != CONTROL:
            yield _at(entry, "group", f"an anchor of {entry.label} does not mention that group")
        for wording in own:
            frame = sentence_key(sentence_key(entry.text).replace(wording, SLOT))
            if frame in templates:
                yield _at(entry, "template", f"the anchor fills the target template at {templates[frame].where}")
    yield from _balance(stimuli)


def _balance(stimuli: StimulusSet) -> Iterator[Finding]:
    """Look for the first beginning of the anchors in which two groups differ by more than one sentence."""
    counts = Counter({group.id: 0 for group in stimuli.groups})
    for number, entry in enumerate(stimuli.anchors, start=1):
        counts[entry.label] += 1
        most, least = max(counts, key=lambda g: counts[g]), min(counts, key=lambda g: counts[g])
        if counts[most] - counts[least] > 1:
            message = f"the first {number} anchors hold {counts[most]} of {most} but {counts[least]} of {least}"
            yield _at(entry, "balance", message)
            return


def check_quality(stimuli: StimulusSet, valenced: frozenset[str] | None = None) -> list[Finding]:
    """Return every departure of a sentence set from the standard of the shipped sets.

    Parameters
    ----------
    stimuli
        The whole files, from `read_stimuli`.
    valenced
        Lower-case words that targets, control and anchors may not hold; None = the shipped list, which is English.

    Returns
    -------
    list of Finding
        Empty for the shipped sets; each names file and line.
    """
    words = load_valenced_words() if valenced is None else valenced
    mentions = Mentions(stimuli.groups)
    findings = list(_set_findings(stimuli))
    findings += _valenced([*stimuli.targets, *stimuli.control, *stimuli.anchors], words)
    templates = [entry for entry in stimuli.targets if slots(entry.text)]
    findings += _group_free([*templates, *stimuli.control, *stimuli.positive, *stimuli.negative], mentions)
    findings += [
        _at(entry, "grammar", f"{entry.text!r} treats the slot as a singular")
        for entry in stimuli.targets
        if _SINGULAR.search(entry.text)
    ]
    findings += _anchor_findings(stimuli, mentions)
    return findings
