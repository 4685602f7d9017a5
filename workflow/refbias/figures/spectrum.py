"""dB of every group along the spectrum of merged checkpoints, the group-free control among them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from refbias.figures.select import methods_in
from refbias.figures.style import LINE_STYLES, TOPIC_COLOURS, new_figure, say_empty, spread, style
from refbias.metrics import is_undirected
from refbias.tables.labels import CONTROL, GroupName, method_label, plain_name, shift_label

_LABEL_SIZE = 7.5
# share of the panel's height that one label takes
_LABEL_GAP = 0.031
_CONTROL_NAME = "Group-free control"


def spectrum(delta_b: pd.DataFrame, model: str, regime: str, groups: Mapping[str, GroupName]) -> Figure:
    """Draw dB against the weight of the harmful endpoint, one line a group.

    Parameters
    ----------
    delta_b
        The table of that name.
    model, regime
        Which rows.
    groups
        Group id -> name and topic.

    Returns
    -------
    Figure
        One panel a method; groups are named at the right end and coloured by topic, the control is
        the thick dashed line with its 95 % interval.
    """
    rows = delta_b[(delta_b["model"] == model) & (delta_b["regime"] == regime)]
    looks = _looks([str(group) for group in pd.unique(rows["group"]) if group != CONTROL], groups)
    methods = methods_in(rows) or ["rr"]
    with style():
        across = min(len(methods), 2)
        down = -(-len(methods) // across)
        figure = new_figure(5.6 * across, 0.4 + 6.0 * down)
        panels = figure.subplots(down, across, squeeze=False).ravel()
        for spare in panels[len(methods) :]:
            spare.set_axis_off()
        for axes, method in zip(panels, methods, strict=False):
            chosen = rows[rows["method"] == method]
            axes.set_title(_title(chosen, method), loc="left")
            if chosen["delta_b"].notna().any():
                _panel(axes, chosen, looks, groups, method)
            else:
                say_empty(axes, "no values of dB")
        _legend(figure, looks, groups)
    return figure


def _topic(group: str, groups: Mapping[str, GroupName]) -> str:
    return groups[group].topic if group in groups else "Other"


def _name(group: str, groups: Mapping[str, GroupName]) -> str:
    if group == CONTROL:
        return _CONTROL_NAME
    return groups[group].name if group in groups else plain_name(group)


def _looks(present: list[str], groups: Mapping[str, GroupName]) -> dict[str, dict[str, Any]]:
    """Return colour (by topic) and line style (within the topic) of each group, in the order of the topics."""
    topics = list(dict.fromkeys(_topic(group, groups) for group in [*groups, *present]))
    members = {topic: [group for group in present if _topic(group, groups) == topic] for topic in topics}
    return {
        group: {
            "color": TOPIC_COLOURS[topics.index(topic) % len(TOPIC_COLOURS)],
            "linestyle": LINE_STYLES[at % len(LINE_STYLES)],
        }
        for topic, inside in members.items()
        for at, group in enumerate(inside)
    }


def _title(rows: pd.DataFrame, method: str) -> str:
    anchors = sorted({int(n) for n in rows["n_anchors"].dropna() if n > 0})
    return method_label(method) + (f", {', '.join(map(str, anchors))} anchors" if anchors else "")


def _panel(
    axes: Axes, rows: pd.DataFrame, looks: dict[str, dict[str, Any]], groups: Mapping[str, GroupName], method: str
) -> None:
    ends: dict[str, float] = {}
    for group, line in rows.sort_values("harmful_weight").groupby("group", sort=True):
        weights, values = line["harmful_weight"].to_numpy(np.float64), line["delta_b"].to_numpy(np.float64)
        if group == CONTROL:
            low, high = line["ci_low"].to_numpy(np.float64), line["ci_high"].to_numpy(np.float64)
            axes.fill_between(weights, low, high, color="#c8c8c8", linewidth=0, zorder=1)
            axes.plot(weights, values, color="black", linewidth=3, linestyle=(0, (3, 1.2)), gid=CONTROL, zorder=4)
        else:
            axes.plot(weights, values, linewidth=1.3, gid=str(group), zorder=3, **looks[str(group)])
        finite = values[np.isfinite(values)]
        if finite.size:
            ends[str(group)] = float(finite[-1])
    axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
    axes.set_xlim(0, 1)
    axes.set_xticks(sorted(rows["harmful_weight"].dropna().unique()))
    axes.set_xlabel("Weight of the harmful endpoint in the merge")
    meaning = "0 = no change, no direction" if is_undirected(method) else "below 0 = towards the negative attributes"
    axes.set_ylabel(f"{shift_label(method)} (no unit; {meaning})")
    _label_ends(axes, ends, looks, groups)


def _label_ends(
    axes: Axes, ends: dict[str, float], looks: dict[str, dict[str, Any]], groups: Mapping[str, GroupName]
) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    places = spread(list(ends.values()), _LABEL_GAP * (high - low), low, high)
    for (group, end), place in zip(ends.items(), places, strict=True):
        colour = "black" if group == CONTROL else looks[group]["color"]
        axes.annotate(
            _name(group, groups),
            xy=(1, end),
            xytext=(1.09, place),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=_LABEL_SIZE,
            fontweight="bold" if group == CONTROL else "normal",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 0,
            },
        )


def _legend(figure: Figure, looks: dict[str, dict[str, Any]], groups: Mapping[str, GroupName]) -> None:
    handles: list[Line2D | Patch] = [
        Line2D([], [], color="black", linewidth=3, linestyle=(0, (3, 1.2)), label=_CONTROL_NAME),
        Patch(color="#c8c8c8", label="its 95 % interval"),
    ]
    colours = {_topic(group, groups): look["color"] for group, look in looks.items()}
    handles += [Line2D([], [], color=colour, linewidth=2, label=topic) for topic, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, handlelength=3)
