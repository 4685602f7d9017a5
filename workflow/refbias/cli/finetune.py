"""Stage `finetune`: train one endpoint of a spectrum."""

import argparse
import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.finetune import FinetuneStage
from refbias.errors import UserError
from refbias.finetune import build_plan, finetune, launch, regime_of
from refbias.models import resolve_device
from refbias.resources import data_path
from refbias.splits import SplitFilter, read_split


class Watcher(Protocol):
    """A trainer callback that leaves files of its own beside the loss."""

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the files to `folder`; return facts for the manifest (JSON values)."""
        ...


def arguments(argv: Sequence[str], stage: str = "finetune") -> argparse.Namespace:
    """Parse the options of the stage."""
    parser = argparse.ArgumentParser(prog=f"refbias {stage}", description="Fine-tune a reference model on one split.")
    parser.add_argument("--settings", required=True, help="JSON: regime, split, hyperparameters, seed.")
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for weights, loss.csv and manifest.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for the resumable state, gone on success.")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Run the stage."""
    args = arguments(argv)
    train(parse_json(FinetuneStage, args.settings, "--settings"), args)


def train(settings: FinetuneStage, args: argparse.Namespace, watcher: Watcher | None = None) -> None:
    """Train, write everything and clear the resumable state.

    Parameters
    ----------
    settings
        The stage's slice.
    args
        Options of the command line.
    watcher
        Measures during the training; its curve is written beside the loss, its cost into the manifest.

    Raises
    ------
    UserError
        As `refbias.finetune.finetune`, or if the memory plan spreads the weights and a watcher is given.
    """
    split = Path(settings.file) if settings.file else data_path("quickstart", f"wildguard_{settings.split}.jsonl")
    filters = SplitFilter(**settings.filters.model_dump())
    examples, counts = read_split(split, settings.split, filters)
    work = args.work / "trainer"
    inputs = {"reference": args.reference / "manifest.json", "split": split}
    inputs = {role: path for role, path in inputs.items() if path.is_file()}
    regime = regime_of(settings)
    device = resolve_device(regime.device)
    plan = build_plan(regime, device)
    if plan.launched and watcher is not None:
        raise UserError(f"key 'bias_shift': memory_plan {plan.name!r} spreads the weights: set it to null")
    with Stage("finetune", settings.model_dump(mode="json"), args.output, inputs) as stage:
        if plan.launched:
            facts = launch(plan, settings, split, args.reference, args.output, work, device, stage.lock)
        else:
            callbacks = [] if watcher is None else [watcher]
            facts = finetune(settings, examples, args.reference, args.output, work, callbacks)
        if watcher is not None:
            facts["bias_shift"] = watcher.save(args.output)
        stage.record(**facts, split_rows=dataclasses.asdict(counts))
    for folder in (work, args.work / "answers"):
        shutil.rmtree(folder, ignore_errors=True)
    # somebody else's files in the folder, such as a log, stay
    with contextlib.suppress(OSError):
        args.work.rmdir()
