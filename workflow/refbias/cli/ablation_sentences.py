"""Collect the sentences of all ablations, each set row-aligned with what it varies."""

import argparse
from pathlib import Path

from refbias.ablations.sentences import collect
from refbias.ablations.table import COLUMNS
from refbias.artifacts import Stage, write_text
from refbias.config.ablations import AblationSentencesStage
from refbias.config.base import parse_json


def main(argv: list[str]) -> None:
    """Write ``sentences.tsv`` and its manifest, which says what is left out and what was drawn."""
    parser = argparse.ArgumentParser(prog="refbias ablation_sentences", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(argv)
    settings = parse_json(AblationSentencesStage, options.settings, "--settings")
    with Stage("ablation_sentences", settings.model_dump(mode="json"), options.output) as stage:
        collection = collect(settings.stimuli, settings.ablations, settings.seed)
        lines = [COLUMNS, *(row.cells for row in collection.rows)]
        write_text(options.output / "sentences.tsv", "".join("\t".join(line) + "\n" for line in lines))
        sets: dict[str, int] = {}
        for row in collection.rows:
            sets[row.set] = sets.get(row.set, 0) + 1
        stage.record(sets=sets, left_out=collection.left_out, drawn=collection.drawn)
