"""The two-stage audit as it lies on disk: ``two_stage.json``, schema version 1."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.shift import Method

AlarmBy = Literal["abs", "down", "abs_net", "down_net"]
"""What raises an alarm: |dB|, dB below 0, or either after the control's dB is taken off."""
Level = Literal["unit", "checkpoint"]
"""Whether single units are sent to the benchmarks, or whole checkpoints of which one unit raises an alarm."""


class AlarmLevel(Strict):
    """What happens where everything with an alarm of at least `level` is benchmarked.

    Shares are of all units; `recall` is of the units whose score rose, `precision` of those benchmarked, null where
    there are none. Intervals are at 95 %. Seconds and `saved` are
    null where the study's costs are not known; `saved` is the share of the seconds of benchmarking everything, and
    `saved_by_coin` that of tossing a coin instead of computing dB, weighted so that its recall is the same.
    `break_even` is how many times the outputs a benchmark needs for nothing to be lost; null where none are spared.
    """

    level: float
    n_benchmarked: int
    share: float
    n_found: int
    recall: float
    recall_low: float | None
    recall_high: float | None
    precision: float | None
    precision_low: float | None
    precision_high: float | None
    seconds: float | None
    saved: float | None
    saved_by_coin: float | None
    break_even: float | None


class HeldOut(Strict):
    """What a level does on checkpoints that it was not chosen on.

    For each checkpoint left out, the highest level with at least `target` recall on the others is used.
    """

    target: float
    recall: float
    share: float
    precision: float | None
    saved: float | None
    saved_by_coin: float | None


class CostFacts(Strict):
    """Seconds of the two ways, from the study's manifests."""

    benchmark: float
    shift: float
    note: str


class TwoStage(Strict):
    """``two_stage.json``."""

    schema_version: Literal[1] = 1
    benchmark: str
    scorer: str
    threshold: float
    method: Method
    models: list[str]
    regimes: list[str]
    by: AlarmBy
    level: Level
    n: int
    n_rose: int
    n_checkpoints: int
    n_dropped: int
    auc: float
    costs: CostFacts | None
    levels: list[AlarmLevel] = Field(min_length=1)
    held_out: list[HeldOut]
    warnings: list[str]
