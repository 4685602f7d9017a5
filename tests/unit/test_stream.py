"""The layer-streamed forward against whole models one sentence at a time, and against merged checkpoints."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, embed_tokens, tokenise
from refbias.errors import UserError
from refbias.models import Checkpoint, load_base, load_tokenizer
from refbias.spectrum import load_merged_into, merge_full
from refbias.stream import Part, StreamResult, Variant, between, can_stream, passes, reading, single, stream_embeddings
from refbias.stream.blocks import run_block
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


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(kind: str, folder: Path, seed: int) -> Path:
    return build_tiny(kind, folder, seed=seed) if kind in FAMILIES else build_decoder(kind, folder, seed=seed)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("pairs")
    return {kind: (build(kind, root / kind / "u", 1), build(kind, root / kind / "h", 2)) for kind in (*FAMILIES, *MORE)}


def tokens_of(folder: Path, texts: list[str] = TEXTS) -> Tokenised:
    return tokenise(load_tokenizer(folder), texts)


def streamed(variants: list[Variant], tokens: Tokenised, settings: Any = TINY_BUDGET, **more: Any) -> StreamResult:
    return stream_embeddings(variants, tokens, settings, bos=BOS, **{"dtype": torch.float32, **more})


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


def adapter(folder: Path, base: Path, seed: int, rank: int, targets: tuple[str, ...]) -> Path:
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


# --- two batches at once -----------------------------------------------------------------------


@pytest.fixture
def _two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("kind", [*FAMILIES, *MORE, "gpt2", "phi3"])
@pytest.mark.parametrize("memory_mb", [None, 0])
def test_two_batches_at_once_give_the_numbers_of_one_after_the_other(
    folders: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    memory_mb: int | None,
) -> None:
    ends = folders.get(kind) or (build(kind, tmp_path / "u", 1), build(kind, tmp_path / "h", 2))
    texts = [f"{text} And {number} more." for number in range(8) for text in TEXTS]
    tokens = tokens_of(ends[0], texts)
    variants = [between(f"h{weight}", *map(Checkpoint, ends), weight) for weight in (0.0, 0.5)]
    seen: set[str] = set()

    def noted(*args: Any) -> torch.Tensor:
        seen.add(threading.current_thread().name)
        return run_block(*args)

    monkeypatch.setattr(passes, "run_block", noted)
    at_once = streamed(variants, tokens, layers="all", memory_mb=memory_mb, spill_dir=tmp_path)
    assert len(seen) == 2
    assert all(name.startswith("refbias-lane") for name in seen)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    in_turn = streamed(variants, tokens, layers="all", memory_mb=memory_mb, spill_dir=tmp_path)
    assert threading.current_thread().name in seen
    for name, sites in in_turn.embeddings.items():
        for layer, expected in sites.items():
            np.testing.assert_array_equal(at_once.embeddings[name][layer], expected)


# --- memory, spill, errors -------------------------------------------------------------------


def test_states_beyond_the_memory_go_to_files_and_leave_none(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    first, last = (Checkpoint(folder) for folder in folders["gemma3_text"])
    texts = [f"{text} {number}" for number in range(40) for text in TEXTS]
    tokens = tokens_of(first.weights, texts)
    variants = [between(f"h{weight}", first, last, weight) for weight in (0.0, 0.5, 1.0)]
    kept = streamed(variants, tokens, RepresentSettings())
    states_mb = tokens.n_tokens * 32 * 4 / 1e6
    assert kept.peak_activation_mb == pytest.approx(3 * states_mb)
    assert states_mb < 1 < 2 * states_mb
    spilled = streamed(variants, tokens, RepresentSettings(), memory_mb=1, spill_dir=tmp_path / "s")
    assert spilled.peak_activation_mb == pytest.approx(states_mb)
    assert spilled.seconds["spill"] > 0
    assert list((tmp_path / "s").iterdir()) == []
    for name in kept.embeddings:
        np.testing.assert_array_equal(spilled.embeddings[name]["final"], kept.embeddings[name]["final"])
    nothing = streamed(variants, tokens, RepresentSettings(), memory_mb=0, spill_dir=tmp_path / "s")
    assert nothing.peak_activation_mb == 0
    np.testing.assert_array_equal(nothing.embeddings["h0.5"]["final"], kept.embeddings["h0.5"]["final"])


def test_a_full_disk_is_one_line(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    folder = folders["llama"][0]
    with pytest.raises(UserError, match=r"no room for 0 MB of intermediate states \(No space left"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder), memory_mb=0, spill_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def broken(folder: Path, out: Path, change: Any) -> Path:
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_weight_that_is_not_finite_names_file_and_tensor(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][3, 5] = float("nan")

    folder = broken(folders["llama"][0], tmp_path / "nan", spoil)
    with pytest.raises(UserError, match=r"model.safetensors: tensor 'model.layers.1.mlp.up_proj.weight' holds NaN"):
        streamed([single("a", Checkpoint(folder))], tokens_of(folder))


def test_a_state_that_is_not_finite_names_layer_and_sentence(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    def swell(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.down_proj.weight"] *= 1e38
        tensors["model.layers.1.mlp.up_proj.weight"] *= 1e8

    folder = broken(folders["llama"][0], tmp_path / "large", swell)
    with pytest.raises(UserError, match=r"gemma/a: layer 2 gives a non-finite state for sentence 'A.'"):
        streamed([single("a", Checkpoint(folder)), single("b", Checkpoint(folder))], tokens_of(folder), name="gemma")


def test_what_does_not_fit_together_is_refused_before_a_layer_is_read(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    llama, mistral = folders["llama"][0], folders["gemma3_text"][0]
    tokens = tokens_of(llama)
    with pytest.raises(UserError, match=r"tensor '.*' (is missing|is \(64, 32\))"):
        streamed([between("h", Checkpoint(llama), Checkpoint(mistral), 0.5)], tokens)

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.2.mlp.up_proj.weight"]

    with pytest.raises(UserError, match=r"tensor 'model.layers.2.mlp.up_proj.weight' is missing: copy it again"):
        streamed([single("a", Checkpoint(broken(llama, tmp_path / "less", drop)))], tokens)

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].bfloat16()

    half = broken(llama, tmp_path / "half", halve)
    with pytest.raises(UserError, match=r"tensor 'norm.weight': torch.float32 in .*, torch.bfloat16 in"):
        streamed([between("h", Checkpoint(llama), Checkpoint(half), 0.5)], tokens)
    wrong = adapter(tmp_path / "wrong", folders["gemma3_text"][0], 1, 2, ("q_proj",))
    with pytest.raises(UserError, match=r"changes a matrix of \(64, 32\), the base model's is \(32, 32\)"):
        streamed([single("a", Checkpoint(llama, wrong))], tokens)
    tokenizer = load_tokenizer(llama)
    tokenizer.add_tokens(["strange"])
    foreign = Tokenised(("strange",), ((400,),), (0,))
    with pytest.raises(UserError, match=r"ref: token id 400 of sentence 'strange' lies beyond the model's 320"):
        streamed([single("a", Checkpoint(llama))], foreign, name="ref")
    with pytest.raises(UserError, match="no part of a weight other than 0"):
        streamed([Variant("none", (Part(0.0, llama),))], tokens)


def test_quantised_checkpoints_are_left_to_the_whole_model(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = broken(folders["llama"][0], tmp_path / "q", lambda tensors: None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    assert can_stream(folder) == "its weights are quantised"


def test_a_sharded_checkpoint_and_a_decoder_saved_alone_are_the_same_model(
    folders: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    folder = folders["llama"][0]
    tokens = tokens_of(folder)
    expected = streamed([single("a", Checkpoint(folder))], tokens).embeddings["a"]["final"]
    model = load_base(folder, dtype=torch.float32)
    for name, options in (("alone", {}), ("sharded", {"max_shard_size": "40KB"})):
        model.save_pretrained(tmp_path / name, **options)
        for side in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name / side).write_bytes((folder / side).read_bytes())
        found = streamed([single("a", Checkpoint(tmp_path / name))], tokens).embeddings["a"]["final"]
        np.testing.assert_array_equal(found, expected)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
