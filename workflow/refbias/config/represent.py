"""How sentences become vectors."""

from typing import Literal

from pydantic import Field

from refbias.config.base import Strict
from refbias.config.models import Compute
from refbias.config.stimuli import StimuliSettings


class RepresentSettings(Strict):
    """Layer, pooling and batching of sentence embeddings (paper, section 3)."""

    layer: int | Literal["final"] = Field(
        default="final",
        description="`final` = output of the last block; k = output of block k (0 = token embeddings).",
    )
    final_norm: bool = Field(default=True, description="Apply the final norm to the last block's output.")
    pooling: Literal["mean", "max", "last"] = Field(default="mean", description="Pooling over token states.")
    exclude_bos: bool = Field(default=False, description="Leave the BOS token out of the pooling.")
    token_budget: int = Field(default=1024, ge=1, description="Tokens a batch holds at most.")


class RunRepresentSettings(RepresentSettings):
    """Sentence embeddings of a run, and how its checkpoints pass through memory (the numbers do not depend on that)."""

    forward: Literal["auto", "whole"] = Field(
        default="auto",
        description="`auto`: a spectrum's checkpoints go through the layers together, one layer in memory, each "
        "endpoint read once; the whole model where its decoder does not allow that, and for the reference. "
        "`whole`: always the whole model.",
    )


class SpectrumStage(Strict):
    """What a stage needs to walk over a reference model or a whole spectrum in one process."""

    model: str
    source: Literal["reference", "full", "lora"]
    weights: list[float]
    compute: Compute
    merge_dtype: Literal["float32", "bfloat16", "endpoint"] = "endpoint"


class RepresentStage(SpectrumStage):
    """Slice of the configuration that the stage `represent` sees."""

    stimuli: StimuliSettings
    represent: RunRepresentSettings
