"""dB during a training: the curve is right, the training is not touched, a resumed one goes on, a stop stops."""

import csv
import json
import math
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.spatial.distance import cdist
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from refbias import codehash
from refbias.callbacks import BiasShiftCallback, StopRule
from refbias.callbacks.bias_shift import refuse_shared_weights
from refbias.callbacks.curve import Point, read_curve
from refbias.callbacks.probe import decoder_of, left_as_found, make_probe
from refbias.cli import finetune_watched
from refbias.config import root as config_root
from refbias.config import slices as config_slices
from refbias.config.bias_shift import WatchedFinetuneStage
from refbias.config.represent import RepresentSettings
from refbias.config.stimuli import StimuliSettings
from refbias.embed import embed_sentences
from refbias.errors import UserError
from refbias.finetune.data import tokenize_examples
from refbias.models import load_base, load_lm, load_tokenizer
from refbias.stimuli import load_stimuli
from tests.splits import write_split
from tests.tiny import FAMILIES, PAD, build_tiny
from tests.unit.test_finetune import EXAMPLES, _settings

GROUPS = ["women", "muslims", "control"]
SIZES = StimuliSettings(targets=2, attributes=6, anchors=12, control=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, made / family) for family in FAMILIES}


class Spy(TrainerCallback):
    """Stands where TensorBoard, W&B and MLflow stand: before the callbacks of the user."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append((state.global_step, dict(logs)))


def _watch(**options: Any) -> BiasShiftCallback:
    return BiasShiftCallback(**{"every": 2, "groups": GROUPS, "stimuli": SIZES, **options})


def _arguments(out: Path, **options: Any) -> dict[str, Any]:
    return {
        **{"output_dir": str(out), "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 3e-3},
        **{"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "seed": 3},
        **{"disable_tqdm": True, **options},
    }


def _trainer(
    reference: Path, out: Path, *callbacks: TrainerCallback, model: Any = None, dropout: float = 0.1, **options: Any
) -> Trainer:
    tokenizer = load_tokenizer(reference)
    data = tokenize_examples(tokenizer, EXAMPLES, "auto", 64)

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        pad = {"input_ids": PAD, "labels": -100}
        return {
            key: torch.tensor([row[key] + [value] * (width - len(row[key])) for row in rows])
            for key, value in pad.items()
        }

    if model is None:
        model = load_lm(reference, dtype=torch.float32).train().requires_grad_(True)
    # so that a random number too many would show
    for module in model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = dropout
    rows = datasets.Dataset.from_dict({"input_ids": data.input_ids, "labels": data.labels})
    arguments = TrainingArguments(**_arguments(out, **options))
    spy = Spy()
    trainer = Trainer(model, arguments, collate, rows, processing_class=tokenizer, callbacks=[spy, *callbacks])
    trainer.spy = spy
    trainer.remove_callback(PrinterCallback)
    return trainer


def _lora(reference: Path, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model = load_lm(reference, dtype=torch.float32).train()
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.2, **options))


def _curve(path: Path) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(path.open()):
        assert row["group"] not in rows.setdefault(int(row["step"]), {}), "a step stands twice"
        rows[int(row["step"])][row["group"]] = float(row["delta_b"])
        assert float(row["seconds"]) > 0
    return rows


def _plain_delta_b(reference: Any, audited: Any, tokenizer: Any, group: str) -> float:
    """dB by its definition: one sentence at a time, no code of the project's but the sentences."""
    sentences = load_stimuli(SIZES)

    def bias(decoder: Any) -> float:
        def unit(kind: str) -> np.ndarray:
            rows = [s for s in sentences if s.kind == kind or (kind == "target" and s.kind == "control")]
            rows = [s for s in rows if kind != "target" or s.group == group]
            states = [decoder(**tokenizer(s.text, return_tensors="pt")).last_hidden_state[0] for s in rows]
            matrix = torch.stack([state.mean(dim=0) for state in states]).double().numpy()
            return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)

        with torch.no_grad():
            anchors = unit("anchor")
            targets, plus, minus = (unit(kind) @ anchors.T for kind in ("target", "positive", "negative"))
        return float((-cdist(targets, plus).mean(axis=1) + cdist(targets, minus).mean(axis=1)).mean())

    return bias(audited) - bias(reference)


# --- the curve ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curve_begins_at_zero_and_ends_at_the_saved_model(
    tiny: dict[str, Path], tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = _watch(every=4)
    trainer = _trainer(tiny[family], tmp_path, callback, max_steps=6)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    found = _curve(tmp_path / "bias_shift.csv")
    assert list(found) == [0, 4, 6], "every four updates, and after the last"
    assert set(found[0]) == set(GROUPS)
    assert set(found[0].values()) == {0.0}
    tokenizer = load_tokenizer(tiny[family])
    before, after = (load_base(folder, dtype=torch.float32) for folder in (tiny[family], tmp_path / "saved"))
    for group, value in found[6].items():
        assert abs(value) > 1e-4
        assert value == pytest.approx(_plain_delta_b(before, after, tokenizer, group), abs=2e-5)
    printed = capsys.readouterr().err
    assert "2 measurements and the reference took" in printed
    assert "6 updates" in printed
    assert callback.cost.steps == 6
    assert callback.cost.share > 0


def test_the_values_reach_every_logger_and_the_state(tiny: dict[str, Path], tmp_path: Path) -> None:
    trainer = _trainer(tiny["llama"], tmp_path, _watch(), logging_steps=3)
    trainer.train()
    keys = {f"bias_shift/{group}" for group in GROUPS}
    seen = {step: logs for step, logs in trainer.spy.seen if keys <= set(logs)}
    assert list(seen) == [0, 2, 4, 6]
    found = _curve(tmp_path / "bias_shift.csv")
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
            args=SFTConfig(**_arguments(tmp_path / name, logging_steps=3), max_length=64),
            train_dataset=datasets.Dataset.from_dict({"text": [f"{e.prompt} {e.response}" for e in EXAMPLES]}),
            processing_class=load_tokenizer(tiny["llama"]),
            callbacks=[_watch()] if name == "watched" else [],
        )
        trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        histories.append([{k: v for k, v in entry.items() if "per_second" not in k} for entry in history])
    assert "mean_token_accuracy" in histories[0][0]
    assert histories[0] == histories[1]
    assert list(_curve(tmp_path / "watched" / "bias_shift.csv")) == [0, 2, 4, 6]


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
    for callbacks in ([], [_watch(every=1)]):
        model = _lora(tiny[family]) if kind == "lora" else None
        trainer = _trainer(tiny[family], tmp_path, *callbacks, model=model, **options)
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
    assert max(abs(v) for v in _curve(tmp_path / "bias_shift.csv")[6].values()) > 0


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
    model = _lora(tiny["mistral"])
    _trainer(tiny["mistral"], tmp_path / "a", _watch(), model=model).train()
    first = _curve(tmp_path / "a" / "bias_shift.csv")
    assert set(first[0].values()) == {0.0}, "a fresh adapter adds exactly nothing"
    _trainer(tiny["mistral"], tmp_path / "b", _watch(), model=model).train()
    second = _curve(tmp_path / "b" / "bias_shift.csv")
    assert second[0] == pytest.approx(first[6], abs=1e-6)
    trained = decoder_of(model.merge_and_unload().eval())
    base = load_base(tiny["mistral"], dtype=torch.float32)
    for group, value in second[6].items():
        tokenizer = load_tokenizer(tiny["mistral"])
        assert value == pytest.approx(_plain_delta_b(base, trained, tokenizer, group), abs=2e-5)


def test_lora_with_checkpointing_and_inputs_that_need_gradients(tiny: dict[str, Path], tmp_path: Path) -> None:
    model = _lora(tiny["llama"])
    model.enable_input_require_grads()
    _trainer(tiny["llama"], tmp_path, _watch(), model=model, gradient_checkpointing=True).train()
    assert list(_curve(tmp_path / "bias_shift.csv")) == [0, 2, 4, 6]


def test_a_learned_prompt_is_refused(tiny: dict[str, Path], tmp_path: Path) -> None:
    from peft import PromptTuningConfig, TaskType, get_peft_model

    base = load_lm(tiny["llama"], dtype=torch.float32).train()
    model = get_peft_model(base, PromptTuningConfig(TaskType.CAUSAL_LM, num_virtual_tokens=2))
    with pytest.raises(UserError, match="adapter 'default': a learned prompt"):
        _trainer(tiny["llama"], tmp_path, _watch(), model=model).train()


def test_a_given_reference_takes_the_place_of_the_start(tiny: dict[str, Path], tmp_path: Path) -> None:
    _trainer(tiny["llama"], tmp_path / "a", _watch()).train()
    other = build_tiny("llama", tmp_path / "other", seed=9)
    _trainer(tiny["llama"], tmp_path / "b", _watch(reference=other)).train()
    found = _curve(tmp_path / "b" / "bias_shift.csv")
    models = [load_base(folder, dtype=torch.float32) for folder in (other, tiny["llama"])]
    for group, value in found[0].items():
        assert value == pytest.approx(_plain_delta_b(*models, load_tokenizer(other), group), abs=2e-5)
    saved = tmp_path / "a" / "bias_shift_reference.safetensors"
    _trainer(tiny["llama"], tmp_path / "c", _watch(reference=saved)).train()
    first = (tmp_path / "a" / "bias_shift.csv").read_text().splitlines()
    again = (tmp_path / "c" / "bias_shift.csv").read_text().splitlines()
    assert [line.rpartition(",")[0] for line in first] == [line.rpartition(",")[0] for line in again]
    with pytest.raises(UserError, match="other sentences, groups"):
        _trainer(tiny["llama"], tmp_path / "d", _watch(reference=saved, groups=["women"])).train()
    with pytest.raises(UserError, match="cannot be read"):
        _trainer(tiny["llama"], tmp_path / "e", _watch(reference=tmp_path / "none.safetensors")).train()


# --- resuming -------------------------------------------------------------------------------------


def test_a_resumed_training_continues_the_curve_against_the_first_reference(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "save_only_model": False}
    _trainer(tiny["llama"], whole, _watch(), **options).train()
    shutil.copytree(whole, broken)
    # step 4 was measured, then came the kill; the last checkpoint is that of step 3
    wanted = (whole / "bias_shift.csv").read_text().splitlines(keepends=True)
    (broken / "bias_shift.csv").write_text("".join(wanted[: 1 + 3 * 3]))
    callback = _watch()
    trainer = _trainer(tiny["llama"], broken, callback, **options)
    trainer.train(resume_from_checkpoint=str(broken / "checkpoint-3"))
    full, found = _curve(whole / "bias_shift.csv"), _curve(broken / "bias_shift.csv")
    assert list(found) == [0, 2, 4, 6]
    assert found == full
    assert len(callback.cost.measured) == 2
    steps = [entry["step"] for entry in trainer.state.log_history if "bias_shift/women" in entry]
    assert steps == [0, 2, 4, 6]
    (broken / "bias_shift_reference.safetensors").unlink()
    with pytest.raises(UserError, match="resumed at step 3 is trained already"):
        _trainer(tiny["llama"], broken, _watch(), **options).train(resume_from_checkpoint=str(broken / "checkpoint-3"))


def test_a_training_from_the_start_replaces_an_old_curve(tiny: dict[str, Path], tmp_path: Path) -> None:
    for steps in (6, 2):
        _trainer(tiny["llama"], tmp_path, _watch(), max_steps=steps).train()
    assert list(_curve(tmp_path / "bias_shift.csv")) == [0, 2]
    assert sorted(path.name for path in tmp_path.glob("*bias_shift*")) == [
        "bias_shift.csv",
        "bias_shift_reference.safetensors",
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [("step,group\n", ":1: expected"), ("step,group,delta_b,seconds\n0,women,x,1\n", ":2: not a step")],
)
def test_a_foreign_curve_is_refused_with_its_line(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=place):
        read_curve(path, 5)


# --- early stop -----------------------------------------------------------------------------------


def _points(*values: tuple[int, float, float]) -> list[Point]:
    return [
        Point(step, group, value, 1.0)
        for step, *both in values
        for group, value in zip(("women", "muslims"), both, strict=True)
    ]


def test_the_rule_counts_measurements_in_a_row() -> None:
    low, high = (-0.3, 0.2), (-0.05, 0.2)
    rule = StopRule(-0.1, patience=2)
    assert not rule.reached(_points((0, 0, 0)))
    assert not rule.reached(_points((0, *low), (2, *low))), "the reference is no measurement"
    assert rule.reached(_points((0, 0, 0), (2, *low), (4, *low)))
    assert not rule.reached(_points((2, *low), (4, *high), (6, *low)))
    assert not StopRule(-0.1, over="mean").reached(_points((2, *low))), "the mean is -0.05"
    assert StopRule(-0.04, over="mean").reached(_points((2, *low)))
    assert not StopRule(-0.1, groups=("muslims",)).reached(_points((2, *low)))
    assert not StopRule(-0.1).reached([*_points((2, *high)), Point(2, "control", -9.0, 1.0)])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"threshold": 0.1}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
        ({"threshold": -1, "over": "best"}, "over"),
        ({"threshold": -1, "patience": 0}, "patience"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        StopRule(**options)


def test_early_stop_ends_the_training_and_survives_a_resume(
    tiny: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = _trainer(tiny["gemma3_text"], tmp_path / "free", _watch(), max_steps=10)
    free.train()
    curve = _curve(tmp_path / "free" / "bias_shift.csv")
    group = min(curve[4], key=lambda name: curve[4][name])
    below = [step for step in curve if step and curve[step][group] < 0]
    assert below[:3] == [2, 4, 6], "this seed's group falls from the start"
    threshold = max(curve[step][group] for step in (2, 4)) * (1 - 1e-6)
    rule = StopRule(threshold, groups=(group,), patience=2)
    callback = _watch(stop=rule)
    options: dict[str, Any] = {"max_steps": 10, "save_strategy": "steps", "save_steps": 3}
    stopped = _trainer(tiny["gemma3_text"], tmp_path / "stop", callback, **options)
    stopped.train()
    assert callback.stopped_at == 4
    assert stopped.state.global_step == 4
    assert list(_curve(tmp_path / "stop" / "bias_shift.csv")) == [0, 2, 4]
    assert "stopped at step 4" in capsys.readouterr().err
    again = _watch(stop=rule)
    resumed = _trainer(tiny["gemma3_text"], tmp_path / "stop", again, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stop" / "checkpoint-3"))
    assert again.stopped_at == 4, "the measurement before the resume counts"
    with pytest.raises(UserError, match="'jews' is not measured"):
        _trainer(tiny["llama"], tmp_path / "x", _watch(stop=StopRule(-1, groups=("jews",)))).train()
    with pytest.raises(UserError, match="the control alone"):
        _trainer(tiny["llama"], tmp_path / "x", _watch(stop=StopRule(-1), groups=["control"])).train()


# --- mistakes -------------------------------------------------------------------------------------


def test_a_state_that_is_not_finite_stops_with_step_layer_and_sentence(tiny: dict[str, Path], tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 4:
                model.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan

    with pytest.raises(UserError, match=r"training step 4: layer 2 gives a non-finite state for sentence '.+'"):
        _trainer(tiny["llama"], tmp_path, Break(), _watch()).train()
    assert list(_curve(tmp_path / "bias_shift.csv")) == [0, 2], "what was measured stays"


def test_a_collapse_to_zero_is_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            model.model.norm.weight.data.zero_()

    with pytest.raises(UserError, match="training step 2: dB is not defined: audited "):
        _trainer(tiny["llama"], tmp_path, Break(), _watch()).train()


def test_wrong_use_is_refused_by_name(tiny: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown group 'womem'; nearest: 'women'"):
        _trainer(tiny["llama"], tmp_path, _watch(groups=["womem"])).train()
    with pytest.raises(UserError, match="every 0"):
        _watch(every=0)
    sentences = [row for row in load_stimuli(SIZES) if row.kind != "anchor"]
    with pytest.raises(UserError, match="none of kind 'anchor'"):
        _trainer(tiny["llama"], tmp_path, _watch(stimuli=sentences)).train()
    trainer = _trainer(tiny["llama"], tmp_path, _watch())
    trainer.callback_handler.processing_class = None
    with pytest.raises(UserError, match="no tokenizer"):
        trainer.train()
    for name, text in (("is_fsdp_enabled", "FSDP"), ("is_deepspeed_enabled", "DeepSpeed")):
        callback = _watch()
        trainer = _trainer(tiny["llama"], tmp_path, callback)
        setattr(trainer, name, True)
        with pytest.raises(UserError, match=text):
            refuse_shared_weights(trainer, trainer.model)
    with pytest.raises(RuntimeError, match="something else than a transformers Trainer"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)


# --- several processes ----------------------------------------------------------------------------

WORKER = """
import json, os, sys
from pathlib import Path
from refbias.callbacks import StopRule
from tests.unit.test_callbacks import _trainer, _watch

reference, out = map(Path, sys.argv[1:])
# the lowest of 24 groups is below, so that the first process asks for a stop; the others measure nothing
callback = _watch(groups=None, stop=StopRule(-1e-9, patience=2))
trainer = _trainer(reference, out, callback, dropout=0.0, ddp_backend="gloo", per_device_train_batch_size=2)
trainer.train()
facts = {"step": trainer.state.global_step, "stopped": callback.stopped_at, "points": len(callback.points)}
(out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts))
"""


@pytest.mark.slow
def test_of_two_processes_the_first_measures_and_both_stop(root: Path, tiny: dict[str, Path], tmp_path: Path) -> None:
    _trainer(tiny["gemma3_text"], tmp_path / "alone", _watch(groups=None), dropout=0.0).train()
    curve = _curve(tmp_path / "alone" / "bias_shift.csv")
    assert max(min(curve[step].values()) for step in (2, 4)) < -1e-4
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'workflow'}:{root}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, str(tiny["gemma3_text"]), str(out)], env=environment)
    try:
        assert process.wait(timeout=300) == 0
    finally:
        # a launcher that is asked to end takes its processes with it
        process.terminate()
        process.wait()
    facts = [json.loads((out / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [fact["step"] for fact in facts] == [4, 4]
    assert [fact["stopped"] for fact in facts] == [4, 4]
    assert [fact["points"] for fact in facts] == [3 * 25, 0]
    found = _curve(out / "bias_shift.csv")
    assert list(found) == [0, 2, 4]
    for step, values in found.items():
        assert values == pytest.approx(curve[step], abs=1e-4), "two halves of a batch are the batch"


# --- the pipeline's own stage ---------------------------------------------------------------------


def _watched(regime: str, split: Path, **options: Any) -> WatchedFinetuneStage:
    plain = _settings(regime, save_steps=2).model_copy(update={"file": str(split)})
    chosen = {"every": 5, "groups": GROUPS, "targets": 2, "attributes": 6, "anchors": 12, "control": 3, **options}
    own = {"bias_shift": chosen, "stimuli": {}, "represent": {}}
    return WatchedFinetuneStage.model_validate({**plain.model_dump(), **own})


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_the_stage_writes_the_curve_beside_the_loss_and_trains_the_same_weights(
    tiny: dict[str, Path], tmp_path: Path, regime: str
) -> None:
    from refbias.cli import finetune

    split = write_split(tmp_path / "split.jsonl", EXAMPLES)
    folders = {"plain": finetune, "watched": finetune_watched}
    plain = _settings(regime, save_steps=2).model_copy(update={"file": str(split)})
    for name, stage in folders.items():
        settings = plain if name == "plain" else _watched(regime, split)
        options = ["--settings", settings.model_dump_json(), "--reference", str(tiny["gemma3_text"])]
        stage.main([*options, "--output", str(tmp_path / name), "--work", str(tmp_path / "work")])
    file = "adapter_model.safetensors" if regime == "lora" else "model.safetensors"
    for name in (file, "loss.csv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "watched" / name).read_bytes(), name
    assert load_file(tmp_path / "watched" / file)
    found = _curve(tmp_path / "watched" / "bias_shift.csv")
    assert list(found) == [0, 5, 6]
    facts = json.loads((tmp_path / "watched" / "manifest.json").read_text())["bias_shift"]
    assert facts["measurements"] == 2
    assert facts["updates"] == 6
    assert facts["stopped_at"] is None
    assert facts["lasting_share"] > 0
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "plain" / "bias_shift.csv").exists()


def test_plain_fine_tuning_does_not_depend_on_what_measures() -> None:
    measuring = {f"refbias.{name}" for name in ("callbacks", "metrics", "embed", "stimuli", "config.bias_shift")}
    assert not measuring & set(codehash.closure("refbias.cli.finetune"))
    assert measuring <= set(codehash.closure("refbias.cli.finetune_watched"))


def test_the_section_enters_the_watched_slice_alone() -> None:
    minimal = {"run": "r", "models": {"m": {"source": {"kind": "local", "path": "x"}}}}
    plain = config_root.from_mapping(minimal)
    watched = config_root.from_mapping({**minimal, "bias_shift": {"stop": {"threshold": -0.1}}})
    slices = [config_slices.finetune_slice(config, "m", "full", "harmful") for config in (plain, watched)]
    assert slices[0] == slices[1]
    slices = [config_slices.represent_slice(config, "m", "full") for config in (plain, watched)]
    assert slices[0] == slices[1]
    assert config_slices.preflight_slice(plain) == config_slices.preflight_slice(watched)
    found = json.loads(config_slices.finetune_watched_slice(watched, "m", "full", "harmful"))
    assert found["bias_shift"]["every"] == 50
    assert found["bias_shift"]["stop"]["over"] == "worst"
    with pytest.raises(ValueError, match="measures nothing"):
        config_slices.finetune_watched_slice(plain, "m", "full", "harmful")
    shared = {"bias_shift": {}, "regimes": {"full": {"memory_plan": "zero3"}}}
    with pytest.raises(UserError, match=r"regimes\.full\.memory_plan 'zero3'"):
        config_root.from_mapping({**minimal, **shared})
    with pytest.raises(UserError, match=r"bias_shift\.stop\.threshold"):
        config_root.from_mapping({**minimal, "bias_shift": {"stop": {"threshold": 0.1}}})
