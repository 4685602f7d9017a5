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
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import SFTTrainer

from refbias.artifacts import write_json
from refbias.errors import UserError
from refbias.finetune.data import LengthGroupedOrder

MARKER = "complete.json"


class CompletionTrainer(SFTTrainer):  # type: ignore[misc]
    """`SFTTrainer` with a fixed order, a loss on labelled positions only and safe checkpoints."""

    is_fsdp_enabled: bool

    def __init__(self, *args: Any, order: LengthGroupedOrder, name: str, **kwargs: Any) -> None:
        self._order = order
        self._run_name = name
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthGroupedOrder:
        return self._order

    def create_accelerator_and_postprocess(self) -> None:
        """Set up accelerate; FSDP on a CPU as well, which torch shards over gloo and accelerate does not offer."""
        super().create_accelerator_and_postprocess()
        if self.args.fsdp_plugin_args is None or self.is_fsdp_enabled:
            return
        from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
        if self.accelerator.mixed_precision != "no":
            plugin.set_mixed_precision(self.accelerator.mixed_precision)
        self.accelerator.state.distributed_type = DistributedType.FSDP
        self.accelerator.state.fsdp_plugin = plugin
        self.is_fsdp_enabled = True

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean loss of the labels of one update.

        On CUDA trl's own fused kernel leaves out the positions without a label; elsewhere it does not, nor does it
        go through the output layer's call, which weights that several processes share depend on.
        """
        alone = not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        if return_outputs or (alone and inputs["input_ids"].device.type == "cuda"):
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
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        if norm is not None and not math.isfinite(float(norm)):
            self._stop("gradient norm", float(norm))
        return norm

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model; under FSDP a resumable checkpoint holds it already, in FSDP's own file."""
        if not (_internal_call and self.is_fsdp_enabled):
            super().save_model(output_dir, _internal_call)

    def full_state(self) -> dict[str, torch.Tensor] | None:
        """Return every weight where processes share them (on the first one; empty on others), else None.

        All processes must call this.
        """
        if self.is_deepspeed_enabled:
            from transformers.integrations.deepspeed import unset_hf_deepspeed_config

            state: dict[str, torch.Tensor] | None = self.accelerator.get_state_dict(self.deepspeed)
            # a model that is loaded from here on is a plain one, not shared
            unset_hf_deepspeed_config()
            return state or {}
        if self.is_fsdp_enabled:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            gathered: dict[str, Any] = get_model_state_dict(self.model, options=options)
            return gathered
        return None

    def _stop(self, what: str, value: float) -> None:
        raise UserError(
            f"{self._run_name}: {what} is {value} at update {self.state.global_step + 1}: lower learning_rate, "
            "or check the split and the number type"
        )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        # the marker vouches for every process's part
        self.accelerator.wait_for_everyone()
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
    for path in directory.rglob("*"):
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
    for path in directory.glob("checkpoint-*"):
        if not (path / MARKER).is_file():
            shutil.rmtree(path)
    return latest_checkpoint(directory)


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the last complete checkpoint in `directory`, or None."""
    complete = [path.parent for path in directory.glob(f"checkpoint-*/{MARKER}")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
