"""Stage `fetch`: put a data set's files into the run's folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from refbias.acquisition.fetch import fetch
from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.data import FetchStage


def main(argv: Sequence[str]) -> None:
    """Run the stage."""
    parser = argparse.ArgumentParser(prog="refbias fetch", description="Fetch the files of a data set.")
    parser.add_argument("--settings", required=True, help="JSON: name and source.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for the files and the manifest.")
    args = parser.parse_args(argv)
    settings = parse_json(FetchStage, args.settings, "--settings")
    with Stage("fetch", settings.model_dump(mode="json"), args.output) as stage:
        stage.record(name=settings.name, source=fetch(settings.source, args.output))
