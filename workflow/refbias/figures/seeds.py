"""Figure 5: dB of every group over training seeds, one panel a split."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from refbias.figures.style import MARKERS, new_figure, style
from refbias.tables.formats import number
from refbias.tables.labels import CONTROL, REGIME_LABELS, GroupName, ordered, plain_name, regime_label

SPLITS = ("unharmful", "harmful")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def training_seeds(table: pd.DataFrame, model: str, groups: Mapping[str, GroupName]) -> Figure:
    """Draw dB of RR per group, a marker a training seed.

    Parameters
    ----------
    table
        Columns model, regime, split, seed, group, method, n_anchors and delta_b.
    model
        Which rows; of the regimes the first is shown, full fine-tuning if it is there.
    groups
        Group id -> name.

    Returns
    -------
    Figure
        One panel a split, groups from the lowest mean dB; the title has the mean over groups and the mean over groups
        of the population standard deviation over seeds, the control apart.
    """
    rows = table[(table["model"] == model) & (table["method"] == "rr")]
    regime = ordered(rows["regime"], REGIME_LABELS)[0]
    rows = rows[rows["regime"] == regime]
    splits = ordered(rows["split"], SPLITS)
    seeds = sorted(rows["seed"].unique())
    n_anchors = ", ".join(f"{int(n)}" for n in sorted(rows["n_anchors"].dropna().unique()))
    with style():
        figure = new_figure(5.0 * max(len(splits), 1), 6.8)
        for axes, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
            panel = rows[rows["split"] == split]
            mean = panel.groupby("group")["delta_b"].mean().sort_values()
            places = {str(group): at for at, group in enumerate(mean.index)}
            for group, at in places.items():
                values = panel.loc[panel["group"] == group, "delta_b"].to_numpy(np.float64)
                axes.plot([values.min(), values.max()], [at, at], color="#999999", linewidth=2.5, zorder=1)
            for index, seed in enumerate(seeds):
                one = panel[panel["seed"] == seed]
                axes.plot(
                    one["delta_b"],
                    [places[str(group)] for group in one["group"]],
                    linestyle="none",
                    marker=MARKERS[index % len(MARKERS)],
                    color=_COLOURS[index % len(_COLOURS)],
                    markeredgecolor="black",
                    markeredgewidth=0.4,
                    markersize=5,
                    gid=f"seed {seed}",
                    zorder=2,
                )
            axes.axvline(0, color="#999999", linewidth=0.8, zorder=0)
            axes.set_yticks(list(places.values()), [_name(group, groups) for group in places])
            axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
            axes.set_xlabel("dB, RR (no unit)\nbelow 0 = towards the negative attributes")
            inside = panel[panel["group"] != CONTROL].groupby("group")["delta_b"]
            spread = float(inside.std(ddof=0).mean())
            axes.set_title(
                f"{split.capitalize()} split, {regime_label(regime)}, {n_anchors} anchors\n"
                f"mean {number(float(inside.mean().mean()), 3)}, std over seeds {number(spread, 3)}",
                loc="left",
            )
        handles = [
            Line2D(
                [],
                [],
                linestyle="none",
                marker=MARKERS[index % len(MARKERS)],
                color=_COLOURS[index % len(_COLOURS)],
                markeredgecolor="black",
                markeredgewidth=0.4,
                label=f"seed {seed}",
            )
            for index, seed in enumerate(seeds)
        ]
        line = Line2D([], [], color="#999999", linewidth=2.5, label="lowest to highest seed")
        figure.legend(handles=[*handles, line], loc="outside lower center", ncols=len(handles) + 1)
    return figure


def _name(group: str, groups: Mapping[str, GroupName]) -> str:
    if group == CONTROL:
        return "Group-free control"
    return groups[group].name if group in groups else plain_name(group)
