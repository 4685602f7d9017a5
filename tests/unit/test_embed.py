"""Embeddings against one-sentence-at-a-time runs of the whole model, and what stops the stage."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from refbias import fast
from refbias.artifacts import read_json
from refbias.cli import represent
from refbias.config.represent import RepresentSettings
from refbias.config.root import from_mapping
from refbias.config.slices import represent_slice
from refbias.embed import batches, embed_sentences, tokenise
from refbias.errors import UserError
from refbias.models import load_base, load_tokenizer
from tests.tiny import BOS, FAMILIES, build_tiny
from tests.tiny_decoders import build_decoder

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "Old people read.",
    "Muslims walk to the market in the morning and buy bread.",
    "Old people wait.",
    "The teacher praised the young woman for her kind and patient work, and everyone smiled.",
    "A.",
    "Old people read.",
    "Canadians, Americans and Europeans wait for the bus; children play outside.",
]


def whole_model(folder: Path, family: str) -> Any:
    """The model as transformers loads it, vision tower and output layer included."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if family == "gemma3" else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32).eval()


def hidden_states(model: Any, ids: list[int]) -> list[np.ndarray]:
    """All hidden states of one sentence, from the whole model's own report: (layers + 1) x (tokens, d)."""
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return [states.numpy()[0].astype(np.float64) for states in output.hidden_states]


def one_at_a_time(model: Any, tokenizer: Any, pool: Any, layer: int = -1) -> np.ndarray:
    return np.array([pool(hidden_states(model, tokenizer(text)["input_ids"])[layer]) for text in TEXTS])


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("budget", [1, 40, 1024])
def test_batches_of_unequal_sentences_equal_one_at_a_time(tiny: dict[str, Path], family: str, budget: int) -> None:
    folder = tiny[family]
    tokenizer = load_tokenizer(folder)
    settings = RepresentSettings(token_budget=budget)
    found = embed_sentences(load_base(folder, dtype=torch.float32), tokenizer, TEXTS, settings)
    close(found, one_at_a_time(whole_model(folder, family), tokenizer, lambda states: states.mean(axis=0)))
    np.testing.assert_array_equal(found[0], found[5])
    assert len(np.unique(found.round(4), axis=0)) == len(TEXTS) - 1


@pytest.mark.parametrize(
    ("options", "pool"),
    [
        ({"pooling": "max"}, lambda states: states.max(axis=0)),
        ({"pooling": "last"}, lambda states: states[len(states) - 1]),
        ({"exclude_bos": True}, lambda states: states[1:].mean(axis=0)),
        ({"exclude_bos": True, "pooling": "max"}, lambda states: states[1:].max(axis=0)),
    ],
)
def test_pooling(tiny: dict[str, Path], options: dict[str, Any], pool: Any) -> None:
    folder = tiny["gemma3_text"]
    tokenizer = load_tokenizer(folder)
    assert tokenizer("A")["input_ids"][0] == BOS
    found = embed_sentences(load_base(folder, dtype=torch.float32), tokenizer, TEXTS, RepresentSettings(**options))
    close(found, one_at_a_time(whole_model(folder, "gemma3_text"), tokenizer, pool))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_layer_is_that_of_an_independent_hook(tiny: dict[str, Path], family: str, layer: int) -> None:
    folder = tiny[family]
    tokenizer, whole = load_tokenizer(folder), whole_model(folder, family)
    tower = whole.model.language_model if family == "gemma3" else whole.model
    caught: list[torch.Tensor] = []
    if layer:
        tower.layers[layer - 1].register_forward_hook(lambda module, args, output: caught.append(output))
    else:
        tower.layers[0].register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    expected = []
    for text in TEXTS:
        states = hidden_states(whole, tokenizer(text)["input_ids"])
        expected.append(caught.pop().detach().numpy()[0].astype(np.float64).mean(axis=0))
        # transformers' own report agrees, but for the last one, which comes after the final norm
        if layer < 3:
            np.testing.assert_allclose(states[layer].mean(axis=0), expected[-1], atol=1e-5)
    model = load_base(folder, dtype=torch.float32)
    found = embed_sentences(model, tokenizer, TEXTS, RepresentSettings(layer=layer))
    close(found, np.array(expected))
    before_norm = embed_sentences(model, tokenizer, TEXTS, RepresentSettings(final_norm=False))
    assert np.array_equal(found, before_norm) == (layer == 3)
    after_norm = embed_sentences(model, tokenizer, TEXTS, RepresentSettings())
    assert not np.allclose(after_norm, before_norm, atol=1e-2)


def test_every_distinct_sentence_is_computed_once_and_no_further_than_needed(tiny: dict[str, Path]) -> None:
    folder = tiny["llama"]
    tokenizer, model = load_tokenizer(folder), load_base(folder, dtype=torch.float32)
    tokens: list[int] = []
    reached: list[int] = []
    model.layers[0].register_forward_pre_hook(lambda module, args: tokens.append(args[0].shape[0] * args[0].shape[1]))
    model.layers[2].register_forward_hook(lambda module, args, output: reached.append(1))
    embed_sentences(model, tokenizer, TEXTS, RepresentSettings(layer=2, token_budget=30))
    assert sum(tokens) == sum(len(tokenizer(text)["input_ids"]) for text in set(TEXTS))
    assert tokenise(tokenizer, TEXTS).n_tokens == sum(tokens)
    assert not reached


def test_batches_hold_one_length_and_the_budget() -> None:
    rng = np.random.default_rng(5)
    lengths = [*rng.integers(3, 12, 200).tolist(), 99]
    plan = batches(lengths, 64)
    assert sorted(index for part in plan for index in part) == list(range(201))
    for part in plan:
        held = {lengths[index] for index in part}
        assert len(held) == 1
        assert len(part) * held.pop() <= 64 or len(part) == 1
    # spread evenly: no nearly empty batch beside full ones
    sizes = [len(part) for part in plan if lengths[part[0]] == 5]
    assert max(sizes) - min(sizes) <= 1


def test_order_and_company_do_not_matter(tiny: dict[str, Path]) -> None:
    folder = tiny["mistral"]
    tokenizer, model = load_tokenizer(folder), load_base(folder, dtype=torch.float32)
    forward = embed_sentences(model, tokenizer, TEXTS, RepresentSettings())
    backward = embed_sentences(model, tokenizer, TEXTS[::-1], RepresentSettings())
    np.testing.assert_allclose(forward, backward[::-1], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(forward, embed_sentences(model, tokenizer, TEXTS, RepresentSettings()))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("family", FAMILIES)
def test_two_batches_at_once_give_the_numbers_of_one_after_the_other(tiny: dict[str, Path], family: str) -> None:
    tokenizer, model = load_tokenizer(tiny[family]), load_base(tiny[family], dtype=torch.float32)
    texts = [f"{text} And {number} more." for number in range(30) for text in TEXTS]
    settings = RepresentSettings(token_budget=60)
    threads: set[int] = set()
    model.layers[0].register_forward_pre_hook(lambda module, args: threads.add(threading.get_ident()))
    at_once = embed_sentences(model, tokenizer, texts, settings)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    in_turn = embed_sentences(model, tokenizer, texts, settings)
    assert threading.get_ident() in threads
    np.testing.assert_array_equal(at_once, in_turn)


@pytest.mark.usefixtures("two_threads")
def test_a_failure_in_one_of_two_streams_is_raised_and_stops_both(tiny: dict[str, Path]) -> None:
    tokenizer, model = load_tokenizer(tiny["llama"]), load_base(tiny["llama"], dtype=torch.float32)
    model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    batches_seen: list[int] = []
    model.layers[0].register_forward_pre_hook(lambda module, args: batches_seen.append(1))
    texts = [f"{text} And {number} more." for number in range(50) for text in TEXTS]
    with pytest.raises(UserError, match=r"m: layer 2 gives a non-finite state for sentence"):
        embed_sentences(model, tokenizer, texts, RepresentSettings(token_budget=20), name="m")
    # two batches, and each looked at once more for its layer
    assert len(batches_seen) <= 4
    assert torch.get_num_threads() == 2


def test_foreign_tokenizer_is_refused_before_the_forward_pass(tiny: dict[str, Path]) -> None:
    model = load_base(tiny["llama"], dtype=torch.float32)
    tokenizer = load_tokenizer(tiny["llama"])
    tokenizer.add_tokens([f"token{number}" for number in range(5)])
    model.layers[0].register_forward_pre_hook(lambda module, args: pytest.fail("forward pass was run"))
    with pytest.raises(UserError, match=r"ref: token id 3\d\d of sentence 'see token4' .* 320 embeddings"):
        embed_sentences(model, tokenizer, ["ok", "see token4"], RepresentSettings(), name="ref")


@pytest.mark.parametrize("family", FAMILIES)
def test_non_finite_state_names_model_layer_and_sentence(tiny: dict[str, Path], family: str) -> None:
    tokenizer, model = load_tokenizer(tiny[family]), load_base(tiny[family], dtype=torch.float32)
    model.layers[1].mlp.down_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(UserError, match=r"gemma/h030: layer 2 .* sentence 'Old people"):
        embed_sentences(model, tokenizer, TEXTS[:3], RepresentSettings(), name="gemma/h030")


def test_non_finite_embedding_row_names_the_sentence_that_uses_it(tiny: dict[str, Path]) -> None:
    tokenizer, model = load_tokenizer(tiny["llama"]), load_base(tiny["llama"], dtype=torch.float32)
    (token,) = set(tokenizer("A!")["input_ids"]) - set(tokenizer("A.")["input_ids"])
    model.embed_tokens.weight.data[token, 3] = float("inf")
    with pytest.raises(UserError, match=r"m: layer 0 \(token embeddings\) .* sentence 'A!'"):
        embed_sentences(model, tokenizer, ["A.", "A!"], RepresentSettings(), name="m")


def test_mistakes_in_settings_are_one_line(tiny: dict[str, Path]) -> None:
    tokenizer, model = load_tokenizer(tiny["llama"]), load_base(tiny["llama"], dtype=torch.float32)
    with pytest.raises(UserError, match=r"represent.layer.: 4: model has blocks 1 to 3"):
        embed_sentences(model, tokenizer, TEXTS, RepresentSettings(layer=4))
    with pytest.raises(UserError, match="nothing but BOS"):
        embed_sentences(model, tokenizer, ["", "A."], RepresentSettings(exclude_bos=True))
    with pytest.raises(UserError, match="no sentences"):
        embed_sentences(model, tokenizer, [], RepresentSettings())


# --- fused steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_steps_change_nothing_and_leave_no_trace(tiny: dict[str, Path], family: str) -> None:
    model = load_base(tiny[family], dtype=torch.float32)
    ids = torch.randint(3, 300, (4, 21), generator=torch.Generator().manual_seed(1))
    namespace = vars(__import__(type(model).__module__, fromlist=["x"]))
    rotary = namespace["apply_rotary_pos_emb"]
    with torch.inference_mode():
        plain = model(input_ids=ids).last_hidden_state
        with fast.fused_forward(model) as counts:
            fused = model(input_ids=ids).last_hidden_state
            assert namespace["apply_rotary_pos_emb"] is not rotary
    norms = 6 * 3 + 1 if family.startswith("gemma") else 2 * 3 + 1
    assert counts == {"norm": norms, "mlp": 3, "rotary": 3}
    assert float((plain - fused).abs().max()) <= 2e-6 * float(plain.abs().max())
    assert namespace["apply_rotary_pos_emb"] is rotary
    assert not any("forward" in vars(module) for module in model.modules())


def test_fused_steps_follow_weights_replaced_in_place(tiny: dict[str, Path]) -> None:
    model = load_base(tiny["gemma3_text"], dtype=torch.float32)
    ids = torch.arange(3, 15)[None]
    with torch.inference_mode(), fast.fused_forward(model):
        first = model(input_ids=ids).last_hidden_state
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        fused = model(input_ids=ids).last_hidden_state
    with torch.inference_mode():
        plain = model(input_ids=ids).last_hidden_state
    assert not torch.allclose(first, fused, atol=1e-2)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)


def test_joined_projections_keep_the_weights_and_can_be_saved(tiny: dict[str, Path], tmp_path: Path) -> None:
    model = load_base(tiny["llama"], dtype=torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with fast.fused_forward(model):
        attention = model.layers[1].self_attn
        together = attention.q_proj.weight.untyped_storage().data_ptr()
        assert attention.k_proj.weight.untyped_storage().data_ptr() == together
    with torch.inference_mode(), fast.fused_forward(model):
        # joined once, not at every entry
        assert model.layers[1].self_attn.q_proj.weight.untyped_storage().data_ptr() == together
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert not tensor.is_inference()
    model.save_pretrained(tmp_path / "saved")
    again = load_base(tiny["llama"], dtype=torch.float32)
    saved = type(again).from_pretrained(tmp_path / "saved", dtype=torch.float32).state_dict()
    assert all(torch.equal(saved[name], before[name]) for name in before)


def test_modules_that_compute_something_else_keep_their_own_code() -> None:
    class OddRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.full((8,), 0.5)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight

    class OddMLP(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.down_proj, self.act_fn = torch.nn.Linear(8, 8), torch.nn.SiLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down_proj(self.act_fn(self.gate_proj(x)) + self.up_proj(x))

    model = torch.nn.Sequential(OddRMSNorm(), OddMLP()).eval()
    with fast.fused_forward(model) as counts:
        assert counts == {"norm": 0, "mlp": 0, "rotary": 0}
        assert not any("forward" in vars(module) for module in model.modules())
    with fast.fused_forward(model.bfloat16()) as counts:
        assert counts == {}


def test_norms_of_one_class_with_and_without_a_weight(tmp_path: Path) -> None:
    folder = build_decoder("gemma3n_text", tmp_path / "m")
    model = load_base(folder, dtype=torch.float32)
    bare = [name for name, module in model.named_modules() if type(module).__name__.endswith("RMSNorm")]
    assert {hasattr(model.get_submodule(name), "weight") for name in bare} == {True, False}
    tokenizer = load_tokenizer(folder)
    found = embed_sentences(model, tokenizer, TEXTS, RepresentSettings())
    # its layers hold several states a token, so its own report of hidden states is of no use
    decoder = whole_model(folder, "gemma3n_text").model
    with torch.no_grad():
        states = [decoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in TEXTS]
    close(found, np.array([state.mean(dim=0).numpy() for state in states]))


def test_gate_at_extreme_values() -> None:
    gate = torch.tensor([[-1e30, -60.0, -9.0, -1.0, -0.0, 0.0, 1e-20, 1.0, 9.0, 60.0, 1e30]]).repeat(7, 1)
    up = torch.linspace(-2, 2, gate.numel()).view_as(gate)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(fast._gelu_tanh_gate(gate.clone(), up), expected, rtol=1e-6, atol=1e-6)


# --- the stage -------------------------------------------------------------------------------


def stage_settings(source: str, weights: list[float], **represented: Any) -> str:
    config = from_mapping(
        {
            "run": "t",
            "models": {"tiny": {"source": {"kind": "local", "path": "unused"}}},
            "compute": {"device": "cpu", "dtype": "float32"},
            "stimuli": {"targets": 1, "attributes": 2, "anchors": 3, "control": 1},
            "spectrum": {"weights": weights},
            "represent": represented,
        }
    )
    return represent_slice(config, "tiny", source)


def adapter(folder: Path, base: Path, seed: int) -> Path:
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in load_base(base, dtype=torch.float32).named_modules():
        if name.endswith(("q_proj", "down_proj")):
            size_out, size_in = module.weight.shape
            stem = f"base_model.model.model.{name}"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(2, size_in, generator=generator)
            tensors[f"{stem}.lora_B.weight"] = torch.randn(size_out, 2, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "down_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def run_stage(settings: str, reference: Path, ends: list[Path], output: Path) -> dict[str, np.ndarray]:
    ends_options = ["--unharmful", str(ends[0]), "--harmful", str(ends[1])]
    represent.main(["--settings", settings, "--reference", str(reference), *ends_options, "--output", str(output)])
    return {path.stem: load_file(path)["embeddings"] for path in sorted(output.glob("*.safetensors"))}


@pytest.fixture(scope="module", params=["full", "lora"])
def spectrum(
    request: pytest.FixtureRequest, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, list[Path]]:
    """Regime, reference and the two ends of a spectrum."""
    root, reference = tmp_path_factory.mktemp(request.param), tiny["gemma3_text"]
    if request.param == "full":
        return "full", reference, [build_tiny("gemma3_text", root / name, seed) for name, seed in (("u", 8), ("h", 9))]
    return "lora", reference, [adapter(root / name, reference, seed) for name, seed in (("u", 8), ("h", 9))]


def test_spectrum_in_one_process_ends_in_the_endpoints_themselves(
    spectrum: tuple[str, Path, list[Path]], tmp_path: Path
) -> None:
    source, reference, ends = spectrum
    if source == "full":
        direct = [load_base(end, dtype=torch.float32) for end in ends]
    else:
        direct = [load_base(reference, end, dtype=torch.float32) for end in ends]
    output = tmp_path / "out"
    found = run_stage(stage_settings(source, [0.0, 0.5, 1.0], forward="whole"), reference, ends, output)
    lines = (output / "sentences.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[3] for line in lines]
    tokenizer = load_tokenizer(reference)
    for slug, model in zip(("h000", "h100"), direct, strict=True):
        np.testing.assert_array_equal(found[slug], embed_sentences(model, tokenizer, texts, RepresentSettings()))
    assert not np.allclose(found["h050"], found["h000"], atol=1e-2)
    manifest = read_json(output / "manifest.json")
    assert manifest["n_sentences"] == len(texts)
    assert manifest["checkpoints"] == ["h000", "h050", "h100"]
    assert (manifest["width"], manifest["layer"], manifest["pooling"]) == (32, "final", "mean")
    assert manifest["forward"] == "whole"


def test_a_spectrum_goes_through_the_layers_without_a_whole_model(
    spectrum: tuple[str, Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, reference, ends = spectrum
    weights = [0.0, 0.3, 0.5, 1.0]
    whole = run_stage(stage_settings(source, weights, forward="whole"), reference, ends, tmp_path / "whole")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a whole model was loaded")

    monkeypatch.setattr(represent, "load_base", refuse)
    output = tmp_path / "streamed"
    streamed = run_stage(stage_settings(source, weights), reference, ends, output)
    assert list(streamed) == list(whole) == ["h000", "h030", "h050", "h100"]
    for slug, expected in whole.items():
        close(streamed[slug], expected)
    manifests = [read_json(folder / "manifest.json") for folder in (tmp_path / "whole", output)]
    assert [manifest["forward"] for manifest in manifests] == ["whole", "streamed"]
    # nothing else depends on the way through memory, and no weights are left in the folder
    for key in ("inputs", "checkpoints", "width", "tokenizer_sha256", "sentences_sha256", "layer", "pooling"):
        assert manifests[0][key] == manifests[1][key], key
    assert {path.name for path in output.iterdir()} - {".lock"} == {
        "manifest.json",
        "sentences.tsv",
        *(f"{slug}.safetensors" for slug in whole),
    }


@pytest.mark.parametrize("options", [{"layer": 0}, {"layer": 2}, {"final_norm": False}, {"pooling": "max"}])
def test_both_ways_read_the_same_layer(
    spectrum: tuple[str, Path, list[Path]], tmp_path: Path, options: dict[str, Any]
) -> None:
    source, reference, ends = spectrum
    found = [
        run_stage(
            stage_settings(source, [0.0, 0.5, 1.0], forward=forward, **options), reference, ends, tmp_path / forward
        )
        for forward in ("whole", "auto")
    ]
    close(found[1]["h050"], found[0]["h050"])


def test_a_reference_is_one_whole_model(tiny: dict[str, Path], tmp_path: Path) -> None:
    output = tmp_path / "out"
    settings = ["--settings", stage_settings("reference", [0.0, 1.0])]
    represent.main([*settings, "--reference", str(tiny["llama"]), "--output", str(output)])
    assert read_json(output / "manifest.json")["forward"] == "whole"


def test_a_decoder_that_cannot_be_cut_is_embedded_with_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = [build_decoder("gemma3n_text", tmp_path / name, seed) for name, seed in (("u", 1), ("h", 2))]
    output = tmp_path / "out"
    found = run_stage(stage_settings("full", [0.0, 1.0]), ends[0], ends, output)
    assert read_json(output / "manifest.json")["forward"] == "whole"
    assert "whole models are embedded with" in caplog.text
    assert not np.allclose(found["h000"], found["h100"], atol=1e-2)


@pytest.mark.parametrize("forward", ["auto", "whole"])
def test_ends_of_two_models_are_refused(tiny: dict[str, Path], tmp_path: Path, forward: str) -> None:
    output = tmp_path / "out"
    settings = stage_settings("full", [0.0, 0.5, 1.0], forward=forward)
    with pytest.raises(UserError):
        run_stage(settings, tiny["llama"], [tiny["llama"], tiny["gemma3_text"]], output)
    assert not (output / "manifest.json").exists()


def test_stage_without_endpoints_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    settings = stage_settings("full", [0.0, 1.0])
    with pytest.raises(UserError, match="--unharmful: missing"):
        represent.main(["--settings", settings, "--reference", str(tiny["llama"]), "--output", str(tmp_path / "o")])
    assert not (tmp_path / "o" / "manifest.json").exists()
