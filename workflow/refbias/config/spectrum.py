"""The spectrum of merged checkpoints between the unharmful and the harmful endpoint."""

from typing import Literal, Self

from pydantic import Field, model_validator

from refbias.config.base import Dtype, Strict


def checkpoint_slug(harmful_weight: float) -> str:
    """Return the slug of a harmful weight: ``h000`` for 0, ``h030`` for 0.3, ``h100`` for 1."""
    return f"h{round(harmful_weight * 100):03d}"


class SpectrumSettings(Strict):
    """Weights of the harmful endpoint (paper, section 4.1)."""

    weights: list[float] = Field(
        default=[0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0],
        min_length=2,
        description="Weights of the harmful endpoint, ascending, 0 and 1 included.",
    )
    dtype: Dtype | Literal["endpoint"] = Field(
        default="endpoint", description="Stored number type of merges; `endpoint` = that of the endpoints."
    )
    max_merged: int = Field(default=2, ge=1, description="Merged full checkpoints on disk at once, per model.")

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if list(self.weights) != sorted(set(self.weights)) or self.weights[0] != 0 or self.weights[-1] != 1:
            raise ValueError("weights must ascend from 0 to 1 without repeats")
        if len({checkpoint_slug(weight) for weight in self.weights}) != len(self.weights):
            raise ValueError("weights must differ by at least 0.01")
        return self


class MergeStage(Strict):
    """Slice of the configuration that the stage `merge` sees."""

    regime: Literal["full", "lora"]
    harmful_weight: float
    dtype: Dtype | Literal["endpoint"]
