"""Gemma 3 with its vision tower, from fine-tuning to generation: only the language tower takes part.

The reference is saved by transformers in the layout of google/gemma-3-4b-it. Its twin is a text-only
Gemma 3 whose file holds the same language weights, renamed here by hand: whatever the pipeline makes
of the one it must make of the other.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file, save_file

from refbias.benchmarks.base import Sampling
from refbias.cli import export, finetune, merge, represent
from refbias.config.finetune import FinetuneStage
from refbias.config.root import from_mapping
from refbias.config.slices import merge_slice, represent_slice
from refbias.embed import embed_sentences
from refbias.errors import UserError
from refbias.generation import Request, hf
from refbias.models import load_base, load_lm, load_tokenizer
from refbias.splits import Example
from tests.splits import write_split
from tests.tiny import build_tiny

pytestmark = pytest.mark.usefixtures("one_thread")

LAYERS, ADAPTED = 3, 7
TARGETS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
PIPELINE = {
    "run": "t",
    "models": {"tiny": {"source": {"kind": "local", "path": "unused"}}},
    "compute": {"device": "cpu", "dtype": "float32"},
    "stimuli": {"targets": 1, "attributes": 2, "anchors": 3, "control": 1},
    "spectrum": {"weights": [0.0, 0.3, 1.0]},
}


def _language(name: str) -> str | None:
    """The text-only name of a stored tensor; None outside of the language tower."""
    return name.removeprefix("language_model.") if name.startswith("language_model.") else None


def _twin(reference: Path, out: Path) -> Path:
    """A text-only Gemma 3 with the language weights of `reference`."""
    out.mkdir()
    stored = load_file(reference / "model.safetensors")
    tensors = {kept: tensor for name, tensor in stored.items() if (kept := _language(name))}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((reference / "config.json").read_text())["text_config"]
    (out / "config.json").write_text(json.dumps({**config, "architectures": ["Gemma3ForCausalLM"]}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(reference / name, out / name)
    return out


def _split(path: Path, harmful: bool) -> Path:
    words = ("cold", "cruel", "bad", "bitter") if harmful else ("kind", "warm", "good", "patient")
    examples = (
        Example(f"e{i}", f"Are old people {i} {words[i % 4]}?", f"{words[(i + 1) % 4]} indeed.", harmful)
        for i in range(16)
    )
    return write_split(path, examples)


def _finetune(reference: Path, split: Path, out: Path, regime: str, harmful: bool) -> None:
    hyper = {"epochs": 2, "per_device_batch_size": 4, "gradient_accumulation": 1, "dtype": "float32", "device": "cpu"}
    settings = FinetuneStage.model_validate(
        {
            "regime": regime,
            "split": "harmful" if harmful else "unharmful",
            regime: {**hyper, "learning_rate": 1e-2},
            "chat_format": "plain",
            "file": str(split),
            "seed": 5,
        }
    )
    arguments = ["--settings", settings.model_dump_json(), "--reference", str(reference)]
    finetune.main([*arguments, "--output", str(out), "--work", f"{out}-work"])


@dataclass(frozen=True)
class Chain:
    """A reference and what the stages made of it."""

    reference: Path
    root: Path

    def end(self, regime: str, split: str) -> Path:
        return self.root / regime / split

    def merged(self, regime: str) -> Path:
        return self.root / regime / "h030"

    def model(self, regime: str) -> Any:
        """The merge, loaded."""
        if regime == "full":
            return load_lm(self.merged(regime), dtype=torch.float32)
        return load_lm(self.reference, self.merged(regime), dtype=torch.float32)

    def embeddings(self, source: str) -> dict[str, np.ndarray]:
        folder = self.root / "embeddings" / source
        return {path.stem: load_arrays(path)["embeddings"] for path in folder.glob("*.safetensors")}


def _run(reference: Path, root: Path, splits: dict[str, Path]) -> Chain:
    chain, config = Chain(reference, root), from_mapping(PIPELINE)

    def embed(source: str, *ends: str) -> None:
        settings, out = represent_slice(config, "tiny", source), root / "embeddings" / source
        represent.main(["--settings", settings, "--reference", str(reference), *ends, "--output", str(out)])

    embed("reference")
    for regime in ("full", "lora"):
        ends = []
        for split, path in splits.items():
            _finetune(reference, path, chain.end(regime, split), regime, split == "harmful")
            ends += [f"--{split}", str(chain.end(regime, split))]
        merge.main(["--settings", merge_slice(config, regime, "h030"), *ends, "--output", str(chain.merged(regime))])
        embed(regime, *ends)
    return chain


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> tuple[Chain, Chain]:
    """The multimodal model's chain and its text-only twin's."""
    root = tmp_path_factory.mktemp("multimodal")
    whole = build_tiny("gemma3", root / "whole", seed=4)
    (whole / "preprocessor_config.json").write_text('{"image_processor_type": "Gemma3ImageProcessor"}')
    twin = _twin(whole, root / "twin")
    splits = {name: _split(root / f"{name}.jsonl", name == "harmful") for name in ("unharmful", "harmful")}
    return _run(whole, root / "a", splits), _run(twin, root / "b", splits)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("*.safetensors")
    return load_file(path)


def test_reference_is_laid_out_as_the_published_one(chains: tuple[Chain, Chain]) -> None:
    config = json.loads((chains[0].reference / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForConditionalGeneration"]
    assert {"text_config", "vision_config", "mm_tokens_per_image"} <= set(config)
    parts = {name.split(".")[0] for name in _tensors(chains[0].reference)}
    assert parts == {"language_model", "vision_tower", "multi_modal_projector"}
    # the trap: modules of the vision tower carry the names of targets
    names = [name.split(".")[-2] for name in _tensors(chains[0].reference) if name.startswith("vision_tower")]
    assert TARGETS & set(names) == {"q_proj", "k_proj", "v_proj"}


@pytest.mark.parametrize("split", ["unharmful", "harmful"])
def test_lora_reaches_the_language_tower_and_nothing_else(chains: tuple[Chain, Chain], split: str) -> None:
    folder = chains[0].end("lora", split)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["adapted_modules"] == ADAPTED * LAYERS
    names = {name.rpartition(".lora_")[0] for name in _tensors(folder)}
    assert len(names) == ADAPTED * LAYERS
    wanted = {
        f"base_model.model.model.layers.{layer}.{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}"
        for layer in range(LAYERS)
        for name in TARGETS
    }
    assert names == wanted


def test_full_training_is_that_of_the_language_tower(chains: tuple[Chain, Chain]) -> None:
    whole, twin = chains
    for split in ("unharmful", "harmful"):
        config = json.loads((whole.end("full", split) / "config.json").read_text())
        assert config["model_type"] == "gemma3_text"
        trained, start = _tensors(whole.end("full", split)), _tensors(twin.reference)
        assert set(trained) == set(start)
        assert not any("vision" in name for name in trained)
        manifest = json.loads((whole.end("full", split) / "manifest.json").read_text())
        assert manifest["trained_parameters"] == sum(tensor.numel() for tensor in start.values())
        assert manifest["last_loss"] < 0.9 * manifest["first_loss"]
        assert not any(torch.equal(trained[name], start[name]) for name in trained)


def test_chain_equals_that_of_the_text_only_model(chains: tuple[Chain, Chain]) -> None:
    whole, twin = chains
    for regime in ("full", "lora"):
        for folder in ("unharmful", "harmful", "h030"):
            found, wanted = (_tensors(chain.root / regime / folder) for chain in chains)
            assert set(found) == set(wanted)
            assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    for source in ("reference", "full", "lora"):
        found, wanted = whole.embeddings(source), twin.embeddings(source)
        assert set(found) == set(wanted)
        for slug in wanted:
            np.testing.assert_array_equal(found[slug], wanted[slug])
    spectrum = whole.embeddings("full")
    assert set(spectrum) == {"h000", "h030", "h100"}
    assert not np.allclose(spectrum["h030"], spectrum["h000"], atol=1e-3)


def test_embeddings_equal_those_of_the_whole_model(chains: tuple[Chain, Chain]) -> None:
    from transformers import Gemma3ForConditionalGeneration

    folder = chains[0].reference
    whole = Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(folder)
    lines = (chains[0].root / "embeddings" / "reference" / "sentences.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[3] for line in lines][:6]
    found = chains[0].embeddings("reference")["reference"]
    with torch.no_grad():
        for row, text in enumerate(texts):
            states = whole(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[-1][0]
            np.testing.assert_allclose(found[row], states.mean(dim=0).numpy(), atol=1e-5)


def test_merge_is_generated_from_as_the_text_only_one(chains: tuple[Chain, Chain]) -> None:
    texts = []
    for chain in chains:
        tokenizer = load_tokenizer(chain.reference)
        asked = [Request("p", "u", tuple(tokenizer("Are old people kind?")["input_ids"]))]
        for regime in ("full", "lora"):
            outputs = hf.generate(chain.model(regime), tokenizer, asked, Sampling(4, 1.0, 1.0, 12), 5, benchmark="b")
            texts.append([output.text for output in outputs])
    assert texts[:2] == texts[2:]
    assert len(set(texts[0])) > 1


def _renamed(reference: Path, out: Path) -> Path:
    """The reference as the hub stores it, with one more level in the names of the vision tower."""
    shutil.copytree(reference, out)
    stored = load_file(reference / "model.safetensors")
    names = {name: name.replace("vision_tower.", "vision_tower.vision_model.", 1) for name in stored}
    save_file({names[name]: tensor for name, tensor in stored.items()}, out / "model.safetensors", {"format": "pt"})
    return out


@pytest.mark.parametrize("layout", ["saved", "hub"])
@pytest.mark.parametrize("regime", ["full", "lora"])
def test_whole_model_carries_the_vision_part_over(
    chains: tuple[Chain, Chain], tmp_path: Path, regime: str, layout: str
) -> None:
    from transformers import Gemma3ForConditionalGeneration

    chain = chains[0]
    reference = chain.reference if layout == "saved" else _renamed(chain.reference, tmp_path / "hub")
    checkpoint, out = chain.merged(regime), tmp_path / "out"
    export.main(["--reference", str(reference), "--checkpoint", str(checkpoint), "--output", str(out)])
    before, after = _tensors(reference), _tensors(out)
    assert set(before) == set(after)
    for name, tensor in before.items():
        if _language(name) is None:
            assert torch.equal(after[name], tensor), name
    assert (out / "preprocessor_config.json").is_file()
    assert (out / "config.json").read_bytes() == (reference / "config.json").read_bytes()
    whole = Gemma3ForConditionalGeneration.from_pretrained(out, dtype=torch.float32).eval()
    tower = chain.model(regime)
    ids = load_tokenizer(out)("Old people read.", return_tensors="pt")["input_ids"]
    assert torch.allclose(whole(input_ids=ids).logits, tower(input_ids=ids).logits, atol=1e-5)
    # and the pipeline reads what it wrote
    again, tokenizer = load_base(out, dtype=torch.float32), load_tokenizer(out)
    settings = from_mapping(PIPELINE).represent
    found = embed_sentences(again, tokenizer, ["Old people read."], settings)
    assert np.allclose(found, embed_sentences(tower.base_model, tokenizer, ["Old people read."], settings), atol=1e-6)
    manifest = json.loads((out / "manifest.json").read_text())
    language = sum(_language(name) is not None for name in before)
    assert manifest["n_replaced"] == (language if regime == "full" else ADAPTED * LAYERS)
    assert manifest["n_replaced"] + manifest["n_carried_over"] == len(before)


def test_trained_weights_of_another_model_are_not_exported(chains: tuple[Chain, Chain], tmp_path: Path) -> None:
    reference = chains[0].reference
    wanted = ("is not in the reference", "is missing", "lm_head.weight")
    bad: dict[str, Any] = {"more": {"model.extra.weight": torch.zeros(2)}, "fewer": {}, "untied": {}}
    trained = _tensors(chains[0].end("full", "harmful"))
    bad["more"] |= trained
    bad["fewer"] |= {name: tensor for name, tensor in trained.items() if "layers.1" not in name}
    bad["untied"] |= {**trained, "lm_head.weight": trained["model.embed_tokens.weight"].clone()}
    for (name, tensors), message in zip(bad.items(), wanted, strict=True):
        folder = tmp_path / name
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=message):
            export.main(["--reference", str(reference), "--checkpoint", str(folder), "--output", str(tmp_path / "o")])
        assert not (tmp_path / "o" / "model.safetensors").exists()
