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
    table1, units, delta_b
        The tables of those names.
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
    losses: Mapping[tuple[str, str, str], pd.DataFrame]
    manifests: Mapping[str, Mapping[str, Any]]
    figures: Path
    links: tuple[DataLink, ...]


def load(tables: Path, figures: Path, shift: Path, manifests: Mapping[str, Path], output: Path) -> ReportInputs:
    """Read what the report is made of.

    Parameters
    ----------
    tables, figures, shift
        Folders of those stages.
    manifests
        Role -> ``manifest.json``. The role ``training/MODEL/REGIME/SPLIT`` brings the ``loss.csv``
        beside it along.
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
        losses=_losses(manifests),
        manifests={role: _manifest(path) for role, path in sorted(manifests.items())},
        figures=figures,
        links=tuple(_link(path, output) for path in files),
    )


def _losses(manifests: Mapping[str, Path]) -> dict[tuple[str, str, str], pd.DataFrame]:
    found = {}
    for role, path in sorted(manifests.items()):
        parts = role.split("/")
        if parts[0] == "training" and len(parts) == 4:
            found[(parts[1], parts[2], parts[3])] = read_csv(path.parent / "loss.csv", ["step", "loss"])
    return found


def _manifest(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: a manifest must hold a JSON object: run the stage again")
    return content


def _link(path: Path, output: Path) -> DataLink:
    relative = Path(os.path.relpath(path, output.parent)).as_posix()
    return DataLink(path.name, urllib.parse.quote(relative))
