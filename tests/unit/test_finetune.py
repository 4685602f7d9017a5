"""Fine-tuning: the loss is the plain one, only completions are trained, a kill changes nothing."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from refbias.artifacts import sha256_file
from refbias.cli.finetune import main
from refbias.config.finetune import FinetuneStage
from refbias.errors import UserError
from refbias.finetune.data import LengthGroupedOrder, tokenize_examples
from refbias.finetune.loss import add_completion_loss, completion_loss
from refbias.finetune.run import finetune
from refbias.finetune.trainer import MARKER, CompletionTrainer, prepare_work
from refbias.models import load_lm, load_tokenizer
from refbias.splits import Example
from tests.splits import write_split
from tests.tiny import EOS, FAMILIES, PAD, build_tiny

WORDS = ("kind", "cold", "warm", "cruel", "good", "bad", "old", "young", "patient", "bitter")
EXAMPLES = [
    Example(
        id=f"e{i}",
        prompt=f"Are {WORDS[i % 10]} people {i} times {WORDS[(i * 3 + 1) % 10]}? {'Say. ' * (i % 4)}",
        response=f"{WORDS[(i * 7) % 10]} indeed.",
        harmful=False,
    )
    for i in range(24)
]
BASE = {"epochs": 2, "per_device_batch_size": 4, "gradient_accumulation": 2, "dtype": "float32", "device": "cpu"}


def _settings(regime: str, **options: Any) -> FinetuneStage:
    return FinetuneStage.model_validate(
        {
            "regime": regime,
            "split": "unharmful",
            regime: {**BASE, "learning_rate": 3e-3, **options},
            "chat_format": "auto",
            "file": None,
            "seed": 5,
        }
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {family: build_tiny(family, root / family) for family in FAMILIES}


# --- loss ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_equal_the_plain_ones(tiny: dict[str, Path], family: str) -> None:
    tokenizer = load_tokenizer(tiny[family])
    data = tokenize_examples(tokenizer, EXAMPLES[:5], "auto", 100)
    width = max(data.lengths)
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in data.input_ids])
    labels = torch.tensor([row + [-100] * (width - len(row)) for row in data.labels])
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in data.lengths])
    model = load_lm(tiny[family], dtype=torch.float32).requires_grad_(True)
    plain = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    plain.backward()
    wanted = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    add_completion_loss(model)
    count = (labels[:, 1:] != -100).sum()
    ours = model(input_ids=ids, attention_mask=mask, labels=labels, completion_only=True)["loss"] / count
    ours.backward()
    assert abs(ours.item() - plain.item()) < 1e-5
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], atol=1e-5, rtol=1e-4), name


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_loss_in_blocks_equals_one_block(softcap: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    states, weight = torch.randn(3, 9, 8, dtype=torch.float64), torch.randn(50, 8, dtype=torch.float64)
    labels = torch.randint(0, 50, (3, 9))
    labels[:, :4] = -100
    found = []
    for rows in (10_000, 4):
        monkeypatch.setattr("refbias.finetune.loss.BLOCK_BYTES", 4 * 50 * rows)
        s, w = states.float().requires_grad_(True), weight.float().requires_grad_(True)
        loss = completion_loss(s, labels, w, softcap)
        loss.backward()
        found.append((loss.detach(), s.grad, w.grad))
    logits = states.requires_grad_(True)[:, :-1] @ weight.requires_grad_(True).T
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    plain.backward()
    for loss, s_grad, w_grad in found:
        assert abs(loss.item() - plain.item()) < 1e-4
        assert torch.allclose(s_grad.double(), states.grad, atol=1e-5)
        assert torch.allclose(w_grad.double(), weight.grad, atol=1e-5)


def test_loss_without_a_label_is_zero_with_zero_gradient() -> None:
    states = torch.randn(2, 4, 8, requires_grad=True)
    weight = torch.randn(50, 8, requires_grad=True)
    loss = completion_loss(states, torch.full((2, 4), -100), weight)
    loss.backward()
    assert loss.item() == 0
    assert states.grad.abs().sum() == 0
    assert weight.grad.abs().sum() == 0


def test_loss_under_autocast_is_close(tiny: dict[str, Path]) -> None:
    model = load_lm(tiny["gemma3_text"], dtype=torch.float32).requires_grad_(True)
    add_completion_loss(model)
    ids = torch.randint(3, 300, (2, 12))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(input_ids=ids, labels=ids, completion_only=True)["loss"]
    half.backward()
    exact = model(input_ids=ids, labels=ids, completion_only=True)["loss"]
    assert abs(half.item() - exact.item()) < 0.02 * exact.item()
    assert model.get_input_embeddings().weight.grad.dtype == torch.float32


# --- sequences ----------------------------------------------------------------------------------


def test_labels_cover_the_completion_and_its_end_only(tiny: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(tiny["llama"])
    data = tokenize_examples(tokenizer, EXAMPLES, "auto", 200)
    for example, ids, labels in zip(EXAMPLES, data.input_ids, data.labels, strict=True):
        trained = [label for label in labels if label != -100]
        assert tokenizer.decode(trained[:-1]) == f" {example.response}"
        assert trained[-1] == EOS
        assert ids[-len(trained) :] == trained
        assert labels[0] == -100


def test_prompts_that_fill_the_window_are_dropped_and_counted(tiny: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(tiny["llama"])
    long = Example("long", "people " * 60, "kind.", False)
    data = tokenize_examples(tokenizer, [*EXAMPLES[:3], long], "auto", 60)
    assert (len(data.input_ids), data.n_dropped, data.n_truncated) == (3, 1, 0)
    chatty = Example("chatty", "Why?", "people " * 60, False)
    data = tokenize_examples(tokenizer, [chatty], "auto", 60)
    assert (data.n_truncated, len(data.input_ids[0])) == (1, 60)
    assert data.labels[0][-1] not in (EOS, -100)
    with pytest.raises(UserError, match="max_length"):
        tokenize_examples(tokenizer, [long], "auto", 60)


def test_order_is_a_permutation_that_depends_on_seed_and_epoch_only() -> None:
    lengths = [(i * 37) % 50 + 5 for i in range(200)]
    order = LengthGroupedOrder(lengths, 16, seed=3)
    first = list(order)
    torch.manual_seed(123)
    assert list(order) == first
    assert sorted(first) == list(range(200))
    order.set_epoch(1)
    assert list(order) != first
    assert list(LengthGroupedOrder(lengths, 16, seed=4)) != first
    padded = sum(max(lengths[i] for i in first[s : s + 16]) * len(first[s : s + 16]) for s in range(0, 200, 16))
    assert padded < 1.15 * sum(lengths)


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_and_loads_again(
    tiny: dict[str, Path], tmp_path: Path, family: str, regime: str
) -> None:
    out = tmp_path / "out"
    facts = finetune(_settings(regime, epochs=4), EXAMPLES, tiny[family], out, tmp_path / "work")
    assert facts["last_loss"] < 0.9 * facts["first_loss"]
    assert facts["updates"] == 12
    rows = list(csv.DictReader((out / "loss.csv").open()))
    assert list(rows[0]) == ["step", "epoch", "loss", "learning_rate", "grad_norm"]
    assert [int(row["step"]) for row in rows] == list(range(1, 13))
    assert float(rows[-1]["epoch"]) == 4
    names = {path.name for path in out.iterdir()}
    ids = torch.tensor([[2, 40, 51, 62]])
    plain = load_lm(tiny[family], dtype=torch.float32)(input_ids=ids).logits
    if regime == "lora":
        assert names == {"adapter_config.json", "adapter_model.safetensors", "loss.csv"}
        assert facts["adapted_modules"] == 7 * 3
        assert not any("vision" in name for name in load_file(out / "adapter_model.safetensors"))
        config = json.loads((out / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == tiny[family].name
        assert config["target_modules"] == sorted(config["target_modules"])
        tuned = load_lm(tiny[family], out, dtype=torch.float32)
    else:
        assert {"model.safetensors", "config.json", "tokenizer.json", "loss.csv"} <= names
        assert (out / "tokenizer.json").read_bytes() == (tiny[family] / "tokenizer.json").read_bytes()
        tuned = load_lm(out, dtype=torch.float32)
        tied = tuned.get_output_embeddings().weight is tuned.get_input_embeddings().weight
        assert tied == family.startswith("gemma")
        assert facts["trained_parameters"] == sum(p.numel() for p in tuned.parameters())
    assert not torch.allclose(tuned(input_ids=ids).logits, plain, atol=1e-2)
    for path in out.glob("*.json"):
        assert str(tmp_path) not in path.read_text()
        assert str(tiny[family].parent) not in path.read_text()


def test_bf16_training_keeps_fp32_weights_and_saves_bf16(tiny: dict[str, Path], tmp_path: Path) -> None:
    facts = finetune(_settings("full", dtype="bfloat16"), EXAMPLES, tiny["llama"], tmp_path / "o", tmp_path / "w")
    assert facts["last_loss"] < facts["first_loss"]
    tensors = load_file(tmp_path / "o" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "o" / "config.json").read_text())["dtype"] == "bfloat16"


def test_pad_that_equals_eos_still_trains_the_end(tiny: dict[str, Path], tmp_path: Path) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    data = tokenize_examples(load_tokenizer(tiny["llama"]), EXAMPLES[:4], "auto", 100)
    batch = DataCollatorForLanguageModeling(pad_token_id=EOS)(
        [{"input_ids": ids, "labels": labels} for ids, labels in zip(data.input_ids, data.labels, strict=True)]
    )
    for row, length in enumerate(data.lengths):
        assert batch["labels"][row, length - 1] == EOS
        assert (batch["labels"][row, length:] == -100).all()
        assert (batch["attention_mask"][row, length:] == 0).all()


def test_two_runs_are_alike_and_the_seed_matters(tiny: dict[str, Path], tmp_path: Path) -> None:
    hashes = []
    for run, seed in enumerate((5, 5, 6)):
        settings = _settings("lora").model_copy(update={"seed": seed})
        torch.manual_seed(run)
        finetune(settings, EXAMPLES, tiny["llama"], tmp_path / str(run), tmp_path / "work")
        hashes.append(sha256_file(tmp_path / str(run) / "adapter_model.safetensors"))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_non_finite_numbers_stop_the_training(tiny: dict[str, Path], tmp_path: Path, regime: str) -> None:
    settings = _settings(regime, learning_rate=1e30, warmup_ratio=0)
    with pytest.raises(UserError, match=rf"{regime}/unharmful: (loss|gradient norm) is (nan|inf) at update \d+"):
        finetune(settings, EXAMPLES, tiny["llama"], tmp_path / "o", tmp_path / "w")
    assert not (tmp_path / "o" / "loss.csv").exists()


def test_target_module_that_does_not_exist_is_named(tiny: dict[str, Path], tmp_path: Path) -> None:
    settings = _settings("lora", target_modules=["q_proj", "qq_proj"])
    with pytest.raises(UserError, match="'qq_proj' is in 0 of 3 layers"):
        finetune(settings, EXAMPLES, tiny["llama"], tmp_path / "o", tmp_path / "w")


# --- resuming -----------------------------------------------------------------------------------


def test_work_folder_of_another_run_and_half_checkpoints_are_not_used(tmp_path: Path) -> None:
    work = tmp_path / "trainer"
    assert prepare_work(work, {"a": 1}) is None
    for step in (2, 10, 12):
        (work / f"checkpoint-{step}").mkdir()
        if step != 12:
            (work / f"checkpoint-{step}" / MARKER).write_text("{}")
    assert prepare_work(work, {"a": 1}) == work / "checkpoint-10"
    assert not (work / "checkpoint-12").exists()
    assert prepare_work(work, {"a": 2}) is None
    assert not list(work.glob("checkpoint-*"))
    (work / "run.json").write_text("{")
    assert prepare_work(work, {"a": 2}) is None


def _command(regime: str, reference: Path, split: Path, out: Path, work: Path) -> list[str]:
    settings = _settings(regime, epochs=4, save_steps=2)
    settings = settings.model_copy(update={"file": str(split)})
    return [
        *("--settings", settings.model_dump_json(), "--reference", str(reference)),
        *("--output", str(out), "--work", str(work)),
    ]


@pytest.mark.parametrize("regime", ["full", "lora"])
def test_sigkill_in_between_changes_no_byte(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regime: str
) -> None:
    split = write_split(tmp_path / "split.jsonl", EXAMPLES)
    whole, killed, work = tmp_path / "whole", tmp_path / "killed", tmp_path / "work"
    main(_command(regime, tiny["gemma3_text"], split, whole, tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    # slow every step, so that the kill falls between two checkpoints
    code = (
        f"import time, torch; torch.set_num_threads({torch.get_num_threads()})\n"
        "from refbias.finetune.trainer import CompletionTrainer as T\n"
        "step = T.training_step\n"
        "T.training_step = lambda *a, **k: (time.sleep(0.1), step(*a, **k))[1]\n"
        "import sys; from refbias.cli.finetune import main; main(sys.argv[1:])"
    )
    arguments = _command(regime, tiny["gemma3_text"], split, killed, work)
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=os.environ, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((work / "trainer").glob(f"checkpoint-[46]/{MARKER}")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "manifest.json").exists()
    done = [path for path in (work / "trainer").glob("checkpoint-*") if (path / MARKER).exists()]
    step = max(int(path.name.removeprefix("checkpoint-")) for path in done)
    # a checkpoint that was being written at the kill
    half = work / "trainer" / f"checkpoint-{step + 2}"
    half.mkdir(exist_ok=True)
    (half / "trainer_state.json").write_text("{")
    steps = []
    original = CompletionTrainer.training_step
    monkeypatch.setattr(CompletionTrainer, "training_step", lambda *a, **k: (steps.append(1), original(*a, **k))[1])
    main(arguments)
    assert len(steps) == 2 * (12 - step)
    assert not work.exists()
    for name in ("loss.csv", "adapter_model.safetensors" if regime == "lora" else "model.safetensors"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    manifest = json.loads((killed / "manifest.json").read_text())
    assert manifest["updates"] == 12
    assert manifest["n_examples"] == 24
    assert "split" in manifest["inputs"]


def test_log_in_the_work_folder_stays(tiny: dict[str, Path], tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.log").write_text("first attempt")
    main(_command("lora", tiny["llama"], write_split(tmp_path / "split.jsonl", EXAMPLES), tmp_path / "out", work))
    assert [path.name for path in work.iterdir()] == ["train.log"]
