"""Reading level of an answer: the mean of two grade formulas on own counts of sentences, words and syllables.

L = (FKGL + DCRS) / 2 (Fuentes and Mueller, arXiv 2608.20347), with

    FKGL = 0.39 words/sentences + 11.8 syllables/words - 15.59
    DCRS = 0.1579 * 100 * difficult/words + 0.0496 words/sentences

the latter without the 3.6365 that Dale and Chall add above 5 % of difficult words: it would make a step in what is
compared. A difficult word is one that is not on their list of easy words, nor a regular inflection of one. The list is
read from the installed package textstat, or from a file that the user names; none ships here.
"""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from refbias.competence.prose import complete, flatten, sentences
from refbias.competence.syllables import syllables
from refbias.errors import UserError

# a grade of fewer words says nothing
LEAST_WORDS = 10
_EASY_WORDS = ("resources", "en", "easy_words.txt")
# a file with fewer is no list of easy words (Dale and Chall's has about 3000)
_LEAST_EASY_WORDS = 100
_WORD = re.compile(r"[^\W_]+(?:[-'\u2019][^\W_]+)*(?:[.,][0-9]+)*")
_ENDINGS = ("'s", "s'", "s", "es", "ed", "d", "ing", "er", "r", "est", "st", "ly", "n't")


@dataclass(frozen=True)
class Reading:
    """Counts and grades of a text; the grades are None where it has fewer than `LEAST_WORDS` words.

    Attributes
    ----------
    words, sentences, syllables, difficult
        Counts in the flattened text.
    fkgl, dcrs
        The two grades (US school years).
    level
        Their mean.
    """

    words: int
    sentences: int
    syllables: int
    difficult: int
    fkgl: float | None
    dcrs: float | None
    level: float | None


def fkgl(words: int, sentences: int, syllables: int) -> float:
    """Return the Flesch-Kincaid grade level (Kincaid et al. 1975)."""
    return 0.39 * words / sentences + 11.8 * syllables / words - 15.59


def dcrs(words: int, sentences: int, difficult: int) -> float:
    """Return the Dale-Chall score without its adjustment (Dale and Chall 1948)."""
    return 0.1579 * 100 * difficult / words + 0.0496 * words / sentences


def load_easy_words(path: Path | str | None = None) -> frozenset[str]:
    """Read the list of easy words, one a line.

    Parameters
    ----------
    path
        The user's file; None for the list of the installed package textstat, of which only that file is read.

    Returns
    -------
    frozenset of str
        Lower case.

    Raises
    ------
    UserError
        If the file is missing, not UTF-8 or holds too few words.
    """
    found = Path(path) if path else _installed()
    try:
        lines = found.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UserError(f"{found}: no such file: name a list of easy words, one a line") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{found}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    words = frozenset(line.strip().lower().replace("\u2019", "'") for line in lines if line.strip())
    if len(words) < _LEAST_EASY_WORDS:
        raise UserError(f"{found}: only {len(words)} words: a list of easy words has one a line, thousands of them")
    return words


def _installed() -> Path:
    # found, not imported: its import needs a part of setuptools that newer ones lack
    spec = importlib.util.find_spec("textstat")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder).joinpath(*_EASY_WORDS)
        if path.is_file():
            return path
    raise UserError("easy words: textstat 0.7.4 is not installed: pip install textstat==0.7.4, or name a list of words")


def words(text: str) -> list[str]:
    """Return the words of a text: letters and digits, joined by hyphens and apostrophes."""
    return _WORD.findall(text)


def is_easy(word: str, easy: frozenset[str]) -> bool:
    """Tell whether a word is on the list, an inflection of one that is, a number, or made of such parts."""
    bare = word.lower().replace("\u2019", "'")
    if bare in easy or not any(map(str.isalpha, bare)):
        return True
    if "-" in bare:
        return all(is_easy(part, easy) for part in bare.split("-") if part)
    return any(stem in easy for ending in _ENDINGS if bare.endswith(ending) for stem in _stems(bare, ending))


def _stems(word: str, ending: str) -> tuple[str, ...]:
    """Return what a word may come from by a regular inflection: parties of party, stopped of stop, making of make."""
    stem = word[: -len(ending)]
    if len(stem) < 2:
        return ()
    found = [stem]
    if ending in ("ing", "ly"):
        found.append(f"{stem}e")
    if stem.endswith("i") and ending in ("es", "ed", "er", "est", "ly"):
        found.append(f"{stem[:-1]}y")
    if ending in ("ed", "ing", "er", "est") and len(stem) > 3 and stem[-1] == stem[-2]:
        found.append(stem[:-1])
    return tuple(found)


def read_text(text: str, easy: frozenset[str], *, finished: bool = True) -> Reading:
    """Grade an answer.

    Parameters
    ----------
    text
        As the model wrote it, Markdown or prose.
    easy
        From `load_easy_words`.
    finished
        Whether the model ended by itself. If not, the sentence that the limit of tokens cut is left out.

    Returns
    -------
    Reading
        Counts, and grades where there are words enough.
    """
    prose = flatten(text)
    found = sentences(prose if finished else complete(prose))
    every = [word for sentence in found for word in words(sentence)]
    n, spoken = len(every), sum(map(syllables, every))
    difficult = sum(not is_easy(word, easy) for word in every)
    if n < LEAST_WORDS:
        return Reading(n, len(found), spoken, difficult, None, None, None)
    grades = fkgl(n, len(found), spoken), dcrs(n, len(found), difficult)
    return Reading(n, len(found), spoken, difficult, *grades, sum(grades) / 2)
