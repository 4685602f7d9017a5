"""Slices of the metamorphic tests."""

import json

from refbias.config.finetune import FinetuneStage, SplitFilters
from refbias.config.metamorphic import AskStage, LabelStage, Reading, SampleStage, mitigation_regime
from refbias.config.root import Config
from refbias.config.slices.base import as_json


def metamorphic_sample_slice(config: Config) -> str:
    """Return the JSON slice of stage `metamorphic sample`."""
    chosen = config.metamorphic
    return as_json(
        SampleStage(
            groups_file=chosen.groups_file,
            properties_file=chosen.properties_file,
            per_category=chosen.per_category,
            relations=chosen.relations,
            poles=chosen.poles,
            seed=config.seed,
        )
    )


def _reading(config: Config, model: str) -> Reading:
    """Return how a model is read: an interface gives no log-probabilities of options."""
    return "generate" if model in config.metamorphic.endpoints else config.metamorphic.reading


def metamorphic_ask_slice(config: Config, model: str, asked: str) -> str:
    """Return the JSON slice of stage `metamorphic ask`.

    Parameters
    ----------
    config
        The run's configuration.
    model
        Slug of a model or of an interface.
    asked
        ``plain`` or ``few_shot``, or below one of them ``neutral`` or ``open``, such as ``few_shot/neutral``.

    Notes
    -----
    What no answer depends on stays out: the interpreter's place, the margin below which a choice is UNSURE, patience
    and budget of an interface (they are options of the command).
    """
    chosen = config.metamorphic
    shots, _, side = asked.partition("/")
    if side and chosen.mitigation is None:
        raise ValueError("metamorphic.mitigation: the configuration has none")
    reading: Reading = "generate" if side else _reading(config, model)
    written = reading == "generate"
    local = model not in chosen.endpoints
    stage = AskStage.model_validate(
        {
            "groups_file": chosen.groups_file,
            "properties_file": chosen.properties_file,
            "questions": side or "sample",
            "first": chosen.mitigation.open_questions if side == "open" and chosen.mitigation else None,
            "reading": reading,
            "forced_choice": None if written else chosen.forced_choice,
            "few_shot": chosen.few_shot if shots == "few_shot" else 0,
            "max_new_tokens": chosen.mitigation.neutral_tokens if side and chosen.mitigation else chosen.max_new_tokens,
            "temperature": 0.0 if side else chosen.temperature,
            "generation": config.generation if written and local else None,
            "compute": config.compute if local else None,
            "chat_format": config.models[model].chat_format if local else "auto",
            "endpoint": None if local else chosen.endpoints[model],
            "seed": config.seed,
        }
    )
    data = stage.model_dump(mode="json")
    if stage.generation is not None:
        data["generation"] = stage.generation.outcome()
    if stage.forced_choice is not None:
        del data["forced_choice"]["min_margin"], data["max_new_tokens"], data["temperature"]
    if stage.endpoint is not None:
        data["endpoint"] = stage.endpoint.outcome()
    return json.dumps(data, sort_keys=True)


def metamorphic_label_slice(config: Config, model: str, asked: str) -> str:
    """Return the JSON slice of stage `metamorphic evaluate`; parameters as `metamorphic_ask_slice`."""
    chosen = config.metamorphic
    is_open = asked.endswith("/open")
    first = chosen.mitigation.open_questions if is_open and chosen.mitigation else None
    local = chosen.judge.directory is not None
    stage = LabelStage(
        groups_file=chosen.groups_file,
        properties_file=chosen.properties_file,
        first=first,
        reading="generate" if is_open else _reading(config, model),
        min_margin=chosen.forced_choice.min_margin,
        judge=chosen.judge,
        generation=config.generation if local else None,
        compute=config.compute if local else None,
        n_resamples=chosen.n_resamples,
        seed=config.seed,
    )
    data = stage.model_dump(mode="json")
    if stage.generation is not None:
        data["generation"] = stage.generation.outcome()
    if chosen.judge.endpoint is not None:
        data["judge"]["endpoint"] = chosen.judge.endpoint.outcome()
    return json.dumps(data, sort_keys=True)


def mitigate_slice(config: Config, model: str, file: str) -> str:
    """Return the JSON slice of stage `finetune` for a mitigation: its set is read as an unharmful split."""
    chosen = config.metamorphic.mitigation
    if chosen is None:
        raise ValueError("metamorphic.mitigation: the configuration has none")
    return as_json(
        FinetuneStage.model_validate(
            {
                "regime": chosen.regime,
                "split": "unharmful",
                chosen.regime: mitigation_regime(chosen, config.regimes.full, config.regimes.lora),
                "chat_format": config.models[model].chat_format,
                "file": file,
                "filters": SplitFilters(),
                "seed": config.seed,
            }
        )
    )
