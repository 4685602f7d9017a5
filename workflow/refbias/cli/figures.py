"""Draw all figures of a run from its stored tables, as PDF and PNG."""

import argparse
from pathlib import Path

from refbias.artifacts import Stage
from refbias.config.base import parse_json
from refbias.config.figures import FigureStage
from refbias.errors import UserError
from refbias.figures import FigureData, draw_all, save
from refbias.tables import TABLE1_COLUMNS, read_csv

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


def loss_path(text: str) -> tuple[tuple[str, str, str], Path]:
    """Split ``MODEL/REGIME/SPLIT=PATH``.

    Raises
    ------
    UserError
        If the name has other than three parts, or there is no path.
    """
    name, _, path = text.partition("=")
    parts = name.split("/")
    if len(parts) != 3 or not path:
        raise UserError(f"--loss {text!r}: expected MODEL/REGIME/SPLIT=PATH")
    return (parts[0], parts[1], parts[2]), Path(path)


def main(argv: list[str]) -> None:
    """Write every figure of the run, and the manifest last."""
    parser = argparse.ArgumentParser(prog="refbias figures", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--observations", type=Path, required=True)
    parser.add_argument("--table1", type=Path, required=True)
    parser.add_argument("--delta-b", type=Path, required=True)
    parser.add_argument("--loss", nargs="*", action="extend", default=[], metavar="MODEL/REGIME/SPLIT=PATH")
    parser.add_argument("--output", type=Path, required=True, help="folder of the figures")
    options = parser.parse_args(argv)
    settings = parse_json(FigureStage, options.settings, "--settings")
    losses = dict(map(loss_path, options.loss))
    inputs = {
        "observations": options.observations,
        "table1": options.table1,
        "delta_b": options.delta_b,
        **{f"loss/{'/'.join(key)}": path for key, path in losses.items()},
    }
    data = FigureData(
        observations=read_csv(options.observations, OBSERVATION_COLUMNS),
        table1=read_csv(options.table1, TABLE1_COLUMNS),
        delta_b=read_csv(options.delta_b, SHIFT_COLUMNS),
        losses={key: read_csv(path, ["step", "loss"]) for key, path in losses.items()},
    )
    with Stage("figures", settings.model_dump(mode="json"), options.output, inputs) as stage:
        names = []
        for name, figure in draw_all(settings, data):
            save(figure, options.output / name)
            names.append(name)
        stage.record(figures=names)
