"""Figures 6 to 8, 11, 12, 15 and 16: scatters of several methods or models side by side, with ROC curves below."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from refbias.figures.roc import roc_panel
from refbias.figures.scatter import scatter_panel, statement, weight_legend, weight_looks
from refbias.figures.select import methods_in, panel_rows, table1_row
from refbias.figures.style import new_figure, say_empty, style
from refbias.tables.labels import benchmark_label, method_label

COMPARED = ("rr", "seat")


def weights_of(observations: pd.DataFrame, models: Sequence[str], regime: str) -> list[float]:
    """Return the weights of the harmful endpoint that occur, ascending."""
    rows = observations[observations["model"].isin(models) & (observations["regime"] == regime)]
    return sorted(float(weight) for weight in rows["harmful_weight"].unique())


def by_model(
    observations: pd.DataFrame,
    table1: pd.DataFrame,
    models: Sequence[str],
    regime: str,
    benchmark: str,
    thresholds: Mapping[str, float],
) -> Figure:
    """Draw scatter and ROC curves of RR and SEAT for every model, one benchmark.

    Parameters
    ----------
    observations, table1
        The tables of those names; r, p, n, areas and intervals are those of table 1.
    models
        One column each.
    regime, benchmark
        Which rows.
    thresholds
        Benchmark -> change of score above which a unit is positive.

    Returns
    -------
    Figure
        A row of scatters for each method, and a row of ROC curves.
    """
    methods = [method for method in COMPARED if method in methods_in(observations)]
    looks = weight_looks(weights_of(observations, models, regime))
    level = thresholds[benchmark]
    with style():
        figure = new_figure(3.7 * max(len(models), 2), 4.0 * len(methods) + 4.6)
        grid = figure.subplots(len(methods) + 1, len(models), squeeze=False)
        for column, model in enumerate(models):
            curves = {method: panel_rows(observations, model, regime, benchmark, method) for method in methods}
            rows = {method: table1_row(table1, model, regime, benchmark, method) for method in methods}
            for axes, method in zip(grid[:, column], methods, strict=False):
                title = f"{model}, {method_label(method)}"
                if curves[method].empty:
                    say_empty(axes, "no observations")
                else:
                    scatter_panel(axes, curves[method], looks, benchmark, level, method)
                    title += "\n" + statement(rows[method])
                axes.set_title(title, loc="left")
            axes = grid[-1, column]
            axes.set_title(f"{model}, ROC at {level:g}", loc="left")
            drawn = {method: pairs for method, pairs in curves.items() if not pairs.empty}
            if drawn:
                roc_panel(axes, drawn, rows, level)
            else:
                say_empty(axes, "no observations")
        weight_legend(figure, looks)
    return figure


def by_method(
    observations: pd.DataFrame,
    table1: pd.DataFrame,
    model: str,
    regime: str,
    benchmarks: Sequence[str],
    thresholds: Mapping[str, float],
) -> Figure:
    """Draw dB of every method against the change of score, a row of panels a benchmark (figure 6).

    Parameters
    ----------
    observations, table1
        The tables of those names.
    model, regime
        Which rows.
    benchmarks
        One row each.
    thresholds
        Benchmark -> change of score above which a unit is positive.

    Returns
    -------
    Figure
        Panels of one row share their x axis.
    """
    methods = methods_in(observations)
    looks = weight_looks(weights_of(observations, [model], regime))
    with style():
        figure = new_figure(3.6 * max(len(methods), 2), 4.0 * len(benchmarks) + 0.6)
        grid = figure.subplots(len(benchmarks), len(methods), squeeze=False, sharex="row")
        for across, benchmark in zip(grid, benchmarks, strict=True):
            for axes, method in zip(across, methods, strict=True):
                pairs = panel_rows(observations, model, regime, benchmark, method)
                title = f"{benchmark_label(benchmark)}, {method_label(method)}"
                if pairs.empty:
                    say_empty(axes, "no observations")
                else:
                    scatter_panel(axes, pairs, looks, benchmark, thresholds[benchmark], method)
                    title += "\n" + statement(table1_row(table1, model, regime, benchmark, method))
                axes.set_title(title, loc="left")
        weight_legend(figure, looks)
    return figure
