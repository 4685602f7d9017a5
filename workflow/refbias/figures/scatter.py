"""Figure 2: dB against the change of score, one panel a benchmark, coloured by the weight of the harmful endpoint."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refbias.figures.select import panel_rows, table1_row
from refbias.figures.style import GREY, MARKERS, new_figure, say_empty, style
from refbias.stats import ols_line
from refbias.tables.formats import correlation, count, p_statement, stars
from refbias.tables.labels import (
    BENCHMARK_LABELS,
    benchmark_label,
    correlation_name,
    ordered,
    score_label,
    scorer_label,
    shift_label,
)

LINE_NAME = "OLS of dB on change of score"


def figure2(
    observations: pd.DataFrame,
    table1: pd.DataFrame,
    model: str,
    regime: str,
    thresholds: Mapping[str, float],
    method: str = "rr",
) -> Figure:
    """Draw dB against the change of score.

    Parameters
    ----------
    observations, table1
        The tables of those names; r, p and n in the titles are those of table 1.
    model, regime
        Which rows.
    thresholds
        Benchmark -> change of score above which a unit counts as positive in the ROC; a benchmark that
        is not in it was not run.
    method
        Method of dB.

    Returns
    -------
    Figure
        One panel a benchmark; one that was not run says so.
    """
    names = ordered([*BENCHMARK_LABELS, *thresholds], BENCHMARK_LABELS)
    shown = observations[observations["benchmark"].isin(thresholds)]
    weights = sorted(shown.loc[(shown["model"] == model) & (shown["regime"] == regime), "harmful_weight"].unique())
    looks = _looks(weights)
    with style():
        figure = new_figure(3.6 * len(names), 4.5)
        for axes, benchmark in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            pairs = panel_rows(observations, model, regime, benchmark, method)
            title = benchmark_label(benchmark)
            if benchmark not in thresholds:
                say_empty(axes, "not part of this run")
            elif pairs.empty:
                say_empty(axes, "no observations")
            else:
                _panel(axes, pairs, looks, benchmark, thresholds[benchmark], method)
                title += "\n" + _statement(table1_row(table1, model, regime, benchmark, method))
            axes.set_title(title, loc="left")
        _legend(figure, looks)
    return figure


def _looks(weights: list[float]) -> dict[float, dict[str, Any]]:
    """Return colour and marker of each weight of the harmful endpoint."""
    colours = mpl.colormaps["cividis"]
    return {
        weight: {"color": colours(weight), "marker": MARKERS[index % len(MARKERS)]}
        for index, weight in enumerate(weights)
    }


def _panel(
    axes: Axes, pairs: pd.DataFrame, looks: dict[float, dict[str, Any]], benchmark: str, level: float, method: str
) -> None:
    axes.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#cccccc", linewidth=0.8, zorder=0)
    for weight, rows in pairs.groupby("harmful_weight"):
        axes.plot(
            rows["delta_score"],
            rows["delta_b"],
            linestyle="none",
            markersize=5,
            markeredgecolor="black",
            markeredgewidth=0.4,
            alpha=0.85,
            gid="observations",
            **looks[float(str(weight))],
        )
    change = pairs["delta_score"].to_numpy(np.float64)
    if np.ptp(change) > 0:
        intercept, slope = ols_line(change, pairs["delta_b"].to_numpy(np.float64))
        ends = np.array([change.min(), change.max()])
        axes.plot(ends, intercept + slope * ends, color="black", linewidth=1.6, gid="ols")
    axes.axvline(level, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), gid="threshold")
    scorer = scorer_label(str(pairs["scorer"].iloc[0]))
    axes.set_xlabel(f"Change of {score_label(benchmark)}\n(share of outputs)\nscorer: {scorer}")
    axes.set_ylabel(f"{shift_label(method)} (no unit)")


def _statement(row: "pd.Series[Any] | None") -> str:
    if row is None:
        return "no row in table 1"
    if pd.isna(row["pearson_r"]):
        return f"no correlation, n = {count(row['n'])}"
    r = f"{correlation_name(str(row['method']))} = {correlation(row['pearson_r'])}{stars(row['pearson_p'])}"
    return f"{r}, {p_statement(row['pearson_p'])}, n = {count(row['n'])}"


def _legend(figure: Figure, looks: dict[float, dict[str, Any]]) -> None:
    points = [
        Line2D(
            [], [], linestyle="none", markersize=6, markeredgecolor="black", markeredgewidth=0.4, label=f"{w:g}", **look
        )
        for w, look in looks.items()
    ]
    if points:
        figure.legend(
            handles=points, loc="outside lower left", ncols=len(points), title="Weight of the harmful endpoint"
        )
    lines = [
        Line2D([], [], color="black", linewidth=1.6, label=LINE_NAME),
        Line2D([], [], color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), label="threshold of the ROC label"),
    ]
    figure.legend(handles=lines, loc="outside lower right", ncols=2)
