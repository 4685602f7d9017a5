"""LoRA spectra: the weighted sum of two low-rank changes of weights, stored exactly as one adapter.

Averaging A and B apart is not linear in the change of weights. The two changes stand side by side
in one adapter of the summed rank instead.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from refbias.artifacts import link_or_copy, write_json
from refbias.errors import UserError
from refbias.models.adapter import Adapter, read_adapter

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def combined_adapter(unharmful: Adapter, harmful: Adapter, weight: float) -> Adapter:
    """Return one adapter whose change of weights is ``(1 - w) dW_unharmful + w dW_harmful``.

    Per module ``A = [A_u; A_h]`` and ``B = [(1 - w) s_u B_u, w s_h B_h]`` with scale 1, in fp32; at
    0 and 1 the endpoint itself.

    Raises
    ------
    UserError
        If the two adapt different modules or matrices of different sizes; names the module.
    """
    for name in sorted(set(unharmful.pairs) ^ set(harmful.pairs)):
        raise UserError(f"module {name!r} is adapted in one endpoint only: use adapters with the same target modules")
    for name, (a, b) in unharmful.pairs.items():
        sizes = [(right.shape[0], left.shape[1]) for left, right in ((a, b), harmful.pairs[name])]
        if sizes[0] != sizes[1]:
            raise UserError(f"module {name!r}: changes of {sizes[0]} and {sizes[1]}: use adapters of one model")
    if weight in (0, 1):
        return harmful if weight else unharmful
    return weighted_adapter([(unharmful, 1 - weight), (harmful, weight)])


def weighted_adapter(parts: Sequence[tuple[Adapter, float]]) -> Adapter:
    """Return one adapter whose change of weights is the weighted sum of the parts' changes.

    Per module ``A = [A_1; A_2; ...]`` and ``B = [w_1 s_1 B_1, w_2 s_2 B_2, ...]`` with scale 1, in
    fp32. A part that does not adapt a module adds nothing to it.

    Raises
    ------
    UserError
        If a module is a matrix of different sizes in two parts; names it.
    """
    pairs = {}
    for name in dict.fromkeys(name for adapter, _ in parts for name in adapter.pairs):
        shapes = {
            tuple(x.shape[d] for x, d in zip(a.pairs[name], (1, 0), strict=True)) for a, _ in parts if name in a.pairs
        }
        if len(shapes) > 1:
            raise UserError(f"module {name!r}: changes of {sorted(shapes)} (in, out): use adapters of one model")
        ((width, height),) = shapes
        padded = [(*_padded(adapter, name, width, height), adapter.scales.get(name, 1.0) * w) for adapter, w in parts]
        downs = [a for a, _, _ in padded]
        ups = [b.double() * scale for _, b, scale in padded]
        pairs[name] = (torch.cat(downs), torch.cat(ups, dim=1).float())
    rank = next(iter(pairs.values()))[0].shape[0]
    config = {
        **parts[0][0].config,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_rslora": False,
        "lora_dropout": 0.0,
        "inference_mode": True,
    }
    return Adapter(config=config, pairs=pairs, scales=dict.fromkeys(pairs, 1.0))


def _padded(adapter: Adapter, name: str, width: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A and B in fp32 with zero rows and columns up to the adapter's largest rank."""
    none = torch.zeros(0, width), torch.zeros(height, 0)
    a, b = (tensor.float() for tensor in adapter.pairs.get(name, none))
    missing = max(pair[0].shape[0] for pair in adapter.pairs.values()) - a.shape[0]
    return torch.nn.functional.pad(a, (0, 0, 0, missing)), torch.nn.functional.pad(b, (0, missing))


def merge_lora(unharmful: Path | str, harmful: Path | str, weight: float, out_dir: Path | str) -> None:
    """Merge two LoRA adapters into `out_dir` as one PEFT adapter; see `combined_adapter`.

    Raises
    ------
    UserError
        If the adapters do not match, or the weight lies outside [0, 1].
    """
    if not 0 <= weight <= 1:
        raise UserError(f"key 'harmful_weight': {weight}: must lie between 0 and 1")
    merged = combined_adapter(read_adapter(unharmful), read_adapter(harmful), weight)
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    if weight in (0, 1):
        for name in ADAPTER_FILES:
            (out_dir / name).unlink(missing_ok=True)
            link_or_copy(Path(harmful if weight else unharmful) / name, out_dir / name)
        return
    tensors = {}
    for name, (a, b) in merged.pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.contiguous()
    partial = out_dir / f".adapter.{os.getpid()}.part"
    save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, out_dir / "adapter_model.safetensors")
    write_json(out_dir / "adapter_config.json", merged.config)
