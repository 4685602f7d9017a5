"""dB over several checkpoints: one picture of all groups with a few of them named, and one small picture a group."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refbias.config.audit_result import AuditResult, GroupResult
from refbias.report.audit.charts import LABEL_GAP, Scale, Tick, linear_scale
from refbias.report.audit.words import EM_DASH, digits, group_name
from refbias.tables.formats import number
from refbias.tables.labels import CONTROL

EMPHASISED = 5


@dataclass(frozen=True)
class Curve:
    """One group over the checkpoints.

    Attributes
    ----------
    name
        Its name.
    text
        Its last value in words.
    colour
        1 to `EMPHASISED` for a named group, 0 for another, -1 for the control.
    lines
        Pieces without a gap, each as SVG points.
    dots
        Its points.
    bands
        Its interval, each piece as SVG points.
    end
        Where it ends; None without a last value.
    label
        Where its label stands; None where it has none.
    """

    name: str
    text: str
    colour: int
    lines: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]
    bands: tuple[str, ...]
    end: float | None
    label: float | None = None


@dataclass(frozen=True)
class Curves:
    """Every group's curve on one scale, the named ones last; `axis` says what x is."""

    curves: tuple[Curve, ...]
    control: Curve | None
    scale: Scale
    zero: float
    ticks: tuple[Tick, ...]
    axis: str

    @property
    def groups(self) -> tuple[Curve, ...]:
        """The groups' curves by name."""
        return tuple(sorted((curve for curve in self.curves if curve.colour >= 0), key=lambda curve: curve.name))

    @property
    def named(self) -> tuple[Curve, ...]:
        """The curves with a label."""
        return tuple(curve for curve in self.curves if curve.label is not None)


def curves(result: AuditResult) -> Curves | None:
    """Lay out dB over the checkpoints; None for a single checkpoint."""
    if len(result.checkpoints) < 2:
        return None
    series = _series(result)
    values = [
        value
        for row in series.values()
        for found in row
        if found
        for value in (found.delta_b, found.ci_low, found.ci_high)
    ]
    scale = linear_scale(values, wanted=5)
    xs, ticks, axis = _positions(result)
    places = digits(values)
    last = {name: row[-1].delta_b for name, row in series.items() if row[-1] and row[-1].delta_b is not None}
    groups = [name for name in series if name != CONTROL]
    chosen = sorted((name for name in groups if name in last), key=lambda name: -abs(last[name] or 0.0))[:EMPHASISED]
    drawn = {
        name: _curve(
            name, row, xs, scale, places, -1 if name == CONTROL else chosen.index(name) + 1 if name in chosen else 0
        )
        for name, row in series.items()
    }
    labelled = _labels([drawn[name] for name in (*chosen, CONTROL) if name in drawn and drawn[name].end is not None])
    rest = [drawn[name] for name in groups if name not in chosen]
    return Curves((*rest, *labelled), drawn.get(CONTROL), scale, 100 - scale.at(0.0), ticks, axis)


def _series(result: AuditResult) -> dict[str, list[GroupResult | None]]:
    found: dict[str, list[GroupResult | None]] = {}
    for index, checkpoint in enumerate(result.checkpoints):
        for group in [*checkpoint.groups, *([checkpoint.control] if checkpoint.control else [])]:
            row = found.setdefault(group.group, [None] * len(result.checkpoints))
            row[index] = group
    return found


def _positions(result: AuditResult) -> tuple[list[float], tuple[Tick, ...], str]:
    """Return where the checkpoints stand, 0 to 100: by step where all have one and it grows, else by order."""
    steps = [checkpoint.step for checkpoint in result.checkpoints]
    known = [step for step in steps if step is not None]
    if len(known) == len(steps) and all(a < b for a, b in itertools.pairwise(known)):
        first, extent = known[0], known[-1] - known[0]
        xs = [round(100 * (step - first) / extent, 2) for step in known]
        texts, axis = [str(step) for step in known], "training step"
    else:
        xs = [round(100 * index / (len(steps) - 1), 2) for index in range(len(steps))]
        texts, axis = [str(index + 1) for index in range(len(steps))], "checkpoint, in the order given"
    ticks: list[Tick] = []
    for index, (x, text) in enumerate(zip(xs, texts, strict=True)):
        last = index == len(xs) - 1
        if (not ticks or x - ticks[-1].at >= 8) and (last or xs[-1] - x >= 8):
            ticks.append(Tick(x, text, len(ticks) % 2 == 1 and not last))
    return xs, tuple(ticks), axis


def _curve(
    name: str, row: Sequence[GroupResult | None], xs: Sequence[float], scale: Scale, places: int, colour: int
) -> Curve:
    lines: list[list[tuple[float, float]]] = [[]]
    bands: list[list[tuple[float, float, float]]] = [[]]
    for x, found in zip(xs, row, strict=True):
        if found is None or found.delta_b is None:
            lines.append([])
        else:
            lines[-1].append((x, round(100 - scale.at(found.delta_b), 2)))
        if found is None or found.ci_low is None or found.ci_high is None:
            bands.append([])
        else:
            bands[-1].append((x, round(100 - scale.at(found.ci_low), 2), round(100 - scale.at(found.ci_high), 2)))
    end = lines[-1][-1][1] if lines[-1] else None
    last = row[-1].delta_b if row[-1] else None
    return Curve(
        group_name(name),
        EM_DASH if last is None else number(last, places),
        colour,
        tuple(" ".join(f"{x},{y}" for x, y in piece) for piece in lines if len(piece) > 1),
        tuple(point for piece in lines for point in piece),
        tuple(
            " ".join([*(f"{x},{low}" for x, low, _ in piece), *(f"{x},{high}" for x, _, high in reversed(piece))])
            for piece in bands
            if len(piece) > 1
        ),
        end,
    )


def _labels(found: Sequence[Curve]) -> list[Curve]:
    """Spread labels so that none covers another, in the order of the curves' ends."""
    inside = sorted(found, key=lambda curve: curve.end or 0.0)
    places: list[float] = []
    for curve in inside:
        wanted = curve.end or 0.0
        places.append(max(wanted, places[-1] + LABEL_GAP) if places else wanted)
    excess = places[-1] - (100 - LABEL_GAP / 2) if places else 0.0
    for index in range(len(places) - 1, -1, -1):
        limit = places[index + 1] - LABEL_GAP if index + 1 < len(places) else places[index] - max(0.0, excess)
        places[index] = min(places[index], limit)
    return [replace(curve, label=round(place, 2)) for curve, place in zip(inside, places, strict=True)]
