"""Slices of the ablations of dB: each holds those keys of the section alone that its stage reads."""

import json
from collections.abc import Sequence

from pydantic import BaseModel

from refbias.config.ablations import (
    CELL_KEYS,
    SENTENCE_KEYS,
    SITE_KEYS,
    AblateStage,
    AblationSentencesStage,
    AblationSettings,
    AnalyseAblationsStage,
    RepresentAblationsStage,
)
from refbias.config.root import Config
from refbias.config.slices.base import as_json


def ablation_sentences_slice(config: Config) -> str:
    """Return the JSON slice of stage `ablation_sentences`."""
    chosen = _ablations(config)
    files = {f"{name}_file": path for name, path in config.anchor_files().items()}
    stage = AblationSentencesStage(stimuli=config.stimuli, ablations=chosen.model_copy(update=files), seed=config.seed)
    return _ablation_json(stage, SENTENCE_KEYS)


def represent_ablations_slice(config: Config, model: str, source: str) -> str:
    """Return the JSON slice of stage `represent_ablations`."""
    stage = {
        "model": model,
        "source": source,
        "weights": [] if source == "reference" else config.spectrum.weights,
        "represent": config.represent,
        "compute": config.compute,
        "merge_dtype": config.spectrum.dtype,
        "ablations": _ablations(config),
    }
    return _ablation_json(RepresentAblationsStage.model_validate(stage), SITE_KEYS)


def ablate_slice(config: Config, model: str, regime: str) -> str:
    """Return the JSON slice of stage `ablate`; an option of a method is there where the method is."""
    ablations = _ablations(config)
    options = {"procrustes_seat": "procrustes_fit", "cka_drift": "cka_kernel"}
    stage = {
        "model": model,
        "regime": regime,
        "weights": config.spectrum.weights,
        "ablations": ablations,
        **{key: getattr(config.shift, key) for method, key in options.items() if method in ablations.methods},
    }
    return _ablation_json(AblateStage.model_validate(stage), CELL_KEYS)


def analyse_ablations_slice(config: Config) -> str:
    """Return the JSON slice of stage `analyse_ablations`."""
    enabled = config.benchmarks.enabled()
    return as_json(
        AnalyseAblationsStage(
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            groups_file=config.stimuli.groups_file,
        )
    )


def _ablations(config: Config) -> AblationSettings:
    if config.ablations is None:
        raise ValueError("config: no section 'ablations'")
    return config.ablations


def _ablation_json(stage: BaseModel, keys: Sequence[str]) -> str:
    """Return the slice with those keys of `ablations` alone that the stage reads."""
    data = stage.model_dump(mode="json")
    data["ablations"] = {key: data["ablations"][key] for key in keys}
    return json.dumps(data, sort_keys=True)
