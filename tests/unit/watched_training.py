"""Trainings to watch: tiny models under a trainer, the curve that comes of them, and dB by its definition."""

import csv
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from scipy.spatial.distance import cdist
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from refbias.callbacks import BiasShiftCallback
from refbias.config.stimuli import StimuliSettings
from refbias.finetune.data import tokenize_examples
from refbias.models import load_lm, load_tokenizer
from refbias.stimuli import load_stimuli
from tests.tiny import PAD
from tests.unit.test_finetune import EXAMPLES

GROUPS = ["women", "muslims", "control"]
SIZES = StimuliSettings(targets=2, attributes=6, anchors=12, control=3)


class Spy(TrainerCallback):
    """Stands where TensorBoard, W&B and MLflow stand: before the callbacks of the user."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append((state.global_step, dict(logs)))


def watch(**options: Any) -> BiasShiftCallback:
    return BiasShiftCallback(**{"every": 2, "groups": GROUPS, "stimuli": SIZES, **options})


def arguments(out: Path, **options: Any) -> dict[str, Any]:
    return {
        **{"output_dir": str(out), "max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 3e-3},
        **{"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "seed": 3},
        **{"disable_tqdm": True, **options},
    }


def trainer_of(
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
    chosen = TrainingArguments(**arguments(out, **options))
    spy = Spy()
    trainer = Trainer(model, chosen, collate, rows, processing_class=tokenizer, callbacks=[spy, *callbacks])
    trainer.spy = spy
    trainer.remove_callback(PrinterCallback)
    return trainer


def lora_of(reference: Path, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    model = load_lm(reference, dtype=torch.float32).train()
    return get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_dropout=0.2, **options))


def curve_of(path: Path) -> dict[int, dict[str, float]]:
    rows: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(path.open()):
        assert row["group"] not in rows.setdefault(int(row["step"]), {}), "a step stands twice"
        rows[int(row["step"])][row["group"]] = float(row["delta_b"])
        assert float(row["seconds"]) > 0
    return rows


def plain_delta_b(reference: Any, audited: Any, tokenizer: Any, group: str) -> float:
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
