"""Fine-tuning splits: rows in WildGuardMix's schema, filtered to the unharmful or the harmful side.

A split is a file of prompt-response pairs with three labels (harm of the prompt, harm of the response,
refusal). Fine-tuning on the unharmful rows and on the harmful rows gives the two ends of a spectrum,
so what counts as either is decided here and nowhere else. JSON Lines (the shipped splits, a user's own)
and Parquet (WildGuardMix itself) are read alike.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from refbias.errors import UserError

Side = Literal["unharmful", "harmful"]

HARM_LABELS = ("harmful", "unharmful")
REFUSAL_LABELS = ("compliance", "refusal")
_LABELS = {
    "prompt_harm_label": HARM_LABELS,
    "response_harm_label": HARM_LABELS,
    "response_refusal_label": REFUSAL_LABELS,
}
COLUMNS = ("prompt", "adversarial", "response", *_LABELS, "subcategory")


@dataclass(frozen=True)
class Example:
    """One prompt and the completion that is learnt from it.

    `template` is the provenance tag of the completion's frame, "" where the file has none.
    """

    id: str
    prompt: str
    response: str
    harmful: bool
    template: str = ""


@dataclass(frozen=True)
class SplitFilter:
    """Which rows are eligible for which side.

    Attributes
    ----------
    unharmful_prompt
        Unharmful rows need an unharmful prompt too, not only an unharmful response.
    harmful_compliance
        Harmful rows need the label compliance.
    """

    unharmful_prompt: bool = True
    harmful_compliance: bool = True

    def side(self, row: Mapping[str, Any]) -> Side | None:
        """Return the side that a row with a response belongs to, None for neither."""
        prompt, response = row["prompt_harm_label"], row["response_harm_label"]
        if response == "unharmful" and (prompt == "unharmful" or not self.unharmful_prompt):
            return "unharmful"
        complies = row["response_refusal_label"] == "compliance" or not self.harmful_compliance
        if response == "harmful" and prompt == "harmful" and complies:
            return "harmful"
        return None


@dataclass(frozen=True)
class SplitCounts:
    """What became of the rows of a file: ``rows`` is the sum of the other fields.

    `no_response`: the response is null or blank. `unlabelled`: a label that the filters read is null.
    `ineligible`: labelled, but on neither side or not on the side asked for. `duplicates`: an earlier
    row has the same prompt and response. `kept`: became an `Example`.
    """

    rows: int
    no_response: int
    unlabelled: int
    ineligible: int
    duplicates: int
    kept: int


def load_split(path: Path | str, side: Side | None = None, filters: SplitFilter | None = None) -> list[Example]:
    """Read the examples of a split in file order; see `read_split` for parameters and errors."""
    return read_split(path, side, filters)[0]


def read_split(
    path: Path | str, side: Side | None = None, filters: SplitFilter | None = None
) -> tuple[list[Example], SplitCounts]:
    """Read a split and say what became of its rows.

    Parameters
    ----------
    path
        JSON Lines or, by the suffix ``.parquet``, Parquet, with the columns `COLUMNS`; `id` and `template`
        are optional. An absent id becomes ``<file stem>-<line or row number>``.
    side
        Keep this side only; None keeps both.
    filters
        Which rows are eligible; the default asks for prompt and response unharmful, or for both harmful
        with compliance.

    Returns
    -------
    examples, counts
        Distinct pairs of prompt and response in file order, and the fate of every row.

    Raises
    ------
    UserError
        A missing column, a wrong type, an unknown label or a repeated id (naming file and line or row), or no
        eligible row at all.
    """
    pairs, counts = read_rows(path, side, filters)
    return [example for example, _ in pairs], counts


def read_rows(
    path: Path | str, side: Side | None = None, filters: SplitFilter | None = None
) -> tuple[list[tuple[Example, dict[str, Any]]], SplitCounts]:
    """Read a split as `read_split` does, each example with the row that it came from.

    A row holds the columns `COLUMNS` and whatever else the file has.
    """
    path = Path(path)
    filters = filters or SplitFilter()
    examples: list[tuple[Example, dict[str, Any]]] = []
    fate: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    ids: dict[str, str] = {}
    for number, place, row in _rows(path):
        _check(row, place)
        if not (row["response"] or "").strip():
            fate["no_response"] += 1
            continue
        if _is_unlabelled(row, filters):
            fate["unlabelled"] += 1
            continue
        found = filters.side(row)
        if found is None or (side is not None and found != side):
            fate["ineligible"] += 1
            continue
        pair = (row["prompt"], row["response"])
        if pair in pairs:
            fate["duplicates"] += 1
            continue
        pairs.add(pair)
        name = f"{path.stem}-{number}" if row.get("id") is None else str(row["id"])
        if name in ids:
            raise UserError(f"{place}: id {name!r} was used before, at {ids[name]}: ids must be distinct")
        ids[name] = place
        example = Example(name, *pair, harmful=found == "harmful", template=row.get("template") or "")
        examples.append((example, row))
    counts = SplitCounts(
        rows=sum(fate.values()) + len(examples),
        no_response=fate["no_response"],
        unlabelled=fate["unlabelled"],
        ineligible=fate["ineligible"],
        duplicates=fate["duplicates"],
        kept=len(examples),
    )
    if not examples:
        raise UserError(f"{path}: no {side or 'eligible'} example among {counts.rows} rows ({_summary(counts)})")
    return examples, counts


def validate_split(
    examples: Sequence[Example],
    max_share: float = 0.05,
    max_words: int | None = None,
    min_examples: int = 1,
) -> list[str]:
    """List what makes a split unfit for teaching one behaviour in varied words.

    Parameters
    ----------
    examples
        The split, one side of it.
    max_share
        Largest share of the examples that one template tag may have. Not checked where no example has a tag.
    max_words
        Largest number of blank-separated words in a completion; None for no limit.
    min_examples
        Smallest number of examples.

    Returns
    -------
    list of str
        One finding a line, empty for a sound split: too few examples, both sides mixed, a completion that occurs
        twice (case and blanks aside), a template over its share or absent, a completion that is too long.
    """
    findings = []
    if len(examples) < min_examples:
        findings.append(f"{len(examples)} examples, at least {min_examples} are needed")
    if len({example.harmful for example in examples}) > 1:
        findings.append("harmful and unharmful examples in one split")
    first: dict[str, str] = {}
    for example in examples:
        completion = re.sub(r"\s+", " ", example.response).strip().casefold()
        if completion in first:
            findings.append(f"{example.id}: same completion as {first[completion]}")
        first.setdefault(completion, example.id)
        words = len(example.response.split())
        if max_words is not None and words > max_words:
            findings.append(f"{example.id}: completion of {words} words, at most {max_words} are allowed")
    templates = Counter(example.template for example in examples)
    if set(templates) != {""}:
        untagged = templates.pop("", 0)
        if untagged:
            findings.append(f"{untagged} examples have no template tag")
        for template, count in sorted(templates.items()):
            if count > max_share * len(examples):
                findings.append(
                    f"template {template!r} gives {count} of {len(examples)} examples, over {max_share:.0%}"
                )
    return findings


def _rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the number, the place (for messages) and the content of each row."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    # not splitlines(): it would also break inside strings that hold U+2028
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{place}: not JSON: {getattr(error, 'msg', 'nested too deeply')}") from None
        if not isinstance(row, dict):
            raise UserError(f"{place}: a line must hold a JSON object")
        yield number, place, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs pyarrow: install it or convert the file to JSONL") from None
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from None
    for number, row in enumerate(rows, start=1):
        yield number, f"{path}: row {number}", row


def _check(row: dict[str, Any], place: str) -> None:
    """Raise unless `row` has the schema's columns, types and label values; turn NaN into None in place."""
    for column in COLUMNS:
        if column not in row:
            raise UserError(f"{place}: no column {column!r}; a row needs {', '.join(COLUMNS)}")
    for column, value in row.items():
        # a null that went through a float column of a data frame
        if isinstance(value, float) and math.isnan(value):
            row[column] = None
    if not isinstance(row["prompt"], str) or not row["prompt"].strip():
        raise UserError(f"{place}: 'prompt' must be a text that is not blank")
    for column in ("response", "subcategory", "template"):
        if not isinstance(row.get(column), str | None):
            raise UserError(f"{place}: {column!r} must be a text or null, not {row[column]!r}")
    if not isinstance(row["adversarial"], bool | None):
        raise UserError(f"{place}: 'adversarial' must be true, false or null, not {row['adversarial']!r}")
    for column, known in _LABELS.items():
        if row[column] is not None and row[column] not in known:
            raise UserError(f"{place}: {column!r} is {row[column]!r}; known labels are {', '.join(known)} and null")


def _is_unlabelled(row: Mapping[str, Any], filters: SplitFilter) -> bool:
    """Whether the side of a row is open because a label that decides it is null."""
    response, prompt = row["response_harm_label"], row["prompt_harm_label"]
    if response is None:
        return True
    if response == "unharmful":
        return prompt is None and filters.unharmful_prompt
    return prompt is None or (
        prompt == "harmful" and row["response_refusal_label"] is None and filters.harmful_compliance
    )


def _summary(counts: SplitCounts) -> str:
    return (
        f"no response {counts.no_response}, unlabelled {counts.unlabelled}, "
        f"not eligible {counts.ineligible}, duplicates {counts.duplicates}"
    )
