"""Answers beside hidden states: resiliency and dB by category along a spectrum, and against each other."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refbias.figures.style import GREY, LINE_STYLES, MARKERS, TOPIC_COLOURS, new_figure, style
from refbias.tables.formats import interval, number
from refbias.tables.labels import method_label, plain_name, regime_label


def _look(at: int) -> dict[str, Any]:
    return {"color": TOPIC_COLOURS[at % len(TOPIC_COLOURS)], "marker": MARKERS[at % len(MARKERS)]}


def _lines(axes: Axes, rows: pd.DataFrame, column: str, categories: list[str]) -> None:
    for at, category in enumerate(categories):
        own = rows[rows["category"] == category].sort_values("harmful_weight")
        axes.plot(
            own["harmful_weight"],
            own[column],
            linestyle=LINE_STYLES[at % len(LINE_STYLES)],
            markersize=4.5,
            label=plain_name(category),
            **_look(at),
        )
    axes.set_xlabel("Weight of the harmful endpoint")


def _statement(summary: pd.DataFrame) -> str:
    row = summary[(summary["x"] == "mean_delta_b") & (summary["y"] == "change")]
    if row.empty:
        return ""
    found = row.iloc[0]
    if pd.isna(found["pearson_r"]):
        return str(found["note"])
    span = interval(found["pearson_ci_low"], found["pearson_ci_high"], 2)
    signs = "" if pd.isna(found["n_signs"]) else f", same sign {found['n_agree']:.0f} of {found['n_signs']:.0f}"
    return f"r {number(found['pearson_r'], 2)} {span}{signs}"


def _scatter(axes: Axes, rows: pd.DataFrame, categories: list[str]) -> None:
    for at, category in enumerate(categories):
        own = rows[(rows["category"] == category) & rows["mean_delta_b"].notna() & rows["change"].notna()]
        for clear, face in ((True, _look(at)["color"]), (False, "white")):
            part = own[own["clear"].astype(bool) == clear]
            axes.plot(
                part["mean_delta_b"],
                part["change"],
                linestyle="none",
                markersize=6,
                markerfacecolor=face,
                markeredgecolor=_look(at)["color"],
                marker=_look(at)["marker"],
                gid=f"{category} {'clear' if clear else 'unclear'}",
                zorder=2,
            )
    wide = 1.15 * max(float(np.nanmax(np.abs([*axes.get_xlim()]))), 1e-6)
    high = 1.15 * max(float(np.nanmax(np.abs([*axes.get_ylim()]))), 1e-6)
    for x, y in ((-1, 1), (1, -1)):
        axes.fill_between([0, x * wide], 0, y * high, color="#f6e3d7", linewidth=0, zorder=0)
        axes.text(
            x * wide * 0.96,
            y * high * 0.95,
            "the lenses disagree",
            ha="left" if x < 0 else "right",
            va="top" if y > 0 else "bottom",
            fontsize=8,
            color=GREY,
        )
    axes.axhline(0, color="#999999", linewidth=0.8, zorder=1)
    axes.axvline(0, color="#999999", linewidth=0.8, zorder=1)
    axes.set_xlim(-wide, wide)
    axes.set_ylim(-high, high)
    axes.set_xlabel("Mean dB of the topic's groups\nbelow 0 = towards the negative attributes")
    axes.set_ylabel("Change of resiliency (points)")


def _legend(figure: Figure, rows: pd.DataFrame, left: Axes, middle: Axes) -> None:
    handles, labels = middle.get_legend_handles_labels()
    without = {plain_name(str(name)) for name in rows.loc[rows["lenses"] == "no groups", "category"]}
    named = [f"{label} (no groups in dB)" if label in without else label for label in labels]
    control = Line2D([], [], color="black", linestyle="--", linewidth=1.8)
    filled = Line2D([], [], linestyle="none", marker="o", color=GREY, markersize=6)
    figure.legend(
        [*handles, control, filled],
        [*named, "group-free control", "right, filled: change told from 0, dB larger than the control's"],
        loc="outside lower center",
        ncols=5,
    )


def beside(rows: pd.DataFrame, summary: pd.DataFrame, model: str, regime: str) -> Figure:
    """Draw dB and resiliency along a spectrum, and one against the other.

    Parameters
    ----------
    rows
        ``beside_db.csv`` of one model and regime.
    summary
        ``beside_db_summary.csv``.
    model, regime
        For the titles, and which rows of the summary.

    Returns
    -------
    Figure
        Filled markers of the third panel: column `clear`, the change is told from 0 and dB larger than the control's.
    """
    categories = list(dict.fromkeys(rows["category"].astype(str)))
    found = summary[(summary["model"] == model) & (summary["regime"] == regime)]
    method = ", ".join(method_label(str(name)) for name in dict.fromkeys(rows["method"]))
    with style():
        figure = new_figure(12.0, 4.6)
        left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
        _lines(left, rows.dropna(subset=["mean_delta_b"]), "mean_delta_b", categories)
        control = rows.drop_duplicates("checkpoint").sort_values("harmful_weight")
        left.plot(control["harmful_weight"], control["control_delta_b"], color="black", linestyle="--", linewidth=1.8)
        left.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        left.set_ylabel(f"Mean dB, {method}")
        left.set_title(f"Hidden states: {model}, {regime_label(regime)}", loc="left")
        _lines(middle, rows, "resiliency", categories)
        middle.set_ylim(-3, 103)
        middle.set_ylabel("Bias resiliency (%)")
        middle.set_title("Answers", loc="left")
        _scatter(right, rows, categories)
        right.set_title(f"Against each other\n{_statement(found)}".strip(), loc="left")
        _legend(figure, rows, left, middle)
    return figure
