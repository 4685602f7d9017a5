"""One look for all figures: fonts that embed, colours that the colour-blind can tell apart, files without dates.

Nothing here rests on colour alone: a series has a line style or a marker of its own, so that a figure printed in grey
still reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from scipy.optimize import isotonic_regression

from refbias.artifacts import atomic_path

GREY = "#6b6b6b"
PNG_DPI = 160

# Methods: Okabe and Ito's palette with a line style each.
METHOD_STYLES: dict[str, tuple[str, Any]] = {
    "rr": ("#0072B2", "-"),
    "seat": ("#D55E00", (0, (5, 1.5))),
    "procrustes_seat": ("#009E73", (0, (5, 1.5, 1, 1.5))),
    "cka_drift": ("#CC79A7", (0, (1.5, 1.2))),
}
# Topics: Tol's muted palette, nine colours.
TOPIC_COLOURS = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
)
LINE_STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")

# Any: matplotlib types the keys as a list of literals that differs between its versions
_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.solid_capstyle": "butt",
    "pdf.fonttype": 42,  # TrueType: text stays text
    "text.parse_math": False,  # a `$` in a user's group name is a dollar
    "axes.unicode_minus": True,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the project's matplotlib settings within the block, to drawing and saving alike."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, `width` by `height` inches, laid out so that nothing overlaps."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def method_style(method: str) -> dict[str, Any]:
    """Return colour and line style of a method."""
    colour, line = METHOD_STYLES.get(method, (GREY, "-"))
    return {"color": colour, "linestyle": line}


def plain_log_ticks(axis: Axis) -> None:
    """Put plain numbers (1, 2, 5, 10, ...) at the ticks of a logarithmic axis: powers would need math text."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def say_empty(axes: Axes, text: str) -> None:
    """Fill a panel that has no data with the reason."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#cccccc")
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GREY, wrap=True)


def spread(wanted: npt.ArrayLike, gap: float, low: float, high: float) -> npt.NDArray[np.float64]:
    """Move label positions apart as little as needed.

    Parameters
    ----------
    wanted : array_like, shape (n,)
        Where the labels belong.
    gap : float
        Least distance between neighbours; smaller if n labels do not fit between the bounds.
    low, high : float
        Bounds.

    Returns
    -------
    ndarray, shape (n,)
        Positions in the order of `wanted`: of all that keep the gap, the least-squares nearest.
    """
    values = np.asarray(wanted, dtype=np.float64)
    if values.size < 2:
        return values.clip(low, high)
    gap = min(gap, (high - low) / (values.size - 1))
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(values.size)
    # positions at least `gap` apart are an ascending sequence once the steps are taken off
    fitted = isotonic_regression(values[order] - steps).x.clip(low, high - steps[-1]) + steps
    placed: npt.NDArray[np.float64] = np.empty_like(values)
    placed[order] = fitted
    return placed


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PDF and PNG whose bytes depend on the figure alone.

    Parameters
    ----------
    figure
        The figure.
    stem
        Path without extension.

    Returns
    -------
    list of Path
        The files.
    """
    written = []
    with style():
        # once for both files, and by itself: savefig would draw all of a laid-out figure twice for each
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        for kind, metadata in (
            ("pdf", {"CreationDate": None, "Creator": "refbias", "Producer": None}),
            ("png", {"Software": None}),
        ):
            path = stem.with_name(f"{stem.name}.{kind}")
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format=kind, dpi=PNG_DPI, metadata=metadata)
            written.append(path)
    return written
