"""Ablations: the same dB with one choice changed at a time (paper, sections 4.3 to 4.6)."""

from typing import Literal, Self

from pydantic import Field, model_validator

from refbias.config.base import Slug, Strict
from refbias.config.represent import RepresentSettings, SpectrumStage
from refbias.config.shift import CkaKernel, Method, ProcrustesFit
from refbias.config.stimuli import StimuliSettings

Ablation = Literal["attributes", "targets", "anchors", "circularity", "pooling", "layer", "bos"]
AttributeCell = Literal["subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3"]
TargetCell = Literal["passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3"]
AnchorSource = Literal["neutral", "words", "alpaca", "tulu"]
CircularityCell = Literal["without_group", "masked", "leave_group_out"]
Regime = Literal["full", "lora"]


class SampleSettings(Strict):
    """How sentences are drawn from an instruction data set to serve as anchors."""

    size: int = Field(default=1000, ge=1, description="Sentences drawn from Alpaca and from Tulu, and words used.")
    min_words: int = Field(default=4, ge=1, description="Words of a drawn sentence at least.")
    max_words: int = Field(default=12, ge=1, description="Words of a drawn sentence at most.")
    keep_group_terms: bool = Field(
        default=True, description="Keep sentences that name a target group; false draws group-free ones only."
    )

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError("min_words must not exceed max_words")
        return self


class AblationSettings(Strict):
    """Which choices are varied, for which models and regimes, and from which files."""

    models: list[Slug] = Field(default=[], description="Models that are ablated; empty = the first of the run.")
    regimes: list[Regime] = Field(default=[], description="Regimes that are ablated; empty = all that run.")
    run: list[Ablation] = Field(
        default=["attributes", "targets", "anchors", "circularity", "pooling", "layer", "bos"],
        min_length=1,
        description="Ablations that are computed.",
    )
    methods: list[Method] = Field(
        default=["rr", "seat"], min_length=1, description="Methods; anchors and circularity concern `rr` alone."
    )
    attributes: list[AttributeCell] = Field(
        default=["subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3"], description="Variants of the attribute sentences."
    )
    targets: list[TargetCell] = Field(
        default=["passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3"],
        description="Variants of the target templates.",
    )
    anchors: list[AnchorSource] = Field(
        default=["neutral", "words", "alpaca", "tulu"], description="Sources of anchors; `neutral` = the run's own."
    )
    anchor_counts: list[int] = Field(
        default=[50, 100, 200, 500, 1000], min_length=1, description="Numbers of anchors, ascending, as nested subsets."
    )
    anchor_seeds: list[int] = Field(
        default=[0, 1, 2, 3, 4], min_length=1, description="Seeds of the order in which anchors enter the subsets."
    )
    circularity: list[CircularityCell] = Field(
        default=["without_group", "masked", "leave_group_out"],
        description="Anchors without the scored group's words, with every group masked, without the group's own.",
    )
    pooling: list[Literal["mean", "max", "last"]] = Field(
        default=["mean", "max", "last"], description="Pooling over token states."
    )
    layers: Literal["all"] | list[int] = Field(
        default="all", description="Layer sweep beside `final` and `before_norm`: `all`, or block numbers (0 = input)."
    )
    variants_dir: str | None = Field(
        default=None, description="Folder of `attributes_<cell>.tsv` and `targets_<cell>.tsv`; empty = shipped."
    )
    words_file: str | None = Field(default=None, description="TSV of word anchors; empty = shipped.")
    masked_file: str | None = Field(
        default=None, description="TSV of the anchors with their group terms replaced; empty = shipped."
    )
    alpaca_file: str | None = Field(
        default=None,
        description="Alpaca's data (instruction, input, output) as JSON, JSONL or Parquet, file or folder of "
        "shards; empty = this source is left out.",
    )
    tulu_file: str | None = Field(
        default=None,
        description="Tulu 3's SFT mixture (id, messages, source) as JSON, JSONL or Parquet, file or folder of "
        "shards; empty = this source is left out.",
    )
    sample: SampleSettings = Field(default=SampleSettings(), description="Sentences drawn from Alpaca and Tulu.")

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if list(self.anchor_counts) != sorted(set(self.anchor_counts)) or self.anchor_counts[0] < 1:
            raise ValueError("anchor_counts must ascend from 1 or more, without repeats")
        if len(set(self.anchor_seeds)) != len(self.anchor_seeds) or min(self.anchor_seeds) < 0:
            raise ValueError("anchor_seeds must be distinct and not negative")
        return self


# what a stage does not read stays out of its slice, so that a change of it reruns nothing there
SENTENCE_KEYS = (
    "run",
    "attributes",
    "targets",
    "anchors",
    "circularity",
    "variants_dir",
    "words_file",
    "masked_file",
    "alpaca_file",
    "tulu_file",
    "sample",
)
SITE_KEYS = ("run", "pooling", "layers")
CELL_KEYS = ("run", "methods", "attributes", "targets", "anchors", "anchor_counts", "anchor_seeds", "circularity")


class AblationSentencesStage(Strict):
    """Slice of the configuration that the stage `ablation_sentences` sees."""

    stimuli: StimuliSettings
    ablations: AblationSettings
    seed: int


class RepresentAblationsStage(SpectrumStage):
    """Slice of the configuration that the stage `represent_ablations` sees."""

    represent: RepresentSettings
    ablations: AblationSettings


class AblateStage(Strict):
    """Slice of the configuration that the stage `ablate` sees."""

    model: str
    regime: Regime
    weights: list[float]
    ablations: AblationSettings
    procrustes_fit: ProcrustesFit = "anchors"
    cka_kernel: CkaKernel = "linear"


class AnalyseAblationsStage(Strict):
    """Slice of the configuration that the stage `analyse_ablations` sees."""

    thresholds: dict[str, float]
    groups_file: str | None
