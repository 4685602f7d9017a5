"""The bench's plot: how much faster or smaller than each baseline, and how costs grow."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from bench.costs import Cost, exponent
from bench.measure import Result
from refbias.figures.style import (
    GREY,
    LINE_STYLES,
    MARKERS,
    TOPIC_COLOURS,
    new_figure,
    plain_log_ticks,
    save,
    say_empty,
    style,
)

_BAR, _EDGE = "#0072B2", "#D55E00"


def draw(results: Sequence[Result], costs: Sequence[Cost], stem: Path) -> list[Path]:
    """Write the plot as PDF and PNG.

    Parameters
    ----------
    results
        Lines of bench.csv; those without a ratio are left out.
    costs
        Lines of costs.csv.
    stem
        Path without extension.
    """
    rows = [row for row in results if row.ratio is not None]
    with style():
        figure = new_figure(13, max(3.6, 1.2 + 0.27 * len(rows)))
        bars, curves = figure.subplots(1, 2, width_ratios=(1.6, 1))
        _ratios(bars, rows)
        _costs(curves, costs)
        return save(figure, stem)


def _ratios(axes: Axes, rows: Sequence[Result]) -> None:
    if not rows:
        say_empty(axes, "no ratio was measured")
        return
    values = [row.ratio or 0.0 for row in rows]
    places = range(len(rows))[::-1]
    # a bar's length is the distance from no difference
    axes.barh(places, [value - 1 for value in values], left=1.0, height=0.6, color=_BAR, label="measured")
    axes.axvline(1.0, color=GREY, linewidth=0.8)
    axes.set_xscale("log")
    # the text beside the longest bar lies within the axes
    low, high = min(0.5, *values) / 1.2, max(2.0, *values)
    axes.set_xlim(low, high * (high / low) ** 0.6)
    plain_log_ticks(axes.xaxis)
    axes.set_yticks(list(places), [row.measure for row in rows])
    axes.tick_params(axis="y", length=0)
    for place, row, value in zip(places, rows, values, strict=True):
        wanted = f"  (wanted {row.wanted})" if row.wanted else ""
        axes.annotate(f"{value:.2f}{wanted}", (max(value, 1.0), place), (3, 0), textcoords="offset points", va="center")
    axes.set_xlabel("ratio to the baseline; above 1, refbias is faster or smaller")


def _costs(axes: Axes, costs: Sequence[Cost]) -> None:
    if not costs:
        say_empty(axes, "costs were not measured")
        return
    for number, axis in enumerate(dict.fromkeys(cost.axis for cost in costs)):
        rows = [cost for cost in costs if cost.axis == axis]
        sizes, seconds = [row.n for row in rows], [row.seconds for row in rows]
        axes.loglog(
            [size / sizes[0] for size in sizes],
            [value / seconds[0] for value in seconds],
            color=TOPIC_COLOURS[number * 2 % len(TOPIC_COLOURS)],
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            marker=MARKERS[number % len(MARKERS)],
            label=f"{axis}: exponent {exponent(sizes, seconds):.2f}",
        )
    low, high = axes.get_xlim()
    axes.plot([1, high], [1, high], color=_EDGE, linewidth=0.8, label="in proportion")
    axes.set_xlim(low, high)
    for axis in (axes.xaxis, axes.yaxis):
        plain_log_ticks(axis)
    axes.set_xlabel("size, as multiple of the smallest")
    axes.set_ylabel("CPU seconds, as multiple of the smallest")
    axes.legend()
