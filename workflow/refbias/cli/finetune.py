"""Stage `finetune`: train one endpoint of a spectrum."""

import argparse
import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.finetune import FinetuneStage
from refbias.finetune import build_plan, finetune, launch, regime_of
from refbias.models import resolve_device
from refbias.resources import data_path
from refbias.splits import SplitFilter, read_split


def main(argv: Sequence[str]) -> None:
    """Run the stage."""
    parser = argparse.ArgumentParser(prog="refbias finetune", description="Fine-tune a reference model on one split.")
    parser.add_argument("--settings", required=True, help="JSON: regime, split, hyperparameters, seed.")
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for weights, loss.csv and manifest.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for the resumable state, gone on success.")
    args = parser.parse_args(argv)
    settings = parse_json(FinetuneStage, args.settings, "--settings")
    split = Path(settings.file) if settings.file else data_path("quickstart", f"wildguard_{settings.split}.jsonl")
    filters = SplitFilter(**settings.filters.model_dump())
    examples, counts = read_split(split, settings.split, filters)
    work = args.work / "trainer"
    inputs = {"reference": args.reference / "manifest.json", "split": split}
    inputs = {role: path for role, path in inputs.items() if path.is_file()}
    regime = regime_of(settings)
    device = resolve_device(regime.device)
    plan = build_plan(regime, device)
    with Stage("finetune", settings.model_dump(mode="json"), args.output, inputs) as stage:
        if plan.launched:
            facts = launch(plan, settings, split, args.reference, args.output, work, device, stage.lock)
        else:
            facts = finetune(settings, examples, args.reference, args.output, work)
        stage.record(**facts, split_rows=dataclasses.asdict(counts))
    for folder in (work, args.work / "answers"):
        shutil.rmtree(folder, ignore_errors=True)
    # somebody else's files in the folder, such as a log, stay
    with contextlib.suppress(OSError):
        args.work.rmdir()
