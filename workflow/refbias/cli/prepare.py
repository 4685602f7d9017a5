"""Stage `prepare`: make the fine-tuning splits from WildGuardMix's train file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import Stage, sha256_file, write_jsonl
from refbias.config.base import parse_json
from refbias.config.finetune import PrepareStage, SyntheticFile
from refbias.prepare import prepare, train_file


def main(argv: Sequence[str]) -> None:
    """Write ``wildguard_<side>.jsonl`` for every side that is asked for, and the manifest."""
    parser = argparse.ArgumentParser(prog="refbias prepare", description="Make the fine-tuning splits.")
    parser.add_argument("--settings", required=True, help="JSON: sides, examples, filters, synthetic source, seed.")
    parser.add_argument("--data", required=True, type=Path, help="WildGuardMix: its folder, or its train file.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for the splits and the manifest.")
    args = parser.parse_args(argv)
    settings = parse_json(PrepareStage, args.settings, "--settings")
    train = train_file(args.data)
    inputs = {"train": train}
    if isinstance(settings.synthetic, SyntheticFile):
        inputs["synthetic"] = Path(settings.synthetic.path)
    splits, facts = prepare(settings, train)
    with Stage("prepare", settings.model_dump(mode="json"), args.output, inputs) as stage:
        for side, rows in splits.items():
            write_jsonl(args.output / f"wildguard_{side}.jsonl", rows)
        hashes = {side: sha256_file(args.output / f"wildguard_{side}.jsonl") for side in splits}
        stage.record(**facts, splits_sha256=hashes)
