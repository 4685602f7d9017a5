"""dB during a training: the curve is right, and the training is not touched."""

import random
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from refbias.callbacks.probe import decoder_of, left_as_found, make_probe
from refbias.config.represent import RepresentSettings
from refbias.embed import embed_sentences
from refbias.errors import UserError
from refbias.models import load_base, load_lm, load_tokenizer
from refbias.stimuli import load_stimuli
from tests.tiny import FAMILIES, build_tiny
from tests.unit.test_finetune import EXAMPLES
from tests.unit.watched_training import GROUPS, SIZES, arguments, curve_of, lora_of, plain_delta_b, trainer_of, watch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, made / family) for family in FAMILIES}


# --- the curve ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curve_begins_at_zero_and_ends_at_the_saved_model(
    tiny: dict[str, Path], tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = watch(every=4)
    trainer = trainer_of(tiny[family], tmp_path, callback, max_steps=6)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    found = curve_of(tmp_path / "bias_shift.csv")
    assert list(found) == [0, 4, 6], "every four updates, and after the last"
    assert set(found[0]) == set(GROUPS)
    assert set(found[0].values()) == {0.0}
    tokenizer = load_tokenizer(tiny[family])
    before, after = (load_base(folder, dtype=torch.float32) for folder in (tiny[family], tmp_path / "saved"))
    for group, value in found[6].items():
        assert abs(value) > 1e-4
        assert value == pytest.approx(plain_delta_b(before, after, tokenizer, group), abs=2e-5)
    printed = capsys.readouterr().err
    assert "2 measurements and the reference took" in printed
    assert "6 updates" in printed
    assert callback.cost.steps == 6
    assert callback.cost.share > 0


def test_the_values_reach_every_logger_and_the_state(tiny: dict[str, Path], tmp_path: Path) -> None:
    trainer = trainer_of(tiny["llama"], tmp_path, watch(), logging_steps=3)
    trainer.train()
    keys = {f"bias_shift/{group}" for group in GROUPS}
    seen = {step: logs for step, logs in trainer.spy.seen if keys <= set(logs)}
    assert list(seen) == [0, 2, 4, 6]
    found = curve_of(tmp_path / "bias_shift.csv")
    for step, logs in seen.items():
        assert {key: logs[f"bias_shift/{key}"] for key in GROUPS} == pytest.approx(found[step], rel=1e-9)
        assert logs["bias_shift_seconds"] > 0
        assert "loss" not in logs
    history = [entry["step"] for entry in trainer.state.log_history if keys <= set(entry)]
    assert history == [0, 2, 4, 6]
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == [3, 6]


def test_an_sft_trainer_keeps_its_own_averages(tiny: dict[str, Path], tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    histories = []
    for name in ("plain", "watched"):
        torch.manual_seed(0)
        trainer = SFTTrainer(
            model=load_lm(tiny["llama"], dtype=torch.float32).train().requires_grad_(True),
            args=SFTConfig(**arguments(tmp_path / name, logging_steps=3), max_length=64),
            train_dataset=datasets.Dataset.from_dict({"text": [f"{e.prompt} {e.response}" for e in EXAMPLES]}),
            processing_class=load_tokenizer(tiny["llama"]),
            callbacks=[watch()] if name == "watched" else [],
        )
        trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        histories.append([{k: v for k, v in entry.items() if "per_second" not in k} for entry in history])
    assert "mean_token_accuracy" in histories[0][0]
    assert histories[0] == histories[1]
    assert list(curve_of(tmp_path / "watched" / "bias_shift.csv")) == [0, 2, 4, 6]


# --- the training is not touched ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["full", "checkpointing", "lora", "bf16"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_watched_training_is_the_same_bit_for_bit(
    tiny: dict[str, Path], tmp_path: Path, family: str, kind: str
) -> None:
    losses, weights = [], []
    options: dict[str, Any] = {"bf16": True} if kind == "bf16" else {}
    if kind == "checkpointing":
        options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    for callbacks in ([], [watch(every=1)]):
        model = lora_of(tiny[family]) if kind == "lora" else None
        trainer = trainer_of(tiny[family], tmp_path, *callbacks, model=model, **options)
        trainer.train()
        losses.append([(e["loss"], e["grad_norm"]) for e in trainer.state.log_history if "loss" in e])
        weights.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
        needing = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
        assert all(("lora_" in name) for name in needing) == (kind == "lora")
        if kind == "checkpointing":
            assert trainer.model.is_gradient_checkpointing
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert max(abs(v) for v in curve_of(tmp_path / "bias_shift.csv")[6].values()) > 0


def test_a_model_is_left_as_it_was_found(tiny: dict[str, Path]) -> None:
    model = load_lm(tiny["gemma3_text"], dtype=torch.float32).train().requires_grad_(True)
    model.model.layers[1].eval()
    model.model.norm.weight.requires_grad_(False)
    model.config.use_cache = True
    before = [(p.data_ptr(), p.requires_grad, p.detach().clone()) for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    places = [place for place, _, _ in before]
    with pytest.raises(KeyboardInterrupt):
        _meddle(model, load_tokenizer(tiny["gemma3_text"]), places)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert [module.training for module in model.modules()] == modes
    for parameter, (place, needs, value) in zip(model.parameters(), before, strict=True):
        assert (parameter.data_ptr(), parameter.requires_grad) == (place, needs)
        assert torch.equal(parameter, value)
        assert not parameter.is_inference()
    assert model.config.use_cache
    assert not any("forward" in vars(module) for module in model.modules())


def test_bf16_changes_the_embeddings_by_its_rounding_alone(tiny: dict[str, Path]) -> None:
    model = load_lm(tiny["llama"], dtype=torch.float32).train()
    tokenizer = load_tokenizer(tiny["llama"])
    sentences = load_stimuli(SIZES)
    threads = torch.get_num_threads()
    # autocast holds for one thread
    torch.set_num_threads(1)
    try:
        exact, rounded = (
            make_probe(sentences, GROUPS, tokenizer, RepresentSettings(), kind).embed(model, "m")
            for kind in (None, torch.bfloat16)
        )
    finally:
        torch.set_num_threads(threads)
    scale = np.abs(exact).max()
    assert 1e-4 * scale < np.abs(exact - rounded).max() < 5e-2 * scale


def _meddle(model: Any, tokenizer: Any, places: list[int]) -> None:
    """Embed, draw random numbers, freeze everything, and be interrupted."""
    with left_as_found(model):
        assert not any(module.training for module in model.modules())
        embed_sentences(decoder_of(model), tokenizer, ["A good deed."], RepresentSettings())
        moved = [p.data_ptr() for p in model.parameters()] != places
        assert moved, "fused steps join weights: where they do not, the test shows nothing"
        model.requires_grad_(False)
        random.random(), np.random.rand(), torch.rand(1)
        raise KeyboardInterrupt


# --- adapters and other references ----------------------------------------------------------------


def test_an_adapter_is_held_against_its_base_also_if_it_was_trained_before(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    model = lora_of(tiny["mistral"])
    trainer_of(tiny["mistral"], tmp_path / "a", watch(), model=model).train()
    first = curve_of(tmp_path / "a" / "bias_shift.csv")
    assert set(first[0].values()) == {0.0}, "a fresh adapter adds exactly nothing"
    trainer_of(tiny["mistral"], tmp_path / "b", watch(), model=model).train()
    second = curve_of(tmp_path / "b" / "bias_shift.csv")
    assert second[0] == pytest.approx(first[6], abs=1e-6)
    trained = decoder_of(model.merge_and_unload().eval())
    base = load_base(tiny["mistral"], dtype=torch.float32)
    for group, value in second[6].items():
        tokenizer = load_tokenizer(tiny["mistral"])
        assert value == pytest.approx(plain_delta_b(base, trained, tokenizer, group), abs=2e-5)


def test_lora_with_checkpointing_and_inputs_that_need_gradients(tiny: dict[str, Path], tmp_path: Path) -> None:
    model = lora_of(tiny["llama"])
    model.enable_input_require_grads()
    trainer_of(tiny["llama"], tmp_path, watch(), model=model, gradient_checkpointing=True).train()
    assert list(curve_of(tmp_path / "bias_shift.csv")) == [0, 2, 4, 6]


def test_a_learned_prompt_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    from peft import PromptTuningConfig, TaskType, get_peft_model

    base = load_lm(tiny["llama"], dtype=torch.float32).train()
    model = get_peft_model(base, PromptTuningConfig(TaskType.CAUSAL_LM, num_virtual_tokens=2))
    with pytest.raises(UserError, match="adapter 'default': a learned prompt"):
        trainer_of(tiny["llama"], tmp_path, watch(), model=model).train()


def test_a_given_reference_takes_the_place_of_the_start(tiny: dict[str, Path], tmp_path: Path) -> None:
    trainer_of(tiny["llama"], tmp_path / "a", watch()).train()
    other = build_tiny("llama", tmp_path / "other", seed=9)
    trainer_of(tiny["llama"], tmp_path / "b", watch(reference=other)).train()
    found = curve_of(tmp_path / "b" / "bias_shift.csv")
    models = [load_base(folder, dtype=torch.float32) for folder in (other, tiny["llama"])]
    for group, value in found[0].items():
        assert value == pytest.approx(plain_delta_b(*models, load_tokenizer(other), group), abs=2e-5)
    saved = tmp_path / "a" / "bias_shift_reference.safetensors"
    trainer_of(tiny["llama"], tmp_path / "c", watch(reference=saved)).train()
    first = (tmp_path / "a" / "bias_shift.csv").read_text().splitlines()
    again = (tmp_path / "c" / "bias_shift.csv").read_text().splitlines()
    assert [line.rpartition(",")[0] for line in first] == [line.rpartition(",")[0] for line in again]
    with pytest.raises(UserError, match="other sentences, groups"):
        trainer_of(tiny["llama"], tmp_path / "d", watch(reference=saved, groups=["women"])).train()
    with pytest.raises(UserError, match="cannot be read"):
        trainer_of(tiny["llama"], tmp_path / "e", watch(reference=tmp_path / "none.safetensors")).train()
