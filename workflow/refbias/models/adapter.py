"""LoRA adapters as what they are: a change of weights per module, ``dW = scale * B A``.

Adapters are read straight from their safetensors file, so that a change of weights can be added
to a base, or to another adapter's, in the precision that is asked for.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import read_json
from refbias.errors import UserError

if TYPE_CHECKING:
    import torch

_PREFIX = "base_model.model."
# keys of adapter_config.json that would make the change of weights something else than scale * B A
_PLAIN = ("use_dora", "fan_in_fan_out", "modules_to_save", "trainable_token_indices", "alora_invocation_tokens")


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: its configuration, and per module the pair (A (r, in), B (out, r)) and the scale."""

    config: Mapping[str, Any]
    pairs: Mapping[str, "tuple[torch.Tensor, torch.Tensor]"]
    scales: Mapping[str, float]

    def delta(self, module: str, dtype: "torch.dtype") -> "torch.Tensor":
        """Return the change of weights (out, in) of `module`, computed in `dtype`."""
        a, b = self.pairs[module]
        return (b.to(dtype) @ a.to(dtype)) * self.scales[module]


def _scale(config: Mapping[str, Any], module: str) -> float:
    rank = _pattern(config.get("rank_pattern") or {}, module, config["r"])
    alpha = _pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _pattern(patterns: Mapping[str, Any], module: str, default: float) -> float:
    for key, value in patterns.items():
        # peft's rule: a key matches the whole name or its end after a dot
        if re.match(rf"(.*\.)?({key})$", module):
            return float(value)
    return float(default)


def _check_numbers(config: Mapping[str, Any], place: Path) -> None:
    """Refuse ranks and scales that are no positive numbers, and patterns that could take for ever to match."""

    def is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9

    for key in ("r", "lora_alpha"):
        if not is_number(config.get(key)):
            raise UserError(f"{place}: {key} {config.get(key)!r}: expected a positive number")
    for key in ("rank_pattern", "alpha_pattern"):
        patterns = config.get(key) or {}
        if not isinstance(patterns, Mapping) or not all(map(is_number, patterns.values())):
            raise UserError(f"{place}: {key}: expected a mapping of module names to positive numbers")
        for pattern in patterns:
            if len(pattern) > 256 or re.search(r"\)[*+?{]|(?:[*+?{].*){4}", pattern):
                raise UserError(f"{place}: {key}: pattern {pattern[:60]!r} is not a plain module name")
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"{place}: {key}: pattern {pattern[:60]!r}: {error}") from None


def language_name(name: str) -> str:
    """Return the name that a module or tensor has in the text-only model.

    A multimodal checkpoint calls its language tower ``language_model.model...`` or
    ``model.language_model...``; alone it is ``model...``.
    """
    for prefix in ("language_model.model.", "model.language_model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.") if name.startswith("language_model.lm_head") else name


def read_adapter(directory: Path | str) -> Adapter:
    """Read a PEFT LoRA adapter from its directory.

    Raises
    ------
    UserError
        If a file is missing, if the adapter is not a plain LoRA on linear layers, or if a pair of
        tensors does not fit together; names the file and the tensor.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    directory = Path(directory)
    place = directory / "adapter_config.json"
    config = read_json(place)
    if config.get("peft_type") != "LORA":
        raise UserError(f"{place}: peft_type {config.get('peft_type')!r}: only LORA is read")
    for key in _PLAIN:
        if config.get(key):
            raise UserError(f"{place}: {key} is set: only plain LoRA on linear layers is read")
    _check_numbers(config, place)
    if config.get("bias", "none") != "none":
        raise UserError(f"{place}: bias {config['bias']!r}: train with bias 'none'")
    path = directory / "adapter_model.safetensors"
    if not path.is_file():
        raise UserError(f"{path}: no such file: save the adapter as safetensors")
    found: dict[str, dict[str, torch.Tensor]] = {}
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}): copy it again") from None
    for key, tensor in tensors.items():
        module, _, part = key.removeprefix(_PREFIX).removesuffix(".weight").rpartition(".")
        if part not in ("lora_A", "lora_B"):
            raise UserError(f"{path}: tensor {key!r} is not part of a plain LoRA on linear layers")
        found.setdefault(language_name(module), {})[part] = tensor
    pairs = {}
    for module, parts in sorted(found.items()):
        if set(parts) != {"lora_A", "lora_B"} or parts["lora_A"].shape[0] != parts["lora_B"].shape[1]:
            shapes = {part: tuple(tensor.shape) for part, tensor in parts.items()}
            raise UserError(f"{path}: module {module!r} has no matching pair of A and B: {shapes}")
        pairs[module] = (parts["lora_A"], parts["lora_B"])
    if not pairs:
        raise UserError(f"{path}: holds no adapter")
    return Adapter(config=config, pairs=pairs, scales={module: _scale(config, module) for module in pairs})
