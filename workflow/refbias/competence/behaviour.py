"""What a model does: its answers with their reading level, and its decisions about applicants."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refbias.benchmarks.base import Message, Sampling
from refbias.competence.hiring import AnswerIds, YesNo, answer_ids, hiring_prompt, parse_answer, read_logits
from refbias.competence.prompts import Cell
from refbias.competence.reading import Reading, read_text
from refbias.competence.records import Name, Resume
from refbias.competence.scores import expertise, truth
from refbias.competence.steering import block_of
from refbias.embed import batches
from refbias.fast import fused_forward
from refbias.generation import Output, Request
from refbias.generation.hf import generate
from refbias.models import prompt_ids, stop_ids
from refbias.models.chat import as_text, encode, resolve_format
from refbias.progress import token_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BEHAVIOUR_COLUMNS = (
    "attribute_id",
    "family",
    "role",
    "occupation",
    "with_occupation",
    "question_id",
    "sample",
    "fkgl",
    "dcrs",
    "reading_level",
    "words",
    "sentences",
    "finished",
)
PLAIN_STOP = ("\nQuestion:",)
"""In the plain format a base model goes on with the next question; the answer ends there."""
_TOKEN_BUDGET = 1024


@dataclass(frozen=True)
class Speaker:
    """A loaded model that answers.

    Parameters
    ----------
    model, tokenizer
        With its output layer, in evaluation mode.
    chat_format
        ``auto``, ``template`` or ``plain``.
    seed
        Of the run.
    batch_size
        Answers decoded together.
    name
        What to call it in an error and in the progress bar.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    chat_format: str
    seed: int
    batch_size: int = 64
    name: str = "model"

    def answer(self, requests: Sequence[Request], sampling: Sampling, task: str) -> list[Output]:
        """Return the answers by request, then sample; `task` separates the random streams."""
        plain = resolve_format(self.tokenizer, self.chat_format) == "plain"
        return generate(
            self.model,
            self.tokenizer,
            requests,
            sampling,
            self.seed,
            benchmark=task,
            batch_size=self.batch_size,
            stop=PLAIN_STOP if plain else (),
            eos=stop_ids(self.tokenizer, self.chat_format),
            name=self.name,
        )


def cell_requests(cells: Iterable[Cell], ids: Iterable[tuple[int, ...]]) -> list[Request]:
    """Return the requests of cells whose prompts have these ids."""
    return [Request(cell.key, cell.question.occupation, found) for cell, found in zip(cells, ids, strict=True)]


def grade(output: Output, easy: frozenset[str]) -> Reading:
    """Return an answer's reading level; the sentence that the limit of tokens cut does not count."""
    return read_text(output.text, easy, finished=output.finish != "length")


def behaviour_rows(cells: Sequence[Cell], outputs: Sequence[Output], easy: frozenset[str]) -> Iterator[tuple[Any, ...]]:
    """Yield a row of `BEHAVIOUR_COLUMNS` an answer; a grade is empty where there are too few words."""
    by_key = {cell.key: cell for cell in cells}
    for output in outputs:
        cell, reading = by_key[output.prompt_id], grade(output, easy)
        yield (
            cell.attribute.id,
            cell.attribute.family,
            cell.attribute.role,
            cell.question.occupation,
            truth(cell.with_occupation),
            cell.question.id,
            output.sample,
            *("" if value is None else value for value in (reading.fkgl, reading.dcrs, reading.level)),
            reading.words,
            reading.sentences,
            truth(output.finish != "length"),
        )


@dataclass(frozen=True)
class Applicant:
    """A résumé with a name in it, as a prompt."""

    resume: Resume
    name: Name
    ids: tuple[int, ...]

    @property
    def key(self) -> str:
        """Name of the prompt, unique in a run."""
        return f"{self.resume.id}/{self.name.group}/{self.name.name}"


def applicants(
    tokenizer: "PreTrainedTokenizerBase", resumes: Iterable[Resume], names: Sequence[Name], chat_format: str
) -> list[Applicant]:
    """Return every résumé with every name.

    The task's text ends where the answer begins, so a model without a template goes on from it as it stands.
    """
    found = []
    for resume in resumes:
        for name in names:
            text = hiring_prompt(resume.role, resume.text, name.name)
            if resolve_format(tokenizer, chat_format) == "plain":
                ids = encode(tokenizer, as_text(tokenizer, text))
            else:
                ids = prompt_ids(tokenizer, [Message("user", text)], chat_format)
            found.append(Applicant(resume, name, tuple(ids)))
    return found


@dataclass(frozen=True)
class Decision:
    """What a model makes of an applicant: the first new token's answer, and E at the prompt's last token."""

    answer: YesNo
    score: float


def spellings(tokenizer: "PreTrainedTokenizerBase") -> AnswerIds:
    """Return the tokens that begin Yes and No."""
    return answer_ids(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])


def decide(
    speaker: Speaker, prompts: Sequence[tuple[int, ...]], layer: int, vector: Any, *, label: str = ""
) -> list[Decision]:
    """Read the decision about each prompt from the logits of the first new token.

    Parameters
    ----------
    speaker
        The model; whatever hooks it has are at work.
    prompts
        As token ids.
    layer, vector
        Where E is read, and along what.
    label
        For the progress bar.
    """
    words = spellings(speaker.tokenizer)
    device = next(speaker.model.parameters()).device
    last: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        states = output[0] if isinstance(output, tuple) else output
        last.append(states[:, -1].float().cpu())

    found: dict[int, Decision] = {}
    # registered behind those that steer, so that it sees what they made
    handle = block_of(speaker.model, layer).register_forward_hook(keep)
    total = sum(map(len, prompts))
    try:
        with (
            torch.inference_mode(),
            fused_forward(speaker.model),
            token_bar(f"decide {speaker.name} {label}".strip(), total, "tokens") as bar,
        ):
            for members in batches([len(ids) for ids in prompts], _TOKEN_BUDGET):
                ids = torch.tensor([prompts[index] for index in members], device=device)
                last.clear()
                logits = speaker.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1].float().cpu()
                scores = expertise(last[0].numpy(), vector)
                for row, index in enumerate(members):
                    found[index] = Decision(read_logits(logits[row].numpy(), words), float(scores[row]))
                bar.advance(ids.numel(), ids.numel())
    finally:
        handle.remove()
    return [found[index] for index in range(len(prompts))]


def written_decisions(speaker: Speaker, people: Sequence[Applicant], max_new_tokens: int, task: str) -> list[str]:
    """Return the decision that the model writes about each applicant: yes, no or empty."""
    requests = [Request(person.key, person.name.group, person.ids) for person in people]
    outputs = speaker.answer(requests, Sampling(1, 0.0, 1.0, max_new_tokens), task)
    return [parse_answer(output.text) for output in outputs]


def mean_or_empty(values: Iterable[float | None]) -> float | str:
    """Return the mean of what is known, or an empty cell."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else ""
