"""Stage `export`: a whole model from a reference and trained weights, for use outside of this project."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import Stage
from refbias.models.files import weight_hashes
from refbias.models.whole import export_whole


def main(argv: Sequence[str]) -> None:
    """Write the whole model and its manifest."""
    parser = argparse.ArgumentParser(
        prog="refbias export",
        description="Put a trained language tower, or an adapter's change, back into a whole model; the vision part "
        "of a multimodal one is carried over unchanged.",
    )
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--checkpoint", required=True, type=Path, help="Folder of a text-only checkpoint or adapter.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for the whole model.")
    args = parser.parse_args(argv)
    folders = {"reference": args.reference, "checkpoint": args.checkpoint}
    inputs = {role: path / "manifest.json" for role, path in folders.items() if (path / "manifest.json").is_file()}
    with Stage("export", {}, args.output, inputs) as stage:
        facts = export_whole(args.reference, args.checkpoint, args.output)
        stage.record(**facts, weights_sha256=weight_hashes(args.output))
