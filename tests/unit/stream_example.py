"""Tiny checkpoints, sentences and streamed passes for the tests of the layer-streamed forward."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, tokenise
from refbias.models import load_base, load_tokenizer
from refbias.stream import StreamResult, Variant, stream_embeddings
from tests.tiny import BOS, FAMILIES, build_tiny
from tests.tiny_decoders import build_decoder

TEXTS = [
    "Old people read.",
    "Muslims walk to the market in the morning and buy bread.",
    "Old people wait.",
    "The teacher praised the young woman for her kind and patient work, and everyone smiled.",
    "A.",
    "Old people read.",
    "Canadians, Americans and Europeans wait for the bus; children play outside.",
]
MORE = ("qwen2", "qwen3")
OTHERS = ("gpt2", "opt", "gpt_neox", "olmo2", "granite", "gemma2", "starcoder2", "phi3")
WEIGHTS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
TINY_BUDGET = RepresentSettings(token_budget=40)


def build(kind: str, folder: Path, seed: int) -> Path:
    """Build a tiny checkpoint of a kind."""
    return build_tiny(kind, folder, seed=seed) if kind in FAMILIES else build_decoder(kind, folder, seed=seed)


def build_pairs(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return two checkpoints of every kind that is common."""
    return {kind: (build(kind, root / kind / "u", 1), build(kind, root / kind / "h", 2)) for kind in (*FAMILIES, *MORE)}


def tokens_of(folder: Path, texts: list[str] = TEXTS) -> Tokenised:
    """Tokenise with a checkpoint's own tokenizer."""
    return tokenise(load_tokenizer(folder), texts)


def streamed(variants: list[Variant], tokens: Tokenised, settings: Any = TINY_BUDGET, **more: Any) -> StreamResult:
    """Stream in float32 by small batches, unless said otherwise."""
    return stream_embeddings(variants, tokens, settings, bos=BOS, **{"dtype": torch.float32, **more})


def adapter(folder: Path, base: Path, seed: int, rank: int, targets: tuple[str, ...]) -> Path:
    """Write a LoRA adapter with random changes of the modules whose names end so."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in load_base(base, dtype=torch.float32).named_modules():
        if name.endswith(targets):
            height, width = module.weight.shape
            stem = f"base_model.model.model.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(rank, width, generator=generator)
            tensors[f"{stem}.lora_B.weight"] = torch.randn(height, rank, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 5, "target_modules": list(targets), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
