"""Draw all figures of a run from its stored tables, as PDF and PNG."""

import argparse
from pathlib import Path

import pandas as pd

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.figures import FigureStage
from refbias.figures import FigureData, draw_all, save
from refbias.tables import TABLE1_COLUMNS, read_csv
from refbias.tables.variants import ABLATION_COLUMNS

OBSERVATION_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "harmful_weight",
    "unit",
    "method",
    "scorer",
    "delta_score",
    "delta_b",
]
SHIFT_COLUMNS = ["model", "regime", "harmful_weight", "group", "method", "n_anchors", "delta_b", "ci_low", "ci_high"]


SEED_COLUMNS = ["model", "regime", "split", "seed", "group", "method", "n_anchors", "delta_b"]


def loss_histories(path: Path) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Return (model, regime, split) -> history of ``losses.csv``."""
    frame = read_csv(path, ["model", "regime", "split", "step", "loss"])
    return {
        (str(model), str(regime), str(split)): history.reset_index(drop=True)
        for (model, regime, split), history in frame.groupby(["model", "regime", "split"], sort=False)
    }


def main(argv: list[str]) -> None:
    """Write every figure of the run, and the manifest last."""
    parser = argparse.ArgumentParser(prog="refbias figures", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--observations", type=Path, required=True)
    parser.add_argument("--table1", type=Path, required=True)
    parser.add_argument("--delta-b", type=Path, required=True)
    parser.add_argument("--losses", type=Path, required=True, help="losses.csv of the records")
    parser.add_argument("--ablations", type=Path)
    parser.add_argument("--training-seeds", type=Path)
    parser.add_argument("--output", type=Path, required=True, help="folder of the figures")
    options = parser.parse_args(argv)
    settings = parse_json(FigureStage, options.settings, "--settings")
    inputs = {
        "observations": options.observations,
        "table1": options.table1,
        "delta_b": options.delta_b,
        "losses": options.losses,
    }
    optional = {"ablations": options.ablations, "training_seeds": options.training_seeds}
    inputs |= {name: path for name, path in optional.items() if path}
    data = FigureData(
        observations=read_csv(options.observations, OBSERVATION_COLUMNS),
        table1=read_csv(options.table1, TABLE1_COLUMNS),
        delta_b=read_csv(options.delta_b, SHIFT_COLUMNS),
        losses=loss_histories(options.losses),
        ablations=read_csv(options.ablations, ABLATION_COLUMNS) if options.ablations else None,
        training_seeds=read_csv(options.training_seeds, SEED_COLUMNS) if options.training_seeds else None,
    )
    with Stage("figures", settings.model_dump(mode="json"), options.output, inputs) as stage:
        names = []
        for name, figure in draw_all(settings, data):
            save(figure, options.output / name)
            names.append(name)
        stage.record(figures=names)
