"""A configuration that says more than the files hold is refused before anything is built from it."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from refbias.audit.embed import architecture
from refbias.errors import UserError
from refbias.models import load_lm
from refbias.models.sizes import stored_layers
from refbias.stream import can_stream
from tests.audit_models import edit_json
from tests.limits import bounded
from tests.tiny import build_tiny
from tests.tiny_decoders import build_decoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    found = {family: build_tiny(family, folder / family) for family in ("llama", "gemma3_text", "gemma3")}
    return found | {kind: build_decoder(kind, folder / kind) for kind in ("gpt2", "mixtral")}


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Stop a test that takes the time or the memory that a configuration asks for."""
    with bounded(seconds=60, memory_mb=4000):
        yield


def copied(source: Path, target: Path, text: bool = False, **changes: Any) -> Path:
    """Copy a checkpoint with keys of its configuration changed; of a multimodal one those of its language tower."""
    shutil.copytree(source, target)
    if text:
        old = json.loads((target / "config.json").read_text())["text_config"]
        changes = {"text_config": {**old, **changes}}
    edit_json(target / "config.json", **changes)
    return target


def test_layers_are_counted_by_names() -> None:
    names = [f"model.layers.{number}.mlp.experts.{expert}.w" for number in (0, 1, 2) for expert in range(8)]
    assert stored_layers([*names, "model.norm.weight", "lm_head.weight"]) == 3
    assert stored_layers(["h.0.attn.weight", "h.1.attn.weight", "wte.weight"]) == 2
    assert stored_layers([]) == 0


LIES = [
    ("llama", {"num_hidden_layers": 5_000_000}, "num_hidden_layers 5000000: at most"),
    ("llama", {"num_hidden_layers": 60_000}, "num_hidden_layers is 60000, the files hold 3 layers"),
    ("llama", {"num_hidden_layers": 4}, "num_hidden_layers is 4, the files hold 3 layers"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": -3}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 1e18}, "num_hidden_layers 1e+18"),
    ("llama", {"num_hidden_layers": "three"}, "config.json"),
    ("llama", {"num_labels": 10**9}, "num_labels 1000000000: at most"),
    ("llama", {"head_dim": 1 << 20}, "self_attn"),
    ("llama", {"head_dim": 1 << 40}, "config.json"),
    ("llama", {"hidden_size": 1 << 20}, "is (320, 32), the model needs (320, 1048576)"),
    ("llama", {"intermediate_size": 1 << 22}, "mlp"),
    ("llama", {"vocab_size": 1 << 26}, "is (320, 32), the model needs (67108864, 32)"),
    ("llama", {"num_attention_heads": 0}, "config.json"),
    ("llama", {"num_key_value_heads": 4}, "k_proj"),
    ("gpt2", {"n_layer": 5_000_000}, "n_layer 5000000: at most"),
    ("gpt2", {"n_positions": 1 << 24}, "wpe"),
    ("gemma3_text", {"num_hidden_layers": 10**9, "layer_types": None}, "num_hidden_layers 1000000000: at most"),
    ("mixtral", {"num_local_experts": 10**7}, "num_local_experts 10000000: at most"),
    ("mixtral", {"intermediate_size": 1 << 30}, "config.json: makes a model of"),
]


@pytest.mark.parametrize(("family", "changes", "word"), LIES, ids=range(len(LIES)))
def test_lies_cost_nothing(
    tiny: dict[str, Path], tmp_path: Path, family: str, changes: dict[str, Any], word: str
) -> None:
    folder = copied(tiny[family], tmp_path / "liar", **changes)

    def streamed() -> None:
        # what cannot be streamed is loaded whole: its loader then says no
        if can_stream(folder) is not None:
            load_lm(folder, dtype=torch.float32)

    for load in (streamed, lambda: load_lm(folder, dtype=torch.float32)):
        start = time.process_time()
        with pytest.raises(UserError) as refused:
            load()
        assert word in str(refused.value)
        assert str(folder) in str(refused.value)
        assert "\n" not in str(refused.value)
        assert time.process_time() - start < 20


def test_a_language_tower_that_lies(tiny: dict[str, Path], tmp_path: Path) -> None:
    deep = copied(tiny["gemma3"], tmp_path / "deep", text=True, num_hidden_layers=5_000_000)
    wide = copied(tiny["gemma3"], tmp_path / "wide", text=True, intermediate_size=1 << 22)
    for load in (can_stream, lambda folder: load_lm(folder, dtype=torch.float32)):
        with pytest.raises(UserError, match="num_hidden_layers 5000000: at most"):
            load(deep)
        with pytest.raises(UserError, match=r"mlp.*the model needs \("):
            load(wide)
    with pytest.raises(UserError, match="num_hidden_layers 5000000: at most"):
        architecture(deep)


def test_the_audit_looks_before_it_builds(tiny: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(tiny["llama"], tmp_path / "liar", num_hidden_layers=50)
    with pytest.raises(UserError, match="num_hidden_layers is 50, the files hold 3 layers"):
        architecture(folder)


def test_fewer_layers_than_stored_are_read_as_before(tiny: dict[str, Path], tmp_path: Path) -> None:
    # a layer that predicts further tokens is stored behind the decoder's own
    folder = copied(tiny["llama"], tmp_path / "fewer", num_hidden_layers=2)
    assert architecture(folder)[1] == 2
    assert can_stream(folder) is None
