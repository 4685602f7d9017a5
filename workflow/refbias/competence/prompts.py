"""What is put to the model: a question with a context, and the token at which the context ends.

The place is found in the rendered prompt, so that a full stop elsewhere (in the question, in an abbreviation, in a
template) is never taken for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refbias.benchmarks.base import Message
from refbias.competence.records import Attribute, Question, context_of
from refbias.embed import Tokenised
from refbias.models.place import end_of_part

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Cell:
    """An attribute, with or without the occupation named, in front of one question."""

    attribute: Attribute
    question: Question
    with_occupation: bool

    @property
    def key(self) -> str:
        """Name of the cell's prompt, unique in a run."""
        return f"{self.attribute.id}/{'named' if self.with_occupation else 'not_named'}/{self.question.id}"

    @property
    def context(self) -> str:
        """What the person says of himself."""
        return context_of(self.attribute, self.question.occupation if self.with_occupation else None)


@dataclass(frozen=True)
class Placed:
    """A prompt as token ids, and the index of the token that ends the user's context."""

    ids: tuple[int, ...]
    position: int


def cells(attributes: Sequence[Attribute], questions: Sequence[Question]) -> Iterator[Cell]:
    """Yield every cell: attribute, then occupation named or not, then question."""
    for attribute in attributes:
        for with_occupation in (True, False):
            for question in questions:
                yield Cell(attribute, question, with_occupation)


def place(tokenizer: "PreTrainedTokenizerBase", question: str, context: str, chat_format: str = "auto") -> Placed:
    """Return the prompt of a question with its context, and where the context ends (see `end_of_part`).

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    question, context
        Put together as one user turn, a blank between.
    chat_format
        ``auto``, ``template`` or ``plain``.

    Raises
    ------
    UserError
        If the template changes the context.
    """
    message = Message("user", f"{question} {context}")
    return Placed(*end_of_part(tokenizer, [message], context, chat_format))


def up_to_place(prompts: Sequence[Placed]) -> Tokenised:
    """Return the prompts cut behind their place: a decoder's states there do not depend on what follows."""
    index = {prompt.ids[: prompt.position + 1]: None for prompt in prompts}
    numbers = {ids: number for number, ids in enumerate(index)}
    rows = tuple(numbers[prompt.ids[: prompt.position + 1]] for prompt in prompts)
    return Tokenised(tuple(f"prompt {number + 1}" for number in range(len(numbers))), tuple(numbers), rows)
