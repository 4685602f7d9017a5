"""Read a user's own copy of the question and pair files that the method's authors publish.

They are plain text with one sentence a line: a folder of ``<occupation>.txt``, 20 occupations of 100 questions each,
and two files of experts' and of novices' sentences. They carry no licence, so they are neither shipped nor fetched.
"""

import itertools
import re
from collections import Counter
from pathlib import Path

from refbias.competence.records import Pair, Pairs, Question, Questions
from refbias.errors import UserError
from refbias.stimuli.table import shown

_HELD_OUT_EVERY = 4


def unequal_lengths(expert: str, novice: str, where: str) -> str | None:
    """Return what is wrong with the lengths of a pair, in words; a pair that says one thing twice is a `UserError`."""
    if expert.casefold() == novice.casefold():
        raise UserError(f"{where}: expert and novice say the same: {shown(expert)}: change one")
    lengths = len(expert.split()), len(novice.split())
    if lengths[0] == lengths[1]:
        return None
    return f"{where}: expert and novice differ in length ({lengths[0]} and {lengths[1]} words)"


def enough_pairs(pairs: Pairs, where: str) -> Pairs:
    """Return the pairs, unless a split has fewer than two (a `UserError`)."""
    count = Counter(pair.split for pair in pairs.pairs)
    for split in ("fit", "held_out"):
        if count[split] < 2:
            raise UserError(f"{where}: split {split!r} has {count[split]} pairs: it needs two or more")
    return pairs


def load_question_folder(folder: Path) -> Questions:
    """Read a folder with one ``<occupation>.txt`` each, one question a line.

    Underscores in a file's name stand for blanks. A question that a file repeats is taken once, with a note.

    Raises
    ------
    UserError
        If the folder has no such file, two files are of one occupation, or an occupation has no questions.
    """
    files = sorted(path for path in folder.glob("*.txt") if not path.name.startswith("."))
    if not files:
        raise UserError(f"{folder}: no file <occupation>.txt in it: name the folder of the question files")
    questions, notes = [], []
    file_of: dict[str, Path] = {}
    slugs: set[str] = set()
    for path in files:
        occupation = " ".join(path.stem.replace("_", " ").split())
        other = file_of.setdefault(occupation.casefold(), path)
        if other is not path:
            raise UserError(f"{path}: occupation {occupation!r} is that of {other.name} too: rename or join the files")
        lines = _lines(path, empty_allowed=True)
        if not lines:
            raise UserError(f"{path}: occupation {occupation!r} has no questions: add some, or remove the file")
        slug = _new_slug(occupation, slugs)
        slugs.add(slug)
        first: dict[str, int] = {}
        for line, text in lines:
            if text.casefold() in first:
                notes.append(f"{path}:{line}: the question stands on line {first[text.casefold()]} too, taken once")
                continue
            first[text.casefold()] = line
            questions.append(Question(occupation, f"{slug}_{len(first)}", text))
    return Questions(tuple(questions), tuple(notes))


def _new_slug(occupation: str, taken: set[str]) -> str:
    """Return a plain name that none of `taken` is; names in other scripts, or that differ in signs, get a number."""
    slug = re.sub(r"[^a-z0-9]+", "_", occupation.lower()).strip("_") or "occupation"
    numbers = (f"{slug}_{number}" for number in itertools.count(2))
    return slug if slug not in taken else next(found for found in numbers if found not in taken)


def load_pair_files(expert: Path | str, novice: Path | str) -> Pairs:
    """Read pairs from two text files with one sentence a line, as the method's authors publish them.

    Line k of one file goes with line k of the other; a surplus of either is left out with a note, as are unequal
    lengths noted. Every fourth pair is held out.

    Raises
    ------
    UserError
        If a file cannot be read or holds no sentence, a pair's sentences are equal, or there are fewer than 8 pairs.
    """
    experts, novices = _lines(Path(expert)), _lines(Path(novice))
    notes = []
    if len(experts) != len(novices):
        left = abs(len(experts) - len(novices))
        longer = expert if len(experts) > len(novices) else novice
        notes.append(f"{longer}: its last {left} sentences have no partner and are left out")
    pairs = []
    for number, ((line, first), (_, second)) in enumerate(zip(experts, novices, strict=False), start=1):
        note = unequal_lengths(first, second, f"{expert}:{line}")
        notes += [note] if note else []
        split = "held_out" if number % _HELD_OUT_EVERY == 0 else "fit"
        pairs.append(Pair(f"pair_{number:03d}", first, second, split))
    return enough_pairs(Pairs(tuple(pairs), tuple(notes)), f"{expert}, {novice}")


def _lines(path: Path, *, empty_allowed: bool = False) -> list[tuple[int, str]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name an existing text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start + 1} is not UTF-8: save the file as UTF-8") from error
    found = [(number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not found and not empty_allowed:
        raise UserError(f"{path}: holds no line: write one sentence a line")
    return found
