"""What goes into a generation backend and what comes out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from refbias.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
