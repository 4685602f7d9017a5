"""Figures of a run, drawn from its stored tables alone: no model, no GPU, no network.

Each function returns a matplotlib Figure; `draw_all` yields all of a run with their file names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from refbias.config.figures import FigureStage
from refbias.figures.roc import auc_threshold, roc
from refbias.figures.scatter import figure2
from refbias.figures.select import methods_in
from refbias.figures.spectrum import spectrum
from refbias.figures.style import save
from refbias.figures.training import loss
from refbias.tables import group_names

LossKey = tuple[str, str, str]
"""Model, regime, split."""


@dataclass(frozen=True)
class FigureData:
    """The result tables that figures show; `losses` maps model, regime and split to a loss history."""

    observations: pd.DataFrame
    table1: pd.DataFrame
    delta_b: pd.DataFrame
    losses: Mapping[LossKey, pd.DataFrame]


def draw_all(settings: FigureStage, data: FigureData) -> Iterator[tuple[str, Figure]]:
    """Draw every figure of a run.

    Parameters
    ----------
    settings
        Models, regimes and thresholds.
    data
        The tables.

    Yields
    ------
    tuple of str and Figure
        File name without extension, and the figure.
    """
    groups = group_names(settings.groups_file)
    methods = methods_in(data.observations) or ["rr"]
    for model in settings.models:
        for regime in settings.regimes:
            slug = f"{model}_{regime}"
            yield (
                f"figure2_{slug}",
                figure2(data.observations, data.table1, model, regime, settings.thresholds, methods[0]),
            )
            yield f"roc_{slug}", roc(data.observations, data.table1, model, regime, settings.thresholds)
            yield f"auc_threshold_{slug}", auc_threshold(data.observations, model, regime, settings.thresholds)
            yield f"spectrum_{slug}", spectrum(data.delta_b, model, regime, groups)
        yield (
            f"loss_{model}",
            loss({(regime, split): frame for (name, regime, split), frame in data.losses.items() if name == model}),
        )


__all__ = ["FigureData", "auc_threshold", "draw_all", "figure2", "loss", "roc", "save", "spectrum"]
