"""dB during a training: a resumed one goes on, a stop stops, a mistake is named."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from refbias.callbacks import StopRule
from refbias.callbacks.bias_shift import refuse_shared_weights
from refbias.callbacks.curve import Point, read_curve
from refbias.errors import UserError
from refbias.stimuli import load_stimuli
from tests.tiny import FAMILIES, build_tiny
from tests.unit.watched_training import SIZES, curve_of, trainer_of, watch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, made / family) for family in FAMILIES}


# --- resuming -------------------------------------------------------------------------------------


def test_a_resumed_training_continues_the_curve_against_the_first_reference(
    tiny: dict[str, Path], tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3, "save_only_model": False}
    trainer_of(tiny["llama"], whole, watch(), **options).train()
    shutil.copytree(whole, broken)
    # step 4 was measured, then came the kill; the last checkpoint is that of step 3
    wanted = (whole / "bias_shift.csv").read_text().splitlines(keepends=True)
    (broken / "bias_shift.csv").write_text("".join(wanted[: 1 + 3 * 3]))
    callback = watch()
    trainer = trainer_of(tiny["llama"], broken, callback, **options)
    trainer.train(resume_from_checkpoint=str(broken / "checkpoint-3"))
    full, found = curve_of(whole / "bias_shift.csv"), curve_of(broken / "bias_shift.csv")
    assert list(found) == [0, 2, 4, 6]
    assert found == full
    assert len(callback.cost.measured) == 2
    steps = [entry["step"] for entry in trainer.state.log_history if "bias_shift/women" in entry]
    assert steps == [0, 2, 4, 6]
    (broken / "bias_shift_reference.safetensors").unlink()
    with pytest.raises(UserError, match="resumed at step 3 is trained already"):
        trainer_of(tiny["llama"], broken, watch(), **options).train(resume_from_checkpoint=str(broken / "checkpoint-3"))


def test_a_training_from_the_start_replaces_an_old_curve(tiny: dict[str, Path], tmp_path: Path) -> None:
    for steps in (6, 2):
        trainer_of(tiny["llama"], tmp_path, watch(), max_steps=steps).train()
    assert list(curve_of(tmp_path / "bias_shift.csv")) == [0, 2]
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
    free = trainer_of(tiny["gemma3_text"], tmp_path / "free", watch(), max_steps=10)
    free.train()
    curve = curve_of(tmp_path / "free" / "bias_shift.csv")
    group = min(curve[4], key=lambda name: curve[4][name])
    below = [step for step in curve if step and curve[step][group] < 0]
    assert below[:3] == [2, 4, 6], "this seed's group falls from the start"
    threshold = max(curve[step][group] for step in (2, 4)) * (1 - 1e-6)
    rule = StopRule(threshold, groups=(group,), patience=2)
    callback = watch(stop=rule)
    options: dict[str, Any] = {"max_steps": 10, "save_strategy": "steps", "save_steps": 3}
    stopped = trainer_of(tiny["gemma3_text"], tmp_path / "stop", callback, **options)
    stopped.train()
    assert callback.stopped_at == 4
    assert stopped.state.global_step == 4
    assert list(curve_of(tmp_path / "stop" / "bias_shift.csv")) == [0, 2, 4]
    assert "stopped at step 4" in capsys.readouterr().err
    again = watch(stop=rule)
    resumed = trainer_of(tiny["gemma3_text"], tmp_path / "stop", again, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "stop" / "checkpoint-3"))
    assert again.stopped_at == 4, "the measurement before the resume counts"
    with pytest.raises(UserError, match="'jews' is not measured"):
        trainer_of(tiny["llama"], tmp_path / "x", watch(stop=StopRule(-1, groups=("jews",)))).train()
    with pytest.raises(UserError, match="the control alone"):
        trainer_of(tiny["llama"], tmp_path / "x", watch(stop=StopRule(-1), groups=["control"])).train()


# --- mistakes -------------------------------------------------------------------------------------


def test_a_state_that_is_not_finite_stops_with_step_layer_and_sentence(tiny: dict[str, Path], tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == 4:
                model.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan

    with pytest.raises(UserError, match=r"training step 4: layer 2 gives a non-finite state for sentence '.+'"):
        trainer_of(tiny["llama"], tmp_path, Break(), watch()).train()
    assert list(curve_of(tmp_path / "bias_shift.csv")) == [0, 2], "what was measured stays"


def test_a_collapse_to_zero_is_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            model.model.norm.weight.data.zero_()

    with pytest.raises(UserError, match="training step 2: dB is not defined: audited "):
        trainer_of(tiny["llama"], tmp_path, Break(), watch()).train()


def test_wrong_use_is_refused_by_name(tiny: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown group 'womem'; nearest: 'women'"):
        trainer_of(tiny["llama"], tmp_path, watch(groups=["womem"])).train()
    with pytest.raises(UserError, match="every 0"):
        watch(every=0)
    sentences = [row for row in load_stimuli(SIZES) if row.kind != "anchor"]
    with pytest.raises(UserError, match="none of kind 'anchor'"):
        trainer_of(tiny["llama"], tmp_path, watch(stimuli=sentences)).train()
    trainer = trainer_of(tiny["llama"], tmp_path, watch())
    trainer.callback_handler.processing_class = None
    with pytest.raises(UserError, match="no tokenizer"):
        trainer.train()
    for name, text in (("is_fsdp_enabled", "FSDP"), ("is_deepspeed_enabled", "DeepSpeed")):
        callback = watch()
        trainer = trainer_of(tiny["llama"], tmp_path, callback)
        setattr(trainer, name, True)
        with pytest.raises(UserError, match=text):
            refuse_shared_weights(trainer, trainer.model)
    with pytest.raises(RuntimeError, match="something else than a transformers Trainer"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
