"""Training loss along the updates, one curve a regime and split."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from refbias.figures.style import GREY, LINE_STYLES, MARKERS, new_figure, plain_log_ticks, say_empty, style
from refbias.tables.formats import loss as loss_text
from refbias.tables.labels import REGIME_LABELS, ordered, regime_label

_SPLIT_COLOURS = {"unharmful": "#0072B2", "harmful": "#D55E00"}


def loss(curves: Mapping[tuple[str, str], pd.DataFrame]) -> Figure:
    """Draw the training loss against the update, on a logarithmic axis of updates.

    Parameters
    ----------
    curves
        (regime, split) -> columns step and loss.

    Returns
    -------
    Figure
        One panel; the legend gives the first and the last loss of each training.
    """
    regimes = ordered((regime for regime, _ in curves), REGIME_LABELS)
    with style():
        figure = new_figure(6.4, 4.2)
        axes = figure.subplots()
        axes.set_title("Training loss", loc="left")
        drawn = {key: frame.dropna(subset=["loss"]) for key, frame in curves.items()}
        drawn = {key: frame for key, frame in drawn.items() if not frame.empty}
        if not drawn:
            say_empty(axes, "nothing was trained in this run")
            return figure
        for (regime, split), frame in sorted(drawn.items(), key=lambda item: (regimes.index(item[0][0]), item[0][1])):
            at = regimes.index(regime)
            first, last = loss_text(float(frame["loss"].iloc[0])), loss_text(float(frame["loss"].iloc[-1]))
            axes.plot(
                frame["step"],
                frame["loss"],
                color=_SPLIT_COLOURS.get(split, GREY),
                linestyle=LINE_STYLES[at % len(LINE_STYLES)],
                marker=MARKERS[at % len(MARKERS)],
                markersize=3.5,
                linewidth=1.6,
                gid=f"{regime}/{split}",
                label=f"{regime_label(regime)}, {split}: {first} to {last}",
            )
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("Update (logarithmic)")
        axes.set_ylabel("Loss (nats per completion token)")
        figure.legend(loc="outside lower center", ncols=2, handlelength=3.5)
    return figure
