"""The whole configuration of a run; `refbias.config.slices` cuts from it what each stage sees."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from refbias.config.ablations import AblationSettings
from refbias.config.analysis import AnalysisSettings
from refbias.config.audit import AuditSettings
from refbias.config.base import Slug, Strict, parse, read_yaml
from refbias.config.benchmarks import Benchmarks
from refbias.config.bias_shift import BiasShiftSettings
from refbias.config.competence import CompetenceSettings
from refbias.config.data import DataSettings, LocalData, folder_or_path
from refbias.config.finetune import Regimes, Splits
from refbias.config.generation import GenerationSettings
from refbias.config.metamorphic import MetamorphicSettings
from refbias.config.models import Compute, Family, ModelSettings
from refbias.config.pictures import PICTURES, lacking
from refbias.config.represent import RunRepresentSettings
from refbias.config.scorers import (
    DEFAULT_SCORERS,
    GuardSource,
    ScorerName,
    ScorerSettings,
    unknown_scorer,
    with_defaults,
)
from refbias.config.shift import ShiftSettings
from refbias.config.spectrum import SpectrumSettings, checkpoint_slug
from refbias.config.stimuli import StimuliSettings
from refbias.config.topics import TopicSettings
from refbias.config.training_seeds import TrainingSeeds, check_training_seeds
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
    audit: AuditSettings | None = Field(
        default=None, description="Checkpoints held against a reference, by the target `audit`; empty = none."
    )
    metamorphic: MetamorphicSettings = Field(
        default=MetamorphicSettings(), description="Metamorphic tests, by the target `metamorphic`."
    )
    models: dict[Slug, ModelSettings] = Field(
        description="Reference models by slug; none (`{}`) where the run is an audit, or asks interfaces, alone."
    )
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
    represent: RunRepresentSettings = Field(default=RunRepresentSettings(), description="Sentence embeddings.")
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
    competence: CompetenceSettings = Field(
        default=CompetenceSettings(), description="Occupational competence, by the target `competence`."
    )

    @field_validator("models")
    @classmethod
    def _some_model(cls, value: dict[str, ModelSettings], info: ValidationInfo) -> dict[str, ModelSettings]:
        # a broken section is reported by itself
        whole = "audit" in info.data and "metamorphic" in info.data
        if not value and whole and info.data["audit"] is None and not info.data["metamorphic"].endpoints:
            raise ValueError("name at least one reference model")
        return value

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

    def metamorphic_models(self) -> list[str]:
        """Return the models of the run that metamorphic tests are put to."""
        return self.metamorphic.models or list(self.models)

    def competence_subjects(self) -> list[str]:
        """Return the competence lens's subjects: the reference, and ``<regime>-<checkpoint>`` of the chosen ones."""
        chosen = self.competence
        regimes = [slug for slug in self.regime_slugs() if slug in (chosen.regimes or self.regime_slugs())]
        slugs = [slug for slug, weight in self.checkpoints().items() if weight in chosen.checkpoints]
        return ["reference", *(f"{regime}-{slug}" for regime in regimes for slug in slugs)]

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
    axis, enabled = config.competence.axis, config.benchmarks.enabled()
    if axis is not None and config.models and axis.benchmark not in enabled:
        raise UserError(
            f"{where}: key 'competence.axis.benchmark': {axis.benchmark} is not in this run: "
            f"use {', '.join(enabled) or 'no axis'}"
        )
    for weight in config.competence.checkpoints:
        if weight not in config.spectrum.weights and config.regime_slugs():
            raise UserError(
                f"{where}: key 'competence.checkpoints': {weight:g} is not among the weights of this run's spectrum: "
                f"use {', '.join(f'{known:g}' for known in config.spectrum.weights)}"
            )
    for regime in config.competence.regimes or ():
        if regime not in config.regime_slugs():
            known = ", ".join(config.regime_slugs()) or "(no regime)"
            raise UserError(f"{where}: key 'competence.regimes': {regime!r} is not in this run: use {known}")
    if config.ablations is not None:
        for key, valid in (("models", list(config.models)), ("regimes", list(config.regime_slugs()))):
            for name in getattr(config.ablations, key):
                if name not in valid:
                    raise UserError(
                        f"{where}: key 'ablations.{key}': {name!r} is not in this run: use {', '.join(valid)}"
                    )
    for name in config.metamorphic.models:
        if name not in config.models:
            known = ", ".join(config.models) or "(no model)"
            raise UserError(f"{where}: key 'metamorphic.models': {name!r} is not in this run: use {known}")
    for name in config.metamorphic.endpoints:
        if name in config.models:
            raise UserError(f"{where}: key 'metamorphic.endpoints': {name!r} is a model of the run: use another name")
    return config


def from_yaml(path: Path | str) -> Config:
    """Read and validate a configuration file.

    Raises
    ------
    UserError
        One line naming the file, the key or the line, and the mend.
    """
    return from_mapping(read_yaml(path), str(path))


def used_scorers(config: Config) -> dict[str, ScorerSettings]:
    """Return name -> settings of the scorers that run a model and are used by a benchmark."""
    names = {settings.scorer for settings in config.benchmarks.enabled().values()}
    return {name: settings for name, settings in config.scorers.items() if name in names}


def guard_source(config: Config, guard: str) -> GuardSource | None:
    """Return where a scorer's model comes from, or the topic mapper's (`TOPIC_MODEL`)."""
    return config.topics.model if guard == TOPIC_MODEL else config.scorers[guard].model
