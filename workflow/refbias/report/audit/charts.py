"""Where things are drawn in the audit report: positions in per cent, so that pictures follow the page's width.

The template draws them as inline SVG with text in HTML beside it, which keeps its size on a phone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from refbias.tables.formats import number

Side = Literal["negative", "positive", "neutral"]
# shades on each side of 0 in a heat map
SHADES = 6
# least distance between labels at the end of curves, in per cent of the picture's height
LABEL_GAP = 6.5


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis; `minor` ones give way on narrow screens."""

    at: float
    text: str
    minor: bool


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high`."""

    low: float
    high: float
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """Return where a value lies, 0 to 100, held inside the axis."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def place(self, value: float | None) -> float | None:
        """Return where a value lies; None stays None."""
        return None if value is None else self.at(value)


def linear_scale(values: Iterable[float | None], wanted: int = 6) -> Scale:
    """Return an axis that holds some values and 0, with a margin and round tick values.

    Parameters
    ----------
    values
        What must fit; None is passed over.
    wanted
        About how many ticks there shall be.
    """
    present = [value for value in values if value is not None] + [0.0]
    low, high = min(present), max(present)
    if low == high:
        low, high = -1.0, 1.0
    margin = 0.05 * (high - low)
    low, high = (low - margin if low < 0 else low), (high + margin if high > 0 else high)
    if low == 0.0:
        low = -margin
    if high == 0.0:
        high = margin
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    places = max(0, -math.floor(math.log10(step)))
    bare = Scale(low, high, ())
    ticks = tuple(
        Tick(bare.at(index * step), number(index * step, places) if index else "0", index % 2 == 1)
        for index in range(math.ceil(low / step), math.floor(high / step) + 1)
    )
    return Scale(low, high, ticks)


def side(value: float | None, directed: bool = True) -> Side:
    """Return on which side of 0 a value lies; neutral for 0, None and methods without direction."""
    if value is None or value == 0 or not directed:
        return "neutral"
    return "negative" if value < 0 else "positive"


@dataclass(frozen=True)
class Mark:
    """An interval with its middle; None where there is no number. `strong` ones are drawn filled."""

    low: float | None
    middle: float | None
    high: float | None
    side: Side
    strong: bool = True


@dataclass(frozen=True)
class Row:
    """One line of a picture: its name, its value in words, and its marks (one a column)."""

    name: str
    text: str
    marks: tuple[Mark, ...]
    control: bool = False


@dataclass(frozen=True)
class Plot:
    """Rows on one axis, with a band (the control) and reference lines.

    Attributes
    ----------
    rows
        Top to bottom.
    scale
        The axis.
    zero
        Where 0 is.
    band
        Edges of the control's interval; None without one.
    lines
        Where reference lines are.
    """

    rows: tuple[Row, ...]
    scale: Scale
    zero: float
    band: tuple[float, float] | None = None
    lines: tuple[float, ...] = ()


def mark(
    scale: Scale, low: float | None, middle: float | None, high: float | None, *, strong: bool, directed: bool
) -> Mark:
    """Place an interval on a scale; one that includes 0 has no side."""
    undecided = low is not None and high is not None and low <= 0 <= high
    return Mark(
        scale.place(low), scale.place(middle), scale.place(high), side(middle, directed and not undecided), strong
    )


@dataclass(frozen=True)
class Run:
    """Neighbouring cells of a heat map of one shade, -`SHADES` to `SHADES`: start and width in per cent."""

    x: float
    width: float
    shade: int


@dataclass(frozen=True)
class HeatRow:
    """One row of a heat map: name, value at its end in words, cells."""

    name: str
    text: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Heat:
    """A heat map.

    Attributes
    ----------
    rows
        Top to bottom.
    ticks
        Column names that are printed.
    largest
        Value of the darkest shade, on either side of 0.
    signed
        Whether values have a direction.
    gaps
        Whether some cells have no value.
    """

    rows: tuple[HeatRow, ...]
    ticks: tuple[Tick, ...]
    largest: float
    signed: bool
    gaps: bool


def shade(value: float, largest: float) -> int:
    """Return a value's shade; only values near 0 (or a map of zeros) have shade 0."""
    return round(SHADES * value / largest) if largest else 0


def heat_map(
    table: Mapping[str, Sequence[float | None]],
    columns: Sequence[str],
    names: Mapping[str, str],
    texts: Mapping[str, str],
    *,
    signed: bool,
) -> Heat:
    """Lay out a heat map.

    Parameters
    ----------
    table
        Row id -> one value a column, None where there is none.
    columns
        Column names, left to right.
    names, texts
        Row id -> its name, and what is printed at its end.
    signed
        Whether values have a direction.
    """
    largest = max((abs(value) for row in table.values() for value in row if value is not None), default=0.0)
    width = 100 / len(columns)
    rows = []
    for key, values in table.items():
        runs: list[Run] = []
        for index, value in enumerate(values):
            if value is None:
                continue
            here = Run(round(index * width, 3), round(width, 3), shade(value, largest))
            last = runs[-1] if runs else None
            if last and last.shade == here.shade and abs(last.x + last.width - here.x) < 0.01:
                runs[-1] = Run(last.x, round(here.x + here.width - last.x, 3), last.shade)
            else:
                runs.append(here)
        rows.append(HeatRow(names[key], texts[key], tuple(runs)))
    gaps = any(value is None for row in table.values() for value in row)
    every = max(1, math.ceil(len(columns) / 10))
    shown = [index for index in range(len(columns)) if index % every == 0 and index < len(columns) - 1 - every / 2]
    shown = [*shown, len(columns) - 1] if len(columns) - 1 not in shown else shown
    ticks = tuple(
        Tick(round((index + 0.5) * width, 2), columns[index], place % 2 == 1 and index != len(columns) - 1)
        for place, index in enumerate(shown)
    )
    return Heat(tuple(rows), ticks, largest, signed, gaps)
