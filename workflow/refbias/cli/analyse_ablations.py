"""Relate dB of every ablation's cells to the change of behaviour: ``ablations.csv``."""

import argparse
from pathlib import Path

import pandas as pd

from refbias import analysis
from refbias.artifacts import Stage, write_csv
from refbias.cli.analyse import read_table
from refbias.config.ablations import AnalyseAblationsStage
from refbias.config.base import parse_json
from refbias.resources import data_path


def main(argv: list[str]) -> None:
    """Write the table and its manifest, ``ablations.json`` beside it."""
    parser = argparse.ArgumentParser(prog="refbias analyse_ablations", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--delta-b", type=Path, nargs="+", required=True, help="delta_b.csv of every ablated spectrum")
    parser.add_argument("--units", type=Path, required=True, help="units.csv")
    parser.add_argument("--output", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(argv)
    settings = parse_json(AnalyseAblationsStage, options.settings, "--settings")
    inputs = {"units": options.units, **{f"delta_b_{at}": path for at, path in enumerate(options.delta_b)}}
    groups = read_table(Path(settings.groups_file) if settings.groups_file else data_path("stimuli", "groups.tsv"))
    manifest = options.output / "ablations.json"
    facts = settings.model_dump(mode="json")
    with Stage("analyse_ablations", facts, options.output, inputs, manifest=manifest) as stage:
        delta_b = pd.concat([read_table(path) for path in options.delta_b], ignore_index=True)
        pairing = analysis.unit_groups(groups)
        table = analysis.ablation_table(delta_b, read_table(options.units), pairing, settings.thresholds)
        write_csv(options.output / "ablations.csv", table)
        stage.record(n_rows=len(table))
