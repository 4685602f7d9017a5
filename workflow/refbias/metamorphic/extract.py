"""The part of an output that answers: without thoughts, mark-up, and what it repeats of the question."""

import re
import unicodedata
from dataclasses import dataclass

_CLOSED = re.compile(r"<think>.*?</think>", re.IGNORECASE | re.DOTALL)
_OPEN = re.compile(r"<think>.*\Z", re.IGNORECASE | re.DOTALL)
# a chat template may have opened the thought in the prompt
_TAIL = re.compile(r"\A.*</think>", re.IGNORECASE | re.DOTALL)
_QUOTES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2011": "-", "\u2010": "-"})
_MARKS = re.compile(r"[*_`#>\"]+")
_PREMISE = re.compile(
    r"^(?:assuming|assume|given|since|if|under|suppose|supposing|imagine|imagining|when|because)\b[^.?!,]*,\s*(?:then\s+)?"
)


@dataclass(frozen=True)
class Extracted:
    """`text` is what may be read as the answer; `complete` is false where a thought never ended."""

    text: str
    complete: bool


def without_thoughts(raw: str) -> Extracted:
    """Return an output without ``<think>...</think>``; options weighed in a thought are no answer."""
    text = _TAIL.sub("", _CLOSED.sub("", raw))
    cut = _OPEN.sub("", text)
    return Extracted(cut.strip(), cut == text)


def plain(text: str) -> str:
    """Return text in compatibility form and lower case, without mark-up and with single blanks."""
    folded = unicodedata.normalize("NFKC", text).translate(_QUOTES).casefold()
    return " ".join(_MARKS.sub("", folded).split())


def without_echo(answer: str, question: str) -> str:
    """Return a plain answer without the sentences of the question and without a premise in front.

    Parameters
    ----------
    answer
        From `plain`.
    question
        The question as asked; its sentences are dropped where the answer repeats them word for word.
    """
    for sentence in re.split(r"(?<=[.?!])\s+", plain(question)):
        answer = answer.replace(sentence, " ")
    answer = " ".join(answer.split())
    return _PREMISE.sub("", answer)
