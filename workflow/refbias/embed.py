"""Sentence embeddings: pooled states of one decoder layer (paper, section 3).

An embedding is the pool, in fp32, of a layer's states over the tokens of a sentence. Sentences of
exactly the same number of tokens form a batch, so nothing is padded, no attention mask is needed
and every vector is what the sentence alone would give. Each distinct sentence is computed once,
without the output layer, and no further than the layer that is asked for.
"""

import contextlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from refbias.config.represent import RepresentSettings
from refbias.errors import UserError
from refbias.fast import fused_forward
from refbias.lanes import Lanes, lanes_on
from refbias.progress import token_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class _NotFiniteError(Exception):
    """A batch gave a state that is not finite."""

    def __init__(self, members: Sequence[int]) -> None:
        super().__init__(members)
        self.members = members


@dataclass(frozen=True)
class Tokenised:
    """Distinct sentences as token ids, and which of them each given text is.

    Parameters
    ----------
    texts
        The distinct sentences.
    ids
        Token ids of each distinct sentence.
    row
        For each given text the index of its distinct sentence.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    row: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        """Tokens that one checkpoint has to compute."""
        return sum(map(len, self.ids))


class _ReachedError(Exception):
    """The wanted states are there; the rest of the forward pass is not needed."""


def tokenise(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str]) -> Tokenised:
    """Return the token ids of raw texts with the tokenizer's default special tokens.

    Raises
    ------
    UserError
        If there is no text, or a text gives no token.
    """
    if not texts:
        raise UserError("no sentences to embed: name a sentence file that holds some")
    index = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    distinct = tuple(index)
    ids = tuple(tuple(found) for found in tokenizer(list(distinct))["input_ids"])
    for text, found in zip(distinct, ids, strict=True):
        if not found:
            raise UserError(f"sentence {text!r}: the tokenizer gives no token for it: leave it out")
    return Tokenised(distinct, ids, tuple(index[text] for text in texts))


def batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Group sentences of equal length into batches of at most `token_budget` tokens.

    A length's sentences are spread evenly over as few batches as the budget allows; a sentence
    longer than the budget is a batch of its own.

    Parameters
    ----------
    lengths
        Tokens of each sentence.
    token_budget
        Tokens a batch holds at most.

    Returns
    -------
    list of list of int
        Indices into `lengths`, by ascending length.
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    result = []
    for length, members in sorted(by_length.items()):
        most = max(1, token_budget // length)
        parts = -(-len(members) // most)
        result.extend([part.tolist() for part in np.array_split(members, parts)])
    return result


def embed_sentences(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    texts: Sequence[str],
    settings: RepresentSettings,
    *,
    name: str = "model",
) -> npt.NDArray[np.float32]:
    """Embed sentences; see `embed_tokens`.

    Parameters
    ----------
    model
        Decoder without its output layer, in evaluation mode.
    tokenizer
        The model's tokenizer; it adds its default special tokens to the raw text.
    texts
        n sentences; one that occurs twice is computed once.
    settings
        Layer, pooling and batching.
    name
        What to call the model in an error and in the progress bar.

    Returns
    -------
    numpy.ndarray
        Shape (n, d), float32.
    """
    return embed_tokens(model, tokenise(tokenizer, texts), settings, bos=tokenizer.bos_token_id, name=name)


def embed_tokens(
    model: "PreTrainedModel",
    sentences: Tokenised,
    settings: RepresentSettings,
    *,
    bos: int | None,
    name: str = "model",
) -> npt.NDArray[np.float32]:
    """Embed tokenised sentences.

    Parameters
    ----------
    model
        Decoder without its output layer, in evaluation mode.
    sentences
        Made by `tokenise`.
    settings
        Layer, pooling and batching.
    bos
        Id of the BOS token, for `settings.exclude_bos`.
    name
        What to call the model in an error and in the progress bar.

    Returns
    -------
    numpy.ndarray
        Shape (n, d), float32.

    Raises
    ------
    UserError
        If a token id lies beyond the model's embedding, the layer does not exist, a sentence is
        nothing but BOS while BOS is left out, or a state is not finite (names model, layer and
        sentence).
    """
    check_ids(model, sentences, name)
    read = _reader(model, settings, name)
    device = next(model.parameters()).device
    plan = batches([len(ids) for ids in sentences.ids], settings.token_budget)
    # hooks of an inner layer belong to one forward pass at a time
    whole = settings.layer == "final" and settings.final_norm
    with (
        fused_forward(model),
        token_bar(f"embed {name}", sentences.n_tokens, "tokens") as bar,
        Lanes(lanes_on(device) if whole else 1) as lanes,
    ):

        def vectors_of(batch: int) -> torch.Tensor:
            members = plan[batch]
            ids = torch.tensor([sentences.ids[index] for index in members])
            states = read(ids.to(device)).float()
            # one pass: any NaN or infinity makes the sum one
            if not bool(torch.isfinite(states.sum())) and not bool(torch.isfinite(states).all()):
                raise _NotFiniteError(members)
            texts_of = [sentences.texts[index] for index in members]
            first = first_position(ids, bos, settings.exclude_bos, texts_of)
            bar.advance(ids.numel(), ids.numel())
            return pool(states, first, settings.pooling).cpu()

        try:
            parts = lanes.map(vectors_of, [len(members) * len(sentences.ids[members[0]]) for members in plan])
        except _NotFiniteError as error:
            # looked into when no other batch passes through the model's hooks
            with torch.inference_mode():
                refuse_non_finite(model, error.members, sentences, name)
    position = np.empty(len(sentences.ids), dtype=np.int64)
    position[[index for members in plan for index in members]] = np.arange(len(position))
    result: npt.NDArray[np.float32] = torch.cat(parts).numpy()[position[list(sentences.row)]]
    return result


def decoder_blocks(model: "PreTrainedModel") -> torch.nn.ModuleList:
    """Return the decoder's blocks in order.

    Raises
    ------
    UserError
        If the model keeps them neither in a list called `layers`, nor in another one that holds just them.
    """
    blocks = getattr(model, "layers", None)
    if not isinstance(blocks, torch.nn.ModuleList) or not len(blocks):
        # OPT's lie in its `decoder`, Falcon's and GPT-2's are called `h`
        wanted = model.config.get_text_config().num_hidden_layers
        lists = (part for path, part in model.named_modules() if path.count(".") <= 1)
        blocks = next((part for part in lists if isinstance(part, torch.nn.ModuleList) and len(part) == wanted), None)
    if blocks is None:
        raise UserError(f"{type(model).__name__}: no list of decoder blocks: only layer 'final' after its norm is read")
    return blocks


def check_ids(model: "PreTrainedModel", sentences: Tokenised, name: str) -> None:
    """Refuse a token id beyond the model's embedding, naming the sentence."""
    rows = model.get_input_embeddings().weight.shape[0]
    for text, ids in zip(sentences.texts, sentences.ids, strict=True):
        if max(ids) >= rows:
            raise UserError(
                f"{name}: token id {max(ids)} of sentence {text!r} lies beyond the model's {rows} embeddings: "
                "use the model's own tokenizer"
            )


def _reader(model: "PreTrainedModel", settings: RepresentSettings, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from token ids (b, l) to the wanted layer's states (b, l, d)."""
    if settings.layer == "final" and settings.final_norm:

        def last(ids: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = model(input_ids=ids, use_cache=False).last_hidden_state
            return states

        return last
    blocks = decoder_blocks(model)
    layer = len(blocks) if settings.layer == "final" else settings.layer
    if not 0 <= layer <= len(blocks):
        raise UserError(f"key 'represent.layer': {layer}: {name} has blocks 1 to {len(blocks)}, 0 = token embeddings")
    return lambda ids: _states_of(model, blocks, layer, ids)


def _states_of(model: "PreTrainedModel", blocks: torch.nn.ModuleList, layer: int, ids: torch.Tensor) -> torch.Tensor:
    """Run the decoder as far as the output of block `layer` (0: the first block's input)."""
    found: list[torch.Tensor] = []

    def before(_: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])
        raise _ReachedError

    def after(_: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)
        raise _ReachedError

    if layer == 0:
        hook = blocks[0].register_forward_pre_hook(before, with_kwargs=True)
    else:
        hook = blocks[layer - 1].register_forward_hook(after)
    try:
        with contextlib.suppress(_ReachedError):
            model(input_ids=ids, use_cache=False)
    finally:
        hook.remove()
    return found[0]


def first_position(ids: torch.Tensor, bos: int | None, exclude_bos: bool, texts: Sequence[str]) -> int:
    """Return the position at which pooling starts; all sentences of a batch begin alike or are refused."""
    if not exclude_bos or bos is None:
        return 0
    starts = ids[:, 0] == bos
    if not bool(starts.all()):
        # the tokenizer puts BOS before every text or before none
        return 0
    if ids.shape[1] == 1:
        raise UserError(f"sentence {texts[0]!r}: holds nothing but BOS, which key 'represent.exclude_bos' leaves out")
    return 1


def pool(states: torch.Tensor, first: int, pooling: str) -> torch.Tensor:
    """Pool states (b, l, d) over the tokens from `first` on: mean, max, or the last one's."""
    if pooling == "last":
        return states[:, -1]
    if pooling == "max":
        return states[:, first:].amax(dim=1)
    return states[:, first:].mean(dim=1)


def refuse_non_finite(
    model: "PreTrainedModel", members: Sequence[int], sentences: Tokenised, name: str
) -> typing.NoReturn:
    """Find the first sentence and layer with a non-finite state, by running the sentences again."""
    device = next(model.parameters()).device
    for member in members:
        layer = _bad_layer(model, torch.tensor([sentences.ids[member]], device=device))
        if layer is not None:
            raise UserError(
                f"{name}: {layer} gives a non-finite state for sentence {sentences.texts[member]!r}: "
                "check the weights, or use dtype float32"
            )
    raise UserError(f"{name}: non-finite state in the batch of {sentences.texts[members[0]]!r}: check the weights")


def _bad_layer(model: "PreTrainedModel", ids: torch.Tensor) -> str | None:
    bad: list[str] = []

    def watch(label: str) -> Callable[[torch.nn.Module, tuple[Any, ...], Any], None]:
        def hook(_: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            if not bool(torch.isfinite(states).all()):
                bad.append(label)

        return hook

    blocks = getattr(model, "layers", ())
    hooks = [model.get_input_embeddings().register_forward_hook(watch("layer 0 (token embeddings)"))]
    hooks += [block.register_forward_hook(watch(f"layer {number}")) for number, block in enumerate(blocks, start=1)]
    try:
        states = model(input_ids=ids, use_cache=False).last_hidden_state
    finally:
        for hook in hooks:
            hook.remove()
    if not bad and not bool(torch.isfinite(states).all()):
        return "the final norm"
    return bad[0] if bad else None
