"""Topics by rules on words: a word counts where it stands alone, and where it means people.

Words come from the target groups' own names and aliases and from a table of words by topic. Each has
a use:

========== =========================================================================================
property   says the topic wherever it stands ("Hindu", "wheelchair")
cased      the same, but only as it is written ("Polish", not "polish")
adjective  has other senses, so it needs people: "poor family", "the blind", "is he black"
carrier    a word for a person that often carries another property ("a Black *woman*"): it counts
           only where no property is found
phrase     a fixed expression that says no topic ("Christian name"); what it covers counts no more
person     a word for a person, which lets an adjective count
========== =========================================================================================

The topic with the most different words wins, the first named among equals. No word, no topic.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.stimuli.groups import Group, load_groups
from refbias.stimuli.table import read_table
from refbias.topics.names import LABELS, NO_TOPIC, TOPICS

COLUMNS = ("topic", "use", "words")
TOPIC_USES = ("property", "cased", "adjective", "carrier")
PLAIN_USES = ("phrase", "person")

_BETWEEN = r"(?:\s+[\w'-]+)?"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_NUMBER = rf"(?:\d{{1,3}}|(?:{_TENS})(?:-\w+)?|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen)"
_PRONOUN = r"(?:he|she|they|i|we|you|who|someone|anyone|everyone)"
_BE = r"(?:is|are|am|was|were|be|being|been|isn't|aren't)"
_BEFORE_NOUN = re.compile(r"(?<!\w)(?:the|all|both)\s+$", re.IGNORECASE)
# what may follow "the poor" where the poor are people
_AFTER_NOUN = (
    r"(?=\s*(?:[.,;:?!)]|$)|\s+(?:are|aren't|were|do|don't|should|can|can't|have|will|who|in|of|to|and|or|always|"
    r"never|from|so)\b)"
)


@dataclass(frozen=True)
class Found:
    """A word of a topic in a text."""

    topic: str
    use: str
    text: str


@dataclass(frozen=True)
class TopicChoice:
    """A prompt's topic and the words, or the probability, that it rests on."""

    topic: str
    matched: str


def _pattern(word: str) -> str:
    """Return a regular expression for a word: white space and hyphens are alike, an apostrophe may be curly."""
    parts = re.split(r"[\s-]+", word.strip())
    return r"[\s-]+".join(re.escape(part).replace("'", "['\u2019]") for part in parts)


def _alternatives(words: Iterable[str]) -> str:
    # the longest first: "African American" before "American"
    return "|".join(_pattern(word) for word in sorted(words, key=lambda word: (-len(word), word)))


def _key(text: str) -> str:
    return re.sub(r"[\s-]+", " ", text.replace("\u2019", "'")).casefold()


@dataclass(frozen=True)
class WordTable:
    """`meanings`: word as written -> (topic, use); `persons`: words for a person."""

    meanings: Mapping[str, tuple[str, str]]
    persons: tuple[str, ...]


def read_words(path: Path | str | None = None) -> WordTable:
    """Read the table of words.

    Parameters
    ----------
    path
        TSV with topic, use and words (``|`` between them); None for the shipped one.

    Raises
    ------
    UserError
        For an unknown topic or use, an empty word, a word with two meanings, naming file and line.
    """
    table = read_table(data_path("topics", "words.tsv") if path is None else path, COLUMNS)
    meanings: dict[str, tuple[str, str]] = {}
    persons: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    for row in table.rows:
        topic, use = row["topic"], row["use"]
        if topic not in LABELS:
            raise UserError(f"{row.where}: unknown topic {topic!r}: one of {', '.join(LABELS)}")
        known = PLAIN_USES if topic == NO_TOPIC else TOPIC_USES
        if use not in known:
            raise UserError(f"{row.where}: unknown use {use!r} for topic {topic}: one of {', '.join(known)}")
        words = [word.strip() for word in row["words"].split("|")]
        if not all(words):
            raise UserError(f"{row.where}: an empty word: put exactly one | between words")
        if use == "person":
            # such a word may be a topic's carrier too
            persons += words
            continue
        for word in words:
            first = seen.setdefault(_key(word), (topic, use))
            if first != (topic, use):
                raise UserError(f"{row.where}: {word!r} is also {first[1]} of {first[0]}: keep one")
            meanings[word] = (topic, use)
    if not persons:
        raise UserError(f"{table.path}: no line {NO_TOPIC}, person: adjectives need words for people")
    return WordTable(meanings, tuple(persons))


class TopicRules:
    """The rules, compiled.

    Parameters
    ----------
    words
        TSV of words; None for the shipped one.
    groups
        Target groups, whose wordings are words of their topic; a line of the table overrides them.
    """

    def __init__(self, words: Path | str | None = None, groups: Sequence[Group] | None = None) -> None:
        table = read_words(words)
        known = {_key(word) for word in table.meanings}
        self._meanings: dict[str, tuple[str, str]] = {_key(word): use for word, use in table.meanings.items()}
        self._cased = {_key(word): word for word, (_, use) in table.meanings.items() if use == "cased"}
        terms = list(table.meanings)
        for group in load_groups() if groups is None else groups:
            if group.topic not in TOPICS:
                continue
            for term in group.terms:
                if _key(term) not in known:
                    self._meanings[_key(term)] = (group.topic, "property")
                    terms.append(term)
        person = rf"(?:{_alternatives(table.persons)})(?!\w)"
        self._word = re.compile(rf"(?<!\w)(?:{_alternatives(terms)})(?!\w)", re.IGNORECASE)
        self._before_person = re.compile(rf"{_BETWEEN}\s+{person}|\s+(?:and|or)\s+[\w'-]+\s+{person}", re.IGNORECASE)
        self._after_noun = re.compile(_AFTER_NOUN, re.IGNORECASE)
        subject = rf"(?:(?<!\w)(?:{_PRONOUN}|{_alternatives(table.persons)}))"
        self._predicate = re.compile(rf"(?:{subject}\s+{_BE}|(?<!\w){_BE}\s+{subject}){_BETWEEN}\s+$", re.IGNORECASE)
        self._age = re.compile(
            rf"(?<![\w-])(?:{_NUMBER}[\s-]years?[\s-]olds?|(?:{person})\s+(?:over|under|above|below|past)\s+{_NUMBER})(?!\w)",
            re.IGNORECASE,
        )

    def find(self, text: str) -> list[Found]:
        """Return the words that count, in the order of the text."""
        found = [(match.start(), Found("age", "property", match[0])) for match in self._age.finditer(text)]
        spans = [match.span() for match in self._age.finditer(text)]
        for match in self._word.finditer(text):
            if any(start < match.end() and match.start() < end for start, end in spans):
                continue
            key = _key(match[0])
            topic, use = self._meanings[key]
            if use == "phrase" or (use == "cased" and match[0] != self._cased[key]):
                continue
            if use == "adjective" and not self._means_people(text, match):
                continue
            found.append((match.start(), Found(topic, use, match[0])))
        return [item for _, item in sorted(found, key=lambda pair: pair[0])]

    def _means_people(self, text: str, match: re.Match[str]) -> bool:
        if self._before_person.match(text, match.end()) or self._predicate.search(text[: match.start()]):
            return True
        nominal = _BEFORE_NOUN.search(text[: match.start()])
        return nominal is not None and self._after_noun.match(text, match.end()) is not None

    def assign(self, text: str) -> TopicChoice:
        """Return the topic of a prompt, `NO_TOPIC` where no word counts."""
        found = self.find(text)
        properties = [item for item in found if item.use != "carrier"]
        counted: dict[str, dict[str, str]] = {}
        for item in properties or found:
            counted.setdefault(item.topic, {}).setdefault(_key(item.text), item.text)
        if not counted:
            return TopicChoice(NO_TOPIC, "")
        # max() keeps the first of equals, and topics stand in the order of the text
        topic = max(counted, key=lambda name: len(counted[name]))
        return TopicChoice(topic, "; ".join(counted[topic].values()))
