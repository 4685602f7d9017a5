"""Figures of a run, drawn from its stored tables alone: no model, no GPU, no network.

Each function returns a matplotlib Figure; `draw_all` yields all of a run with their file names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from refbias.config.figures import FigureStage
from refbias.config.pictures import FIGURES, Picture
from refbias.errors import UserError
from refbias.figures.anchors import anchors
from refbias.figures.labelled import labelled
from refbias.figures.models import by_method, by_model
from refbias.figures.roc import auc_threshold, roc
from refbias.figures.scatter import figure2
from refbias.figures.seeds import training_seeds
from refbias.figures.select import methods_in
from refbias.figures.spectrum import spectrum
from refbias.figures.style import save
from refbias.figures.training import loss
from refbias.tables import GroupName, group_names

LossKey = tuple[str, str, str]
"""Model, regime, split."""


@dataclass(frozen=True)
class FigureData:
    """The result tables that figures show.

    `losses` maps model, regime and split to a loss history; `ablations` and `training_seeds` are None where the run has
    none.
    """

    observations: pd.DataFrame
    table1: pd.DataFrame
    delta_b: pd.DataFrame
    losses: Mapping[LossKey, pd.DataFrame]
    ablations: pd.DataFrame | None = None
    training_seeds: pd.DataFrame | None = None


def draw_all(settings: FigureStage, data: FigureData) -> Iterator[tuple[str, Figure]]:
    """Draw every figure of a run.

    Parameters
    ----------
    settings
        Models, regimes and thresholds, and what the run lacks for the paper's figures.
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
    for picture in FIGURES:
        if picture.name in _PAPER and not settings.lacks[picture.name]:
            yield picture.stem, _PAPER[picture.name](picture, settings, data, groups)


Drawer = Callable[[Picture, FigureStage, FigureData, Mapping[str, GroupName]], Figure]


def _figure3(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    return auc_threshold(data.observations, settings.models[0], str(picture.regime), settings.thresholds)


def _figure4(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    if data.ablations is None:
        raise UserError("--ablations: missing: figure 4 needs the table of ablations")
    return anchors(data.ablations, settings.models[0], settings.thresholds)


def _figure5(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    if data.training_seeds is None:
        raise UserError("--training-seeds: missing: figure 5 needs the table of training seeds")
    return training_seeds(data.training_seeds, settings.models[0], groups)


def _figure6(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    benchmarks = [name for name in picture.benchmarks if name in settings.thresholds]
    return by_method(
        data.observations, data.table1, settings.models[0], str(picture.regime), benchmarks, settings.thresholds
    )


def _by_model(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    (benchmark,) = picture.benchmarks
    return by_model(
        data.observations, data.table1, settings.models, str(picture.regime), benchmark, settings.thresholds
    )


def _labelled(picture: Picture, settings: FigureStage, data: FigureData, groups: Mapping[str, GroupName]) -> Figure:
    (benchmark,) = picture.benchmarks
    return labelled(
        data.observations,
        data.table1,
        settings.models[0],
        str(picture.regime),
        benchmark,
        settings.thresholds[benchmark],
        groups,
    )


# figure 2 is drawn above, once a model and regime
_PAPER: dict[str, Drawer] = {
    "figure_3": _figure3,
    "figure_4": _figure4,
    "figure_5": _figure5,
    "figure_6": _figure6,
    **{f"figure_{number}": _by_model for number in (7, 8, 11, 12, 15, 16)},
    **{f"figure_{number}": _labelled for number in (9, 10, 13, 14)},
}

__all__ = [
    "FigureData",
    "anchors",
    "auc_threshold",
    "by_method",
    "by_model",
    "draw_all",
    "figure2",
    "labelled",
    "loss",
    "roc",
    "save",
    "spectrum",
    "training_seeds",
]
