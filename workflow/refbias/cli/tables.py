"""Make the paper's tables 2 to 7 and the account of what this run reproduces, from stored results alone."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from refbias.artifacts import Stage, read_json
from refbias.config.base import parse_json
from refbias.config.pictures import TableStage
from refbias.errors import UserError
from refbias.tables import TABLE1_COLUMNS, TextTable, read_csv
from refbias.tables.claims import Evidence
from refbias.tables.printed import write_table
from refbias.tables.reproduction import REPRODUCTION_CAPTION, reproduction, reproduction_text
from refbias.tables.table2 import TABLE2_CAPTION, table2, table2_text
from refbias.tables.table3 import TABLE3_CAPTION, table3, table3_text
from refbias.tables.table7 import TABLE7_CAPTION, table7, table7_text
from refbias.tables.variants import (
    ABLATION_COLUMNS,
    TABLE4_CAPTION,
    TABLE5_CAPTION,
    TABLE6_CAPTION,
    table4,
    table4_text,
    table5,
    table6,
    variants_text,
)

PAIR_COLUMNS = ["benchmark", "model", "regime", "method", "delta_score", "delta_b"]
SEED_COLUMNS = ["model", "regime", "split", "seed", "group", "method", "n_anchors", "delta_b"]
MANIFEST = "tables.manifest.json"


def optional_table(path: Path | None, columns: list[str]) -> pd.DataFrame | None:
    """Read a table that a run may lack."""
    return None if path is None else read_csv(path, columns)


def whole(frame: pd.DataFrame | None, option: str) -> pd.DataFrame:
    """Return a table that a planned picture needs.

    Raises
    ------
    UserError
        If the option that names it was not given.
    """
    if frame is None:
        raise UserError(f"{option}: missing: a table of this run needs it")
    return frame


def tables(
    settings: TableStage, table1: pd.DataFrame, costs: pd.DataFrame, ablations: pd.DataFrame | None
) -> Iterator[tuple[str, pd.DataFrame, TextTable, str]]:
    """Yield stem, table, printed table and caption of every table that the run makes, tables 1 and 3 apart."""
    model, levels = settings.models[0], settings.thresholds
    family = settings.families[model]

    def planned(name: str) -> bool:
        return not settings.lacks[name]

    frame = table2(settings.stimuli.groups_file)
    yield "table2", frame, table2_text(frame), TABLE2_CAPTION
    yield "table3", costs, table3_text(costs), TABLE3_CAPTION
    if planned("table_4"):
        files = {"attributes": settings.stimuli.attributes_file, "targets": settings.stimuli.targets_file}
        frame = table4(whole(ablations, "--ablations"), model, levels, files, settings.variants_dir)
        yield "table4", frame, table4_text(frame), TABLE4_CAPTION
    if planned("table_5"):
        frame = table5(whole(ablations, "--ablations"), model, levels, family)
        yield "table5", frame, variants_text(frame), TABLE5_CAPTION
    if planned("table_6"):
        frame = table6(whole(ablations, "--ablations"), model, levels, family)
        yield "table6", frame, variants_text(frame), TABLE6_CAPTION
    if planned("table_7"):
        frame = table7(table1, model, levels, family)
        yield "table7", frame, table7_text(frame), TABLE7_CAPTION


def main(argv: list[str]) -> None:
    """Write the tables and, last, their manifest."""
    parser = argparse.ArgumentParser(prog="refbias tables", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--table1", type=Path, required=True)
    parser.add_argument("--observations", type=Path, required=True)
    parser.add_argument("--manifests", type=Path, required=True, help="manifests.json of the records")
    parser.add_argument("--ablations", type=Path)
    parser.add_argument("--training-seeds", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder of the tables")
    options = parser.parse_args(argv)
    settings = parse_json(TableStage, options.settings, "--settings")
    named = {name: getattr(options, name) for name in ("table1", "observations", "manifests")}
    optional = {name: getattr(options, name) for name in ("ablations", "training_seeds")}
    inputs = {**named, **{name: path for name, path in optional.items() if path}}
    table1 = read_csv(options.table1, TABLE1_COLUMNS)
    pairs = read_csv(options.observations, PAIR_COLUMNS)
    ablations = optional_table(options.ablations, ABLATION_COLUMNS)
    seeds = optional_table(options.training_seeds, SEED_COLUMNS)
    costs = table3(
        read_json(options.manifests), settings.models, settings.regimes, list(settings.thresholds), settings.families
    )
    stage = Stage("tables", settings.model_dump(mode="json"), options.output, inputs, options.output / MANIFEST)
    with stage:
        made = {}
        for stem, frame, text, caption in tables(settings, table1, costs, ablations):
            write_table(options.output / stem, frame, text, caption)
            made[stem] = frame
        evidence = Evidence(
            table1=table1,
            observations=pairs,
            table3=costs,
            table7=made.get("table7"),
            ablations=ablations,
            training_seeds=seeds,
            models=settings.models,
            families=settings.families,
            thresholds=settings.thresholds,
        )
        account = reproduction(settings, evidence)
        write_table(options.output / "reproduction", account, reproduction_text(account), REPRODUCTION_CAPTION)
        stage.record(tables=["table1", *made, "reproduction"])
