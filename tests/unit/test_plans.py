"""Memory plans: their arguments, what they refuse, and two processes that train as one does."""

import csv
import functools
import importlib.util
import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from refbias.cli import main as refbias
from refbias.cli.finetune import main
from refbias.config.finetune import FinetuneStage, FullRegime, LoraRegime
from refbias.config.memory import bytes_per_parameter
from refbias.config.root import from_mapping
from refbias.errors import UserError
from refbias.finetune.plans import build_plan, check_library
from refbias.finetune.run import finetune
from refbias.splits import Example
from tests.splits import write_split
from tests.tiny import build_tiny

EIGHT_BILLION = 8.03e9
PLANS = ("single", "offload", "paged_8bit", "fsdp", "zero3")
EXAMPLES = [
    Example(f"e{i}", f"Are {word} people {word} {i} times? {'Say. ' * (i % 3)}", f"{word} indeed.", False)
    for i, word in enumerate(("kind", "cold", "warm", "cruel", "good", "bad", "old", "young") * 3)
]


def _regime(plan: str, **options: Any) -> FullRegime:
    shared = {"processes": 4} if plan in ("fsdp", "zero3") else {}
    return FullRegime.model_validate({"memory_plan": plan, **shared, **options})


def _settings(**options: Any) -> FinetuneStage:
    full = {"dtype": "float32", "device": "cpu", "per_device_batch_size": 2, "gradient_accumulation": 4, **options}
    stage = {"regime": "full", "split": "unharmful", "full": full, "chat_format": "auto", "file": None, "seed": 5}
    return FinetuneStage.model_validate(stage)


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_the_batch_of_an_update_is_kept(name: str) -> None:
    regime = _regime(name)
    plan = build_plan(regime, "cuda")
    facts = plan.facts(regime.per_device_batch_size)
    assert facts["memory_plan"] == name
    assert facts["effective_batch"] == 32
    assert plan.arguments["per_device_train_batch_size"] * plan.arguments["gradient_accumulation_steps"] == (
        8 if name in ("fsdp", "zero3") else 32
    )
    assert plan.launched == (name in ("offload", "fsdp", "zero3"))
    if plan.launched:
        assert plan.launcher()[:2] == ["torch.distributed.run", "--standalone"]
        assert plan.launcher()[-1] == str(plan.processes)


def test_lora_is_always_single() -> None:
    assert build_plan(LoraRegime(), "cuda").name == "single"


def test_eight_bit_plan_builds_its_arguments() -> None:
    from transformers.training_args import OptimizerNames
    from trl import SFTConfig

    plan = build_plan(_regime("paged_8bit", weights_dtype="bfloat16", gradient_checkpointing=True), "cuda")
    assert plan.library == "bitsandbytes"
    args = SFTConfig(output_dir="unused", use_cpu=True, bf16=True, **plan.arguments)
    assert args.optim is OptimizerNames.PAGED_ADAMW_8BIT
    assert args.gradient_checkpointing
    assert args.gradient_checkpointing_kwargs["use_reentrant"] is False
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 32


@pytest.mark.parametrize("name", ["offload", "zero3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_deepspeed_plan_builds_arguments_that_the_trainer_accepts(name: str, dtype: str) -> None:
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig as Check

    regime = _regime(name, dtype=dtype, weight_decay=0.1, max_grad_norm=0.7)
    plan = build_plan(regime, "cuda")
    written = plan.arguments["deepspeed"]
    config: Any = HfDeepSpeedConfig(json.loads(json.dumps(written)))
    config.mismatches = []
    config.is_auto = types.MethodType(Check.is_auto, config)
    config.fill_match = types.MethodType(Check.fill_match, config)
    config.fill_only = functools.partial(config.fill_match, must_match=False)
    args = types.SimpleNamespace(
        world_size=plan.processes,
        max_grad_norm=regime.max_grad_norm,
        learning_rate=regime.learning_rate,
        weight_decay=regime.weight_decay,
        bf16=dtype == "bfloat16",
        bf16_full_eval=False,
        fp16=False,
        fp16_full_eval=False,
        save_on_each_node=False,
        get_warmup_steps=lambda steps: 3,
        **{key: value for key, value in plan.arguments.items() if key != "deepspeed"},
    )
    # transformers compares every value with the trainer's own and refuses a mismatch
    Check.trainer_config_process(config, args)
    Check.trainer_config_finalize(config, args, None, 100)
    assert config.mismatches == []
    assert written["train_batch_size"] == 32
    assert config.is_zero3() == (name == "zero3")
    assert config.is_offload() == (name == "offload")


def test_fsdp_plan_builds_its_arguments() -> None:
    plan = build_plan(_regime("fsdp"), "cuda")
    assert plan.arguments["fsdp"] is True
    assert plan.arguments["fsdp_config"]["version"] == 2
    assert plan.library is None


def test_bytes_per_parameter_say_which_plan_fits_which_card() -> None:
    def card(name: str, **options: Any) -> float:
        return bytes_per_parameter(_regime(name, **options))[0] * EIGHT_BILLION

    assert card("single") > 80e9
    assert 60e9 < card("single", weights_dtype="bfloat16") < 70e9
    assert 30e9 < card("paged_8bit", weights_dtype="bfloat16") < 36e9
    assert card("paged_8bit") > 40e9
    assert card("offload") < 20e9
    assert card("fsdp") == card("zero3") == 4 * EIGHT_BILLION
    assert bytes_per_parameter(_regime("offload"))[1] * EIGHT_BILLION > 120e9


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 2}, r"processes 2 needs memory_plan 'fsdp' or 'zero3'"),
        (
            {"memory_plan": "fsdp", "processes": 3},
            r"accumulation 8 is no multiple of processes 3.*batch of 32",
        ),
        ({"memory_plan": "zero3", "weights_dtype": "bfloat16"}, r"'zero3' keeps float32 weights"),
        ({"dtype": "float32", "weights_dtype": "bfloat16"}, r"weights_dtype bfloat16 needs dtype bfloat16"),
        ({"memory_plan": "magic"}, r"regimes.full.memory_plan"),
    ],
)
def test_plans_that_cannot_be_are_refused_by_the_configuration(options: dict[str, Any], message: str) -> None:
    data = {"run": "r", "models": {"m": {"source": {"kind": "packaged_gguf"}}}, "regimes": {"full": options}}
    with pytest.raises(UserError, match=message) as caught:
        from_mapping(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "library"), [("offload", "deepspeed"), ("zero3", "deepspeed"), ("paged_8bit", "bitsandbytes")]
)
def test_a_missing_library_is_named_with_the_extra(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"{name} needs {library}.*pip install 'refbias\[train-gpu\]'") as caught:
        check_library(build_plan(_regime(name), "cuda"))
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=rf"{name} needs a CUDA device, this run's is 'cpu'"):
        build_plan(_regime(name), "cpu")
    check_library(build_plan(_regime("fsdp"), "cuda"))


# --- training -----------------------------------------------------------------------------------


def test_two_visible_gpus_do_not_halve_the_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl import SFTConfig

    original = SFTConfig.__post_init__

    def two_visible(self: Any) -> None:
        original(self)
        self._n_gpu = 2

    monkeypatch.setattr(SFTConfig, "__post_init__", two_visible)
    reference = build_tiny("llama", tmp_path / "m")
    facts = finetune(_settings(epochs=2), EXAMPLES, reference, tmp_path / "o", tmp_path / "w")
    assert facts["updates"] == 6
    assert facts["effective_batch"] == 8


@pytest.mark.parametrize("family", ["gemma3_text", "llama"])
def test_gradient_checkpointing_changes_no_loss(tmp_path: Path, family: str) -> None:
    reference = build_tiny(family, tmp_path / "m")
    losses = []
    for checkpointing in (False, True):
        out = tmp_path / str(checkpointing)
        settings = _settings(epochs=1, gradient_checkpointing=checkpointing)
        facts = finetune(settings, EXAMPLES, reference, out, tmp_path / "w")
        assert facts["gradient_checkpointing"] is checkpointing
        losses.append(_losses(out))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_lora_trains_under_gradient_checkpointing(tmp_path: Path) -> None:
    reference = build_tiny("llama", tmp_path / "m")
    lora = {"dtype": "float32", "device": "cpu", "learning_rate": 3e-3, "per_device_batch_size": 4}
    lora |= {"gradient_accumulation": 1, "gradient_checkpointing": True}
    stage = {"regime": "lora", "split": "unharmful", "lora": lora, "chat_format": "auto", "file": None, "seed": 5}
    settings = FinetuneStage.model_validate(stage)
    facts = finetune(settings, EXAMPLES, reference, tmp_path / "o", tmp_path / "w")
    assert facts["last_loss"] < 0.9 * facts["first_loss"]


def test_bf16_weights_train_and_are_said_to(tmp_path: Path) -> None:
    reference = build_tiny("llama", tmp_path / "m")
    settings = _settings(epochs=6, dtype="bfloat16", weights_dtype="bfloat16", learning_rate=3e-3)
    facts = finetune(settings, EXAMPLES, reference, tmp_path / "o", tmp_path / "w")
    assert facts["weights_dtype"] == "bfloat16"
    assert facts["last_loss"] < 0.95 * facts["first_loss"]


def _losses(folder: Path) -> list[float]:
    return [float(row["loss"]) for row in csv.DictReader((folder / "loss.csv").open())]


def _command(settings: FinetuneStage, split: Path, reference: Path, out: Path, work: Path) -> list[str]:
    settings = settings.model_copy(update={"file": str(split)})
    return [
        *("--settings", settings.model_dump_json(), "--reference", str(reference)),
        *("--output", str(out), "--work", str(work)),
    ]


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    split, reference = write_split(tmp_path / "split.jsonl", EXAMPLES), build_tiny("gemma3_text", tmp_path / "m")
    common = {"epochs": 12, "learning_rate": 1e-3, "save_steps": 4}
    one, two, work = tmp_path / "one", tmp_path / "two", tmp_path / "work"
    main(_command(_settings(**common), split, reference, one, tmp_path / "w"))
    shared = _settings(**common, memory_plan="fsdp", processes=2)
    main(_command(shared, split, reference, two, work))
    assert not work.exists()
    assert len(_losses(one)) == 36
    assert _losses(two) == pytest.approx(_losses(one), abs=1e-4)
    manifest = json.loads((two / "manifest.json").read_text())
    assert (manifest["memory_plan"], manifest["processes"], manifest["effective_batch"]) == ("fsdp", 2, 8)
    assert manifest["gradient_accumulation"] == 2
    assert "--nproc-per-node 2" in manifest["launcher"]
    plain = json.loads((one / "manifest.json").read_text())
    assert manifest["trained_parameters"] == plain["trained_parameters"]
    found, wanted = load_file(two / "model.safetensors"), load_file(one / "model.safetensors")
    assert set(found) == set(wanted)
    start = load_file(reference / "model.safetensors")
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=2e-3), name
        assert not torch.allclose(start[name], tensor, atol=2e-3) or "norm" in name, name
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        assert (two / name).read_bytes() == (one / name).read_bytes(), name


@pytest.mark.slow
def test_a_mistake_in_one_process_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split, reference = write_split(tmp_path / "split.jsonl", EXAMPLES), build_tiny("llama", tmp_path / "m")
    settings = _settings(memory_plan="fsdp", processes=2, learning_rate=1e30, warmup_ratio=0)
    command = ["finetune", *_command(settings, split, reference, tmp_path / "o", tmp_path / "w")]
    # the processes of the plan are started by this one, as they are by `refbias finetune`
    assert refbias.main(command) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("refbias: error: full/unharmful: ")
    assert not (tmp_path / "o" / "manifest.json").exists()
