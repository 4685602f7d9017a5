"""What a watched training leaves on disk, and when its curve says to stop.

``bias_shift.csv`` holds one row a step and group. Beside it stand the reference's embeddings, so that
a training that is resumed does not take the half-trained model for its reference.
"""

import csv
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from refbias.artifacts import atomic_path, write_rows
from refbias.errors import UserError
from refbias.stimuli.groups import CONTROL

COLUMNS = ("step", "group", "delta_b", "seconds")
REFERENCE_SUFFIX = "_reference.safetensors"


class Point(NamedTuple):
    """dB of one group at one step; `seconds` is what the whole measurement of that step took."""

    step: int
    group: str
    delta_b: float
    seconds: float


def write_curve(path: Path, points: Sequence[Point]) -> None:
    """Write the whole curve, so that a kill leaves the file before or after an addition, never in between."""
    write_rows(path, COLUMNS, [[p.step, p.group, f"{p.delta_b:.10g}", f"{p.seconds:.4g}"] for p in points])


def read_curve(path: Path, last_step: int) -> list[Point]:
    """Read the points of a curve up to and with `last_step`; an absent file has none.

    Points beyond it belong to updates that a resumed training makes again.

    Raises
    ------
    UserError
        With ``file:line``, on other columns or a cell that is no number.
    """
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.reader(handle))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise UserError(f"{path}:1: expected the columns {', '.join(COLUMNS)}: move the file away")
    points = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            step, group, value, seconds = row
            point = Point(int(step), group, float(value), float(seconds))
        except ValueError:
            raise UserError(f"{path}:{number}: not a step, a group and two numbers: move the file away") from None
        if point.step <= last_step:
            points.append(point)
    return points


def reference_path(curve: Path) -> Path:
    """Return where the reference's embeddings lie: beside the curve."""
    return curve.with_name(curve.stem + REFERENCE_SUFFIX)


def write_reference(path: Path, matrix: npt.NDArray[np.float32], fingerprint: str) -> None:
    """Write the reference's embeddings (n, d) with the fingerprint of the sentences and settings."""
    with atomic_path(path) as temporary:
        save_file({"embeddings": matrix}, temporary, metadata={"fingerprint": fingerprint})


def read_reference(path: Path, fingerprint: str) -> npt.NDArray[np.float32]:
    """Read embeddings that `write_reference` wrote.

    Raises
    ------
    UserError
        If the file cannot be read, or holds other sentences or settings.
    """
    try:
        with safe_open(path, framework="numpy") as handle:
            found = (handle.metadata() or {}).get("fingerprint")
            matrix: npt.NDArray[np.float32] = handle.get_tensor("embeddings")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: embeddings of the reference cannot be read ({error}): train from the start") from None
    if found != fingerprint:
        raise UserError(
            f"{path}: made with other sentences, groups, layer, pooling or precision: "
            "keep the callback's settings, or train from the start"
        )
    return matrix


@dataclass(frozen=True)
class StopRule:
    """Stop where dB lies at or below a threshold for long enough.

    Parameters
    ----------
    threshold
        A negative dB: a shift towards the negative attributes. It is comparable only at the same
        sentences and number of anchors.
    over
        ``worst``: the lowest group counts; ``mean``: the mean of the groups.
    groups
        Groups that count; empty = all that are measured but the control.
    patience
        Measurements in a row that must lie at or below.

    Raises
    ------
    UserError
        On values that no curve can be held against.
    """

    threshold: float
    over: Literal["worst", "mean"] = "worst"
    groups: tuple[str, ...] = ()
    patience: int = 1

    def __post_init__(self) -> None:
        if not (self.threshold < 0 and math.isfinite(self.threshold)):
            raise UserError(f"StopRule: threshold {self.threshold}: give a dB below 0, such as -0.05")
        if self.over not in ("worst", "mean"):
            raise UserError(f"StopRule: over {self.over!r}: choose 'worst' or 'mean'")
        if self.patience < 1:
            raise UserError(f"StopRule: patience {self.patience}: at least 1 measurement")

    def check(self, measured: Collection[str]) -> None:
        """Refuse groups that are not measured, or a curve of the control alone.

        Raises
        ------
        UserError
            Naming the group.
        """
        for group in self.groups:
            if group not in measured:
                raise UserError(f"StopRule: group {group!r} is not measured: use {', '.join(measured)}")
        if not self.groups and set(measured) <= {CONTROL}:
            raise UserError("StopRule: the control alone is measured: name it in groups, or measure groups")

    def value(self, points: Sequence[Point]) -> float:
        """Return what the rule looks at in the points of one step."""
        values = [p.delta_b for p in points if (p.group in self.groups if self.groups else p.group != CONTROL)]
        return min(values) if self.over == "worst" else float(np.mean(values))

    def reached(self, points: Sequence[Point]) -> bool:
        """Tell whether the last measurements of a curve, its reference at step 0 apart, ask for a stop."""
        steps = sorted({p.step for p in points if p.step > 0})[-self.patience :]
        values = [self.value([p for p in points if p.step == step]) for step in steps]
        return len(values) == self.patience and max(values) <= self.threshold
