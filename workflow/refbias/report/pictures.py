"""Figures inside the report: PNG as data, a caption from the shipped texts, and a text for those who cannot see it."""

import base64
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from refbias.config.pictures import FIGURES
from refbias.errors import UserError
from refbias.resources import report_path
from refbias.tables.formats import correlation, count
from refbias.tables.labels import benchmark_label, method_label, regime_label

KINDS = {
    "figure2": "dB against the change of score",
    "roc": "ROC curves",
    "auc_threshold": "AUC against the threshold",
    "spectrum": "dB along the spectrum",
}
# caption of each of the paper's figures but the second, which comes with the spectra
CAPTIONS = {
    "figure_3": "auc_threshold",
    "figure_4": "anchors",
    "figure_5": "training_seeds",
    "figure_6": "methods",
    **{f"figure_{number}": "by_model" for number in (7, 8, 11, 12, 15, 16)},
    **{f"figure_{number}": "labelled" for number in (9, 10, 13, 14)},
}
_PNG_START = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """One figure of the report; `width` and `height` in pixels."""

    title: str
    caption: str
    alt: str
    data: str
    width: int
    height: int


def caption(kind: str) -> str:
    """Return the shipped caption of a kind of figure or table as plain text."""
    text = report_path(f"{kind}.rst").read_text(encoding="utf-8")
    return " ".join(text.replace("``", "").split())


def picture(path: Path, title: str, kind: str, alt: str) -> Picture:
    """Read one PNG into the report.

    Raises
    ------
    UserError
        If the file is missing or no PNG.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such figure: run the stage figures again") from None
    if not content.startswith(_PNG_START) or len(content) < 24:
        raise UserError(f"{path}: not a PNG file: run the stage figures again")
    width, height = struct.unpack(">II", content[16:24])
    data = base64.b64encode(content).decode("ascii")
    return Picture(title, caption(kind), alt, f"data:image/png;base64,{data}", width, height)


def spectrum_pictures(folder: Path, model: str, regime: str, table1: pd.DataFrame) -> Iterator[Picture]:
    """Yield the figures of one model and regime."""
    where = f"{model}, {regime_label(regime)}"
    rows = table1[(table1["model"] == model) & (table1["regime"] == regime)]
    for kind, title in KINDS.items():
        alt = f"{title}, {where}. {_numbers(kind, rows)}".strip()
        yield picture(folder / f"{kind}_{model}_{regime}.png", f"{title}: {where}", kind, alt)


def paper_pictures(folder: Path, lacks: Mapping[str, str]) -> Iterator[Picture]:
    """Yield the paper's figures 3 to 16 that the run has."""
    for figure in FIGURES:
        if figure.name in CAPTIONS and not lacks[figure.name]:
            title = f"{figure.name.replace('_', ' ').capitalize()}: {figure.title}"
            alt = f"{title}. The tables have the numbers behind it."
            yield picture(folder / f"{figure.stem}.png", title, CAPTIONS[figure.name], alt)


def loss_picture(folder: Path, model: str) -> Picture:
    """Return the figure of the training losses of one model."""
    alt = f"Training loss against the update, {model}. The table of training losses has the numbers."
    return picture(folder / f"loss_{model}.png", f"Training loss: {model}", "loss", alt)


def _numbers(kind: str, rows: pd.DataFrame) -> str:
    if kind == "spectrum":
        return "The tables of dB per group have the values at the right end."
    column, name = ("pearson_r", "r") if kind == "figure2" else ("roc_auc", "AUC")
    shown = rows.iloc[:0] if kind == "auc_threshold" else rows
    parts = [
        f"{benchmark_label(str(row['benchmark']))}, {method_label(str(row['method']))}: "
        f"{name} {correlation(row[column])}, n {count(row['n'])}"
        for _, row in shown.iterrows()
    ]
    return "; ".join(parts) + ("." if parts else "Table 1 has the areas at the operating points.")
