"""The whole configuration of a run, and the slice of it that each stage sees."""

import json
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field

from refbias.config.analysis import AnalyseStage, AnalysisSettings
from refbias.config.base import Slug, Strict, parse
from refbias.config.benchmarks import Benchmarks, GenerateStage, GenerationSettings, ScoreStage
from refbias.config.figures import FigureStage
from refbias.config.finetune import FinetuneStage, Regimes, Splits
from refbias.config.models import AcquireStage, Compute, ModelSettings
from refbias.config.report import BenchmarkFacts, ReportStage
from refbias.config.represent import RepresentSettings, RepresentStage
from refbias.config.shift import ShiftSettings, ShiftStage
from refbias.config.spectrum import MergeStage, SpectrumSettings, checkpoint_slug
from refbias.config.stimuli import StimuliSettings
from refbias.errors import UserError

Regime = Literal["full", "lora"]


class Config(Strict):
    """One run."""

    run: Slug = Field(description="Name of the run: results/<run>, figures/<run>.")
    title: str = Field(default="", description="Title of the report; empty = the run's name.")
    note: str = Field(default="", description="What a reader must know first; shown at the head of the report.")
    container: str | None = Field(
        default=None, description="Apptainer image for every rule (`make container`), used with `--sdm apptainer`."
    )
    seed: int = Field(default=17, ge=0, description="Seed of everything random.")
    models: dict[Slug, ModelSettings] = Field(min_length=1, description="Reference models by slug.")
    splits: Splits = Field(default=Splits(), description="Fine-tuning splits.")
    regimes: Regimes = Field(default=Regimes(), description="Training regimes.")
    spectrum: SpectrumSettings = Field(default=SpectrumSettings(), description="Merged checkpoints.")
    stimuli: StimuliSettings = Field(default=StimuliSettings(), description="Sentence sets.")
    represent: RepresentSettings = Field(default=RepresentSettings(), description="Sentence embeddings.")
    shift: ShiftSettings = Field(default=ShiftSettings(), description="The shift dB.")
    compute: Compute = Field(default=Compute(), description="Device and number type of forward passes.")
    benchmarks: Benchmarks = Field(default=Benchmarks(), description="Output-level benchmarks.")
    generation: GenerationSettings = Field(default=GenerationSettings(), description="Generation of responses.")
    analysis: AnalysisSettings = Field(default=AnalysisSettings(), description="Statistics.")

    def regime_slugs(self) -> list[Regime]:
        """Return the regimes that run."""
        names: tuple[Regime, ...] = ("full", "lora")
        return [name for name in names if getattr(self.regimes, name) is not None]

    def checkpoints(self) -> dict[str, float]:
        """Return checkpoint slug -> weight of the harmful endpoint."""
        return {checkpoint_slug(weight): weight for weight in self.spectrum.weights}


def from_mapping(data: Any, where: str = "config") -> Config:
    """Validate a mapping (as Snakemake hands it over) as a run's configuration.

    Raises
    ------
    UserError
        One line naming the key and the mend.
    """
    return parse(Config, data, where)


def from_yaml(path: Path | str) -> Config:
    """Read and validate a configuration file.

    Raises
    ------
    UserError
        One line naming the file, the key or the line, and the mend.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'not UTF-8'}") from None
    return from_mapping(data, str(path))


def _json(model: BaseModel) -> str:
    return json.dumps(model.model_dump(mode="json"), sort_keys=True)


def acquire_slice(config: Config, model: str) -> str:
    """Return the JSON slice of stage `acquire`."""
    return _json(AcquireStage(source=config.models[model].source, dtype=config.compute.dtype))


def finetune_slice(config: Config, model: str, regime: str, split: str) -> str:
    """Return the JSON slice of stage `finetune`."""
    return _json(
        FinetuneStage.model_validate(
            {
                "regime": regime,
                "split": split,
                regime: getattr(config.regimes, regime),
                "chat_format": config.models[model].chat_format,
                "file": getattr(config.splits, split).file,
                "seed": config.seed,
            }
        )
    )


def merge_slice(config: Config, regime: str, checkpoint: str) -> str:
    """Return the JSON slice of stage `merge`."""
    return _json(
        MergeStage.model_validate(
            {"regime": regime, "harmful_weight": config.checkpoints()[checkpoint], "dtype": config.spectrum.dtype}
        )
    )


def represent_slice(config: Config, model: str, source: str) -> str:
    """Return the JSON slice of stage `represent`."""
    return _json(
        RepresentStage.model_validate(
            {
                "model": model,
                "source": source,
                "weights": [] if source == "reference" else config.spectrum.weights,
                "stimuli": config.stimuli,
                "represent": config.represent,
                "compute": config.compute,
                "merge_dtype": config.spectrum.dtype,
            }
        )
    )


def shift_slice(config: Config) -> str:
    """Return the JSON slice of stage `shift`."""
    return _json(ShiftStage(shift=config.shift, seed=config.seed, weights=config.spectrum.weights))


def generate_slice(config: Config, model: str) -> str:
    """Return the JSON slice of stage `generate`.

    Scorer and threshold do not enter: a change of either must not generate again.
    """
    stage = GenerateStage(
        benchmarks=config.benchmarks,
        generation=config.generation,
        compute=config.compute,
        chat_format=config.models[model].chat_format,
        seed=config.seed,
    )
    data = stage.model_dump(mode="json")
    for benchmark in data["benchmarks"].values():
        if benchmark is not None:
            del benchmark["scorer"], benchmark["threshold"]
    return json.dumps(data, sort_keys=True)


def score_slice(config: Config) -> str:
    """Return the JSON slice of stage `score`."""
    enabled = config.benchmarks.enabled()
    return _json(ScoreStage(scorers={name: settings.scorer for name, settings in enabled.items()}))


def analyse_slice(config: Config) -> str:
    """Return the JSON slice of stage `analyse`."""
    enabled = config.benchmarks.enabled()
    return _json(
        AnalyseStage(
            analysis=config.analysis,
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            seed=config.seed,
            groups_file=config.stimuli.groups_file,
        )
    )


def figures_slice(config: Config) -> str:
    """Return the JSON slice of stage `figures`."""
    enabled = config.benchmarks.enabled()
    return _json(
        FigureStage(
            models=list(config.models),
            regimes=list(config.regime_slugs()),
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            groups_file=config.stimuli.groups_file,
        )
    )


def report_slice(config: Config) -> str:
    """Return the JSON slice of stage `report`: what the report prints about the run."""
    facts = {
        name: BenchmarkFacts.model_validate(settings.model_dump(include=set(BenchmarkFacts.model_fields)))
        for name, settings in config.benchmarks.enabled().items()
    }
    return _json(
        ReportStage(
            run=config.run,
            title=config.title,
            note=config.note,
            seed=config.seed,
            models={slug: model.source for slug, model in config.models.items()},
            regimes=list(config.regime_slugs()),
            weights=config.spectrum.weights,
            splits={name: getattr(config.splits, name).file for name in ("unharmful", "harmful")},
            stimuli=config.stimuli,
            compute=config.compute,
            benchmarks=facts,
            analysis_resamples=config.analysis.n_resamples,
            shift_resamples=config.shift.n_resamples,
            config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
    )
