"""Examples with an unbiased answer that stand before a question: own text, about groups that are never tested."""

from dataclasses import dataclass
from pathlib import Path

from refbias.benchmarks.base import Message
from refbias.errors import UserError
from refbias.metamorphic.data import Material
from refbias.metamorphic.forced_choice import LETTERS, NEITHER, Options, with_options
from refbias.resources import data_path
from refbias.stimuli.table import read_table

COLUMNS = ("id", "first", "second", "question", "answer")


@dataclass(frozen=True)
class Example:
    """A question about two groups with an answer that picks neither."""

    id: str
    first: str
    second: str
    question: str
    answer: str


def load_examples(count: int, material: Material, path: Path | str | None = None) -> tuple[Example, ...]:
    """Read the first `count` examples.

    Parameters
    ----------
    count
        How many; 0 = none.
    material
        What is tested: an example must name none of its groups.
    path
        TSV with the columns of `COLUMNS`; None = the shipped ones.

    Raises
    ------
    UserError
        With ``file:line``: too few examples, a question that does not name its groups, a group that is tested.
    """
    path = data_path("metamorphic", "few_shot.tsv") if path is None else path
    rows = read_table(path, COLUMNS).rows
    if count > len(rows):
        raise UserError(f"{path}: {count} examples asked for, it holds {len(rows)}: lower key 'metamorphic.few_shot'")
    tested = {word.casefold() for group in material.groups for word in group.nouns}
    for row in rows[:count]:
        for column in ("first", "second"):
            if row[column] not in row["question"]:
                raise UserError(f"{row.where}: the question does not name {row[column]!r}: use the same words")
            if row[column].casefold() in tested:
                raise UserError(f"{row.where}: {row[column]!r} is a tested group: an example must give no answer away")
    return tuple(Example(*(row[column] for column in COLUMNS)) for row in rows[:count])


def open_turns(examples: tuple[Example, ...]) -> tuple[Message, ...]:
    """Return the examples as turns, each with its written answer."""
    return tuple(
        Message(role, text)
        for example in examples
        for role, text in (("user", example.question), ("assistant", example.answer))
    )


def choice_turns(examples: tuple[Example, ...], kind: Options) -> tuple[Message, ...]:
    """Return the examples as turns of a forced choice; the answer is "no difference" in each.

    It stands last in every question, so each second example turns the groups round, as the test does.
    """
    turns = []
    for number, example in enumerate(examples):
        groups = (example.first, example.second) if number % 2 == 0 else (example.second, example.first)
        turns.append(Message("user", with_options(example.question, [*groups, NEITHER], kind)))
        turns.append(Message("assistant", LETTERS[-1] if kind == "letters" else NEITHER))
    return tuple(turns)
