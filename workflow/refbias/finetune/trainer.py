"""A trl `SFTTrainer` that stops at non-finite numbers and whose state survives a kill.

The trainer's own checkpoints are written file by file. A marker is written when all of them are on
disk, older checkpoints go only after that, and only a checkpoint with the marker is resumed from.
"""

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTTrainer

from refbias.artifacts import write_json
from refbias.errors import UserError
from refbias.finetune.data import LengthGroupedOrder

MARKER = "complete.json"


class CompletionTrainer(SFTTrainer):  # type: ignore[misc]
    """`SFTTrainer` with a fixed order, a loss on labelled positions only and safe checkpoints."""

    def __init__(self, *args: Any, order: LengthGroupedOrder, name: str, **kwargs: Any) -> None:
        self._order = order
        self._run_name = name
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthGroupedOrder:
        return self._order

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of the labels of one update.

        On CUDA trl's own fused kernel leaves out the positions without a label; elsewhere it does not.
        """
        if return_outputs or inputs["input_ids"].device.type == "cuda":
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        outputs = model(**inputs, use_cache=False, completion_only=True)
        count = (inputs["labels"][:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = outputs["loss"] / torch.as_tensor(count).clamp(min=1)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            # the gradient is averaged over processes, the count is not
            loss = loss * self.accelerator.num_processes
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run one batch; a loss that is not finite stops the training."""
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        if not math.isfinite(loss.item()):
            self._stop("loss", loss.item())
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if not math.isfinite(float(norm)):
            self._stop("gradient norm", float(norm))
        return norm

    def _stop(self, what: str, value: float) -> None:
        raise UserError(
            f"{self._run_name}: {what} is {value} at update {self.state.global_step + 1}: lower learning_rate, "
            "or check the split and the number type"
        )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            root = Path(self.args.output_dir)
            current = root / f"checkpoint-{self.state.global_step}"
            _sync(current)
            write_json(current / MARKER, {"step": self.state.global_step})
            for path in root.glob("checkpoint-*"):
                if path != current:
                    shutil.rmtree(path)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no card: it would name this machine's paths."""


class NoFinalCheckpoint(TrainerCallback):  # type: ignore[misc]
    """Skip the checkpoint after the last update: the result itself is written then."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Withdraw the request for a checkpoint at the end."""
        if state.global_step >= state.max_steps:
            control.should_save = False
        return control


class ProgressBar(TrainerCallback):  # type: ignore[misc]
    """A rich progress bar on a terminal, nothing elsewhere."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("loss {task.fields[loss]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=None, loss="-")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show the bar."""
        self._bar.start()
        self._bar.update(self._task, total=state.max_steps, completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Move the bar on."""
        loss = f"{logs['loss']:.3f}" if logs and "loss" in logs else "-"
        self._bar.update(self._task, completed=state.global_step, loss=loss)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the bar away."""
        self._bar.stop()


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())


def prepare_work(directory: Path, fingerprint: Mapping[str, Any]) -> Path | None:
    """Return the checkpoint in `directory` to resume from, or None after clearing what is of no use.

    Parameters
    ----------
    directory
        Folder of trainer checkpoints; created if absent.
    fingerprint
        What the run depends on (JSON values). A folder left by a run with another fingerprint is
        emptied, and so are half-written checkpoints.
    """
    stamp = directory / "run.json"
    wanted = json.dumps(fingerprint, sort_keys=True)
    try:
        same = json.dumps(json.loads(stamp.read_text(encoding="utf-8")), sort_keys=True) == wanted
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write_json(stamp, dict(fingerprint))
        return None
    complete = []
    for path in directory.glob("checkpoint-*"):
        if (path / MARKER).is_file():
            complete.append(path)
        else:
            shutil.rmtree(path)
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
