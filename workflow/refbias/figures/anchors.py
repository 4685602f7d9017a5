"""Figure 4: the area under the ROC curve against the number of anchors, one line a source of anchors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from refbias.figures.style import GREY, MARKERS, new_figure, say_empty, style
from refbias.tables.labels import BENCHMARK_LABELS, benchmark_label, ordered
from refbias.tables.variants import first_rows

SOURCE_LABELS = {"neutral": "neutral sentences", "words": "words", "alpaca": "Alpaca", "tulu": "Tulu"}
_LOOKS: dict[str, tuple[str, Any]] = {
    "neutral": ("#0072B2", "-"),
    "words": ("#D55E00", (0, (5, 1.5))),
    "alpaca": ("#009E73", (0, (5, 1.5, 1, 1.5))),
    "tulu": ("#CC79A7", (0, (1.5, 1.2))),
}
_CHANCE: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}


def anchors(ablations: pd.DataFrame, model: str, thresholds: Mapping[str, float]) -> Figure:
    """Draw the AUC of RR against the number of anchors under full fine-tuning.

    Parameters
    ----------
    ablations
        The table of that name.
    model
        Which rows.
    thresholds
        Benchmark -> threshold of the change of score.

    Returns
    -------
    Figure
        One panel a benchmark. A line is the mean over the seeds of the subset, its bars reach from the lowest to the
        highest seed.
    """
    rows = first_rows(ablations, "anchors", model, thresholds, ["rr"])
    names = ordered(thresholds, BENCHMARK_LABELS)
    sources = ordered(rows["cell"], SOURCE_LABELS)
    with style():
        figure = new_figure(3.6 * max(len(names), 2), 4.2)
        for axes, benchmark in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            panel = rows[(rows["benchmark"] == benchmark) & rows["roc_auc"].notna()]
            axes.set_title(f"{benchmark_label(benchmark)}, threshold {thresholds[benchmark]:g}", loc="left")
            if panel.empty:
                say_empty(axes, "no AUC: one class only")
                continue
            for at, source in enumerate(sources):
                areas = panel[panel["cell"] == source].groupby("n_anchors")["roc_auc"]
                mean = areas.mean()
                count = mean.index.to_numpy(np.float64)
                # sources side by side, so that their bars do not lie on each other
                shifted = count * 1.025 ** (at - (len(sources) - 1) / 2)
                bars = np.stack([mean - areas.min(), areas.max() - mean])
                colour, line = _LOOKS.get(source, (GREY, "-"))
                drawn = axes.errorbar(
                    shifted,
                    mean,
                    yerr=bars,
                    color=colour,
                    linestyle=line,
                    marker=MARKERS[at % len(MARKERS)],
                    markersize=5,
                    linewidth=1.6,
                    capsize=2.5,
                    label=SOURCE_LABELS.get(source, source),
                )
                drawn.lines[0].set_gid(source)
            axes.axhline(0.5, label="chance", **_CHANCE)
            axes.set_xscale("log")
            axes.set_xticks(sorted(panel["n_anchors"].unique()))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(min(0.45, float(panel["roc_auc"].min()) - 0.03), 1.02)
            axes.set_xlabel("Number of anchors (logarithmic)")
            axes.set_ylabel("Area under the ROC curve, RR")
        handles = {
            str(label): handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), handlelength=3.5
        )
    return figure
