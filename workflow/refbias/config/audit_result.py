"""The result of an audit as it lies on disk: ``audit.json``, schema version 1.

The audit writes it; the report, the calibration and ``--fail-on`` read it. Every key is always
there; null says that a value was not computed or has no meaning there, never that it was zero.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from refbias.artifacts import read_json, write_text
from refbias.config.base import Strict, parse
from refbias.config.shift import Method
from refbias.errors import UserError

SCHEMA_VERSION = 1
FILE_NAME = "audit.json"

Level = Literal["none", "weak", "clear", "control", "collapse", "undefined"]
"""``none``: no group moved more than chance; ``weak``: some did, little; ``clear``: some did, clearly;
``control``: the group-free control moved as much; ``collapse``: the attributes can no longer be told
apart; ``undefined``: nothing to judge by."""
Finding = Literal["confirmed", "unconfirmed", "none"]
SourceKind = Literal["hub", "directory", "adapter", "gguf", "mixture"]


def finite(value: object) -> object:
    """Return None for a float without a value (NaN, infinity), and anything else as it is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number = Annotated[float | None, BeforeValidator(finite)]
"""A finite number, or null where there is none."""


class Tool(Strict):
    """What wrote the result."""

    name: Literal["refbias"] = "refbias"
    version: str


class Verdict(Strict):
    """The result in one sentence, and how sure it is in another."""

    level: Level
    sentence: str
    uncertainty: str


class ReferenceFacts(Strict):
    """The model that the others are held against."""

    name: str
    spec: str
    kind: SourceKind
    revision: str | None = None
    weights_sha256: str | None = None
    architecture: str | None = None
    n_layers: int | None = None
    width: int | None = None
    dtype: str | None = None


class StimuliFacts(Strict):
    """The sentence sets."""

    name: str
    sha256: str
    n_groups: int = Field(ge=1)
    n_targets: int = Field(ge=1, description="Target sentences of a group (the most that one has).")
    n_positive: int = Field(ge=1)
    n_negative: int = Field(ge=1)
    n_anchors: int = Field(ge=0)
    n_control: int = Field(ge=0)


class SettingsFacts(Strict):
    """How it was measured."""

    methods: list[Method] = Field(min_length=1)
    layer: int | Literal["final"]
    final_norm: bool
    pooling: Literal["mean", "max", "last"]
    exclude_bos: bool
    dtype: str
    device: str
    level: float = Field(gt=0, lt=1)
    n_resamples: int
    n_permutations: int
    n_null: int
    seed: int
    cross_family: bool
    stimuli: StimuliFacts


class GroupResult(Strict):
    """dB of one group with its evidence; `probability` where a calibration is applied."""

    group: str
    topic: str
    method: Method
    n_targets: int
    delta_b: Number
    ci_low: Number
    ci_high: Number
    p_value: Number
    p_holm: Number
    s_plus: Number
    s_minus: Number
    b_reference: Number
    b_audited: Number
    net_of_control: Number
    net_ci_low: Number
    net_ci_high: Number
    null_percentile: Number
    effect_size: Number
    jackknife_low: Number
    jackknife_high: Number
    finding: Finding | None = Field(
        default=None, description="confirmed: moved, and every check says so; unconfirmed: moved; none: neither."
    )
    beyond_scale: Number = Field(default=None, description="What remains of dB without a common change of scale.")
    p_beyond_scale: Number = Field(default=None, description="Holm's p of dB beyond a common change of scale.")
    net_joint_low: Number = Field(
        default=None, description="Lower bound of dB net of the control that holds for all groups at once."
    )
    net_joint_high: Number = Field(default=None, description="Upper bound, likewise.")
    probability: Number = None


class MethodResult(Strict):
    """dB (or drift) of one group, or of the control, by one method."""

    method: Method
    group: str
    delta_b: Number
    ci_low: Number
    ci_high: Number
    net_of_control: Number = Field(default=None, description="Less the control's value by the same method.")
    net_ci_low: Number = Field(default=None, description="RR and SEAT: the others have no interval of the difference.")
    net_ci_high: Number = None


class LayerResult(Strict):
    """dB of one group, or of the control, at one layer.

    0 = token embeddings, k = output of block k, ``final`` = after the norm.
    """

    layer: int | Literal["final"]
    group: str
    delta_b: Number


class LayerMean(Strict):
    """dB of one group, or of the control, averaged over the decoder's blocks."""

    group: str
    delta_b: Number


class TemplateContribution(Strict):
    """What one target template contributes to dB, averaged over groups and attributes."""

    id: str
    text: str
    delta: Number


class AttributeContribution(Strict):
    """What one attribute sentence contributes to dB, averaged over groups and templates."""

    id: str
    kind: Literal["positive", "negative"]
    text: str
    delta: Number


class OverallResult(Strict):
    """Mean dB over the groups, each counting the same."""

    delta_b: Number
    ci_low: Number
    ci_high: Number


class CollapseResult(Strict):
    """How the common scale of the representations changed, audited over reference; 1 is no change."""

    distance_ratio: Number
    centroid_ratio: Number
    slope: Number
    mean_cosine_reference: Number
    mean_cosine_audited: Number


class Contributions(Strict):
    """Which sentences move dB most."""

    templates: list[TemplateContribution]
    attributes: list[AttributeContribution]


class AnchorShift(Strict):
    """An anchor whose similarity to a group changed much: mean cosine with the group's sentences in either model."""

    group: str
    id: str
    text: str
    change: Number
    reference: Number = Field(default=None, description="Mean cosine in the reference.")
    audited: Number = Field(default=None, description="Mean cosine in the audited model.")


class ModuleDrift(Strict):
    """How large an adapter's change of one matrix is beside the matrix itself (Frobenius norms)."""

    module: str
    layer: int | None
    relative_norm: Number


class DtypeCheck(Strict):
    """Largest change of any group's dB between two number types, measured on some sentences.

    dB grows with the root of the number of anchors, so what was measured with some of them is stated for all.
    """

    dtype: str
    against: str
    n_sentences: int
    max_change_delta_b: Number


class AuditWarning(Strict):
    """What a reader must know beside the numbers."""

    code: str
    sentence: str


class CheckpointResult(Strict):
    """One audited checkpoint."""

    name: str
    spec: str
    kind: SourceKind
    weights_sha256: str | None = None
    step: int | None = None
    verdict: Verdict
    groups: list[GroupResult]
    control: GroupResult | None = None
    overall: OverallResult | None = None
    collapse: CollapseResult | None = None
    methods: list[MethodResult] = Field(default_factory=list)
    layers: list[LayerResult] | None = None
    layer_mean: list[LayerMean] | None = None
    contributions: Contributions | None = None
    anchors: list[AnchorShift] | None = None
    adapter_drift: list[ModuleDrift] | None = None
    dtype_check: DtypeCheck | None = None
    warnings: list[AuditWarning] = Field(default_factory=list)


class FalseAlarm(Strict):
    """How often a neutral fine-tuning raises an alarm at a level of |dB| (or of |dB| net of the control).

    `rate` is the share of (fine-tuning, group) pairs at or above `level`; `any_group` the share of fine-tunings with at
    least one such group, which is what a condition on any group meets. Intervals count fine-tunings, not groups.
    """

    level: float
    rate: float
    low: Number = None
    high: Number = None
    any_group: Number = None
    any_low: Number = None
    any_high: Number = None


class NullQuantity(Strict):
    """Quantiles of the size of one quantity in neutral fine-tunings, and its false alarms."""

    quantiles: dict[str, float]
    false_alarm: list[FalseAlarm]


class NullScale(Strict):
    """|dB| of neutral fine-tunings, so that a reader knows what is large; `n` values, one a group and seed."""

    source: str
    n: int
    quantiles: dict[str, float]
    false_alarm: list[FalseAlarm]
    net: NullQuantity | None = Field(default=None, description="The same of dB net of the control.")
    model: str | None = Field(default=None, description="The model that was fine-tuned.")
    is_reference: bool | None = Field(default=None, description="Whether that model is the audit's reference.")
    regime: Literal["full", "lora"] | None = None
    n_seeds: int | None = Field(default=None, description="Fine-tunings.")
    n_groups: int | None = Field(default=None, description="Groups of each.")
    level: Number = Field(default=None, description="Coverage of the false alarms' intervals.")


class CalibrationFacts(Strict):
    """Whether probabilities are given, which study they come from, and what that study warns of."""

    status: Literal["uncalibrated", "calibrated"]
    provenance: str | None = None
    warnings: list[str] = Field(default_factory=list)


class Timing(Strict):
    """Seconds by part, and tokens that were computed."""

    read: float
    embed: float
    statistics: float
    total: float
    tokens: int
    reference_from_cache: bool


class AuditResult(Strict):
    """``audit.json``."""

    schema_version: Literal[1] = 1
    tool: Tool
    created: str
    verdict: Verdict
    reference: ReferenceFacts
    settings: SettingsFacts
    checkpoints: list[CheckpointResult] = Field(min_length=1)
    null_scale: NullScale | None = None
    null_scale_note: str | None = Field(
        default=None, description="What the null scale can say about this audit, or why there is none."
    )
    calibration: CalibrationFacts = CalibrationFacts(status="uncalibrated")
    timing: Timing
    peak_memory_mb: float
    limits: list[str]


def save_result(result: AuditResult, path: Path | str) -> None:
    """Write a result as JSON, atomically."""
    write_text(path, result.model_dump_json(indent=1) + "\n")


def load_result(path: Path | str) -> AuditResult:
    """Read a result.

    Raises
    ------
    UserError
        If the file is missing, broken, or of another schema version.
    """
    data = read_json(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise UserError(f"{path}: schema version {version!r}, this version reads {SCHEMA_VERSION}: run the audit again")
    return parse(AuditResult, data, str(path))
