"""Stage `acquire`: put a reference model into the run's folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.models import AcquireStage
from refbias.errors import UserError
from refbias.models.acquire import acquire
from refbias.models.files import weight_hashes


def main(argv: Sequence[str]) -> None:
    """Run the stage."""
    parser = argparse.ArgumentParser(prog="refbias acquire", description="Fetch or convert a reference model.")
    parser.add_argument("--settings", required=True, help="JSON: source and dtype.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for the model.")
    args = parser.parse_args(argv)
    settings = parse_json(AcquireStage, args.settings, "--settings")
    with Stage("acquire", settings.model_dump(mode="json"), args.output) as stage:
        facts = acquire(settings.source, args.output, settings.dtype)
        hashes = weight_hashes(args.output)
        for name, stated in facts.get("stated_sha256", {}).items():
            if stated not in (None, hashes[name]):
                raise UserError(
                    f"{facts['id']}: {name}: SHA-256 is {hashes[name]}, the hub states {stated}: damaged in the hub's "
                    "cache: delete the file there and run again"
                )
        stage.record(source=facts, weights_sha256=hashes)
