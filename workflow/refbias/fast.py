"""The same numbers with fewer passes over memory and fewer products: fused steps for CPU inference.

On a CPU a decoder spends up to half of a forward pass outside its matrix products: norms, rotary
embedding and gating each read and write their activations several times. `fused_forward`
replaces those steps, for the length of a block, in modules whose own output it reproduces: a
replacement is tried on random numbers against the module's forward first and left out where
they differ, so an unknown architecture keeps its own code. Projections of the same input (query,
key and value; gate and up) become one product, which threads share better than several narrow
ones. Only float32 on a CPU is touched.
"""

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 2e-6
"""Largest relative difference at which a replacement counts as the same function."""

_Maker = Callable[[Any], Callable[[Tensor], Tensor]]
_TILE = 1 << 16  # elements of a tile a thread: 256 kB in float32, so that three fit a core's L2 cache
_GELU_LINEAR = 2 * 0.7978845608028654  # 2 sqrt(2 / pi)
_GELU_CUBIC = _GELU_LINEAR * 0.044715


def _normed(x: Tensor, eps: Tensor) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps)``; `eps` is a tensor because a number would be converted at each call."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    half = q.shape[-1] // 2
    rotated = []
    for x in (q, k):
        out = x * cos
        out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
        out[..., half:].addcmul_(x[..., :half], sin[..., half:])
        rotated.append(out)
    return rotated[0], rotated[1]


def _gelu_tanh_gate(gate: Tensor, up: Tensor) -> Tensor:
    """Return ``gelu_tanh(gate) * up`` (n, w), written into `gate`; by tiles, so that the passes meet in cache."""
    width = gate.shape[1]
    height = max(1, _TILE * torch.get_num_threads() // width)
    linear = torch.tensor(_GELU_LINEAR)
    for start in range(0, len(gate), height):
        x = gate[start : start + height]
        # gelu_tanh(x) = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3))
        t = torch.addcmul(linear, x, x, value=_GELU_CUBIC)
        x.mul_(t.mul_(x).sigmoid_()).mul_(up[start : start + height])
    return gate


def _same(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or not bool(torch.isfinite(expected).all()):
        return False
    scale = float(expected.abs().max()) or 1.0
    return float((found - expected).abs().max()) <= TOLERANCE * scale


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _norm_forward(module: Any, plus_one: bool) -> Callable[[Tensor], Tensor]:
    # the weight is read at each call: a spectrum's checkpoints replace it in place
    weight, eps = module.weight, torch.tensor(_eps(module))

    def forward(x: Tensor) -> Tensor:
        out = _normed(x, eps)
        return out.addcmul_(out, weight) if plus_one else out.mul_(weight)

    return forward


def _eps(module: nn.Module) -> Any:
    return getattr(module, "eps", getattr(module, "variance_epsilon", None))


def _norm_maker(module: Any) -> _Maker | None:
    """Return what makes the fused forward of an RMS norm (weight w, or 1 + w as in Gemma), else None."""
    weight = getattr(module, "weight", None)
    if (
        not isinstance(_eps(module), float)
        or weight is None
        or weight.dim() != 1
        or len(list(module.parameters())) != 1
    ):
        return None
    x = _random(3, len(weight))
    for plus_one in (False, True):
        if _same(_norm_forward(module, plus_one)(x), module(x)):
            return lambda module: _norm_forward(module, plus_one)
    return None


def _is_gelu_tanh(activation: Callable[[Tensor], Tensor]) -> bool:
    x = torch.linspace(-8, 8, 257)
    try:
        found = activation(x)
    except (TypeError, RuntimeError):
        return False
    return bool(torch.equal(found, nn.functional.gelu(x, approximate="tanh")))


def _joined(parts: Sequence[nn.Linear]) -> Tensor:
    """Return the weights of `parts`, one below the other, as one matrix of which theirs are views.

    What is written into a part's weight later is written into the matrix.
    """
    weights = [part.weight for part in parts]
    rows = sum(len(weight) for weight in weights)
    first = weights[0]
    at = first.data_ptr()
    for weight in weights:
        if weight.data_ptr() != at or not weight.is_contiguous():
            break
        at += weight.nbytes
    else:
        if first.untyped_storage().data_ptr() + first.untyped_storage().nbytes() >= at:
            return first.data.as_strided((rows, first.shape[1]), (first.shape[1], 1))
    # a model that is trained later must not be left with inference tensors
    with torch.inference_mode(False), torch.no_grad():
        matrix = torch.cat([weight.data for weight in weights])
        views = torch.split(matrix, [len(weight) for weight in weights])
        for weight, view in zip(weights, views, strict=True):
            weight.data = view
    return matrix


def _joinable(parts: Sequence[Any]) -> bool:
    """Whether `parts` are plain linear layers without bias or hooks, with inputs of one width."""
    return (
        all(
            type(part) is nn.Linear and part.bias is None and not part._forward_hooks and not part._forward_pre_hooks
            for part in parts
        )
        and len({part.in_features for part in parts}) == 1
    )


def _join(parts: Sequence[Any]) -> None:
    """Let the first of `parts` that sees an input compute the outputs of all, and the others pass theirs on."""
    matrix = _joined(parts)
    sizes = [part.out_features for part in parts]
    # several threads may run the model at once
    seen = threading.local()

    def make(number: int) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if getattr(seen, "input", None) is not x:
                seen.input = x
                seen.outputs = torch.split(nn.functional.linear(x, matrix), sizes, dim=-1)
            result: Tensor = seen.outputs[number]
            if number == len(sizes) - 1:
                seen.input = seen.outputs = None
            return result

        return forward

    for number, part in enumerate(parts):
        part.forward = make(number)


def _mlp_forward(module: Any, tanh: bool) -> Callable[[Tensor], Tensor]:
    down, activation, width = module.down_proj, module.act_fn, module.gate_proj.out_features
    matrix = _joined((module.gate_proj, module.up_proj))

    def forward(x: Tensor) -> Tensor:
        both = nn.functional.linear(x, matrix).view(-1, 2 * width)
        hidden, other = both[:, :width], both[:, width:]
        hidden = _gelu_tanh_gate(hidden, other) if tanh else activation(hidden).mul_(other)
        result: Tensor = down(hidden).view(*x.shape[:-1], -1)
        return result

    return forward


def _mlp_maker(module: Any) -> _Maker | None:
    """Return what makes the fused forward of a gated MLP ``down(act(gate(x)) * up(x))``, else None."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(map(_joinable, ([parts[0]], parts[:2], [parts[2]]))) or not hasattr(module, "act_fn"):
        return None
    tanh = _is_gelu_tanh(module.act_fn)
    x = _random(2, 3, module.gate_proj.in_features)
    if _same(_mlp_forward(module, tanh)(x), module(x)):
        return lambda module: _mlp_forward(module, tanh)
    return None


def _rotary_namespace(module: nn.Module) -> dict[str, Any] | None:
    """Return the namespace whose `apply_rotary_pos_emb` the module calls, if `_rotate` equals it."""
    namespace = vars(sys.modules[type(module).__module__])
    function = namespace.get("apply_rotary_pos_emb")
    if function is None or "apply_rotary_pos_emb" not in type(module).forward.__code__.co_names:
        return None
    if tuple(inspect.signature(function).parameters) != ("q", "k", "cos", "sin", "unsqueeze_dim"):
        return None
    q, k, angle = _random(2, 4, 3, 8), _random(2, 1, 3, 8), _random(2, 3, 4)
    cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
    with contextlib.suppress(RuntimeError):
        # a function that also turns a part of each head only is not this one
        function(q, k, cos[..., :4], sin[..., :4])
        return None
    pairs = zip(_rotate(q, k, cos, sin), function(q, k, cos, sin), strict=True)
    return namespace if all(_same(found, expected) for found, expected in pairs) else None


@dataclass
class Tried:
    """What trials found, by class of module, for models whose modules of a class differ in their weights only."""

    makers: dict[type[nn.Module], _Maker | None] = field(default_factory=dict)
    rotary: dict[type[nn.Module], dict[str, Any] | None] = field(default_factory=dict)


@contextlib.contextmanager
def fused_forward(model: nn.Module, tried: Tried | None = None) -> Iterator[dict[str, int]]:
    """Run `model` with fused norms, gates and rotary embedding inside the block.

    Parameters
    ----------
    model
        Any transformers decoder, in evaluation mode.
    tried
        Trials to use and to add to, for a model that comes block by block.

    Yields
    ------
    dict
        Kind (`norm`, `mlp`, `rotary`) -> number of modules replaced; empty unless the model is
        float32 on a CPU.
    """
    parameter = next(model.parameters())
    # the weights of the replaced modules must stay where they are inside the block, not what they are
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or model.training:
        yield {}
        return
    replaced: list[nn.Module] = []
    namespaces: list[tuple[dict[str, Any], Any]] = []
    counts = {"norm": 0, "mlp": 0, "rotary": 0}
    # tried once a class, on its first module: a model's layers differ in their weights only
    tried = tried or Tried()
    makers, rotary = tried.makers, tried.rotary
    try:
        with torch.inference_mode():
            for module in model.modules():
                kind = type(module)
                # hooks and wrapped forwards belong to someone else
                if "forward" in vars(module):
                    continue
                if kind.__name__.endswith("RMSNorm") or hasattr(module, "gate_proj"):
                    is_norm = not hasattr(module, "gate_proj")
                    # some decoders have norms of one class with and without a weight
                    if is_norm and getattr(module, "weight", None) is None:
                        continue
                    if kind not in makers:
                        makers[kind] = _norm_maker(module) if is_norm else _mlp_maker(module)
                    maker = makers[kind]
                    if maker is not None:
                        module.forward = maker(module)
                        replaced.append(module)
                        counts["norm" if is_norm else "mlp"] += 1
                elif kind.__name__.endswith("Attention"):
                    parts: list[Any] = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj")]
                    if _joinable(parts):
                        _join(parts)
                        replaced.extend(parts)
                    if kind not in rotary:
                        rotary[kind] = _rotary_namespace(module)
                    namespace = rotary[kind]
                    if namespace is not None:
                        counts["rotary"] += 1
                        if all(namespace is not known for known, _ in namespaces):
                            namespaces.append((namespace, namespace["apply_rotary_pos_emb"]))
            for namespace, _ in namespaces:
                namespace["apply_rotary_pos_emb"] = _rotate
        yield counts
    finally:
        for module in replaced:
            del module.forward
        for namespace, function in namespaces:
            namespace["apply_rotary_pos_emb"] = function
