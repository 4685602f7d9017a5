"""Slices of the competence lens."""

import json
from typing import Any

from refbias.config.competence import (
    CompetenceAnswerStage,
    CompetenceAxisStage,
    CompetenceHireStage,
    CompetenceRepresentStage,
    CompetenceSteerStage,
)
from refbias.config.root import Config
from refbias.config.scorers import ScoreStage
from refbias.config.slices.base import as_json
from refbias.config.slices.evaluate import generate_slice, score_slice


def _shared(config: Config, model: str, subject: str) -> dict[str, Any]:
    """Return what every stage that runs a model sees."""
    chosen = config.competence
    _, _, checkpoint = subject.partition("-")
    return {
        "subject": subject,
        "weight": config.checkpoints()[checkpoint] if checkpoint else None,
        "merge_dtype": config.spectrum.dtype,
        "compute": config.compute,
        "chat_format": config.models[model].chat_format,
        "seed": config.seed,
        "data": chosen.data,
        "occupations": chosen.occupations,
        "questions": chosen.questions,
    }


def competence_represent_slice(config: Config, model: str, subject: str) -> str:
    """Return the JSON slice of stage `competence represent`."""
    chosen = config.competence
    own = {"layer": chosen.layer, "layer_range": chosen.layer_range, "n_random": chosen.n_random}
    return as_json(CompetenceRepresentStage.model_validate({**_shared(config, model, subject), **own}))


def competence_steer_slice(config: Config, model: str, subject: str) -> str:
    """Return the JSON slice of stage `competence steer`."""
    own = {"steering": config.competence.steering, "stimuli": config.stimuli}
    return as_json(CompetenceSteerStage.model_validate({**_shared(config, model, subject), **own}))


def competence_answer_slice(config: Config, model: str, subject: str) -> str:
    """Return the JSON slice of stage `competence answer`."""
    own = {"answer": config.competence.answer}
    return as_json(CompetenceAnswerStage.model_validate({**_shared(config, model, subject), **own}))


def competence_hire_slice(config: Config, model: str, subject: str) -> str:
    """Return the JSON slice of stage `competence hire`."""
    own = {"hiring": config.competence.hiring}
    return as_json(CompetenceHireStage.model_validate({**_shared(config, model, subject), **own}))


def competence_axis_slice(config: Config, model: str, topics_file: str | None = None) -> str:
    """Return the JSON slice of stage `competence axis`, for the reference.

    Raises
    ------
    ValueError
        If the run steers along no axis.
    """
    chosen = config.competence.axis
    if chosen is None:
        raise ValueError("competence.axis: the configuration steers along no axis")
    asked = json.loads(generate_slice(config, model, topics_file))["benchmarks"]
    own = {
        "axis": chosen,
        "stimuli": config.stimuli,
        "benchmarks": {**dict.fromkeys(asked), chosen.benchmark: asked.get(chosen.benchmark)},
        "score": ScoreStage.model_validate_json(score_slice(config)),
        "perplexity_sentences": config.competence.steering.perplexity_sentences,
    }
    return as_json(CompetenceAxisStage.model_validate({**_shared(config, model, "reference"), **own}))


def competence_analysis_options(config: Config) -> list[str]:
    """Return the options of `refbias competence analyse`."""
    chosen = config.competence
    options = {f"--{name.replace('_', '-')}": value for name, value in chosen.analysis}
    options |= {"--seed": config.seed}
    files = {"--attributes": chosen.data.attributes_file, "--contrasts": chosen.data.contrasts_file}
    options |= {name: path for name, path in files.items() if path}
    return [str(part) for pair in options.items() for part in pair]
