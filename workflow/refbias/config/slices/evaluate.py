"""Slices of topics, generation and scoring."""

import json

from refbias.config.benchmarks import GenerateStage
from refbias.config.models import ChatFormat
from refbias.config.root import Config, used_scorers
from refbias.config.scorers import ScoreStage
from refbias.config.slices.base import as_json
from refbias.config.topics import TopicStage


def topics_slice(config: Config) -> str:
    """Return the JSON slice of stage `topics`."""
    return as_json(
        TopicStage(
            prompts=config.prompt_files().get("wildguardmix"),
            topics=config.topics,
            groups_file=config.stimuli.groups_file,
            compute=config.compute if config.topics.mapper == "llm" else None,
        )
    )


def generate_slice(config: Config, model: str, topics_file: str | None = None) -> str:
    """Return the JSON slice of stage `generate`.

    Scorer, threshold and the interpreter's place do not enter: a change of them must not generate
    again. `topics_file` is the topic map that the run itself makes, where it makes one.
    """
    return prompts_slice(config, config.models[model].chat_format, topics_file)


def prompts_slice(config: Config, chat_format: ChatFormat, topics_file: str | None = None) -> str:
    """Return the JSON slice of stage `generate` for a model that the run does not name."""
    stage = GenerateStage(
        benchmarks=config.benchmarks,
        generation=config.generation,
        compute=config.compute,
        chat_format=chat_format,
        seed=config.seed,
    )
    data = stage.model_dump(mode="json")
    data["generation"] = config.generation.outcome()
    for benchmark in data["benchmarks"].values():
        if benchmark is not None:
            del benchmark["scorer"], benchmark["threshold"]
    if topics_file is not None:
        data["benchmarks"]["wildguardmix"]["topics_file"] = topics_file
    for name, prompts in config.prompt_files().items():
        data["benchmarks"][name]["prompts"] = prompts
    return json.dumps(data, sort_keys=True)


def score_slice(config: Config) -> str:
    """Return the JSON slice of stage `score`: the used scorers alone."""
    used = used_scorers(config)
    return as_json(
        ScoreStage(
            scorers={name: settings.scorer for name, settings in config.benchmarks.enabled().items()},
            settings=used,
            device=config.compute.device if used else None,
        )
    )
