"""Figures of the competence lens: contrasts on score and behaviour side by side, occupations, hiring.

Filled marks are told from 0 after Holm's correction, hollow ones are not; the grey band is what counts as none.
"""

from collections.abc import Iterator, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from refbias.competence.results import ARMS, Subject
from refbias.figures.competence_model import layers, steering
from refbias.figures.style import GREY, MARKERS, new_figure, say_empty, style
from refbias.tables.competence.labels import (
    ARM_LABELS,
    MEASURE_LABELS,
    ROLES,
    attribute_label,
    contrast_label,
    subject_label,
)
from refbias.tables.competence.rows import at_level
from refbias.tables.formats import DASH, number

ROLE_COLOURS = {"relevant": "#0072B2", "irrelevant": "#D55E00", "placebo": "#6b6b6b", "steering": "#009E73"}
ROLE_MARKERS = {"relevant": "s", "irrelevant": "o", "placebo": "D", "steering": "^"}
GROUP_COLOURS = ("#332288", "#44AA99", "#CC6677", "#999933", "#AA4499", "#88CCEE")
_BAND = "#e3e6ea"


def _title(subject: Subject) -> str:
    return f"{subject.model}, {subject_label(subject.subject)}"


def _ordered(effects: pd.DataFrame) -> list[str]:
    """Return the contrasts of the lens, relevant ones first."""
    named = effects.drop_duplicates("contrast_id")
    return [str(name) for role in ROLES for name in named.loc[named["role"] == role, "contrast_id"]]


def forest(subject: Subject) -> Figure:
    """Draw every contrast's effect on the expertise score and on the reading level, side by side."""
    effects = subject.effects
    measures = ("E_normalised", "L")
    order = _ordered(effects[effects["measure"].isin(measures)])
    with style():
        figure = new_figure(8.6, 1.7 + 0.3 * len(order))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, measure in zip(panels, measures, strict=True):
            rows = effects[effects["measure"] == measure].set_index("contrast_id")
            _forest_panel(axes, rows, order, 1 - subject.level)
            axes.set_title(MEASURE_LABELS[measure], loc="left")
            axes.set_xlabel(at_level("Difference, first less second (95 % CI)", [subject]))
        panels[0].set_yticks(range(len(order)), [contrast_label(name) for name in order])
        panels[0].invert_yaxis()
        figure.suptitle(f"{_title(subject)}: contrasts of what the person says", fontsize=10)
        figure.legend(handles=_role_handles(ROLES), loc="outside lower center", ncols=5)
    return figure


def _role_handles(roles: Sequence[str]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=ROLE_COLOURS[role], marker=ROLE_MARKERS[role], linestyle="none", label=role)
        for role in roles
    ]
    hollow = Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="none", label="not told from 0")
    return [*handles, hollow, Line2D([], [], color=_BAND, linewidth=8, label="counts as none")]


def _forest_panel(axes: Axes, rows: pd.DataFrame, order: Sequence[str], error: float) -> None:
    axes.axvline(0, color="#444444", linewidth=0.8, zorder=1)
    bounds = rows["bound"].dropna()
    if len(bounds):
        axes.axvspan(-bounds.iloc[0], bounds.iloc[0], color=_BAND, linewidth=0, zorder=0)
    last = None
    for place, name in enumerate(order):
        if name not in rows.index:
            axes.text(0, place, DASH, ha="center", va="center", color=GREY)
            continue
        row = rows.loc[name]
        if last not in (None, row["role"]):
            axes.axhline(place - 0.5, color="#cccccc", linewidth=0.8, zorder=0)
        last = row["role"]
        colour = ROLE_COLOURS[str(row["role"])]
        if pd.isna(row["mean"]):
            axes.text(0, place, DASH, ha="center", va="center", color=GREY)
            continue
        if pd.notna(row["ci_low"]):
            axes.plot([row["ci_low"], row["ci_high"]], [place, place], color=colour, linewidth=2, zorder=2)
        told = row["p_holm"] <= error
        axes.plot(
            row["mean"],
            place,
            marker=ROLE_MARKERS[str(row["role"])],
            markersize=6.5,
            markeredgecolor=colour,
            markerfacecolor=colour if told else "white",
            markeredgewidth=1.4,
            zorder=3,
            gid=f"{name}",
        )
    axes.grid(axis="x", color="#e8e8e8", linewidth=0.6)


def occupations(subject: Subject) -> Figure:
    """Draw the mean effect of every contrast in every occupation, as a heat map for E and one for L."""
    frame = subject.occupations
    measures = ("E_normalised", "L")
    order = _ordered(frame[frame["measure"].isin(measures)])
    jobs = sorted(set(frame["occupation"]))
    with style():
        figure = new_figure(1.9 + 2 * (1.4 + 0.5 * len(jobs)), 2.0 + 0.3 * len(order))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, measure in zip(panels, measures, strict=True):
            wide = frame[frame["measure"] == measure].pivot_table(
                index="contrast_id", columns="occupation", values="mean", dropna=False
            )
            values = wide.reindex(index=order, columns=jobs).to_numpy(float)
            _heat(figure, axes, values, MEASURE_LABELS[measure])
            axes.set_xticks(range(len(jobs)), [attribute_label(job) for job in jobs], rotation=40, ha="right")
            axes.set_title(MEASURE_LABELS[measure], loc="left")
        panels[0].set_yticks(range(len(order)), [contrast_label(name) for name in order])
        figure.suptitle(f"{_title(subject)}: mean difference by occupation", fontsize=10)
    return figure


def _heat(figure: Figure, axes: Axes, values: npt.NDArray[np.float64], label: str) -> None:
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    limit = largest or 1.0
    colours = mpl.colormaps["PuOr"].with_extremes(bad="#e4e4e4")
    image = axes.imshow(np.ma.masked_invalid(values), cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        dark = np.isfinite(value) and abs(value) > 0.65 * limit
        text = number(float(value), 1 if limit >= 1 else 2)
        axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=30, pad=0.02)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.locator = MaxNLocator(5)
    bar.update_ticks()


def hiring(subject: Subject) -> Figure:
    """Draw the hiring task by arm: logit difference and P(Yes) of every group of names, and the answers given."""
    with style():
        figure = new_figure(8.2, 3.4)
        panels = figure.subplots(1, 3)
        frame = subject.arms
        if frame is None or frame.empty:
            for axes in panels:
                say_empty(axes, "no hiring task in this run")
            return figure
        arms = [arm for arm in ("minus", "none", "plus") if arm in set(frame["arm"]) and arm in ARMS]
        groups = [group for group in dict.fromkeys(frame["group"]) if group != "all"]
        for place, group in enumerate(groups):
            rows = frame[frame["group"] == group].set_index("arm").reindex(arms)
            look = {
                "color": GROUP_COLOURS[place % len(GROUP_COLOURS)],
                "marker": MARKERS[place % len(MARKERS)],
                "markersize": 5,
                "linewidth": 1.4,
            }
            shifted = np.arange(len(arms)) + 0.06 * (place - (len(groups) - 1) / 2)
            panels[0].plot(shifted, rows["yes_logit_minus_no"], label=attribute_label(group), **look)
            panels[1].plot(shifted, rows["p_yes"], **look)
        _said(panels[2], frame[frame["group"] == "all"].set_index("arm").reindex(arms))
        titles = ("logit(Yes) \u2212 logit(No)", "P(Yes), mean", at_level("Said Yes, all names (95 % CI)", [subject]))
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, loc="left")
            axes.set_xticks(range(len(arms)), [ARM_LABELS[arm].replace(" ", "\n", 1) for arm in arms])
            axes.set_xlim(-0.4, len(arms) - 0.6)
            axes.grid(axis="y", color="#e8e8e8", linewidth=0.6)
        panels[0].axhline(0, color="#444444", linewidth=0.8, zorder=0)
        for axes in panels[1:]:
            axes.set_ylim(-0.02, 1.02)
        figure.suptitle(f"{_title(subject)}: hiring by steering", fontsize=10)
        figure.legend(loc="outside lower center", ncols=min(6, len(groups)))
    return figure


def _said(axes: Axes, rows: pd.DataFrame) -> None:
    for place, (_, row) in enumerate(rows.iterrows()):
        if pd.isna(row["yes_share"]):
            axes.text(place, 0.5, "no answer\ncould be read", ha="center", va="center", color=GREY, fontsize=8)
            continue
        axes.plot([place, place], [row["yes_low"], row["yes_high"]], color="#333333", linewidth=2)
        axes.plot(place, row["yes_share"], marker="o", markersize=6, color="#333333")
        unread = int(row["n"] - row["n_readable"])
        if unread:
            text = f"{unread} of {int(row['n'])}\nunreadable"
            # beside the line, towards the middle: above it the title stands
            side = -1 if place == len(rows) - 1 else 1
            axes.annotate(
                text,
                (place, (row["yes_low"] + row["yes_high"]) / 2),
                (6 * side, 0),
                textcoords="offset points",
                ha="right" if side < 0 else "left",
                va="center",
                fontsize=7,
            )


def draw(subjects: Sequence[Subject]) -> Iterator[tuple[str, Figure]]:
    """Yield every figure of the lens with its file name without extension."""
    for subject in subjects:
        yield f"forest_{subject.slug}", forest(subject)
        yield f"occupations_{subject.slug}", occupations(subject)
        if subject.direction is not None:
            yield f"layers_{subject.slug}", layers(subject)
        if subject.steering is not None:
            yield f"steering_{subject.slug}", steering(subject)
        if subject.arms is not None:
            yield f"hiring_{subject.slug}", hiring(subject)
