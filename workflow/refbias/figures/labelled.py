"""Figures 9, 10, 13 and 14: which unit is which point, RR of the first model, one benchmark."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refbias.figures.scatter import LINE_NAME, statement
from refbias.figures.select import panel_rows, table1_row
from refbias.figures.style import GREY, new_figure, style
from refbias.stats import ols_line
from refbias.tables.labels import (
    GroupName,
    benchmark_label,
    method_label,
    plain_name,
    score_label,
    scorer_label,
    unit_label,
)

_POINT = 9.5
_DARK = 0.55


def labelled(
    observations: pd.DataFrame,
    table1: pd.DataFrame,
    model: str,
    regime: str,
    benchmark: str,
    level: float,
    groups: Mapping[str, GroupName],
) -> Figure:
    """Draw dB of RR against the change of score, every point with its unit's number.

    Parameters
    ----------
    observations, table1
        The tables of those names.
    model, regime, benchmark
        Which rows.
    level
        Change of score above which a unit is positive.
    groups
        Group id -> name.

    Returns
    -------
    Figure
        One panel; the units' names stand beside it by number. The shade of a point is the weight of the harmful
        endpoint.
    """
    pairs = panel_rows(observations, model, regime, benchmark, "rr")
    units = list(dict.fromkeys(map(str, pairs["unit"])))
    numbers = {unit: str(at) for at, unit in enumerate(units, start=1)}
    weights = sorted(float(weight) for weight in pairs["harmful_weight"].unique())
    with style():
        figure = new_figure(9.4, 6.6)
        axes = figure.subplots()
        row = table1_row(table1, model, regime, benchmark, "rr")
        title = f"{benchmark_label(benchmark)}, {model}, {method_label('rr')}\n{statement(row)}"
        axes.set_title(title, loc="left")
        axes.axhline(0, color="#cccccc", linewidth=0.8, zorder=0)
        axes.axvline(0, color="#cccccc", linewidth=0.8, zorder=0)
        _points(axes, pairs, numbers)
        _line(axes, pairs)
        axes.axvline(level, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), gid="threshold")
        scorer = scorer_label(str(pairs["scorer"].iloc[0])) if len(pairs) else ""
        axes.set_xlabel(f"Change of {score_label(benchmark)} (share of outputs; scorer: {scorer})")
        axes.set_ylabel(f"dB, {method_label('rr')} (no unit)")
        _names(figure, numbers, groups, unit_label(benchmark))
        _legend(figure, weights)
    return figure


def _shade(weight: float) -> tuple[Any, str]:
    """Return a point's colour and that of the number on it."""
    colour = mpl.colormaps["cividis"](weight)
    return colour, "white" if weight < _DARK else "black"


def _points(axes: Axes, pairs: pd.DataFrame, numbers: Mapping[str, str]) -> None:
    ordered_pairs = pairs.sort_values("harmful_weight", kind="stable")
    for at, (_, row) in enumerate(ordered_pairs.iterrows()):
        colour, ink = _shade(float(row["harmful_weight"]))
        # a point that lies on another hides the other's number with it
        height = 2 + at / (2 * len(pairs))
        axes.plot(
            row["delta_score"],
            row["delta_b"],
            linestyle="none",
            marker="o",
            markersize=_POINT,
            markeredgecolor="black",
            markeredgewidth=0.4,
            color=colour,
            gid="observations",
            zorder=height,
        )
        axes.annotate(
            numbers[str(row["unit"])],
            (row["delta_score"], row["delta_b"]),
            ha="center",
            va="center_baseline",
            fontsize=6,
            color=ink,
            zorder=height,
        ).set_in_layout(False)


def _line(axes: Axes, pairs: pd.DataFrame) -> None:
    change = pairs["delta_score"].to_numpy(np.float64)
    if change.size and np.ptp(change) > 0:
        intercept, slope = ols_line(change, pairs["delta_b"].to_numpy(np.float64))
        ends = np.array([change.min(), change.max()])
        axes.plot(ends, intercept + slope * ends, color="black", linewidth=1.6, gid="ols", zorder=1)


def _names(figure: Figure, numbers: Mapping[str, str], groups: Mapping[str, GroupName], what: str) -> None:
    handles = [
        Line2D([], [], linestyle="none", label=f"{number}  {groups[unit].name if unit in groups else plain_name(unit)}")
        for unit, number in numbers.items()
    ]
    figure.legend(handles=handles, loc="outside right upper", title=what.capitalize(), handlelength=0, handletextpad=0)


def _legend(figure: Figure, weights: list[float]) -> None:
    points = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            markersize=8,
            markeredgecolor="black",
            markeredgewidth=0.4,
            color=_shade(weight)[0],
            label=f"{weight:g}",
        )
        for weight in weights
    ]
    if points:
        figure.legend(
            handles=points, loc="outside lower left", ncols=len(points), title="Weight of the harmful endpoint"
        )
    lines = [
        Line2D([], [], color="black", linewidth=1.6, label=LINE_NAME),
        Line2D([], [], color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), label="threshold of the ROC label"),
    ]
    figure.legend(handles=lines, loc="outside lower right", ncols=1)
