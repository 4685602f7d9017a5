"""Figures of the expertise direction itself: how well layers separate, and what steering along it does."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from refbias.competence.results import Subject
from refbias.figures.style import GREY, new_figure, plain_log_ticks, say_empty, style
from refbias.tables.competence.labels import subject_label

# curves of the layers: key of direction.json, name, colour, line
_LAYER_CURVES = (
    ("auc_held_out", "AUC of held-out pairs (they chose the layer, unless it was set)", "#0072B2", "-"),
    ("split_half_cosine", "split-half cosine", "#D55E00", (0, (5, 1.5))),
    ("concentration", "share of the largest coordinate", "#009E73", (0, (1.5, 1.2))),
    ("random_cosine", "95 % of random |cosines|", GREY, (0, (5, 1.5, 1, 1.5))),
)
DIRECTIONS = {
    "expertise": ("expertise direction", "#0072B2", "o", "-"),
    "random": ("random direction", "#D55E00", "s", (0, (5, 1.5))),
    "placebo": ("placebo direction", "#6b6b6b", "D", (0, (1.5, 1.2))),
}
_PANELS = (
    ("reading_level", "Reading level (grades)"),
    ("yes_logit", "logit(Yes) \u2212 logit(No)"),
    ("perplexity", "Perplexity"),
)


def layers(subject: Subject) -> Figure:
    """Draw the diagnostics of the direction over layers, with the chosen one."""
    direction = subject.direction or {}
    frame = pd.DataFrame(direction.get("layers", []))
    with style():
        figure = new_figure(6.6, 3.9)
        axes = figure.subplots()
        axes.set_title(f"{subject.model}, {subject_label(subject.subject)}: expertise direction by layer", loc="left")
        if frame.empty or "layer" not in frame.columns:
            say_empty(axes, "no diagnostics of layers are recorded")
            return figure
        for key, name, colour, line in _LAYER_CURVES:
            if key in frame.columns:
                axes.plot(frame["layer"], frame[key].astype(float), color=colour, linestyle=line, label=name, gid=key)
        chosen = direction.get("layer")
        if chosen is not None:
            axes.axvline(chosen, color="#444444", linewidth=1, zorder=0)
            axes.annotate(
                f"layer {chosen}", (chosen, 1.02), (3, 0), textcoords="offset points", fontsize=8.5, va="center"
            )
        axes.axhline(0.5, color="#cccccc", linewidth=0.8, zorder=0)
        axes.set_ylim(-0.05, 1.08)
        axes.set_xlabel("Layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def steering(subject: Subject) -> Figure:
    """Draw reading level, hiring logit and perplexity against the strength of steering, one line a direction."""
    frame = subject.steering if subject.steering is not None else pd.DataFrame()
    with style():
        figure = new_figure(8.6, 3.5)
        panels = figure.subplots(1, 3, sharex=True)
        for axes, (column, title) in zip(panels, _PANELS, strict=True):
            axes.set_title(title, loc="left")
            axes.set_xlabel("alpha")
            if frame.empty or frame[column].isna().all():
                say_empty(axes, "not measured")
                continue
            _curves(axes, frame, column)
            axes.axvline(0, color="#999999", linewidth=0.8, zorder=0)
            axes.grid(axis="y", color="#e8e8e8", linewidth=0.6)
        if not frame.empty and (frame["perplexity"] > 0).any():
            panels[2].set_yscale("log")
            plain_log_ticks(panels[2].yaxis)
        figure.suptitle(f"{subject.model}, {subject_label(subject.subject)}: steering", fontsize=10)
        handles, labels = next(
            (axes.get_legend_handles_labels() for axes in panels if axes.get_legend_handles_labels()[0]), ([], [])
        )
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _curves(axes: Axes, frame: pd.DataFrame, column: str) -> None:
    known = [name for name in DIRECTIONS if name in set(frame["direction"])]
    for name in [*known, *sorted(set(frame["direction"]) - set(DIRECTIONS))]:
        label, colour, marker, line = DIRECTIONS.get(name, (name, "#AA4499", "v", "-"))
        rows = frame[frame["direction"] == name].groupby("alpha")[column].mean().sort_index()
        axes.plot(
            rows.index,
            rows,
            color=colour,
            marker=marker,
            markersize=4.5,
            linestyle=line,
            label=label,
            gid=name,
        )
