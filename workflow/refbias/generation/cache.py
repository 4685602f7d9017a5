"""Keys and values of a batch in buffers of fixed size, and attention that does not repeat them.

transformers' growing cache copies itself at every token, and grouped-query attention under a mask
repeats every key for each of its query heads; on a CPU the two cost more than a small model's
matrix products. Here a token is written into its place, and the query heads that share a key are
the rows of one product.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_GROUPED = "refbias_grouped"


class BufferLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values, (b, heads, capacity, d) each, of which `length` are filled.

    A sliding-window layer keeps all of them too: the attention mask hides what lies outside.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate for the batch that `key_states` (b, heads, l, d) shows."""
        batch, heads = key_states.shape[:2]
        self.keys = key_states.new_zeros(batch, heads, self.capacity, key_states.shape[-1])
        self.values = value_states.new_zeros(batch, heads, self.capacity, value_states.shape[-1])
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append states (b, heads, l, d) and return all that is filled."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of what a query of `query_length` tokens attends to."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of filled places."""
        return self.length

    def get_max_length(self) -> int:
        """Return the capacity."""
        return self.capacity


def empty_cache(layers: int, capacity: int) -> Cache:
    """Return a cache that allocates `capacity` places when its first states arrive."""
    return Cache(layers=[BufferLayer(capacity) for _ in range(layers)])


def widened(prefix: Cache, batch: int, capacity: int) -> Cache:
    """Return a cache of `batch` rows that all begin with the one row of `prefix`."""
    cache = empty_cache(len(prefix.layers), capacity)
    for layer, source in zip(cache.layers, prefix.layers, strict=True):
        length = source.length
        layer.update(
            source.keys[:, :, :length].expand(batch, -1, -1, -1), source.values[:, :, :length].expand(batch, -1, -1, -1)
        )
    return cache


def place(target: Cache, rows: Sequence[Sequence[int]], source: Cache, end: int, batch: int) -> None:
    """Copy each row of `source` to rows of `target`, so that its last token stands before place `end`.

    Parameters
    ----------
    target
        Cache of `batch` rows.
    rows
        For each row of `source` the rows of `target` that begin with it.
    source
        Filled cache.
    end
        Where the copies end; `target` counts as filled up to there.
    batch
        Rows of `target`.
    """
    index = torch.tensor([number for number, copies in enumerate(rows) for _ in copies])
    into = torch.tensor([row for copies in rows for row in copies])
    for layer, filled in zip(target.layers, source.layers, strict=True):
        if not layer.is_initialized:
            like = (states[:1].expand(batch, -1, -1, -1) for states in (filled.keys, filled.values))
            layer.lazy_initialization(*like)
        start = end - filled.length
        where = into.to(filled.keys.device)
        layer.keys[where, :, start:end] = filled.keys[index.to(where.device), :, : filled.length]
        layer.values[where, :, start:end] = filled.values[index.to(where.device), :, : filled.length]
        layer.length = end


def keep_rows(cache: Cache, rows: Tensor) -> None:
    """Drop all rows of a cache but `rows`."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[rows], layer.values[rows]


def _grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend from one new token: the query heads (b, g h, 1, d) that share a key become its rows (b, h, g, d)."""
    if query.shape[2] != 1 or options.get("position_bias") is not None:
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    batch, heads, _, width = query.shape
    shared = key.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, shared, heads // shared, width),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(_GROUPED, _grouped_attention)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)


@contextlib.contextmanager
def grouped_attention(model: "PreTrainedModel") -> Iterator[None]:
    """Decode with `_grouped_attention` inside the block; a model that wants another than sdpa keeps its own."""
    before = model.config._attn_implementation
    if before == "sdpa":
        model.set_attn_implementation(_GROUPED)
    try:
        yield
    finally:
        if before == "sdpa":
            model.set_attn_implementation(before)
