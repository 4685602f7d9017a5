"""Short plain sentences from instruction data sets, to serve as anchors.

Alpaca (``tatsu-lab/alpaca``: instruction, input, output) gives its instructions, Tulu 3's SFT mixture
(``allenai/tulu-3-sft-mixture``: id, messages, source) its user turns. A text is cut into sentences;
one that is plain English prose of a few words can be drawn. The draw keeps the sentences with the
smallest seeded hashes, so it depends on the sentences alone, not on the order, format or number of
files, never holds the data set in memory, and leaves out what stands twice.
"""

import hashlib
import heapq
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from refbias.config.ablations import SampleSettings
from refbias.errors import UserError
from refbias.stimuli import Mentions, sentence_key

Source = Literal["alpaca", "tulu"]
SUFFIXES = (".json", ".jsonl", ".parquet")
_COLUMNS = {"alpaca": "instruction", "tulu": "messages"}
# letters, digits and the punctuation of prose: no code, markup, formula, address or foreign script
_PLAIN = re.compile(r"[A-Z][A-Za-z0-9 ,;:'’“”()-]*[.?!]")
_BREAK = re.compile(r"(?<=[.?!])\s+|\n+")


@dataclass(frozen=True)
class SampleCounts:
    """What became of a data set.

    `records`: rows read; `sentences`: pieces of their texts; `eligible`: plain, and of the wanted
    length; `distinct`: different from one another but for case and blanks; `kept`: drawn.
    """

    records: int
    sentences: int
    eligible: int
    distinct: int
    kept: int

    def as_json(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


def sample_sentences(
    path: Path | str, source: Source, settings: SampleSettings, mentions: Mentions, seed: int
) -> tuple[list[str], SampleCounts]:
    """Draw sentences from a data set.

    Parameters
    ----------
    path
        JSON (an array), JSON Lines or Parquet, or a folder of such files.
    source
        Schema of the file.
    settings
        Number and length of the sentences, and whether they may name a group.
    mentions
        Finds the groups.
    seed
        Of the draw.

    Returns
    -------
    sentences, counts
        At most `settings.size` sentences in random order; all there are if they are fewer.

    Raises
    ------
    UserError
        With file and line or row: an unreadable file, a record that does not fit the schema; and if no
        sentence can be drawn.
    """
    path = Path(path)
    records = pieces = eligible = 0
    seen: set[bytes] = set()
    drawn: list[tuple[int, str]] = []
    for place, record in _records(path, _COLUMNS[source]):
        records += 1
        for piece in _sentences(_TEXTS[source](record, place)):
            pieces += 1
            if not _eligible(piece, settings, mentions):
                continue
            eligible += 1
            digest = hashlib.blake2b(f"{seed}\0{source}\0{sentence_key(piece)}".encode(), digest_size=8).digest()
            if digest in seen:
                continue
            seen.add(digest)
            # the heap's first is the largest hash that is kept
            heapq.heappush(drawn, (-int.from_bytes(digest, "big"), piece))
            if len(drawn) > settings.size:
                heapq.heappop(drawn)
    if not drawn:
        span = f"{settings.min_words} to {settings.max_words} words"
        raise UserError(f"{path}: no plain sentence of {span} among {records} records: check key 'ablations.sample'")
    counts = SampleCounts(records, pieces, eligible, len(seen), len(drawn))
    return [text for _, text in sorted(drawn, reverse=True)], counts


def _sentences(texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        for piece in _BREAK.split(text):
            if piece.strip():
                yield " ".join(piece.split())


def _eligible(sentence: str, settings: SampleSettings, mentions: Mentions) -> bool:
    words = len(sentence.split())
    if not settings.min_words <= words <= settings.max_words or not _PLAIN.fullmatch(sentence):
        return False
    return settings.keep_group_terms or not mentions.find(sentence)


def _instruction(record: Mapping[str, Any], place: str) -> Iterator[str]:
    text = record["instruction"]
    if not isinstance(text, str):
        raise UserError(f"{place}: 'instruction' must be a text, not {text!r:.60}")
    yield text


def _user_turns(record: Mapping[str, Any], place: str) -> Iterator[str]:
    messages = record["messages"]
    if not isinstance(messages, list):
        raise UserError(f"{place}: 'messages' must be a list of turns, not {messages!r:.60}")
    for turn in messages:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise UserError(f"{place}: a turn of 'messages' must hold 'role' and 'content', not {turn!r:.60}")
        if turn["role"] == "user":
            if not isinstance(turn.get("content"), str):
                raise UserError(f"{place}: 'content' of a user turn must be a text, not {turn.get('content')!r:.60}")
            yield turn["content"]


_TEXTS: dict[str, Callable[[Mapping[str, Any], str], Iterator[str]]] = {
    "alpaca": _instruction,
    "tulu": _user_turns,
}


def _records(path: Path, column: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place (for messages) and the content of each record."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    files = sorted(part for part in path.iterdir() if part.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: no file of the kinds {', '.join(SUFFIXES)} in this folder")
    for file in files:
        if file.suffix not in SUFFIXES:
            raise UserError(f"{file}: unknown kind of file: use {', '.join(SUFFIXES)}")
        reader = {".json": _array, ".jsonl": _lines, ".parquet": _parquet}[file.suffix]
        for place, record in reader(file, column):
            if not isinstance(record, dict):
                raise UserError(f"{place}: a record must be a JSON object, not {record!r:.60}")
            if column not in record:
                raise UserError(f"{place}: no column {column!r}: is it the data set that the key names?")
            yield place, record


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None


def _array(path: Path, _: str) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(_text(path))
    except json.JSONDecodeError as error:
        hint = "; name JSON Lines .jsonl" if error.msg == "Extra data" else ""
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}{hint}") from None
    if not isinstance(rows, list):
        raise UserError(f"{path}: must hold a JSON array of records")
    for number, row in enumerate(rows, start=1):
        yield f"{path}: record {number}", row


def _lines(path: Path, _: str) -> Iterator[tuple[str, Any]]:
    # not splitlines(): it would also break inside strings that hold U+2028
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not JSON: {error.msg}") from None


def _parquet(path: Path, column: str) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        file = pyarrow.parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            raise UserError(f"{path}: no column {column!r}: is it the data set that the key names?")
        for batch in file.iter_batches(batch_size=4096, columns=[column]):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", row
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
