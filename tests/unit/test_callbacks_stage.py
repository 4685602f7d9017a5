"""dB during a training of several processes, and in the pipeline's own stage."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from refbias import codehash
from refbias.cli import finetune_watched
from refbias.config import root as config_root
from refbias.config import slices as config_slices
from refbias.config.bias_shift import WatchedFinetuneStage
from refbias.errors import UserError
from tests.splits import write_split
from tests.tiny import FAMILIES, build_tiny
from tests.unit.test_finetune import EXAMPLES, _settings
from tests.unit.watched_training import GROUPS, curve_of, trainer_of, watch


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, made / family) for family in FAMILIES}


# --- several processes ----------------------------------------------------------------------------

WORKER = """
import json, os, sys
from pathlib import Path
from refbias.callbacks import StopRule
from tests.unit.watched_training import trainer_of, watch

reference, out = map(Path, sys.argv[1:])
# the lowest of 24 groups is below, so that the first process asks for a stop; the others measure nothing
callback = watch(groups=None, stop=StopRule(-1e-9, patience=2))
trainer = trainer_of(reference, out, callback, dropout=0.0, ddp_backend="gloo", per_device_train_batch_size=2)
trainer.train()
facts = {"step": trainer.state.global_step, "stopped": callback.stopped_at, "points": len(callback.points)}
(out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(facts))
"""


@pytest.mark.slow
def test_of_two_processes_the_first_measures_and_both_stop(root: Path, tiny: dict[str, Path], tmp_path: Path) -> None:
    trainer_of(tiny["gemma3_text"], tmp_path / "alone", watch(groups=None), dropout=0.0).train()
    curve = curve_of(tmp_path / "alone" / "bias_shift.csv")
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
    found = curve_of(out / "bias_shift.csv")
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
    found = curve_of(tmp_path / "watched" / "bias_shift.csv")
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
