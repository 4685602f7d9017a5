"""Slices of the embeddings and of the shift dB."""

from refbias.config.represent import RepresentStage
from refbias.config.root import Config
from refbias.config.shift import ShiftStage
from refbias.config.slices.base import as_json


def represent_slice(config: Config, model: str, source: str, weights: list[float] | None = None) -> str:
    """Return the JSON slice of stage `represent`, for the run's spectrum or other weights of it."""
    return as_json(
        RepresentStage.model_validate(
            {
                "model": model,
                "source": source,
                "weights": [] if source == "reference" else weights or config.spectrum.weights,
                "stimuli": config.stimuli,
                "represent": config.represent,
                "compute": config.compute,
                "merge_dtype": config.spectrum.dtype,
            }
        )
    )


def shift_slice(config: Config) -> str:
    """Return the JSON slice of stage `shift`."""
    return as_json(ShiftStage(shift=config.shift, seed=config.seed, weights=config.spectrum.weights))
