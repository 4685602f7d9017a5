"""ROC curves of "dB below a cutoff", and the area under them along the threshold that makes the labels.

A method without direction is drawn from the side that has the larger area, as table 1 has it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refbias.analysis import detection_score
from refbias.figures.select import methods_in, panel_rows, table1_row
from refbias.figures.style import GREY, method_style, new_figure, say_empty, style
from refbias.stats import above, roc_auc, roc_points
from refbias.tables.formats import correlation, interval, threshold
from refbias.tables.labels import (
    BENCHMARK_LABELS,
    benchmark_label,
    method_label,
    ordered,
    score_label,
    scorer_label,
)

_CHANCE: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}
Curves = dict[str, pd.DataFrame]


def roc(
    observations: pd.DataFrame, table1: pd.DataFrame, model: str, regime: str, thresholds: Mapping[str, float]
) -> Figure:
    """Draw the ROC curves of all methods.

    Parameters
    ----------
    observations, table1
        The tables of those names; areas and intervals in the legends are those of table 1.
    model, regime
        Which rows.
    thresholds
        Benchmark -> change of score above which a unit is positive.

    Returns
    -------
    Figure
        One panel a benchmark, one curve a method. Where one class is missing there is no curve, and
        the panel says so.
    """
    names = ordered(thresholds, BENCHMARK_LABELS)
    with style():
        # room below the panels for a legend with a line a method
        figure = new_figure(3.5 * max(len(names), 2), 4.0 + 0.2 * len(methods_in(observations)))
        for axes, benchmark in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            curves = _curves(observations, model, regime, benchmark)
            axes.set_title(_title(curves, benchmark, thresholds[benchmark]), loc="left")
            if not curves:
                say_empty(axes, "no observations")
                continue
            rows = {method: table1_row(table1, model, regime, benchmark, method) for method in curves}
            roc_panel(axes, curves, rows, thresholds[benchmark])
    return figure


def _curves(observations: pd.DataFrame, model: str, regime: str, benchmark: str) -> Curves:
    found = {name: panel_rows(observations, model, regime, benchmark, name) for name in methods_in(observations)}
    return {name: rows for name, rows in found.items() if not rows.empty}


def _title(curves: Curves, benchmark: str, level: float) -> str:
    if not curves:
        return benchmark_label(benchmark)
    pairs = next(iter(curves.values()))
    n_positive = int(above(pairs["delta_score"].to_numpy(np.float64), level).sum())
    return (
        f"{benchmark_label(benchmark)}: {n_positive} of {len(pairs)} positive\n"
        f"scorer: {scorer_label(str(pairs['scorer'].iloc[0]))}"
    )


def roc_panel(axes: Axes, curves: Curves, rows: "Mapping[str, pd.Series[Any] | None]", level: float) -> None:
    """Draw one panel's ROC curves, one a method, with the areas of table 1 in the legend below."""
    for method, pairs in curves.items():
        label = above(pairs["delta_score"].to_numpy(np.float64), level)
        points = roc_points(detection_score(method, pairs["delta_b"], label), label)
        axes.plot(
            points.false_positive_rate,
            points.true_positive_rate,
            linewidth=1.8,
            label=_area(method, rows[method]),
            clip_on=False,
            gid=method,
            **method_style(method),
        )
    axes.plot([0, 1], [0, 1], label="chance", **_CHANCE)
    axes.set_aspect("equal")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("False positive rate")
    axes.set_ylabel("True positive rate")
    if label.all() or not label.any():
        where = "every" if label.all() else "no"
        reason = f"one class only: {where} change\nof score above {threshold(level)}"
        axes.text(0.4, 0.8, reason, ha="center", color=GREY)
    _legend_below(axes)


def _area(method: str, row: "pd.Series[Any] | None") -> str:
    if row is None:
        return method_label(method)
    if pd.isna(row["roc_auc"]):
        return f"{method_label(method)}: no AUC"
    bounds = interval(row["roc_auc_ci_low"], row["roc_auc_ci_high"], 2)
    return f"{method_label(method)}: AUC {correlation(row['roc_auc'])} {bounds}"


def _legend_below(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), borderaxespad=0, handlelength=3)


def auc_threshold(observations: pd.DataFrame, model: str, regime: str, thresholds: Mapping[str, float]) -> Figure:
    """Draw the area under the ROC curve along the threshold of the change of score.

    The area changes only where the threshold passes an observed change, so the curve is a step
    function and is drawn as that, without a grid. Below it stands how many units are positive:
    where they are few the area rests on little.

    Parameters
    ----------
    observations
        The table of that name.
    model, regime
        Which rows.
    thresholds
        Benchmark -> operating point, which is marked.

    Returns
    -------
    Figure
        Two panels a benchmark: area, and number of positives. A threshold that leaves one class only
        leaves a gap.
    """
    names = ordered(thresholds, BENCHMARK_LABELS)
    with style():
        figure = new_figure(3.5 * max(len(names), 2), 4.6)
        grid = figure.subplots(2, len(names), squeeze=False, sharex="col", height_ratios=[3, 1])
        methods: dict[str, Any] = {}
        for upper, lower, benchmark in zip(grid[0], grid[1], names, strict=True):
            curves = _curves(observations, model, regime, benchmark)
            upper.set_title(benchmark_label(benchmark), loc="left")
            if not curves:
                say_empty(upper, "no observations")
                lower.set_axis_off()
                continue
            _auc_panel(upper, lower, curves, thresholds[benchmark])
            scorer = scorer_label(str(next(iter(curves.values()))["scorer"].iloc[0]))
            lower.set_xlabel(f"Threshold of the change of {score_label(benchmark)}\nscorer: {scorer}")
            methods |= {line.get_label(): line for line in upper.get_lines()}
        if methods:
            figure.legend(
                methods.values(), list(methods), loc="outside lower center", ncols=len(methods), handlelength=3
            )
    return figure


def step_thresholds(change: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the thresholds, from 0 up, at which the labels of the changes `change` (n,) flip."""
    return np.concatenate([[0.0], np.unique(np.round(change[change > 0], 9))])


def _auc_panel(upper: Axes, lower: Axes, curves: Curves, level: float) -> None:
    for method, pairs in curves.items():
        change = pairs["delta_score"].to_numpy(np.float64)
        grid = step_thresholds(change)
        labels = [above(change, float(level)) for level in grid]
        area = np.array([roc_auc(detection_score(method, pairs["delta_b"], label), label) for label in labels])
        look = method_style(method)
        upper.step(grid, area, where="post", linewidth=1.8, label=method_label(method), gid=method, **look)
    positives = np.array([above(change, float(step)).sum() for step in grid], dtype=np.float64)
    lower.step(grid, positives, where="post", color="black", linewidth=1.2, gid="positives")
    lower.fill_between(grid, positives, step="post", color="#dddddd")
    upper.axhline(0.5, label="chance", **_CHANCE)
    for axes in (upper, lower):
        axes.axvline(level, color="black", linewidth=1.0, linestyle=(0, (4, 2)), label="operating point")
    upper.set_ylim(-0.02, 1.02)
    upper.set_xlim(0, max(float(grid[-1]), level) * 1.05)
    upper.set_ylabel("Area under the ROC curve")
    lower.set_ylabel("Positives")
    lower.set_ylim(0, max(len(change), 1))
    if not np.isfinite(area).any():
        upper.text(0.5, 0.6, "one class only at every threshold", transform=upper.transAxes, ha="center", color=GREY)
