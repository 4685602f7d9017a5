"""Hooks that move the states of one layer while the model runs, and what they cost in perplexity.

    steering   h <- h + alpha e                     (e as it is, not normalised)
    ablation   h <- h - (h . u - c) u,  u = e/||e||  (affine: every state gets the projection c)

The change is made to a block's output, at every position from `first` on, in the prompt and in each new token alike, so
that a cache of keys and values holds what a pass without one would. Sums are in fp32 and rounded once.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from refbias.embed import Tokenised, batches, decoder_blocks
from refbias.errors import UserError
from refbias.fast import fused_forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Change = Callable[[Tensor], Tensor]
_TOKEN_BUDGET = 1024


def addition(vector: npt.ArrayLike, alpha: float) -> Change:
    """Return the change ``h + alpha e`` of states (..., d) in fp32."""
    step = torch.as_tensor(np.asarray(vector, dtype=np.float64) * alpha, dtype=torch.float32)
    return lambda states: states + step.to(states.device)


def affine_ablation(vector: npt.ArrayLike, centre: float) -> Change:
    """Return the change that gives every state (..., d) the projection `centre` on e/||e||, in fp32."""
    along = np.asarray(vector, dtype=np.float64)
    u = torch.as_tensor(along / np.linalg.norm(along), dtype=torch.float32)

    def change(states: Tensor) -> Tensor:
        here = u.to(states.device)
        return states - ((states @ here) - centre)[..., None] * here

    return change


def _positions(kwargs: Mapping[str, Any], states: Tensor) -> Tensor:
    """Return the absolute positions (b, l) or (1, l) of a block's states."""
    found = kwargs.get("position_ids")
    if not isinstance(found, Tensor) or found.shape[-1] != states.shape[-2]:
        raise UserError("steering from a later position on: this model's blocks are not told positions: use first 0")
    return found.reshape(-1, found.shape[-1])


@contextlib.contextmanager
def changed(block: torch.nn.Module, change: Change, first: int = 0) -> Iterator[None]:
    """Change a block's output inside the block.

    Parameters
    ----------
    block
        A decoder block, whose output is a tensor of states (b, l, d) or a tuple that begins with one.
    change
        From `addition` or `affine_ablation`.
    first
        Position from which on states are changed.

    Raises
    ------
    UserError
        While the model runs: if `first` is not 0 and the block is not told its positions.
    """

    def hook(_: torch.nn.Module, __: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
        states = output[0] if isinstance(output, tuple) else output
        new = change(states.float())
        if first:
            here = (_positions(kwargs, states) >= first)[..., None]
            new = torch.where(here, new, states.float())
        new = new.to(states.dtype)
        return (new, *output[1:]) if isinstance(output, tuple) else new

    handle = block.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def steered(
    model: "PreTrainedModel", layer: int, vector: npt.ArrayLike, alpha: float, first: int = 0
) -> Iterator[None]:
    """Add ``alpha e`` to the output of block `layer` (1 to the last) inside the block."""
    with changed(block_of(model, layer), addition(vector, alpha), first):
        yield


@contextlib.contextmanager
def ablated(
    model: "PreTrainedModel", layer: int, vector: npt.ArrayLike, centre: float, first: int = 0
) -> Iterator[None]:
    """Take the direction out of the output of block `layer` inside the block."""
    with changed(block_of(model, layer), affine_ablation(vector, centre), first):
        yield


def block_of(model: "PreTrainedModel", layer: int) -> torch.nn.Module:
    """Return block `layer` (1 to the last) of a model with or without its output layer.

    Raises
    ------
    UserError
        If there is no such block.
    """
    blocks = decoder_blocks(model.base_model)
    if not 1 <= layer <= len(blocks):
        raise UserError(f"key 'competence.layer': {layer}: the model has blocks 1 to {len(blocks)}")
    return blocks[layer - 1]


def perplexity(model: "PreTrainedModel", sentences: Tokenised) -> float:
    """Return exp of the mean negative log-likelihood of the sentences' tokens, the first of each only read.

    Raises
    ------
    UserError
        If no sentence has two tokens, or a logit is not finite.
    """
    device = next(model.parameters()).device
    total, count = 0.0, 0
    with torch.inference_mode(), fused_forward(model):
        for members in batches([len(ids) for ids in sentences.ids], _TOKEN_BUDGET):
            ids = torch.tensor([sentences.ids[index] for index in members], device=device)
            if ids.shape[1] < 2:
                continue
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
            total += float(loss)
            count += ids[:, 1:].numel()
    if not count or not np.isfinite(total):
        raise UserError("perplexity: no sentence of two tokens, or a logit that is not finite: use float32")
    return float(np.exp(min(total / count, 700.0)))


def bounded_alphas(
    alphas: Sequence[float], measure: Callable[[float], float], limit: float
) -> tuple[dict[float, float], list[float]]:
    """Walk from 0 outwards while perplexity stays low.

    Parameters
    ----------
    alphas
        The grid; 0 is added.
    measure
        Perplexity at an alpha.
    limit
        The most that it may be, in multiples of that at 0.

    Returns
    -------
    perplexities
        Alpha -> perplexity, for all that were tried: on each side none behind the first beyond the limit.
    allowed
        Alphas within the limit, ascending.
    """
    found = {0.0: measure(0.0)}
    allowed = [0.0]
    for sign in (1, -1):
        for alpha in sorted((alpha for alpha in alphas if alpha * sign > 0), key=abs):
            found[alpha] = measure(alpha)
            if found[alpha] > limit * found[0.0]:
                break
            allowed.append(alpha)
    return found, sorted(allowed)
