"""The shift dB of a model against its own start, measured while it is being trained."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from refbias.callbacks.cost import Cost
from refbias.callbacks.curve import (
    Point,
    StopRule,
    read_curve,
    read_reference,
    reference_path,
    write_curve,
    write_reference,
)
from refbias.callbacks.probe import Matrix, Probe, is_peft, make_probe
from refbias.config.represent import RepresentSettings
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError
from refbias.stimuli import Sentence, load_stimuli

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REFERENCE_SETTING = StimuliSettings(targets=5, attributes=100, anchors=100, control=5)
"""A tenth of the shipped targets, all attributes, 100 anchors."""


class BiasShiftCallback(TrainerCallback):  # type: ignore[misc]
    """Log dB (relative representations, eq. 7) of chosen groups every few updates of a training.

    Give it to any transformers or trl trainer: ``SFTTrainer(..., callbacks=[BiasShiftCallback()])``.
    The reference is the model as it is when the training begins (of a PEFT model: with the adapters
    switched off), so the curve begins at 0. Values go to the trainer's own logs as
    ``bias_shift/<group>``, hence to TensorBoard, W&B, MLflow or whatever else the trainer reports
    to, and to ``bias_shift.csv``. The model, its modes, its gradients and all random generators are
    left as they were: a training with the callback ends in the same weights, bit for bit, as
    one without.

    Do not train on dB
    ------------------
    dB is evidence only as long as nobody aims at it. It sees a few hundred sentences through
    distances in one layer; a model can be moved along exactly those distances while what it writes
    stays as it was or gets worse. A loss term made of dB, a sweep of hyperparameters that
    keeps the best dB, a checkpoint or an early stop chosen by it: each turns the measure into the
    target, and from then on its value says how well it was aimed at, not how biased the model is.
    Use it to see *that* something moves and when, then look with other eyes: output benchmarks,
    and dB on sentences and groups that no decision has seen. Who stops early by it must report
    that, and must not cite the same dB as a finding. That dB did not fall is not a clean bill.

    Parameters
    ----------
    every
        Updates between measurements. The last update is measured as well.
    groups
        Ids of target groups, or ``control`` for the sentences without a group; None = all of them.
    stimuli
        Files and sizes of the sentence sets, or sentences of one's own (all four kinds). Values
        are comparable only at the same sentences and number of anchors.
    represent
        Layer, pooling and batching.
    reference
        None: the model at the start. Else a checkpoint directory with the same tokenizer, or the
        embeddings of an earlier training (``bias_shift_reference.safetensors``) with equal settings.
    output
        The curve's file; None = ``bias_shift.csv`` in the trainer's output folder. A training from
        the start replaces it; a resumed one goes on with it, and reads its reference beside it.
    stop
        Early stop; None = none. Mind the warning above.
    tokenizer
        None: the trainer's own.
    autocast
        Whether a training in bf16 is measured in bf16 too (faster, and dB then carries the rounding
        of bf16); a training in fp16, or on a CPU, is always measured in the weights' own type.

    Notes
    -----
    Supported: one process on any device, and data-parallel processes that each hold the whole model
    (the first one measures, the others wait). Refused by name: FSDP, DeepSpeed and tensor-parallel
    models, whose weights no process holds.

    Attributes
    ----------
    cost
        Seconds spent, and their share of the training's time; printed at the end.
    points
        The curve.
    stopped_at
        Step at which the stop rule ended the training, or None.
    """

    def __init__(
        self,
        *,
        every: int = 50,
        groups: Sequence[str] | None = None,
        stimuli: StimuliSettings | Sequence[Sentence] = REFERENCE_SETTING,
        represent: RepresentSettings | None = None,
        reference: Path | str | None = None,
        output: Path | str | None = None,
        stop: StopRule | None = None,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        autocast: bool = True,
    ) -> None:
        if every < 1:
            raise UserError(f"BiasShiftCallback: every {every}: at least 1 update")
        self.every = every
        self._groups = list(groups or ())
        self._sentences = load_stimuli(stimuli) if isinstance(stimuli, StimuliSettings) else list(stimuli)
        self._represent = represent or RepresentSettings()
        self._given = Path(reference) if reference is not None else None
        self._output = Path(output) if output is not None else None
        self._stop = stop
        self._tokenizer = tokenizer
        self._autocast = autocast
        self.cost = Cost(every)
        self.points: list[Point] = []
        self.stopped_at: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the reference, or find that of the training that is resumed."""
        self._trainer = calling_trainer(self)
        refuse_shared_weights(self._trainer, kwargs["model"])
        self.cost, self.points, self.stopped_at = Cost(self.every), [], None
        self._first_step = state.global_step
        if state.is_world_process_zero:
            start = self._now()
            self._probe = self._make_probe(args, kwargs.get("processing_class"))
            if self._stop:
                self._stop.check(self._probe.groups)
            self._curve = self._output or Path(args.output_dir) / "bias_shift.csv"
            if state.global_step == 0:
                self._begin(kwargs["model"], control, start)
            else:
                self._reference = self._reference_again(kwargs["model"], state.global_step)
                self.points = read_curve(self._curve, state.global_step)
                self.cost.reference = self._now() - start
            write_curve(self._curve, self.points)
        self._since = self._now()

    def _make_probe(self, args: TrainingArguments, processing: Any) -> Probe:
        # a multimodal model's processor holds its tokenizer
        tokenizer = self._tokenizer or getattr(processing, "tokenizer", processing)
        if tokenizer is None:
            raise UserError("BiasShiftCallback: the trainer has no tokenizer: give one as tokenizer=...")
        # autocast holds for one thread, and on a CPU several embed
        autocast = torch.bfloat16 if self._autocast and args.bf16 and args.device.type != "cpu" else None
        return make_probe(self._sentences, self._groups, tokenizer, self._represent, autocast)

    def _begin(self, model: "PreTrainedModel", control: TrainerControl, start: float) -> None:
        """Take the reference of a training from the start, and the curve's point at step 0."""
        adapted = is_peft(model)
        if self._given is None:
            self._reference = self._probe.embed(model, "reference", adapter=not adapted)
        else:
            self._reference = self._read_given(self._given, model)
        write_reference(reference_path(self._curve), self._reference, self._probe.fingerprint)
        # the model is its own reference now, unless adapters or a given reference come between
        same = self._given is None and not adapted
        found = self._reference if same else self._probe.embed(model, "training step 0")
        self._add(0, self._probe.shift(self._reference, found, "training step 0"), control, start)
        self.cost.reference = self.points[-1].seconds

    def _read_given(self, given: Path, model: "PreTrainedModel") -> Matrix:
        if given.is_dir():
            return self._probe.embed_directory(given, model)
        return read_reference(given, self._probe.fingerprint)

    def _reference_again(self, model: "PreTrainedModel", step: int) -> Matrix:
        """Return the reference of a training that is resumed at `step`: never its half-trained model."""
        saved = reference_path(self._curve)
        if saved.is_file():
            return read_reference(saved, self._probe.fingerprint)
        if self._given is not None:
            return self._read_given(self._given, model)
        if is_peft(model):
            return self._probe.embed(model, "reference", adapter=False)
        raise UserError(
            f"{saved}: no such file, and the model resumed at step {step} is trained already: copy the file from the "
            "folder of the first part, or name the untouched model as reference"
        )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Measure every few updates and after the last; stop where the rule says so."""
        step = state.global_step
        if step % self.every and step < state.max_steps and not control.should_training_stop:
            return control
        stop = False
        if state.is_world_process_zero:
            start = self._now()
            name = f"training step {step}"
            found = self._probe.embed(kwargs["model"], name)
            self._add(step, self._probe.shift(self._reference, found, name), control, start)
            write_curve(self._curve, self.points)
            stop = self._stop is not None and self._stop.reached(self.points)
            self._count(step, start)
        if self._stop is not None and agreed(stop, args):
            control.should_training_stop = True
            self.stopped_at = step
        return control

    def _add(self, step: int, shifts: dict[str, float], control: TrainerControl, start: float) -> None:
        """Add a step's points to the curve and to the trainer's logs."""
        seconds = self._now() - start
        self.points += [Point(step, group, value, seconds) for group, value in shifts.items()]
        logs = {f"bias_shift/{group}": value for group, value in shifts.items()}
        # not the trainer's own `log`: trl's would hand its averages since the last entry to this one and forget them
        asked = control.should_log
        Trainer.log(self._trainer, {**logs, "bias_shift_seconds": seconds})
        # this entry must not count as the one with the loss that is due at the same step
        control.should_log = asked

    def _count(self, step: int, start: float) -> None:
        end = self._now()
        self.cost.training += start - self._since
        self.cost.measured.append(end - start)
        self.cost.steps = step - self._first_step
        self._since = end

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Print what the measurements cost."""
        if not state.is_world_process_zero:
            return
        if self.stopped_at is not None and self._stop is not None:
            value = self._stop.value([point for point in self.points if point.step == self.stopped_at])
            print(
                f"bias shift: stopped at step {self.stopped_at}, dB {value:.4f} ({self._stop.over}) is at or below "
                f"{self._stop.threshold:g} for {self._stop.patience} measurements",
                file=sys.stderr,
            )
        print(f"bias shift: {self.cost}", file=sys.stderr)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the curve to ``bias_shift.csv`` in `folder`; return facts for a manifest (JSON values)."""
        write_curve(folder / "bias_shift.csv", self.points)
        return {**self.cost.facts(), "groups": self._probe.groups, "stopped_at": self.stopped_at}

    @staticmethod
    def _now() -> float:
        """Return the clock once the device has done what it was asked to."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


def calling_trainer(callback: TrainerCallback) -> Trainer:
    """Return the trainer that is calling `callback`.

    A trainer hands its callbacks everything but itself, and its log is the one way into all
    loggers; it is on the stack, since it calls.

    Raises
    ------
    RuntimeError
        If something else calls.
    """
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and any(known is callback for known in owner.callback_handler.callbacks):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError(f"{type(callback).__name__}: called by something else than a transformers Trainer that holds it")


def refuse_shared_weights(trainer: Trainer, model: torch.nn.Module) -> None:
    """Refuse a model whose weights are spread over processes.

    Raises
    ------
    UserError
        Naming what spreads them.
    """
    found = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "a tensor-parallel model": any(isinstance(parameter, DTensor) for parameter in model.parameters()),
    }
    for name, used in found.items():
        if used:
            raise UserError(
                f"BiasShiftCallback: {name} leaves no process a whole model to measure: leave the callback out and "
                "audit the saved checkpoints"
            )


def agreed(stop: bool, args: TrainingArguments) -> bool:
    """Return the first process's decision in all processes; all must call this at the same step."""
    if args.world_size <= 1 or not torch.distributed.is_initialized():
        return stop
    flag = torch.tensor([int(stop)], device=args.device)
    torch.distributed.broadcast(flag, src=0)
    return bool(flag.item())
