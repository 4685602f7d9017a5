"""dB while a model is being fine-tuned: how often, on which sentences, when to stop."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.finetune import FinetuneStage
from refbias.config.represent import RepresentSettings
from refbias.config.stimuli import StimuliSettings


class StopSettings(Strict):
    """When dB ends a training before its time."""

    threshold: float = Field(lt=0, description="Stop where dB is at or below this.")
    over: Literal["worst", "mean"] = Field(default="worst", description="dB of the lowest group, or the groups' mean.")
    groups: list[str] = Field(
        default=[], description="Groups that count; empty = all that are measured but the control."
    )
    patience: int = Field(default=1, ge=1, description="Measurements in a row that must lie below.")


class BiasShiftSettings(Strict):
    """Measurements of dB during a training; the defaults are the reference setting."""

    every: int = Field(default=50, ge=1, description="Updates between measurements; the last update is measured too.")
    groups: list[str] = Field(default=[], description="Ids of target groups, or `control`; empty = all of them.")
    targets: int = Field(default=5, ge=1, description="Target templates per group (first n).")
    attributes: int = Field(default=100, ge=1, description="Attribute sentences of each valence (first n).")
    anchors: int = Field(default=100, ge=1, description="Anchor sentences (first n).")
    control: int = Field(default=5, ge=1, description="Group-free control targets (first n).")
    stop: StopSettings | None = Field(default=None, description="Early stop; null = train to the end.")


class WatchedFinetuneStage(FinetuneStage):
    """Slice of the configuration that the stage `finetune_watched` sees."""

    bias_shift: BiasShiftSettings
    stimuli: StimuliSettings
    represent: RepresentSettings
