"""Exact sampling from a softmax, with a random stream of its own for every response.

A response's stream depends on the run's seed, the benchmark, the prompt and the sample's number
only, so it is the same whatever else is in the batch. One uniform number a token is enough: the
token is the one at which the cumulative distribution passes it (inverse transform). The
distribution is summed by blocks, and only the block that is hit is looked into, so that a
vocabulary of 262,144 costs two passes over the logits; ``torch.multinomial`` and Gumbel noise
draw a random number for every entry of the vocabulary, which takes longer than a small model.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BLOCK = 512
_TILE = 1 << 22  # logits that are turned into probabilities at once: 16 MB in float32
_NUCLEUS = 1024  # most probable tokens that are looked at before the whole vocabulary is sorted


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers in [0, 1): one a token of the response."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def sample_tokens(
    logits: Tensor, uniform: npt.NDArray[np.float64], temperature: float, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    Parameters
    ----------
    logits
        Shape (b, v).
    uniform
        Shape (b,), in [0, 1).
    temperature
        Divides the logits; 0 takes the most probable token (the first of equals).
    top_p
        Only the most probable tokens that together reach this mass are drawn from.

    Returns
    -------
    tokens
        Shape (b,), int64, on the CPU.
    finite
        Shape (b,), bool: whether the row's logits could be sampled from; a token beside False
        means nothing.
    """
    if temperature == 0:
        best, tokens = logits.max(dim=-1)
        return tokens.cpu(), torch.isfinite(best).cpu()
    rows = max(1, _TILE // logits.shape[1])
    parts = [
        _sample(logits[start : start + rows], uniform[start : start + rows], temperature, top_p)
        for start in range(0, len(logits), rows)
    ]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([finite for _, finite in parts])


def _sample(
    logits: Tensor, uniform: npt.NDArray[np.float64], temperature: float, top_p: float
) -> tuple[Tensor, Tensor]:
    scaled = logits.float() if temperature == 1 else logits.float() / temperature
    mass = torch.softmax(scaled, dim=-1)
    if top_p < 1:
        mass = _nucleus(mass, top_p)
    size = mass.shape[1]
    whole = size // _BLOCK * _BLOCK
    # a strided view: nothing is copied where the vocabulary is no multiple of the block
    blocks = mass.as_strided((len(mass), whole // _BLOCK, _BLOCK), (mass.stride(0), _BLOCK, 1))
    sums = blocks.sum(dim=-1)
    if whole < size:
        sums = torch.cat((sums, mass[:, whole:].sum(dim=-1, keepdim=True)), dim=1)
    # from here on small, and in float64, which not every device has
    block, rest = _pass(sums.cpu().double(), torch.from_numpy(uniform))
    columns = block[:, None] * _BLOCK + torch.arange(_BLOCK)
    inside = mass.gather(1, columns.clamp(max=size - 1).to(mass.device)).cpu().double()
    inside[columns >= size] = 0.0
    offset, _ = _pass(inside, rest)
    return block * _BLOCK + offset, torch.isfinite(sums.sum(dim=-1)).cpu()


def _pass(mass: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index at which the cumulative mass passes ``uniform * total``, and how far into it (in [0, 1))."""
    cumulative = mass.cumsum(dim=1)
    total = cumulative[:, -1]
    # a product that rounds up to the total would pass the end
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=mass.shape[1] - 1)
    here = mass.gather(1, index[:, None])[:, 0]
    before = cumulative.gather(1, index[:, None])[:, 0] - here
    return index, ((target - before) / here).clamp(0.0, 1.0)


def _nucleus(mass: Tensor, top_p: float) -> Tensor:
    """Set all but the smallest set of most probable tokens with mass `top_p` to zero."""
    values, order = mass.topk(min(_NUCLEUS, mass.shape[1]))
    if bool((values.sum(dim=-1) < top_p).any()):
        values, order = mass.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(dim=-1) - values
    return torch.zeros_like(mass).scatter_(1, order, values.masked_fill(before >= top_p, 0.0))
