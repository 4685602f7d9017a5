"""The spectrum: exact at its ends, mergekit's numbers in between, linear in the change of weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.artifacts import sha256_file
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_lm
from refbias.models.adapter import read_adapter
from refbias.spectrum import check_endpoints, combined_adapter, load_merged_into, merge_full, merge_lora, merged_tensor
from tests.tiny import BOS, FAMILIES, build_tiny

WEIGHTS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
IDS = torch.tensor([[BOS, 40, 51, 62, 73, 84]])
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("ends")
    return {
        family: (build_tiny(family, root / family / "u", seed=1), build_tiny(family, root / family / "h", seed=2))
        for family in FAMILIES
    }


def _adapter(base: Path, out: Path, seed: int, rank: int, **options: Any) -> Path:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    targets = ["q_proj", "v_proj", "down_proj"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank + 1, target_modules=targets, **options)
    model = get_peft_model(load_lm(base, dtype=torch.float32), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def adapters(ends: dict[str, Pair], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    root = tmp_path_factory.mktemp("adapters")
    base = ends["gemma3_text"][0]
    return base, _adapter(base, root / "u", 1, 4), _adapter(base, root / "h", 2, 6, rank_pattern={"v_proj": 2})


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def _hash(path: Path) -> str:
    return sha256_file(path / "model.safetensors")


def _cast(source: Path, target: Path, dtype: torch.dtype) -> Path:
    shutil.copytree(source, target)
    save_file({k: t.to(dtype) for k, t in _tensors(source).items()}, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text"])
def test_merge_is_bit_equal_at_the_ends_and_to_the_memory_path_between(
    ends: dict[str, Pair], tmp_path: Path, family: str
) -> None:
    first, second = (_tensors(path) for path in ends[family])
    for weight in WEIGHTS:
        out = tmp_path / str(weight)
        merge_full(*ends[family], weight, out)
        merged = _tensors(out)
        assert set(merged) == set(first)
        for name, tensor in merged.items():
            assert torch.equal(tensor, merged_tensor(first[name], second[name], weight)), name
            wide = first[name].double() * (1 - weight) + second[name].double() * weight
            assert torch.allclose(tensor.double(), wide, rtol=0, atol=1e-6), name
            if weight in (0, 1):
                assert torch.equal(tensor, (second if weight else first)[name])
    for weight, end in ((0.0, 0), (1.0, 1)):
        assert _hash(tmp_path / str(weight)) == _hash(ends[family][end])


def test_merge_of_bf16_endpoints_is_computed_in_fp32(ends: dict[str, Pair], tmp_path: Path) -> None:
    pair = [_cast(path, tmp_path / path.name, torch.bfloat16) for path in ends["llama"]]
    merge_full(pair[0], pair[1], 0.3, tmp_path / "m")
    merge_full(pair[0], pair[1], 0.3, tmp_path / "wide", "float32")
    first, second, merged, wide = (_tensors(path) for path in (*pair, tmp_path / "m", tmp_path / "wide"))
    for name, tensor in merged.items():
        exact = first[name].float() * 0.7 + second[name].float() * 0.3
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, merged_tensor(first[name], second[name], 0.3))
        assert torch.allclose(wide[name], exact, rtol=5e-7, atol=1e-8)
        assert torch.equal(wide[name].to(torch.bfloat16), tensor)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_checkpoint_loads_tied_and_equals_the_model_merged_in_memory(
    ends: dict[str, Pair], tmp_path: Path, family: str
) -> None:
    merge_full(*ends[family], 0.3, tmp_path)
    stored = load_lm(tmp_path, dtype=torch.float32)
    tied = stored.get_output_embeddings().weight is stored.get_input_embeddings().weight
    assert tied == family.startswith("gemma")
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["model.safetensors"]
    assert (tmp_path / "tokenizer.json").read_bytes() == (ends[family][0] / "tokenizer.json").read_bytes()
    points = [Checkpoint(path) for path in ends[family]]
    for load in (load_lm, load_base):
        model = load(ends[family][0], dtype=torch.float32)
        for weight in (0.7, 0.3):
            load_merged_into(model, points[0], points[1], weight)
        wanted = stored if load is load_lm else stored.base_model
        assert torch.equal(model(input_ids=IDS)[0], wanted(input_ids=IDS)[0])


def test_bf16_model_merged_in_memory_equals_the_stored_one(ends: dict[str, Pair], tmp_path: Path) -> None:
    for dtype in ("endpoint", "bfloat16"):
        merge_full(*ends["gemma3_text"], 0.9, tmp_path / dtype, dtype)
        wanted = load_lm(tmp_path / dtype, dtype=torch.bfloat16)(input_ids=IDS).logits
        model = load_lm(ends["gemma3_text"][1], dtype=torch.bfloat16)
        load_merged_into(model, *(Checkpoint(path) for path in ends["gemma3_text"]), 0.9, dtype)
        assert torch.equal(model(input_ids=IDS).logits, wanted)


def test_sharded_endpoints_give_one_file(ends: dict[str, Pair], tmp_path: Path) -> None:
    sharded = tmp_path / "s"
    shutil.copytree(ends["llama"][0], sharded)
    (sharded / "model.safetensors").unlink()
    load_lm(ends["llama"][0], dtype=torch.float32).save_pretrained(sharded, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    merge_full(sharded, ends["llama"][1], 0.3, tmp_path / "m")
    merge_full(*ends["llama"], 0.3, tmp_path / "n")
    assert _hash(tmp_path / "m") == _hash(tmp_path / "n")
    merge_full(sharded, ends["llama"][1], 0.0, tmp_path / "o")
    wanted = _tensors(ends["llama"][0])
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in _tensors(tmp_path / "o").items())


def _edit(source: Path, target: Path, change: Any) -> Path:
    shutil.copytree(source, target)
    tensors = _tensors(source)
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def test_endpoints_that_do_not_match_are_refused_before_writing(ends: dict[str, Pair], tmp_path: Path) -> None:
    first, second = ends["llama"]
    embed, norm = "model.embed_tokens.weight", "model.norm.weight"
    wide = _edit(second, tmp_path / "wide", lambda t: t.update({embed: torch.zeros(330, 32)}))
    lacking = _edit(second, tmp_path / "lacking", lambda t: t.pop(norm))
    half = _edit(second, tmp_path / "half", lambda t: t.update({norm: t[norm].bfloat16()}))
    cases = ((wide, (embed, "(320, 32)", "(330, 32)")), (lacking, (norm, "lacking")), (half, (norm, "BF16", "F32")))
    for other, words in cases:
        with pytest.raises(UserError) as caught:
            merge_full(first, other, 0.5, tmp_path / "out")
        assert all(word in str(caught.value) for word in words)
        assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="between 0 and 1"):
        merge_full(first, second, 1.5, tmp_path / "out")


def test_stored_copy_of_a_tied_output_layer_is_no_mismatch(ends: dict[str, Pair], tmp_path: Path) -> None:
    first, second = ends["gemma3_text"]
    copy = _edit(second, tmp_path / "c", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    check_endpoints(first, copy)
    merge_full(first, copy, 0.5, tmp_path / "m")
    merge_full(first, second, 0.5, tmp_path / "n")
    logits = [load_lm(tmp_path / name, dtype=torch.float32)(input_ids=IDS).logits for name in ("m", "n")]
    assert torch.equal(logits[0], logits[1])


def test_lora_merge_is_the_weighted_sum_of_the_changes(adapters: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, first, second = adapters
    changes = [read_adapter(path) for path in (first, second)]
    for weight in WEIGHTS[1:-1]:
        merge_lora(first, second, weight, tmp_path / str(weight))
        merged = read_adapter(tmp_path / str(weight))
        assert set(merged.pairs) == set(changes[0].pairs)
        for name in merged.pairs:
            deltas = [change.delta(name, torch.float64) for change in changes]
            wanted = (1 - weight) * deltas[0] + weight * deltas[1]
            error = torch.linalg.norm(merged.delta(name, torch.float64) - wanted)
            assert error <= 1e-6 * torch.linalg.norm(wanted)
            # and not what averaging A and B apart would give
            pairs = [[tensor.double() for tensor in change.pairs[name]] for change in changes]
            if pairs[0][0].shape == pairs[1][0].shape:
                apart = [(1 - weight) * x + weight * y for x, y in zip(*pairs, strict=True)]
                assert torch.linalg.norm(apart[1] @ apart[0] - wanted) > 1e-2 * torch.linalg.norm(wanted)


def test_lora_merge_at_the_ends_is_the_endpoint(adapters: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, first, second = adapters
    for weight, end in ((0.0, first), (1.0, second)):
        out = tmp_path / str(weight)
        merge_lora(first, second, weight, out)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            assert (out / name).read_bytes() == (end / name).read_bytes()


def test_merged_adapter_is_one_that_peft_applies(adapters: tuple[Path, Path, Path], tmp_path: Path) -> None:
    from peft import PeftModel

    base, first, second = adapters
    merge_lora(first, second, 0.3, tmp_path)
    applied = PeftModel.from_pretrained(load_lm(base, dtype=torch.float32), tmp_path).eval()
    ours = load_lm(base, tmp_path, dtype=torch.float32)
    assert torch.allclose(applied(input_ids=IDS).logits, ours(input_ids=IDS).logits, atol=1e-4)


def test_lora_spectrum_in_memory_equals_the_stored_one(adapters: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, first, second = adapters
    points = (Checkpoint(base, first), Checkpoint(base, second))
    for dtype in (torch.float32, torch.bfloat16):
        model = load_base(base, dtype=dtype)
        for weight in (1.0, 0.3, 0.0):
            merge_lora(first, second, weight, tmp_path / str(weight))
            load_merged_into(model, points[0], points[1], weight)
            wanted = load_base(base, tmp_path / str(weight), dtype=dtype)
            assert torch.equal(model(input_ids=IDS).last_hidden_state, wanted(input_ids=IDS).last_hidden_state)


def test_adapters_of_other_modules_or_models_are_refused(
    adapters: tuple[Path, Path, Path], ends: dict[str, Pair], tmp_path: Path
) -> None:
    _, first, _ = adapters
    other = _adapter(ends["llama"][0], tmp_path / "o", 3, 4)
    with pytest.raises(UserError, match=r"module 'model\.layers\.0\.\S+': changes of"):
        merge_lora(first, other, 0.5, tmp_path / "out")
    partial = read_adapter(first)
    fewer = type(partial)(partial.config, dict(list(partial.pairs.items())[1:]), partial.scales)
    with pytest.raises(UserError, match="in one endpoint only"):
        combined_adapter(partial, fewer, 0.5)
    assert not (tmp_path / "out").exists()
