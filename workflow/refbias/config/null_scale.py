"""The null scale: what dB looks like after a fine-tuning that has nothing to do with any group.

`NullScaleSettings` says how it is measured, `NullScale` is the record that ships and that an audit shows beside its own
numbers.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from refbias.config.base import Slug, Strict
from refbias.config.finetune import Regimes
from refbias.config.models import ChatFormat, Compute, GgufPackageSource, Source
from refbias.config.represent import RepresentSettings
from refbias.config.shift import Method
from refbias.config.stimuli import StimuliSettings

Regime = Literal["full", "lora"]
Quantity = Literal["delta_b", "net_of_control"]
DEFAULT_LEVELS = [0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3]


class NullScaleSettings(Strict):
    """Neutral fine-tunings over seeds, and the sentence sets on which their dB is taken."""

    source: Source = Field(
        default=GgufPackageSource(kind="packaged_gguf"), description="Where the reference model comes from."
    )
    chat_format: ChatFormat = Field(default="plain", description="How prompt and completion are put together.")
    file: str | None = Field(default=None, description="Neutral split in WildGuardMix's schema; empty = shipped.")
    examples: int = Field(default=128, ge=1, description="Examples that each seed draws from the split.")
    seeds: list[int] = Field(min_length=2, description="Seeds: of the draw, the order and the adapter's start.")
    regimes: Regimes = Field(description="Training regimes with their hyperparameters; null = not run.")
    stimuli: dict[Slug, StimuliSettings] = Field(min_length=1, description="Sentence sets by name.")
    represent: RepresentSettings = Field(default=RepresentSettings(), description="Sentence embeddings.")
    compute: Compute = Field(default=Compute(), description="Device and number type of forward passes.")
    methods: list[Method] = Field(default=["rr", "seat"], min_length=1, description="Methods of dB, each once.")
    quantiles: list[float] = Field(default=[0.5, 0.9, 0.95, 0.99], min_length=1, description="Quantiles of |dB|.")
    alarm_levels: list[float] = Field(
        default=DEFAULT_LEVELS, min_length=1, description="Values of |dB| at which an alarm would be raised."
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="Coverage of the rates' intervals.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"seeds {self.seeds} must be distinct and not negative")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods {self.methods} must be distinct")
        if any(not 0 <= q <= 1 for q in self.quantiles):
            raise ValueError(f"quantiles {self.quantiles} must lie between 0 and 1")
        if any(value <= 0 for value in self.alarm_levels):
            raise ValueError(f"alarm_levels {self.alarm_levels} must be above 0")
        if self.regimes.full is None and self.regimes.lora is None:
            raise ValueError("no regime: give 'regimes.full' or 'regimes.lora'")
        return self

    def regime_slugs(self) -> list[Regime]:
        """Return the regimes that are trained."""
        names: tuple[Regime, ...] = ("full", "lora")
        return [name for name in names if getattr(self.regimes, name) is not None]


class AlarmRate(Strict):
    """How often a neutral fine-tuning would raise an alarm.

    `rate` is the share of (seed, group) pairs with |dB| at or above `level`, `low` and `high` its interval by seed;
    `any_group` is the share of seeds with at least one such group, `any_low` and `any_high` its Wilson interval.
    """

    level: float
    rate: float
    low: float
    high: float
    any_group: float
    any_low: float
    any_high: float


class NullCell(Strict):
    """|dB| under the null in one regime, on one sentence set, by one method.

    `quantiles` go over groups and seeds together, `largest` are the seeds' largest |dB| over groups in ascending
    order, `control` the |dB| of the group-free control in the order of the seeds.
    """

    regime: Regime
    stimuli: Slug
    stimuli_sha256: str
    method: Method
    quantity: Quantity
    n_anchors: int
    n_groups: int
    n_seeds: int
    n: int
    quantiles: dict[str, float]
    largest: list[float]
    control: list[float]
    false_alarm: list[AlarmRate]


class NullModel(Strict):
    """The reference model that was fine-tuned."""

    name: str
    weights_sha256: dict[str, str]
    dtype: str


class NullScale(Strict):
    """The shipped record, ``data/null_scale/null_scale.json``."""

    schema_version: Literal[1] = 1
    source: str
    valid_for: str
    model: NullModel
    split_sha256: str
    seeds: list[int]
    updates: dict[Regime, int]
    settings: NullScaleSettings
    versions: dict[str, str]
    cells: list[NullCell]

    def cell(
        self, regime: Regime, stimuli_sha256: str, method: Method = "rr", quantity: Quantity = "delta_b"
    ) -> NullCell | None:
        """Return the cell of a regime, sentence set, method and quantity; None where it was not measured."""
        wanted = (regime, stimuli_sha256, method, quantity)
        for cell in self.cells:
            if (cell.regime, cell.stimuli_sha256, cell.method, cell.quantity) == wanted:
                return cell
        return None
