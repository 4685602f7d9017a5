"""What goes into a generation backend and what comes out of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from refbias.config.generation import GenerationSettings
from refbias.config.models import Compute
from refbias.errors import UserError
from refbias.generation.seeds import item_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from refbias.benchmarks.base import Sampling
    from refbias.models.load import Checkpoint

Finish = Literal["eos", "stop", "length"]


@dataclass(frozen=True)
class Request:
    """A prompt as token ids; `unit` is what its outputs count for."""

    prompt_id: str
    unit: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Output:
    """One response.

    Parameters
    ----------
    prompt_id, unit
        Of the request.
    sample
        Number of the response to this prompt, from 0.
    seed
        Of the response's own random stream.
    text
        Decoded new tokens without special tokens, cut before a stop string.
    n_tokens
        New tokens, the one that ended the response included.
    finish
        ``eos``: the model ended it; ``stop``: a stop string; ``length``: the limit.
    """

    prompt_id: str
    unit: str
    sample: int
    seed: int
    text: str
    n_tokens: int
    finish: Finish


@dataclass(frozen=True)
class Task:
    """What a backend knows before it loads a checkpoint: one start serves all benchmarks.

    Parameters
    ----------
    checkpoint
        The weights.
    tokenizer
        Folder of the tokenizer.
    name
        What to call the checkpoint in errors and in the progress bar.
    settings, compute
        Of the configuration.
    longest
        Tokens of the longest prompt with its new tokens.
    work
        Folder for weights that are written for the backend only, and removed once it has read them.
    stop
        A response ends where one of these strings begins.
    eos
        Ids that end a response, beside those of the model's own configuration.
    """

    checkpoint: "Checkpoint"
    tokenizer: Path
    name: str
    settings: GenerationSettings
    compute: Compute
    longest: int
    work: Path
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] = ()


class Session(Protocol):
    """A loaded checkpoint."""

    def generate(self, requests: Sequence[Request], sampling: "Sampling", seed: int, *, benchmark: str) -> list[Output]:
        """Return ``sampling.samples`` responses to every prompt, by request, then sample."""

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the engine (JSON values)."""


@dataclass(frozen=True)
class Ends:
    """How a response ends, and how its ids become text."""

    tokenizer: "PreTrainedTokenizerBase"
    eos: frozenset[int]
    stop: tuple[str, ...]

    def text(self, ids: Sequence[int]) -> str:
        """Decode new tokens without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def stop_at(self, text: str) -> int | None:
        """Return where the first stop string begins."""
        return min((at for at in (text.find(stop) for stop in self.stop) if at >= 0), default=None)

    def output(self, request: Request, sample: int, seed: int, ids: Sequence[int]) -> Output:
        """Return the response whose new tokens are `ids`, the one that ended it included."""
        finish: Finish = "eos" if ids[-1] in self.eos else "length"
        # an id that ends a response need not be a special token: it is no text all the same
        text = self.text(ids[:-1] if finish == "eos" else ids)
        at = self.stop_at(text)
        if at is not None:
            # what was decoded between a stop string and the search that found it does not count
            ids = next(ids[:n] for n in range(1, len(ids) + 1) if self.stop_at(self.text(ids[:n])) is not None)
            text, finish = text[:at], "stop"
        return Output(request.prompt_id, request.unit, sample, seed, text, len(ids), finish)


def eos_ids(extra: Sequence[int], *holders: object) -> frozenset[int]:
    """Return the ids that end a response: `extra`, and the ``eos_token_id`` of tokenizer and configurations."""
    found = set(extra)
    for holder in holders:
        value = getattr(holder, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    return frozenset(found)


def distinct_samples(sampling: "Sampling") -> int:
    """Return how many samples of a prompt are computed: greedy ones are copies of one."""
    return 1 if sampling.temperature == 0 else sampling.samples


def in_order(
    requests: Sequence[Request],
    sampling: "Sampling",
    seed: int,
    benchmark: str,
    found: Mapping[tuple[str, int], Output],
) -> list[Output]:
    """Return outputs by request, then sample, from those of the computed samples."""
    distinct = distinct_samples(sampling)
    outputs = []
    for request in requests:
        for sample in range(sampling.samples):
            output = found[request.prompt_id, sample % distinct]
            if sample >= distinct:
                own = item_seed(seed, benchmark, request.prompt_id, sample)
                output = dataclasses.replace(output, sample=sample, seed=own)
            outputs.append(output)
    return outputs


def check_requests(
    requests: Sequence[Request],
    tokenizer: "PreTrainedTokenizerBase",
    vocabulary: int,
    positions: int | None,
    new_tokens: int,
    name: str,
) -> None:
    """Refuse prompts that the model would misread, before anything is computed.

    Parameters
    ----------
    requests
        The prompts.
    tokenizer
        The model's tokenizer.
    vocabulary
        Rows of the model's token embedding.
    positions
        Tokens that the model can hold, if limited.
    new_tokens
        New tokens at most.
    name
        What to call the model in an error.

    Raises
    ------
    UserError
        If a prompt is empty, holds an id beyond the embedding, does not leave room for
        `new_tokens`, or does not begin with the one BOS that the model wants; names the prompt.
    """
    bos = tokenizer.bos_token_id
    wants_bos = bos is not None and list(tokenizer("a")["input_ids"])[:1] == [bos]
    for request in requests:
        where = f"{name}: prompt {request.prompt_id}"
        if not request.ids:
            raise UserError(f"{where}: holds no token")
        if max(request.ids) >= vocabulary:
            raise UserError(
                f"{where}: token id {max(request.ids)} lies beyond the model's {vocabulary} embeddings: "
                "use the model's own tokenizer"
            )
        if positions is not None and len(request.ids) + new_tokens > positions:
            raise UserError(
                f"{where}: {len(request.ids)} tokens and {new_tokens} new ones exceed the model's {positions} "
                "positions: lower key 'max_new_tokens' or shorten the prompt"
            )
        count = request.ids.count(bos) if bos is not None else 0
        if count > 1 or (wants_bos and count == 0) or (count == 1 and request.ids[0] != bos):
            raise UserError(f"{where}: begins with {count} BOS tokens, must be one: check the chat template")
