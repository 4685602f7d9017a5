"""What the report is made of: the stored tables, figures, loss histories and manifests of a run."""

import os
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.tables import TABLE1_COLUMNS, read_csv
from refbias.tables.reproduction import REPRODUCTION_COLUMNS

UNIT_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "unit",
    "scorer",
    "n_outputs",
    "n_missing",
    "score",
    "reference_score",
    "delta_score",
    "delta_ci_low",
    "delta_ci_high",
]
SHIFT_COLUMNS = [
    "model",
    "regime",
    "checkpoint",
    "harmful_weight",
    "group",
    "method",
    "n_anchors",
    "s_plus",
    "s_minus",
    "delta_b",
    "ci_low",
    "ci_high",
]


@dataclass(frozen=True)
class DataLink:
    """A file beside the report: what it is called and its address relative to the report."""

    name: str
    address: str


@dataclass(frozen=True)
class ReportInputs:
    """Everything that the report shows.

    Attributes
    ----------
    table1, units, delta_b, reproduction
        The tables of those names.
    paper_tables
        Those of tables 2 to 7 that the run made, by stem.
    losses
        (model, regime, split) -> loss history.
    manifests
        Role -> manifest of a stage.
    figures
        Folder of the figures.
    links
        Data files and figures that lie beside the report.
    """

    table1: pd.DataFrame
    units: pd.DataFrame
    delta_b: pd.DataFrame
    reproduction: pd.DataFrame
    paper_tables: Mapping[str, pd.DataFrame]
    losses: Mapping[tuple[str, str, str], pd.DataFrame]
    manifests: Mapping[str, Mapping[str, Any]]
    figures: Path
    links: tuple[DataLink, ...]


def load(tables: Path, figures: Path, shift: Path, records: Path, output: Path) -> ReportInputs:
    """Read what the report is made of.

    Parameters
    ----------
    tables, figures, shift
        Folders of those stages.
    records
        Folder of the collected manifests and losses.
    output
        Where the report will lie; links are relative to its folder.

    Raises
    ------
    UserError
        If a file is missing or broken.
    """
    files = [*sorted(tables.glob("*.csv")), *sorted(tables.glob("*.md")), *sorted(tables.glob("*.tex"))]
    files += [shift / "delta_b.csv", *sorted(figures.glob("*.pdf"))]
    return ReportInputs(
        table1=read_csv(tables / "table1.csv", TABLE1_COLUMNS),
        units=read_csv(tables / "units.csv", UNIT_COLUMNS),
        delta_b=read_csv(shift / "delta_b.csv", SHIFT_COLUMNS),
        reproduction=read_csv(tables / "reproduction.csv", REPRODUCTION_COLUMNS),
        paper_tables={
            path.stem: read_csv(path, []) for number in range(2, 8) if (path := tables / f"table{number}.csv").is_file()
        },
        losses=_losses(records / "losses.csv"),
        manifests=dict(sorted({**_object(records / "manifests.json"), **_analyses(tables)}.items())),
        figures=figures,
        links=tuple(_link(path, output) for path in files),
    )


def _losses(path: Path) -> dict[tuple[str, str, str], pd.DataFrame]:
    frame = read_csv(path, ["model", "regime", "split", "step", "loss"])
    return {
        (str(model), str(regime), str(split)): history
        for (model, regime, split), history in frame.groupby(["model", "regime", "split"])
    }


def _analyses(tables: Path) -> dict[str, dict[str, Any]]:
    """Return the manifests of the stages that wrote the tables."""
    return {"analyse": _object(tables / "manifest.json"), "tables": _object(tables / "tables.manifest.json")}


def _object(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a manifest must hold a JSON object: run the stage again")
    return content


def _link(path: Path, output: Path) -> DataLink:
    relative = Path(os.path.relpath(path, output.parent)).as_posix()
    return DataLink(path.name, urllib.parse.quote(relative))
