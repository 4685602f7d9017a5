"""Numbers as text: one format for each kind of number; a value that could not be had is a dash."""

import math

DASH = "\u2013"
MINUS = "\u2212"

# Two-tailed p below the level earns the mark (the paper's own levels).
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
STAR_NOTE = "* p < 0.05, ** p < 0.01, *** p < 0.001 (two-tailed, pairs taken as independent)"


def number(value: float | None, digits: int) -> str:
    """Format with fixed decimals and a true minus sign; a dash for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:.{digits}f}"
    if not float(text):  # no "-0.00"
        text = text.removeprefix("-")
    return text.replace("-", MINUS)


def count(value: float | None) -> str:
    """Format a whole number; a dash for a missing one."""
    return number(value, 0)


def correlation(value: float | None) -> str:
    """Format a correlation or an area under a curve (2 decimals)."""
    return number(value, 2)


def score(value: float | None) -> str:
    """Format a score, its change or an error in score units (3 decimals)."""
    return number(value, 3)


def shift(value: float | None) -> str:
    """Format dB or one of its parts (4 decimals)."""
    return number(value, 4)


def loss(value: float | None) -> str:
    """Format a training loss in nats a token (3 decimals)."""
    return number(value, 3)


def threshold(value: float | None) -> str:
    """Format a setting as it was written (up to 6 significant digits)."""
    return DASH if value is None or not math.isfinite(value) else f"{value:g}".replace("-", MINUS)


def percent(value: float | None) -> str:
    """Format a share as whole per cent."""
    return DASH if value is None or not math.isfinite(value) else f"{100 * value:.0f}\u00a0%"


def interval(low: float | None, high: float | None, digits: int) -> str:
    """Format an interval as ``[low, high]``; a dash if a side is missing."""
    sides = (number(low, digits), number(high, digits))
    return DASH if DASH in sides else f"[{sides[0]}, {sides[1]}]"


def p_value(value: float | None) -> str:
    """Format a p-value: 3 decimals, ``< 0.001`` below."""
    if value is None or not math.isfinite(value):
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def p_statement(value: float | None) -> str:
    """Format a p-value with its name, as in ``p = 0.034`` or ``p < 0.001``."""
    text = p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def stars(value: float | None) -> str:
    """Return the significance marks of a p-value, an empty text where it is missing."""
    if value is None or not math.isfinite(value):
        return ""
    return next((mark for level, mark in _STARS if value < level), "")


def duration(seconds: float | None) -> str:
    """Format a time as ``12.3 s``, ``4 min 05 s`` or ``2 h 03 min``."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def memory(megabytes: float | None) -> str:
    """Format an amount of memory in MB (1e6 bytes)."""
    return DASH if megabytes is None or not math.isfinite(megabytes) else f"{megabytes:,.0f} MB"
