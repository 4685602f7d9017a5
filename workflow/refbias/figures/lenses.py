"""Three lenses side by side on shared axes, one panel a lens; and their course over the checkpoints of a spectrum."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from refbias.figures.style import GREY, LINE_STYLES, MARKERS, TOPIC_COLOURS, new_figure, say_empty, style

PANELS = (
    ("dB: mean |dB| of the groups", "mean_abs_delta_b", None, "#0072B2", "o"),
    ("Answers: bias resiliency (%)", "resiliency", ("resiliency_low", "resiliency_high"), "#D55E00", "s"),
    ("Competence: largest difference of E", "E", ("E_low", "E_high"), "#009E73", "D"),
)
# over checkpoints no single contrast is followed: the largest may be another in each
COURSE = (*PANELS[:2], ("Competence: mean |difference of E|", "mean_abs_E", None, "#009E73", "D"))
ABSENT = "\u2014"


def lenses_figure(rows: pd.DataFrame, title: str) -> Figure:
    """Draw the rows of `refbias.analysis.lenses.side_by_side`; a dash where a lens does not speak of an axis."""
    with style():
        figure = new_figure(9.2, 1.4 + 0.32 * len(rows))
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (name, column, bounds, colour, marker) in zip(panels, PANELS, strict=True):
            axes.set_title(name, loc="left", fontsize=9)
            _panel(axes, rows, column, bounds, {"color": colour, "marker": marker})
        panels[0].set_yticks(range(len(rows)), rows["axis"])
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
        figure.suptitle(title, fontsize=10)
    return figure


def _panel(axes: Axes, rows: pd.DataFrame, column: str, bounds: tuple[str, str] | None, look: dict[str, Any]) -> None:
    values = pd.to_numeric(rows[column])
    if values.isna().all():
        axes.set_xticks([])
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
        return
    for place in np.flatnonzero(values.isna()):
        axes.annotate(
            ABSENT, (0.5, place), xycoords=("axes fraction", "data"), ha="center", va="center", color=GREY, fontsize=7
        )
    for place in np.flatnonzero(values.notna()):
        if bounds and pd.notna(rows[bounds[0]].iloc[place]):
            ends = [float(rows[bound].iloc[place]) for bound in bounds]
            axes.plot(ends, [place, place], color=look["color"], linewidth=2)
        axes.plot(values.iloc[place], place, markersize=6, **look)
    if column == "resiliency":
        axes.set_xlim(-3, 103)
    else:
        axes.axvline(0, color="#444444", linewidth=0.8, zorder=0)
    axes.grid(color="#ececec", linewidth=0.6)


def course_figure(spectrum: Mapping[str, pd.DataFrame], title: str) -> Figure:
    """Draw each lens over the checkpoints of a spectrum, one line an axis."""
    names = list(spectrum)
    axes_names = list(dict.fromkeys(axis for frame in spectrum.values() for axis in frame["axis"]))
    with style():
        figure = new_figure(9.6, 4.0)
        panels = figure.subplots(1, 3)
        handles: dict[str, Any] = {}
        for axes, (name, column, _, _, _) in zip(panels, COURSE, strict=True):
            axes.set_title(name, loc="left", fontsize=9)
            for place, axis in enumerate(axes_names):
                values = [_value(frame, axis, column) for frame in spectrum.values()]
                if np.isnan(values).all():
                    continue
                known = np.flatnonzero(~np.isnan(values))
                (handles[axis],) = axes.plot(
                    known,
                    np.array(values)[known],
                    color=TOPIC_COLOURS[place % len(TOPIC_COLOURS)],
                    linestyle=LINE_STYLES[place % len(LINE_STYLES)],
                    marker=MARKERS[place % len(MARKERS)],
                    markersize=4,
                    label=axis,
                )
            if not axes.lines:
                say_empty(axes, "not measured")
                continue
            axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
            axes.set_xlim(-0.4, len(names) - 0.6)
            axes.grid(axis="y", color="#ececec", linewidth=0.6)
        figure.suptitle(title, fontsize=10)
        drawn = [handles[axis] for axis in axes_names if axis in handles]
        figure.legend(handles=drawn, loc="outside lower center", ncols=4)
    return figure


def _value(frame: pd.DataFrame, axis: str, column: str) -> float:
    return float(pd.to_numeric(frame.loc[frame["axis"] == axis, column]).iloc[0])
