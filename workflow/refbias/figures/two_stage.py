"""Cost saved by a two-stage audit against the share of risen units that it still finds."""

import numpy as np
from matplotlib.figure import Figure

from refbias.config.two_stage import TwoStage
from refbias.errors import UserError
from refbias.figures.style import GREY, new_figure, style
from refbias.tables.formats import number
from refbias.tables.labels import benchmark_label, method_label, regime_label
from refbias.tables.two_stage import ALARMS


def two_stage_figure(found: TwoStage) -> Figure:
    """Draw cost saved against recall over alarm levels.

    Parameters
    ----------
    found
        The account, with costs.

    Returns
    -------
    Figure
        The curve of dB with the intervals of recall, that of a coin which costs nothing, and levels chosen on the other
        checkpoints.

    Raises
    ------
    UserError
        If the account has no costs.
    """
    if found.costs is None:
        raise UserError("--figure: the study's costs are not known: name its manifests with --costs")
    recall = np.array([row.recall for row in found.levels])
    saved = 100 * np.array([row.saved for row in found.levels], dtype=np.float64)
    coin = 100 * np.array([row.saved_by_coin for row in found.levels], dtype=np.float64)
    with style():
        figure = new_figure(5.2, 4.0)
        axes = figure.subplots()
        for row, height in zip(found.levels, saved, strict=True):
            if row.recall_low is not None and row.recall_high is not None:
                axes.plot([row.recall_low, row.recall_high], [height, height], color="#c8dcea", linewidth=3, zorder=1)
        axes.plot(recall, saved, color="#0072B2", marker="o", markersize=4, gid="levels", label="dB, then benchmarks")
        order = np.argsort(recall, kind="stable")
        axes.plot(recall[order], coin[order], color=GREY, linestyle="--", gid="coin", label="a coin, no dB")
        if found.held_out:
            axes.plot(
                [row.recall for row in found.held_out],
                [100 * float(row.saved or 0) for row in found.held_out],
                linestyle="none",
                marker="D",
                markersize=6,
                markerfacecolor="white",
                markeredgecolor="#D55E00",
                gid="held out",
                label="level chosen on the other checkpoints",
                zorder=3,
            )
        axes.axhline(0, color="#999999", linewidth=0.8, zorder=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("Recall: share of the risen units that are benchmarked (bars: 95 % CI)")
        axes.set_ylabel("Cost saved (% of benchmarking everything)")
        regimes = ", ".join(map(regime_label, found.regimes))
        axes.set_title(
            f"{benchmark_label(found.benchmark)}, {regimes}: alarm by {ALARMS[found.by]}, "
            f"{method_label(found.method)}\n"
            f"{found.n_rose} of {found.n} units rose by more than {found.threshold:g}, AUC {number(found.auc, 2)}",
            loc="left",
        )
        figure.legend(loc="outside lower center", ncols=2)
    return figure
