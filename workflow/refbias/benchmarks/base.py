"""What a benchmark is: prompts with a unit each, the part of an output that is scored, and defaults.

A benchmark is one module that ends in one `Benchmark` object, and one line in the registry of
`refbias.benchmarks`. Everything after it (generation, scoring, tables) works on this interface
and never asks which benchmark it has before it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from refbias.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """One chat turn: `role` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True)
class Prompt:
    """One prompt: a stable `id`, the `unit` its outputs count for, and the chat turns."""

    id: str
    unit: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class PromptSet:
    """Prompts in file order, and `notes`: what was counted, left out or found short (JSON values)."""

    prompts: tuple[Prompt, ...]
    notes: Mapping[str, Any]


class PromptSettings(Protocol):
    """What every prompt loader reads of its configuration entry; a benchmark may read more."""

    @property
    def prompts(self) -> str | Path | None:
        """File or folder with the prompts; None for the quickstart's own that ship."""

    @property
    def prompts_per_unit(self) -> int | None:
        """How many prompts of each unit to use (None: all)."""


@dataclass(frozen=True)
class Sampling:
    """Default generation settings: outputs a prompt, temperature, top-p, tokens at most."""

    samples: int
    temperature: float
    top_p: float
    max_new_tokens: int


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Parameters
    ----------
    name
        Slug, as in file names and tables.
    title
        Name for readers.
    units
        Every unit id, in the order of tables.
    load
        The benchmark's own configuration entry and the seed of the choice of prompts -> prompts with
        notes.
    extract
        Raw output -> the part that is scored.
    default_scorer
        Name in `refbias.scorers.SCORERS`.
    sampling
        The paper's generation settings.
    prompts_per_unit
        The paper's number of prompts a unit (None: all there are).
    threshold
        The change of score above which a unit counts as more biased (ROC AUC's label).
    source
        Prompt id -> id of what the prompt was made from. Prompts of one source are no independent draws: intervals
        resample sources. By default each prompt is its own.
    """

    name: str
    title: str
    units: tuple[str, ...]
    # Any: each benchmark reads its own settings, which its loader's signature names
    load: Callable[[Any, int], PromptSet]
    extract: Callable[[str], str]
    default_scorer: str
    sampling: Sampling
    prompts_per_unit: int | None
    threshold: float
    source: Callable[[str], str] = str

    def load_prompts(self, settings: PromptSettings, seed: int) -> list[Prompt]:
        """Return the prompts alone, in the order of `load` (whose notes say what was counted)."""
        return list(self.load(settings, seed).prompts)


def choose(items: Sequence[T], count: int | None, seed: int, key: Callable[[T], str]) -> list[T]:
    """Choose `count` items by a seed, keeping their order.

    Items are ranked by the SHA-256 of seed and key, so the choice does not depend on the order of
    the file or on a library's random generator, and a smaller choice is part of a larger one.

    Parameters
    ----------
    items
        What to choose from.
    count
        How many; None, or more than there are, takes all.
    seed
        Names the choice.
    key
        Item -> unique text.

    Returns
    -------
    list
        The chosen items in their given order.

    Raises
    ------
    ValueError
        If `count` is negative.
    """
    if count is not None and count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    if count is None or count >= len(items):
        return list(items)
    ranks = [hashlib.sha256(f"{seed}\0{key(item)}".encode()).digest() for item in items]
    chosen = sorted(sorted(range(len(items)), key=ranks.__getitem__)[:count])
    return [items[index] for index in chosen]


def prompt_set(
    prompts: Iterable[Prompt], units: Sequence[str], source: str, notes: Mapping[str, Any] | None = None
) -> PromptSet:
    """Close a loader: check that the prompts can be used, count them by unit.

    Parameters
    ----------
    prompts
        The loaded prompts.
    units
        The benchmark's units.
    source
        What to name in an error: the file or folder.
    notes
        Further counts.

    Returns
    -------
    PromptSet
        With notes `prompts_by_unit` and `units_without_prompts` added.

    Raises
    ------
    UserError
        If there is no prompt at all or an id occurs twice.
    """
    found = tuple(prompts)
    if not found:
        raise UserError(f"{source}: no prompts left to run: give a file that holds some")
    identity, times = Counter(prompt.id for prompt in found).most_common(1)[0]
    if times > 1:
        raise UserError(f"{source}: prompt id {identity!r} occurs {times} times: ids must be unique")
    by_unit = Counter(prompt.unit for prompt in found)
    stray = sorted(set(by_unit) - set(units))
    if stray:
        raise ValueError(f"prompts for unknown units: {stray}")
    return PromptSet(
        found,
        {
            **(notes or {}),
            "prompts_by_unit": {unit: by_unit[unit] for unit in units},
            # such a unit is missing from the tables, never scored 0
            "units_without_prompts": [unit for unit in units if not by_unit[unit]],
        },
    )


def decode_utf8(data: bytes, source: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Raises
    ------
    UserError
        If the bytes are not UTF-8, naming `source` and the line.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{source}:{line}: not UTF-8: save the file as UTF-8") from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark and with its own line ends.

    Raises
    ------
    UserError
        If the file is missing, is a folder or is not UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    return decode_utf8(path.read_bytes(), str(path))
