"""Stage `merge`: points of the spectrum between two endpoints, several in one process."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.spectrum import MergeStage
from refbias.errors import UserError
from refbias.models.files import weight_hashes
from refbias.spectrum import merge_full, merge_lora


def main(argv: Sequence[str]) -> None:
    """Write one merged checkpoint with its manifest for each ``--settings``.

    Raises
    ------
    UserError
        If there are not as many outputs as settings.
    """
    parser = argparse.ArgumentParser(prog="refbias merge", description="Merge two endpoints linearly.")
    parser.add_argument(
        "--settings", required=True, nargs="+", help="JSON: regime, harmful_weight, dtype; one a merge."
    )
    parser.add_argument("--unharmful", required=True, type=Path, help="Folder of the unharmful endpoint.")
    parser.add_argument("--harmful", required=True, type=Path, help="Folder of the harmful endpoint.")
    parser.add_argument("--output", required=True, type=Path, nargs="+", help="Folder for each merged checkpoint.")
    args = parser.parse_args(argv)
    merges = [parse_json(MergeStage, text, "--settings") for text in args.settings]
    if len(merges) != len(args.output):
        raise UserError(f"--output: {len(args.output)} folders for {len(merges)} --settings: give one for each")
    ends = {"unharmful": args.unharmful, "harmful": args.harmful}
    inputs = {role: path / "manifest.json" for role, path in ends.items() if (path / "manifest.json").is_file()}
    for settings, output in zip(merges, args.output, strict=True):
        with Stage("merge", settings.model_dump(mode="json"), output, inputs) as stage:
            if settings.regime == "full":
                merge_full(args.unharmful, args.harmful, settings.harmful_weight, output, settings.dtype)
            else:
                merge_lora(args.unharmful, args.harmful, settings.harmful_weight, output)
            stage.record(weights_sha256=weight_hashes(output))
