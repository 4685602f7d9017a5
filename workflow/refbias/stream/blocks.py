"""A decoder taken apart: what its forward does before, between and after its blocks.

The model's own forward runs with blocks that only take notes: the first one's input, and the
arguments (rotary embedding, masks, positions) that each block would get. With these the real
blocks can be called one at a time, for all sentences, in any order. For the end the forward runs
once more, its last block returning the states that the real blocks gave.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TOLERANCE = 1e-5
"""Largest difference, relative to the largest state, at which a decoder counts as a chain of its blocks."""


@dataclass(frozen=True)
class Call:
    """What a block is called with beside its states."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Blocks:
    """The list of a decoder's blocks, its name in the model, and whether a block returns a tuple."""

    path: str
    modules: nn.ModuleList
    in_tuple: bool


def find_blocks(model: "PreTrainedModel") -> tuple[str, nn.ModuleList] | None:
    """Return name and list of the decoder's blocks, or None where no list holds just them."""
    wanted = model.config.num_hidden_layers
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted and path.count(".") <= 1:
            return path, module
    return None


@contextlib.contextmanager
def replaced_forwards(blocks: Blocks, forward: Callable[[int, torch.Tensor, Call], torch.Tensor]) -> Iterator[None]:
    """Let `forward` (number of the block, states, call) stand for every block inside the context."""

    def make(number: int) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            rest = dict(kwargs)
            states = args[0] if args else rest.pop("hidden_states")
            result = forward(number, states, Call(args[1:], rest))
            return (result,) if blocks.in_tuple else result

        return stand_in

    for number, block in enumerate(blocks.modules):
        block.forward = make(number)
    try:
        yield
    finally:
        for block in blocks.modules:
            del block.forward


def enter(model: "PreTrainedModel", blocks: Blocks, ids: torch.Tensor) -> tuple[torch.Tensor, list[Call]]:
    """Return the first block's input (b, l, d) for token ids (b, l), and every block's call."""
    calls: list[Call] = []
    first: list[torch.Tensor] = []

    def note(number: int, states: torch.Tensor, call: Call) -> torch.Tensor:
        if not number:
            first.append(states)
        calls.append(call)
        return states

    with replaced_forwards(blocks, note):
        model(input_ids=ids, use_cache=False)
    return first[0], calls


def leave(model: "PreTrainedModel", blocks: Blocks, ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the model's final output for ids (b, l) whose last block gave `states` (b, l, d)."""
    last = len(blocks.modules) - 1

    def hand_over(number: int, found: torch.Tensor, _: Call) -> torch.Tensor:
        return states if number == last else found

    with replaced_forwards(blocks, hand_over):
        result: torch.Tensor = model(input_ids=ids, use_cache=False).last_hidden_state
    return result


def run_block(block: nn.Module, states: torch.Tensor, call: Call) -> torch.Tensor:
    """Return a block's output for states (b, l, d)."""
    output = block(states, *call.args, **call.kwargs)
    result: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return result


def same_call(first: Call, second: Call) -> bool:
    """Whether two calls pass the same values."""
    return _same(first.args, second.args) and _same(dict(first.kwargs), dict(second.kwargs))


def _same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, torch.Tensor):
        return first is second or (first.dtype == second.dtype and torch.equal(first, second))
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    return bool(first == second)


def probe(config: "PretrainedConfig") -> tuple[bool, str | None]:
    """Try on a small random decoder of the same kind whether its blocks, run one at a time, give its own output.

    Returns
    -------
    bool
        Whether a block returns a tuple.
    str or None
        Why the decoder is not a chain of its blocks; None if it is.
    """
    from transformers import AutoModel

    name = type(config).__name__
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(0)
            model = AutoModel.from_config(
                shrunk(config), attn_implementation="sdpa", dtype=torch.float32, trust_remote_code=False
            ).eval()
            for parameter in model.parameters():
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
            return _try(model, name)
    # whatever a foreign architecture raises at a size that it was not made for: it is not streamed
    except Exception as error:
        return False, f"{name}: a small copy of the decoder cannot be tried ({' '.join(str(error).split())[:160]})"


def _try(model: "PreTrainedModel", name: str) -> tuple[bool, str | None]:
    found = find_blocks(model)
    if found is None:
        return False, f"{name}: no list of decoder blocks"
    ids = [torch.randint(3, 60, (rows, length)) for rows, length in ((2, 9), (3, 6))]
    outputs: list[Any] = []
    hooks = [block.register_forward_hook(lambda _, args, output: outputs.append(output)) for block in found[1]]
    expected = [model(input_ids=batch, use_cache=False).last_hidden_state for batch in ids]
    for hook in hooks:
        hook.remove()
    if len(outputs) != len(ids) * len(found[1]) or any(map(_holds_more, outputs)):
        return False, f"{name}: a block gives more than its states"
    blocks = Blocks(*found, in_tuple=isinstance(outputs[0], tuple))
    entered = [enter(model, blocks, batch) for batch in ids]
    if any(len(calls) != len(blocks.modules) for _, calls in entered):
        return False, f"{name}: the forward does not call every block once"
    states = [first for first, _ in entered]
    for number, block in enumerate(blocks.modules):
        states = [run_block(block, part, calls[number]) for part, (_, calls) in zip(states, entered, strict=True)]
    for batch, part, whole in zip(ids, states, expected, strict=True):
        gap = float((leave(model, blocks, batch, part) - whole).abs().max())
        # written so that NaN is refused
        if not gap <= TOLERANCE * max(1.0, float(whole.abs().max())):
            return blocks.in_tuple, f"{name}: the blocks depend on more than their inputs (difference {gap:.1e})"
    return blocks.in_tuple, None


def _holds_more(output: Any) -> bool:
    if isinstance(output, tuple):
        return not isinstance(output[0], torch.Tensor) or any(part is not None for part in output[1:])
    return not isinstance(output, torch.Tensor)


def shrunk(config: "PretrainedConfig") -> "PretrainedConfig":
    """Return a copy of a decoder's configuration with every kind of layer, but few, narrow ones of few words."""
    import copy

    small = copy.deepcopy(config)
    small.num_hidden_layers = n_layers = _enough_layers(config)
    if getattr(config, "layer_types", None):
        small.layer_types = list(config.layer_types[:n_layers])
    heads = config.num_attention_heads
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kept = max(1, 4 // groups) * groups if groups <= 4 else groups
    if kept < heads:
        small.num_attention_heads = kept
        small.hidden_size = kept * width
        if getattr(config, "num_key_value_heads", None):
            small.num_key_value_heads = kept // groups
    small.vocab_size = 64
    for key, most in (("intermediate_size", 96), ("sliding_window", 4), ("num_experts", 4), ("num_local_experts", 4)):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > most:
            setattr(small, key, most)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(small, key, None)
    return small


def _enough_layers(config: "PretrainedConfig") -> int:
    types: Sequence[str] = getattr(config, "layer_types", None) or ()
    firsts = [types.index(kind) + 1 for kind in set(types)]
    most: int = config.num_hidden_layers
    return min(most, max(3, *firsts)) if firsts else min(most, 3)
