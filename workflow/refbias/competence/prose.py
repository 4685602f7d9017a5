"""Answers as plain prose: Markdown taken off, so that an answer reads alike with and without it.

A list scored as it stands is a row of very short sentences: the same advice would rank grades lower than in prose.
"""

import re

# a list item this long is taken for a sentence though its full stop is missing; shorter ones belong to one sentence
ITEM_SENTENCE_WORDS = 6

_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_HEADING = re.compile(r"^ {0,3}#{1,6}(?:\s|$)")
_UNDERLINE = re.compile(r"^ {0,3}(=+|-+)\s*$")
_RULE = re.compile(r"^ {0,3}(?:[-*_]\s*){3,}$")
_TABLE = re.compile(r"^\s*\|.*\|\s*$|^\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)+$")
_ITEM = re.compile(r"^\s*(?:[-*+\u2022\u2023\u25e6\u2013]|\(?\d{1,3}[.)]|\(?[a-zA-Z][.)])\s+(?=\S)")
_QUOTE = re.compile(r"^\s*(?:>\s?)+")
_BOLD_LINE = re.compile(r"^\s*(\*\*|__)(?:(?!\1).)+\1:?\s*$")
_INLINE = (
    (re.compile(r"<!--.*?-->", re.DOTALL), " "),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),  # a picture
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # a link keeps its text
    (re.compile(r"<?\bhttps?://\S+"), " "),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), " "),
    (re.compile(r"`+([^`]*)`+"), r"\1"),
    (re.compile(r"(\*\*|__|~~)(?=\S)(.+?)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<![\w_])_(?=\S)([^_\n]+?)(?<=\S)_(?![\w_])"), r"\1"),
    (re.compile(r"\\([\\`*_{}\[\]()#+.!|>~-])"), r"\1"),
)
_CLOSERS = "\"'\u201d\u2019)]"
ENDS = ".!?\u2026"
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|approx|e\.g|i\.e|Ph\.D|U\.S|U\.K))\.$",
    re.IGNORECASE,
)
# these may end a sentence as well, and are abbreviations where a number follows
_BEFORE_NUMBER = re.compile(r"\b(?:no|fig)\.$", re.IGNORECASE)
_BREAK = re.compile(rf"[{re.escape(ENDS)}]+[{re.escape(_CLOSERS)}]*(?=\s|$)")


def ends(text: str) -> bool:
    """Tell whether a text ends as a sentence does."""
    bare = text.rstrip().rstrip(_CLOSERS)
    return bool(bare) and bare[-1] in ENDS


def _word_count(text: str) -> int:
    return sum(any(map(str.isalpha, part)) for part in text.split())


def _lines(text: str) -> list[tuple[str, bool]]:
    """Return the lines of prose, each with whether it is a list item; an empty one parts paragraphs."""
    found: list[tuple[str, bool]] = []
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if fence or opened:
            mark = opened.group(1) if opened else ""
            fence = (mark if not fence else "") if mark and mark in (fence or mark) else fence
            continue
        line = _QUOTE.sub("", line)
        if _UNDERLINE.match(line) and found and found[-1][0] and not found[-1][1] and not ends(found[-1][0]):
            found[-1] = ("", False)  # the line above was a heading
            continue
        if _HEADING.match(line) or _BOLD_LINE.match(line) or _RULE.match(line) or _TABLE.match(line):
            found.append(("", False))
            continue
        item = _ITEM.match(line)
        found.append((line[item.end() :] if item else line.strip(), bool(item)))
    return found


def _blocks(lines: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Join wrapped lines to paragraphs and items."""
    blocks: list[tuple[str, bool]] = []
    new = True
    for line, item in lines:
        if not line.strip():
            new = True
            continue
        if item or new:
            blocks.append((line.strip(), item))
        else:
            last, kind = blocks[-1]
            blocks[-1] = (f"{last} {line.strip()}", kind)
        new = False
    return blocks


def flatten(text: str) -> str:
    """Return the prose of a Markdown text, as one paragraph.

    Code blocks, tables, pictures, addresses, headings and lines that are bold as a whole go; marks around words go, the
    words stay. A line that ends in a colon goes on in the next. A list item of six words or more without a full stop
    gets one; shorter ones are the parts of one sentence, set off by commas.

    Parameters
    ----------
    text
        What a model wrote.

    Returns
    -------
    str
        Sentences parted by single spaces; empty if there is no prose.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = _blocks(_lines(text))
    parts: list[str] = []
    for index, (raw, item) in enumerate(blocks):
        bare = raw
        for pattern, replacement in _INLINE:
            bare = pattern.sub(replacement, bare)
        bare = " ".join(bare.split())
        if not bare:
            continue
        last = index == len(blocks) - 1
        if not ends(bare) and not bare.endswith((":", ";", ",")) and not last:
            item_follows = blocks[index + 1][1]
            short = item and _word_count(bare) < ITEM_SENTENCE_WORDS
            bare += "," if short and item_follows else "."
        parts.append(bare)
    return " ".join(parts)


def sentences(prose: str) -> list[str]:
    """Split prose into sentences.

    A full stop of an abbreviation or an initial ends none, nor does one inside of a number or an address.

    Parameters
    ----------
    prose
        From `flatten`.

    Returns
    -------
    list of str
        Sentences with at least one word; the last may lack its full stop.
    """
    found, start = [], 0
    for match in _BREAK.finditer(prose):
        until = prose[start : match.end()]
        rest = prose[match.end() :].lstrip()
        if match.group().startswith(".") and _ABBREVIATION.search(until) and rest:
            continue
        if rest[:1].isdigit() and _BEFORE_NUMBER.search(until):
            continue
        if rest and rest[0].islower() and match.group()[0] in ".\u2026":
            continue
        found.append(until.strip())
        start = match.end()
    if prose[start:].strip():
        found.append(prose[start:].strip())
    return [sentence for sentence in found if _word_count(sentence)]


def complete(prose: str) -> str:
    """Drop what stands behind the last finished sentence: a text cut at a number of tokens ends anywhere."""
    found = sentences(prose)
    if found and not ends(found[-1]):
        found.pop()
    return " ".join(found)
