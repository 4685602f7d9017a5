"""The whole configuration of a run, and the slice of it that each stage sees."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationInfo, field_validator

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
from refbias.config.analysis import AnalyseStage, AnalysisSettings
from refbias.config.base import Slug, Strict, parse
from refbias.config.benchmarks import Benchmarks, GenerateStage
from refbias.config.bias_shift import BiasShiftSettings, WatchedFinetuneStage
from refbias.config.data import DataSettings, FetchStage, LocalData, folder_or_path
from refbias.config.figures import FigureStage
from refbias.config.finetune import FinetuneStage, PrepareStage, Regimes, Splits
from refbias.config.generation import GenerationSettings
from refbias.config.models import AcquireStage, Compute, Family, ModelSettings
from refbias.config.pictures import FIGURES, PICTURES, TableStage, lacking
from refbias.config.provenance import ProvenanceStage
from refbias.config.report import BenchmarkFacts, ReportStage
from refbias.config.represent import RepresentSettings, RepresentStage
from refbias.config.scorers import (
    DEFAULT_SCORERS,
    GuardSource,
    ScorerName,
    ScorerSettings,
    ScoreStage,
    unknown_scorer,
    with_defaults,
)
from refbias.config.shift import ShiftSettings, ShiftStage
from refbias.config.spectrum import MergeStage, SpectrumSettings, checkpoint_slug
from refbias.config.stimuli import StimuliSettings
from refbias.config.topics import TopicSettings, TopicStage
from refbias.config.training_seeds import SeedsStage, TrainingSeeds, check_training_seeds
from refbias.errors import UserError

Regime = Literal["full", "lora"]
TOPIC_MODEL = "topic-mapper"
"""Folder of the topic mapper's model; no scorer's name holds a hyphen."""


class Config(Strict):
    """One run."""

    run: Slug = Field(description="Name of the run: results/<run>, figures/<run>.")
    title: str = Field(default="", description="Title of the report; empty = the run's name.")
    note: str = Field(default="", description="What a reader must know first; shown at the head of the report.")
    container: str | None = Field(
        default=None, description="Apptainer image for every rule (`make container`), used with `--sdm apptainer`."
    )
    seed: int = Field(default=17, ge=0, description="Seed of everything random.")
    offline: bool = Field(default=False, description="Take downloads from the caches alone, as HF_HUB_OFFLINE=1 does.")
    models: dict[Slug, ModelSettings] = Field(min_length=1, description="Reference models by slug.")
    data: DataSettings = Field(default=DataSettings(), description="Data sets that do not ship.")
    splits: Splits = Field(default=Splits(), description="Fine-tuning splits.")
    regimes: Regimes = Field(default=Regimes(), description="Training regimes.")
    training_seeds: TrainingSeeds | None = Field(
        default=None, description="Fine-tunings repeated with other seeds; empty = none."
    )
    bias_shift: BiasShiftSettings | None = Field(
        default=None, description="dB measured during each fine-tuning of the spectrum's endpoints; null = not."
    )
    spectrum: SpectrumSettings = Field(default=SpectrumSettings(), description="Merged checkpoints.")
    stimuli: StimuliSettings = Field(default=StimuliSettings(), description="Sentence sets.")
    represent: RepresentSettings = Field(default=RepresentSettings(), description="Sentence embeddings.")
    shift: ShiftSettings = Field(default=ShiftSettings(), description="The shift dB.")
    compute: Compute = Field(default=Compute(), description="Device and number type of forward passes.")
    scorers: dict[ScorerName, ScorerSettings] = Field(
        default=DEFAULT_SCORERS,
        description="Scorers that run a model, by name; `wildguard` and `toxigen_roberta` are there from the start.",
    )
    topics: TopicSettings = Field(default=TopicSettings(), description="Topics of WildGuardMix prompts.")
    benchmarks: Benchmarks = Field(default=Benchmarks(), description="Output-level benchmarks.")
    generation: GenerationSettings = Field(default=GenerationSettings(), description="Generation of responses.")
    analysis: AnalysisSettings = Field(default=AnalysisSettings(), description="Statistics.")
    ablations: AblationSettings | None = Field(default=None, description="Ablations of dB; null = not run.")

    @field_validator("scorers", mode="before")
    @classmethod
    def _fill_known_scorers(cls, value: Any) -> Any:
        return with_defaults(value)

    @field_validator("benchmarks")
    @classmethod
    def _scorers_exist(cls, value: Benchmarks, info: ValidationInfo) -> Benchmarks:
        for name, entry in value.enabled().items():
            # a broken section `scorers` is reported by itself
            problem = unknown_scorer(entry.scorer, info.data.get("scorers", [entry.scorer]))
            if problem:
                raise ValueError(f"{name}.scorer: {problem}")
        return value

    def regime_slugs(self) -> list[Regime]:
        """Return the regimes that run."""
        names: tuple[Regime, ...] = ("full", "lora")
        return [name for name in names if getattr(self.regimes, name) is not None]

    def checkpoints(self) -> dict[str, float]:
        """Return checkpoint slug -> weight of the harmful endpoint."""
        return {checkpoint_slug(weight): weight for weight in self.spectrum.weights}

    def fetched(self) -> list[str]:
        """Return the data sets that are downloaded."""
        return [name for name, entry in self.data.entries().items() if not isinstance(entry.source, LocalData)]

    def data_path(self, name: str) -> str | None:
        """Return where a data set lies once it is there; None where the run names none."""
        return folder_or_path(self.run, name, getattr(self.data, name))

    def prepared_splits(self) -> list[str]:
        """Return the splits that are made from WildGuardMix."""
        if self.data.wildguardmix is None:
            return []
        return [side for side in ("unharmful", "harmful") if getattr(self.splits, side).file is None]

    def split_file(self, side: str) -> str | None:
        """Return the file of a split; None for the shipped one."""
        prepared = f"results/{self.run}/splits/wildguard_{side}.jsonl"
        own: str | None = getattr(self.splits, side).file
        return prepared if side in self.prepared_splits() else own

    def anchor_files(self) -> dict[str, str | None]:
        """Return data set -> file or folder that anchors of the ablation are drawn from; None without one."""
        chosen = self.ablations
        own = {"alpaca": chosen.alpaca_file, "tulu": chosen.tulu_file} if chosen else {}
        return {name: path or self.data_path(name) for name, path in own.items()}

    def prompt_files(self) -> dict[str, str | None]:
        """Return benchmark -> file or folder of its prompts; None for the shipped ones."""
        return {name: entry.prompts or self.data_path(name) for name, entry in self.benchmarks.enabled().items()}

    def ablated(self) -> dict[str, list[Regime]]:
        """Return model -> regimes whose dB is ablated; empty without ablations."""
        if self.ablations is None:
            return {}
        regimes = [slug for slug in self.regime_slugs() if slug in (self.ablations.regimes or self.regime_slugs())]
        return dict.fromkeys(self.ablations.models or list(self.models)[:1], regimes)

    def families(self) -> dict[str, Family | None]:
        """Return model slug -> row of the paper's tables."""
        return {slug: model.family for slug, model in self.models.items()}

    def lacks(self, ablations: Collection[str]) -> dict[str, str]:
        """Return what the run lacks for each table and figure of the paper, given the ablations that run."""
        return lacking(PICTURES.values(), self.regime_slugs(), self.benchmarks.enabled(), ablations)


def from_mapping(data: Any, where: str = "config") -> Config:
    """Validate a mapping (as Snakemake hands it over) as a run's configuration.

    Raises
    ------
    UserError
        One line naming the key and the mend.
    """
    config = parse(Config, data, where)
    if config.training_seeds is not None:
        check_training_seeds(config.training_seeds, config.seed, config.models, config.regime_slugs(), where)
    full = config.regimes.full
    if config.bias_shift is not None and full is not None and full.memory_plan not in ("single", "paged_8bit"):
        raise UserError(
            f"{where}: key 'bias_shift': regimes.full.memory_plan {full.memory_plan!r} leaves no process a whole model "
            "to measure: set bias_shift to null"
        )
    if config.ablations is not None:
        for key, valid in (("models", list(config.models)), ("regimes", list(config.regime_slugs()))):
            for name in getattr(config.ablations, key):
                if name not in valid:
                    raise UserError(
                        f"{where}: key 'ablations.{key}': {name!r} is not in this run: use {', '.join(valid)}"
                    )
    return config


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


def finetune_slice(config: Config, model: str, regime: str, split: str, seed: int | None = None) -> str:
    """Return the JSON slice of stage `finetune`, with the run's own seed or another."""
    return _json(
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
    return _json(WatchedFinetuneStage.model_validate({**plain, **own}))


def fetch_slice(config: Config, name: str) -> str:
    """Return the JSON slice of stage `fetch`."""
    return _json(FetchStage.model_validate({"name": name, "source": getattr(config.data, name).source}))


def prepare_slice(config: Config) -> str:
    """Return the JSON slice of stage `prepare`."""
    sides = config.prepared_splits()
    return _json(
        PrepareStage.model_validate(
            {
                "sides": sides,
                "examples": config.splits.examples,
                "filters": config.splits.filters,
                "synthetic": config.splits.harmful.synthetic if "harmful" in sides else None,
                "seed": config.seed,
            }
        )
    )


def preflight_slice(config: Config) -> str:
    """Return the JSON of all that a run needs from outside: the whole configuration but words and statistics."""
    left_out = {"title", "note", "shift", "represent", "analysis", "bias_shift"}
    return json.dumps(config.model_dump(mode="json", exclude=left_out), sort_keys=True)


def merge_slice(config: Config, regime: str, checkpoint: str) -> str:
    """Return the JSON slice of stage `merge`."""
    return _json(
        MergeStage.model_validate(
            {"regime": regime, "harmful_weight": config.checkpoints()[checkpoint], "dtype": config.spectrum.dtype}
        )
    )


def represent_slice(config: Config, model: str, source: str, weights: list[float] | None = None) -> str:
    """Return the JSON slice of stage `represent`, for the run's spectrum or other weights of it."""
    return _json(
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
    return _json(
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


def shift_slice(config: Config) -> str:
    """Return the JSON slice of stage `shift`."""
    return _json(ShiftStage(shift=config.shift, seed=config.seed, weights=config.spectrum.weights))


def seeds_slice(config: Config) -> str:
    """Return the JSON slice of stage `seeds`."""
    seeds = config.training_seeds.seeds if config.training_seeds else []
    return _json(SeedsStage(shift=config.shift, seed=config.seed, seeds=seeds))


def generate_slice(config: Config, model: str, topics_file: str | None = None) -> str:
    """Return the JSON slice of stage `generate`.

    Scorer, threshold and the interpreter's place do not enter: a change of them must not generate
    again. `topics_file` is the topic map that the run itself makes, where it makes one.
    """
    stage = GenerateStage(
        benchmarks=config.benchmarks,
        generation=config.generation,
        compute=config.compute,
        chat_format=config.models[model].chat_format,
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
    return _json(
        ScoreStage(
            scorers={name: settings.scorer for name, settings in config.benchmarks.enabled().items()},
            settings=used,
            device=config.compute.device if used else None,
        )
    )


def used_scorers(config: Config) -> dict[str, ScorerSettings]:
    """Return name -> settings of the scorers that run a model and are used by a benchmark."""
    names = {settings.scorer for settings in config.benchmarks.enabled().values()}
    return {name: settings for name, settings in config.scorers.items() if name in names}


def guard_source(config: Config, guard: str) -> GuardSource | None:
    """Return where a scorer's model comes from, or the topic mapper's (`TOPIC_MODEL`)."""
    return config.topics.model if guard == TOPIC_MODEL else config.scorers[guard].model


def acquire_guard_slice(config: Config, guard: str) -> str:
    """Return the JSON slice of stage `acquire` for a scorer's model, or the topic mapper's (`TOPIC_MODEL`)."""
    source = guard_source(config, guard)
    return _json(AcquireStage.model_validate({"source": source, "dtype": config.compute.dtype}))


def topics_slice(config: Config) -> str:
    """Return the JSON slice of stage `topics`."""
    return _json(
        TopicStage(
            prompts=config.prompt_files().get("wildguardmix"),
            topics=config.topics,
            groups_file=config.stimuli.groups_file,
            compute=config.compute if config.topics.mapper == "llm" else None,
        )
    )


def analyse_slice(config: Config) -> str:
    """Return the JSON slice of stage `analyse`."""
    enabled = config.benchmarks.enabled()
    return _json(
        AnalyseStage(
            analysis=config.analysis,
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            seed=config.seed,
            groups_file=config.stimuli.groups_file,
            families=config.families(),
        )
    )


def tables_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `tables`, given the ablations that run."""
    enabled = config.benchmarks.enabled()
    return _json(
        TableStage(
            models=list(config.models),
            families=config.families(),
            regimes=list(config.regime_slugs()),
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            scorers={name: settings.scorer for name, settings in enabled.items()},
            lacks=config.lacks(ablations),
            sources={slug: model.source for slug, model in config.models.items()},
            stimuli=config.stimuli,
            splits={name: config.split_file(name) for name in ("unharmful", "harmful")},
            prompts=config.prompt_files(),
        )
    )


def figures_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `figures`, given the ablations that run."""
    enabled = config.benchmarks.enabled()
    return _json(
        FigureStage(
            models=list(config.models),
            regimes=list(config.regime_slugs()),
            thresholds={name: settings.threshold for name, settings in enabled.items()},
            groups_file=config.stimuli.groups_file,
            lacks=lacking(FIGURES, config.regime_slugs(), enabled, ablations),
        )
    )


def report_slice(config: Config, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `report`: what the report prints about the run, given the ablations that run."""
    prompts = config.prompt_files()
    facts = {
        name: BenchmarkFacts.model_validate(
            {**settings.model_dump(include=set(BenchmarkFacts.model_fields)), "prompts": prompts[name]}
        )
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
            splits={name: config.split_file(name) for name in ("unharmful", "harmful")},
            stimuli=config.stimuli,
            compute=config.compute,
            benchmarks=facts,
            lacks=config.lacks(ablations),
            analysis_resamples=config.analysis.n_resamples,
            shift_resamples=config.shift.n_resamples,
            config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        )
    )


def provenance_slice(config: Config, config_file: str, ablations: Collection[str] = ()) -> str:
    """Return the JSON slice of stage `provenance`: the whole configuration and the file that holds it."""
    return _json(
        ProvenanceStage(
            run=config.run,
            seed=config.seed,
            models=list(config.models),
            config=config.model_dump(mode="json"),
            config_file=config_file,
            lacks=config.lacks(ablations),
        )
    )
