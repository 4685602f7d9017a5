"""The layer-streamed forward against whole models one sentence at a time, and against merged checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, embed_tokens
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_tokenizer
from refbias.spectrum import load_merged_into, merge_full
from refbias.stream import Part, Variant, between, can_stream, reading, single
from tests.tiny import BOS, build_tiny
from tests.tiny_decoders import build_decoder
from tests.unit.stream_example import (
    FAMILIES,
    MORE,
    OTHERS,
    TEXTS,
    TINY_BUDGET,
    WEIGHTS,
    adapter,
    build_pairs,
    streamed,
    tokens_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return build_pairs(tmp_path_factory.mktemp("pairs"))


def whole_states(folder: Path, kind: str) -> list[list[np.ndarray]]:
    """For each sentence all hidden states, from the whole model of transformers, one sentence at a time."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    loader = AutoModelForImageTextToText if kind == "gemma3" else AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, found = load_tokenizer(folder), []
    for text in TEXTS:
        with torch.no_grad():
            output = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]]), output_hidden_states=True)
        found.append([states[0].double().numpy() for states in output.hidden_states])
    return found


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("kind", [*FAMILIES, *MORE])
@pytest.mark.parametrize("budget", [1, 1024])
def test_every_layer_equals_the_whole_model(folders: dict[str, tuple[Path, Path]], kind: str, budget: int) -> None:
    folder = folders[kind][0]
    assert can_stream(folder) is None
    settings = RepresentSettings(token_budget=budget)
    result = streamed([single("a", Checkpoint(folder))], tokens_of(folder), settings, layers="all")
    expected = whole_states(folder, kind)
    assert list(result.embeddings["a"]) == [0, 1, 2, 3, "final"]
    for layer, key in enumerate([0, 1, 2, "final"]):
        # transformers reports the last layer after the final norm
        close(result.embeddings["a"][key], np.array([states[layer].mean(axis=0) for states in expected]))
    before_norm = embed_tokens(
        load_base(folder, dtype=torch.float32), tokens_of(folder), RepresentSettings(final_norm=False), bos=BOS
    )
    close(result.embeddings["a"][3], before_norm)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_decoders_are_streamed_too(tmp_path: Path, kind: str) -> None:
    folder = build_decoder(kind, tmp_path / kind, seed=5)
    assert can_stream(folder) is None
    result = streamed([single("a", Checkpoint(folder))], tokens_of(folder))
    close(result.embeddings["a"]["final"], np.array([states[-1].mean(axis=0) for states in whole_states(folder, kind)]))


@pytest.mark.parametrize(
    ("kind", "reason"), [("mixtral", "stores it in another form"), ("gemma3n_text", "not one state a token")]
)
def test_decoders_that_are_no_chain_of_blocks_say_so(tmp_path: Path, kind: str, reason: str) -> None:
    folder = build_decoder(kind, tmp_path / kind, seed=5)
    assert reason in str(can_stream(folder))
    with pytest.raises(UserError, match="cannot be read layer by layer"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder))


@pytest.mark.parametrize(
    ("options", "pooled"),
    [
        ({"pooling": "max"}, lambda states: states.max(axis=0)),
        ({"pooling": "last"}, lambda states: states[len(states) - 1]),
        ({"exclude_bos": True}, lambda states: states[1:].mean(axis=0)),
        ({"layer": 2}, None),
        ({"layer": 0}, None),
        ({"final_norm": False}, None),
    ],
)
def test_settings_mean_what_they_mean_for_the_whole_model(
    folders: dict[str, tuple[Path, Path]], options: dict[str, Any], pooled: Any
) -> None:
    folder = folders["gemma3_text"][0]
    settings = RepresentSettings(token_budget=40, **options)
    found = streamed([single("a", Checkpoint(folder))], tokens_of(folder), settings).embeddings["a"]
    assert list(found) == [options.get("layer", "final")]
    expected = embed_tokens(load_base(folder, dtype=torch.float32), tokens_of(folder), settings, bos=BOS)
    close(found[options.get("layer", "final")], expected)
    if pooled is not None:
        close(found["final"], np.array([pooled(states[-1]) for states in whole_states(folder, "gemma3_text")]))


def test_chosen_layers_go_no_further_than_the_last_of_them(folders: dict[str, tuple[Path, Path]]) -> None:
    folder = folders["llama"][0]
    all_layers = streamed([single("a", Checkpoint(folder))], tokens_of(folder), layers="all")
    some = streamed([single("a", Checkpoint(folder))], tokens_of(folder), layers=[0, 2])
    assert list(some.embeddings["a"]) == [0, 2]
    for layer in (0, 2):
        np.testing.assert_array_equal(some.embeddings["a"][layer], all_layers.embeddings["a"][layer])
    assert all_layers.bytes_read[str(folder)] - some.bytes_read[str(folder)] == layer_bytes(folder, [2])
    with pytest.raises(UserError, match=r"represent.layer.: 4: model has blocks 1 to 3"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder), layers=[4])


# --- spectra ---------------------------------------------------------------------------------


def layer_bytes(folder: Path, layers: list[int]) -> int:
    """Bytes of the tensors of some layers, counted by the safetensors library."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                if any(f"layers.{layer}." in name and "vision" not in name for layer in layers):
                    total += handle.get_tensor(name).nbytes
    return total


def outer_bytes(folder: Path, tokens: Tokenised) -> int:
    """Bytes of the final norm and of the embedding's rows of the tokens that occur."""
    total, used = 0, {token for ids in tokens.ids for token in ids}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            if name.endswith("model.norm.weight") or name.endswith("language_model.norm.weight"):
                total += tensor.nbytes
            if name.endswith("embed_tokens.weight"):
                total += tensor[0].nbytes * len(used)
    return total


@pytest.mark.parametrize("kind", [*FAMILIES, *MORE])
def test_seven_points_of_a_full_spectrum_cost_two_reads_and_no_file(
    folders: dict[str, tuple[Path, Path]], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, last = (Checkpoint(folder) for folder in folders[kind])
    tokens = tokens_of(first.weights)
    files = sorted(first.weights.parent.parent.rglob("*"))
    variants = [between(f"h{weight}", first, last, weight) for weight in WEIGHTS]
    result = streamed(variants, tokens)
    for folder in folders[kind]:
        assert result.bytes_read[str(folder)] == layer_bytes(folder, [0, 1, 2]) + outer_bytes(folder, tokens)
    assert sorted(first.weights.parent.parent.rglob("*")) == files
    assert list(tmp_path.iterdir()) == []
    model = load_base(first.weights, dtype=torch.float32)
    for weight, variant in zip(WEIGHTS, variants, strict=True):
        load_merged_into(model, first, last, weight)
        close(result.embeddings[variant.name]["final"], embed_tokens(model, tokens, TINY_BUDGET, bos=BOS))
    assert not np.allclose(result.embeddings["h0.5"]["final"], result.embeddings["h0.0"]["final"], atol=1e-2)


@pytest.mark.parametrize(("stored", "merge_dtype"), [("float32", "bfloat16"), ("bfloat16", "endpoint")])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_merges_are_rounded_as_the_stored_merge_is(tmp_path: Path, kind: str, stored: str, merge_dtype: str) -> None:
    ends = [build_tiny(kind, tmp_path / name, seed=seed) for name, seed in (("u", 1), ("h", 2))]
    if stored == "bfloat16":
        for end in ends:
            tensors = {name: tensor.bfloat16() for name, tensor in load_file(end / "model.safetensors").items()}
            save_file(tensors, end / "model.safetensors", metadata={"format": "pt"})
    tokens = tokens_of(ends[0])
    merge_full(ends[0], ends[1], 0.3, tmp_path / "merged", dtype=merge_dtype)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "merged" / name).write_bytes((ends[0] / name).read_bytes())
    variant = between("h030", Checkpoint(ends[0]), Checkpoint(ends[1]), 0.3)
    found = streamed([variant], tokens, merge_dtype=merge_dtype).embeddings["h030"]["final"]
    stored_merge = load_base(tmp_path / "merged", dtype=torch.float32)
    close(found, embed_tokens(stored_merge, tokens, TINY_BUDGET, bos=BOS))
    # the rounding is seen: without it the numbers are others
    plain = streamed([variant], tokens, merge_dtype="float32" if stored == "float32" else "endpoint")
    assert stored == "bfloat16" or np.abs(plain.embeddings["h030"]["final"] - found).max() > 1e-4


@pytest.mark.parametrize("kind", ["llama", "gemma3", "qwen3"])
def test_seven_points_of_a_lora_spectrum_read_the_base_once(
    folders: dict[str, tuple[Path, Path]], kind: str, tmp_path: Path
) -> None:
    base, targets = folders[kind][0], ("q_proj", "down_proj")
    first = Checkpoint(base, adapter(tmp_path / "u", base, 3, 2, targets))
    last = Checkpoint(base, adapter(tmp_path / "h", base, 4, 3, targets))
    tokens = tokens_of(base)
    result = streamed([between(f"h{weight}", first, last, weight) for weight in WEIGHTS], tokens)
    assert result.bytes_read == {str(base): layer_bytes(base, [0, 1, 2]) + outer_bytes(base, tokens)}
    model = load_base(base, dtype=torch.float32)
    for weight in WEIGHTS:
        load_merged_into(model, first, last, weight)
        close(result.embeddings[f"h{weight}"]["final"], embed_tokens(model, tokens, TINY_BUDGET, bos=BOS))
    for name, checkpoint in (("h0.0", first), ("h1.0", last)):
        direct = load_base(checkpoint.weights, checkpoint.adapter, dtype=torch.float32)
        close(result.embeddings[name]["final"], embed_tokens(direct, tokens, TINY_BUDGET, bos=BOS))


def test_layers_may_be_read_as_they_are_wanted_into_one_buffer(
    folders: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, other = folders["llama"]
    tokens, variants = tokens_of(base), [single("a", Checkpoint(base)), single("b", Checkpoint(other))]
    readers: list[Any] = []
    start = reading.LayerReader.__init__

    def watched(self: Any, *args: Any) -> None:
        start(self, *args)
        readers.append(self)

    monkeypatch.setattr(reading.LayerReader, "__init__", watched)
    ahead, wanted = (streamed(variants, tokens, layers="all", read_ahead=how) for how in (True, False))
    assert [[len(slots) for slots in reader._slots.values()] for reader in readers] == [[2, 2], [1, 1]]
    assert ahead.bytes_read == wanted.bytes_read
    for name, sites in ahead.embeddings.items():
        for layer, states in sites.items():
            assert np.array_equal(states, wanted.embeddings[name][layer])


def test_any_weighted_sum_of_checkpoints_and_adapters(folders: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    base, other = folders["llama"]
    first = adapter(tmp_path / "first", base, 3, 2, ("q_proj", "down_proj"))
    second = adapter(tmp_path / "second", base, 4, 3, ("q_proj", "v_proj"))
    variants = [
        Variant("task", (Part(0.5, base, first), Part(0.3, base, second), Part(0.2, base))),
        Variant("mixed", (Part(0.25, base, first), Part(0.75, other))),
        Variant("scaled", (Part(0.9, other),)),
    ]
    tokens = tokens_of(base)
    result = streamed(variants, tokens)
    plain, foreign = (load_base(folder, dtype=torch.float32).state_dict() for folder in (base, other))
    changed = [load_base(base, path, dtype=torch.float32).state_dict() for path in (first, second)]

    def changes(number: int, key: str) -> torch.Tensor:
        return changed[number][key].double() - plain[key].double()

    expected = {
        "task": lambda key: plain[key].double() + 0.5 * changes(0, key) + 0.3 * changes(1, key),
        "mixed": lambda key: 0.25 * changed[0][key].double() + 0.75 * foreign[key].double(),
        "scaled": lambda key: 0.9 * foreign[key].double(),
    }
    model = load_base(base, dtype=torch.float32)
    for name, value in expected.items():
        model.load_state_dict({key: value(key).float() for key in plain})
        close(result.embeddings[name]["final"], embed_tokens(model, tokens, TINY_BUDGET, bos=BOS))


def test_bfloat16_equals_the_whole_model_in_bfloat16(folders: dict[str, tuple[Path, Path]]) -> None:
    folder = folders["llama"][0]
    tokens = tokens_of(folder)
    found = streamed([single("a", Checkpoint(folder))], tokens, dtype=torch.bfloat16).embeddings["a"]["final"]
    expected = embed_tokens(load_base(folder, dtype=torch.bfloat16), tokens, TINY_BUDGET, bos=BOS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2 * np.abs(expected).max())
    exact = embed_tokens(load_base(folder, dtype=torch.float32), tokens, TINY_BUDGET, bos=BOS)
    assert np.abs(found - exact).max() > 1e-4
