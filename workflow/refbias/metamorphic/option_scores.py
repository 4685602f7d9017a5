"""Log-probabilities of given continuations after given prompts, from a transformers model in this process.

What all prompts begin with (few-shot examples) is computed once, and what the prompts of one question begin with (all
but the order of its options) once for the question. Prompts of equal length share a batch, so nothing is padded; the
output layer, most of a small model's cost, runs at the last position of a prompt, and for continuations of
several tokens at those tokens alone, on a copy of the prompt's keys and values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from refbias.errors import UserError
from refbias.fast import fused_forward
from refbias.generation.cache import empty_cache, widened
from refbias.progress import token_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache

_SHARED = 8  # a common beginning shorter than this is not worth a pass of its own
_STATES = 64  # states that the output layer reads at once: 64 MB of float32 for a vocabulary of 262,144
_TRIED = 4  # tokens on which the output layer is tried
_SAME = 1e-2  # of the largest logit: rounding of bfloat16 passes, another scale does not


@dataclass(frozen=True)
class Item:
    """A prompt and the continuations that compete behind it, all as token ids; `id` names it in errors."""

    id: str
    prompt: tuple[int, ...]
    continuations: tuple[tuple[int, ...], ...]


def _common(prompts: Sequence[Sequence[int]]) -> int:
    most = min(map(len, prompts)) - 1
    first = prompts[0]
    length = next((at for at in range(most) if any(prompt[at] != first[at] for prompt in prompts)), most)
    return length if length >= _SHARED and len(prompts) > 1 else 0


def _rows(cache: "Cache", rows: Sequence[int], capacity: int) -> "Cache":
    """Return a cache that begins with some rows of another, each as often as it is named."""
    chosen = empty_cache(len(cache.layers), capacity)
    index = torch.tensor(rows)
    for layer, source in zip(chosen.layers, cache.layers, strict=True):
        where = index.to(source.keys.device)
        layer.update(source.keys[where, :, : source.length], source.values[where, :, : source.length])
    return chosen


def _output_layer(model: "PreTrainedModel", prompt: Sequence[int], name: str) -> Callable[[Tensor], Tensor]:
    """Return the function from last states (n, d) to logits (n, v), tried against the model itself.

    Raises
    ------
    UserError
        If the model's logits are something else than its output layer's, softly capped or not.
    """
    layer = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def logits(states: Tensor) -> Tensor:
        found: Tensor = layer(states).float()
        return torch.tanh(found / cap) * cap if cap else found

    ids = torch.tensor([list(prompt[:_TRIED])], device=next(model.parameters()).device)
    own = logits(model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0])
    expected = model(input_ids=ids, use_cache=False).logits[0].float()
    scale = float(expected.abs().max())
    if math.isfinite(scale) and not float((own - expected).abs().max()) <= _SAME * max(1.0, scale):
        raise UserError(f"{name}: its logits are more than its output layer: set key 'metamorphic.reading' to generate")
    return logits


def _log_probabilities(logits: Callable[[Tensor], Tensor], states: Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log-probability of one token a state."""
    found: list[float] = []
    for start in range(0, len(tokens), _STATES):
        wide = logits(states[start : start + _STATES])
        index = torch.tensor(tokens[start : start + _STATES], device=wide.device)[:, None]
        found += (wide.gather(1, index)[:, 0] - wide.logsumexp(dim=-1)).tolist()
    return found


def _check(items: Sequence[Item], model: "PreTrainedModel", name: str) -> None:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for item in items:
        if not item.prompt or not item.continuations or not all(item.continuations):
            raise UserError(f"{name}: question {item.id}: a prompt or an option holds no token")
        if max(max(item.prompt), *map(max, item.continuations)) >= vocabulary:
            raise UserError(f"{name}: question {item.id}: a token id lies beyond the model's {vocabulary} embeddings")
        length = len(item.prompt) + max(map(len, item.continuations))
        if positions is not None and length > positions:
            raise UserError(
                f"{name}: question {item.id}: {length} tokens exceed the model's {positions} positions: "
                "lower key 'metamorphic.few_shot'"
            )


def _families(items: Sequence[Item], shared: int) -> dict[tuple[int, int, int], list[tuple[int, ...]]]:
    """Group the prompts of one question, and those groups by form.

    Returns
    -------
    dict
        (tokens that the prompts of a question have in common, tokens of each, prompts) -> numbers of the items.
    """
    by_id: dict[str, list[int]] = {}
    for number, item in enumerate(items):
        by_id.setdefault(item.id, []).append(number)
    found: dict[tuple[int, int, int], list[tuple[int, ...]]] = {}
    for numbers in by_id.values():
        prompts = [items[number].prompt for number in numbers]
        common = _common(prompts)
        if len({len(prompt) for prompt in prompts}) == 1 and common >= shared + _SHARED:
            found.setdefault((common, len(prompts[0]), len(prompts)), []).append(tuple(numbers))
        else:
            for number, prompt in zip(numbers, prompts, strict=True):
                found.setdefault((shared, len(prompt), 1), []).append((number,))
    return found


def _batch(
    model: "PreTrainedModel", items: Sequence[Item], members: int, common: int, prefix: "Cache", shared: int
) -> tuple[Tensor, list[tuple[int, int, int]]]:
    """Read prompts of equal length, `members` of each question, whose first `common` tokens are the question's.

    Returns
    -------
    states, places
        Last states (n, d), and for each which token it predicts: item, continuation, token.
    """
    length, device = len(items[0].prompt), next(model.parameters()).device
    layers = model.config.get_text_config().num_hidden_layers
    rows = len(items) // members
    if common > shared:
        cache = widened(prefix, rows, common) if shared else empty_cache(layers, common)
        ids = torch.tensor([item.prompt[shared:common] for item in items[::members]], device=device)
        model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = _rows(cache, [row for row in range(rows) for _ in range(members)], length)
    else:
        cache = widened(prefix, rows, length) if shared else empty_cache(layers, length)
    ids = torch.tensor([item.prompt[common:] for item in items], device=device)
    last = model.base_model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
    where = [(row, at) for row, item in enumerate(items) for at in range(len(item.continuations))]
    states, places = [last[[row for row, _ in where]]], [(row, at, 0) for row, at in where]
    long = [(row, at) for row, at in where if len(items[row].continuations[at]) > 1]
    if long:
        options = [items[row].continuations[at] for row, at in long]
        width = max(map(len, options)) - 1
        fed = torch.tensor(
            [[*option[:-1], *[option[0]] * (width - len(option) + 1)] for option in options], device=device
        )
        behind = _rows(cache, [row for row, _ in long], length + width)
        read = model.base_model(input_ids=fed, past_key_values=behind, use_cache=True).last_hidden_state
        for number, (row, at) in enumerate(long):
            size = len(options[number]) - 1
            states.append(read[number, :size])
            places += [(row, at, token) for token in range(1, size + 1)]
    return torch.cat(states), places


def score_continuations(
    model: "PreTrainedModel", items: Sequence[Item], batch_size: int = 32, name: str = "model"
) -> list[list[list[float]]]:
    """Return the log-probability of every token of every continuation.

    Parameters
    ----------
    model
        Causal language model in evaluation mode.
    items
        Prompts with their continuations.
    batch_size
        Prompts of equal length read together.
    name
        What to call the model in an error and in the progress bar.

    Returns
    -------
    list of list of list of float
        By item, continuation, token.

    Raises
    ------
    UserError
        If a prompt cannot be read by this model, or a log-probability is not finite.
    """
    if not items:
        return []
    _check(items, model, name)
    device = next(model.parameters()).device
    layers = model.config.get_text_config().num_hidden_layers
    shared = _common([item.prompt for item in items])
    families = _families(items, shared)
    states: list[Tensor] = []
    places: list[tuple[int, int, int]] = []
    with (
        torch.inference_mode(),
        fused_forward(model),
        token_bar(f"score options {name}", len(items), "prompts") as bar,
    ):
        logits = _output_layer(model, items[0].prompt, name)
        prefix = empty_cache(layers, shared)
        if shared:
            ids = torch.tensor([items[0].prompt[:shared]], device=device)
            model.base_model(input_ids=ids, past_key_values=prefix, use_cache=True)
        for (common, length, members), groups in sorted(families.items()):
            step = max(1, batch_size // members)
            for start in range(0, len(groups), step):
                part = [number for numbers in groups[start : start + step] for number in numbers]
                read, where = _batch(model, [items[number] for number in part], members, common, prefix, shared)
                states.append(read)
                places += [(part[row], at, token) for row, at, token in where]
                bar.advance(len(part), (length - common) * len(part) + (common - shared) * (len(part) // members))
        tokens = [items[number].continuations[at][token] for number, at, token in places]
        values = _log_probabilities(logits, torch.cat(states), tokens)
    found = dict(zip(places, values, strict=True))
    for (number, _, _), value in found.items():
        if not math.isfinite(value):
            raise UserError(
                f"{name}: question {items[number].id}: log-probabilities are not finite: check the weights, or use "
                "float32"
            )
    return [
        [[found[number, at, token] for token in range(len(option))] for at, option in enumerate(item.continuations)]
        for number, item in enumerate(items)
    ]
