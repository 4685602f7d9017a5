"""The same numbers with fewer passes over memory: fused element-wise steps for CPU inference.

On a CPU a decoder spends up to half of a forward pass outside its matrix products: norms, rotary
embedding and gating each read and write their activations several times. `fused_forward`
replaces those steps, for the length of a block, in modules whose own output it reproduces: a
replacement is tried on random numbers against the module's forward first and left out where
they differ, so an unknown architecture keeps its own code. Only float32 on a CPU is touched.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

TOLERANCE = 2e-6
"""Largest relative difference at which a replacement counts as the same function."""

_TILE = 1 << 16  # elements of a tile a thread: 256 kB in float32, so that three fit a core's L2 cache
_GELU_LINEAR = 2 * 0.7978845608028654  # 2 sqrt(2 / pi)
_GELU_CUBIC = _GELU_LINEAR * 0.044715


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    scale: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).mul_(weight)


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
    """Return ``gelu_tanh(gate) * up``, written into `gate`; by tiles, so that the passes meet in cache."""
    width = gate.shape[-1]
    rows, other = gate.view(-1, width), up.view(-1, width)
    height = max(1, _TILE * torch.get_num_threads() // width)
    linear = torch.tensor(-_GELU_LINEAR)
    for start in range(0, len(rows), height):
        x = rows[start : start + height]
        # gelu_tanh(x) = x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)); exp may reach inf, x / inf is 0
        t = torch.addcmul(linear, x, x, value=-_GELU_CUBIC)
        t.mul_(x).exp_().add_(1.0)
        x.div_(t).mul_(other[start : start + height])
    return gate


def _same(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or not bool(torch.isfinite(expected).all()):
        return False
    scale = float(expected.abs().max()) or 1.0
    return float((found - expected).abs().max()) <= TOLERANCE * scale


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _norm_forward(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return a fused forward for an RMS norm (weight w, or 1 + w as in Gemma), else None."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    parameters = list(module.parameters())
    if not isinstance(eps, float) or weight is None or len(parameters) != 1 or weight.dim() != 1:
        return None
    x = _random(3, len(weight))
    expected = module(x)
    # the weight is read at each call: a spectrum's checkpoints replace it in place
    if _same(_rms_norm(x, weight, eps), expected):
        return lambda x: _rms_norm(x, weight, eps)
    if _same(_rms_norm(x, 1.0 + weight, eps), expected):
        return lambda x: _rms_norm(x, 1.0 + weight, eps)
    return None


def _is_gelu_tanh(activation: Callable[[Tensor], Tensor]) -> bool:
    x = torch.linspace(-8, 8, 257)
    try:
        found = activation(x)
    except (TypeError, RuntimeError):
        return False
    return bool(torch.equal(found, nn.functional.gelu(x, approximate="tanh")))


def _mlp_forward(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return a fused forward for a gated MLP ``down(act(gate(x)) * up(x))``, else None."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    linear = [part for part in parts if isinstance(part, nn.Linear)]
    if activation is None or len(linear) != len(parts):
        return None
    gate, up, down = linear
    tanh = _is_gelu_tanh(activation)

    def forward(x: Tensor) -> Tensor:
        hidden, other = gate(x), up(x)
        hidden = _gelu_tanh_gate(hidden, other) if tanh else activation(hidden).mul_(other)
        result: Tensor = down(hidden)
        return result

    x = _random(2, 3, gate.in_features)
    return forward if _same(forward(x), module(x)) else None


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
    pairs = zip(_rotate(q, k, cos, sin), function(q, k, cos, sin), strict=True)
    return namespace if all(_same(found, expected) for found, expected in pairs) else None


@contextlib.contextmanager
def fused_forward(model: nn.Module) -> Iterator[dict[str, int]]:
    """Run `model` with fused norms, gates and rotary embedding inside the block.

    Parameters
    ----------
    model
        Any transformers decoder, in evaluation mode.

    Yields
    ------
    dict
        Kind (`norm`, `mlp`, `rotary`) -> number of modules replaced; empty unless the model is
        float32 on a CPU.
    """
    parameter = next(model.parameters())
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu" or model.training:
        yield {}
        return
    replaced: list[nn.Module] = []
    namespaces: list[tuple[dict[str, Any], Any]] = []
    counts = {"norm": 0, "mlp": 0, "rotary": 0}
    unknown: set[type[nn.Module]] = set()
    try:
        with torch.inference_mode():
            for module in model.modules():
                kind = type(module)
                # hooks and wrapped forwards belong to someone else
                if kind in unknown or "forward" in vars(module):
                    continue
                norm = _norm_forward(module) if kind.__name__.endswith("RMSNorm") else None
                forward = norm or (_mlp_forward(module) if hasattr(module, "gate_proj") else None)
                if forward is not None:
                    module.forward = forward
                    replaced.append(module)
                    counts["norm" if norm else "mlp"] += 1
                elif kind.__name__.endswith("Attention"):
                    namespace = _rotary_namespace(module)
                    if namespace is None:
                        unknown.add(kind)
                        continue
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
