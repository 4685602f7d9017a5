"""Slices of the fine-tunings, their repeats with other seeds, and the merges between the endpoints."""

import json

from refbias.config.bias_shift import WatchedFinetuneStage
from refbias.config.finetune import FinetuneStage
from refbias.config.root import Config
from refbias.config.slices.base import as_json
from refbias.config.spectrum import MergeStage
from refbias.config.training_seeds import SeedsStage


def finetune_slice(config: Config, model: str, regime: str, split: str, seed: int | None = None) -> str:
    """Return the JSON slice of stage `finetune`, with the run's own seed or another."""
    return as_json(
        FinetuneStage.model_validate(
            {
                "regime": regime,
                "split": split,
                regime: getattr(config.regimes, regime),
                "chat_format": config.models[model].chat_format,
                "file": config.split_file(split),
                "filters": config.splits.filters,
                "seed": config.seed if seed is None else seed,
            }
        )
    )


def finetune_watched_slice(config: Config, model: str, regime: str, split: str) -> str:
    """Return the JSON slice of stage `finetune_watched`.

    Raises
    ------
    ValueError
        If the configuration has no section `bias_shift`.
    """
    if config.bias_shift is None:
        raise ValueError("bias_shift: the configuration measures nothing during training")
    plain = json.loads(finetune_slice(config, model, regime, split))
    own = {"bias_shift": config.bias_shift, "stimuli": config.stimuli, "represent": config.represent}
    return as_json(WatchedFinetuneStage.model_validate({**plain, **own}))


def seeds_slice(config: Config) -> str:
    """Return the JSON slice of stage `seeds`."""
    seeds = config.training_seeds.seeds if config.training_seeds else []
    return as_json(SeedsStage(shift=config.shift, seed=config.seed, seeds=seeds))


def merge_slice(config: Config, regime: str, checkpoint: str) -> str:
    """Return the JSON slice of stage `merge`."""
    return as_json(
        MergeStage.model_validate(
            {"regime": regime, "harmful_weight": config.checkpoints()[checkpoint], "dtype": config.spectrum.dtype}
        )
    )
