"""Small models for the tests of the audit, and a way to run it."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import build_tiny

# few sentences and draws: what is tested is the tool, not the statistics
FEW = ["--n-targets", "3", "--n-attributes", "12", "--n-anchors", "40", "--n-control", "3"]
EXACT = ["--dtype", "float32", "--device", "cpu"]
RANK = 2


def build(folder: Path, family: str = "llama", seed: int = 0) -> Path:
    """Write a tiny checkpoint."""
    return build_tiny(family, folder, seed)


def changed(source: Path, target: Path, scale: float, seed: int = 1) -> Path:
    """Copy a checkpoint with noise on every weight."""
    shutil.copytree(source, target)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(target / "model.safetensors")
    noisy = {
        name: value + scale * value.abs().mean() * torch.randn(value.shape, generator=generator)
        for name, value in tensors.items()
    }
    save_file(noisy, target / "model.safetensors", metadata={"format": "pt"})
    return target


def adapter(base: Path, target: Path, seed: int = 0, size: float = 0.1, named: str | None = None) -> Path:
    """Write a LoRA adapter on all query projections of a checkpoint."""
    target.mkdir(parents=True)
    random = np.random.default_rng(seed)
    tensors = {}
    for name, value in load_file(base / "model.safetensors").items():
        if name.endswith("q_proj.weight"):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            rows, columns = value.shape
            for part, shape in (("lora_A", (RANK, columns)), ("lora_B", (rows, RANK))):
                matrix = torch.tensor(size * random.standard_normal(shape), dtype=torch.float32)
                tensors[f"{module}.{part}.weight"] = matrix
    save_file(tensors, target / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "bias": "none",
        "target_modules": ["q_proj"],
        "base_model_name_or_path": base.name if named is None else named,
    }
    (target / "adapter_config.json").write_text(json.dumps(config))
    return target


def with_change(base: Path, adapters: list[tuple[float, Path]], target: Path) -> Path:
    """Copy a checkpoint with adapters' changes added to its weights, by their definition (alpha / r) B A."""
    shutil.copytree(base, target)
    tensors = load_file(target / "model.safetensors")
    for share, folder in adapters:
        parts = load_file(folder / "adapter_model.safetensors")
        for name in [key for key in parts if key.endswith("lora_A.weight")]:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            change = 2.0 * parts[name.replace("lora_A", "lora_B")] @ parts[name]
            tensors[f"{module}.weight"] = tensors[f"{module}.weight"] + share * change
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def with_sum(terms: list[tuple[float, Path]], target: Path) -> Path:
    """Write the weighted sum of checkpoints, tensor by tensor."""
    shutil.copytree(terms[0][1], target)
    parts = [(share, load_file(folder / "model.safetensors")) for share, folder in terms]
    tensors = {name: sum(share * part[name] for share, part in parts) for name in parts[0][1]}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shifts(folder: Path, checkpoint: int = 0) -> dict[str, float]:
    """Return dB by group of a written audit."""
    data = json.loads((folder / "audit.json").read_text())
    return {row["group"]: row["delta_b"] for row in data["checkpoints"][checkpoint]["groups"]}


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a file system that is soon full; skips the test where that is not permitted."""
    place.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs is not permitted here: another test simulates the full disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
