"""How the shift dB is computed from embeddings."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict

Method = Literal["rr", "seat"]


class ShiftSettings(Strict):
    """Methods and resampling of the shift dB (paper, eq. 2-7)."""

    methods: list[Method] = Field(default=["rr", "seat"], min_length=1, description="Association methods.")
    n_resamples: int = Field(default=2000, ge=100, description="Bootstrap resamples over target sentences.")


class ShiftStage(Strict):
    """Slice of the configuration that the stage `shift` sees."""

    shift: ShiftSettings
    seed: int
    weights: list[float]
