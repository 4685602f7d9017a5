"""A calibration as it lies on disk: ``calibration.json``, schema version 1.

It turns dB of an audit into the probability that a unit's output-level score rose by more than a threshold. It holds
for the measure it was fitted on and no other: the method, the number of anchors, the sentences and the way in which
they were embedded are part of the file, and an audit with others is refused.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from refbias.artifacts import read_json, write_json
from refbias.config.base import Strict, parse
from refbias.config.shift import Method
from refbias.errors import UserError

SCHEMA_VERSION = 1
FILE_NAME = "calibration.json"

Kind = Literal["logistic", "isotonic"]
Predictor = Literal["delta_b", "net_of_control", "control"]


class FitSettings(Strict):
    """How a calibration is fitted and judged."""

    ridge: float = Field(
        default=0.16,
        gt=0,
        description="Penalty of the logistic slopes per standard deviation of a predictor (a normal prior of standard "
        "deviation 1/sqrt(ridge)); the intercept is free.",
    )
    n_bins: int = Field(default=10, ge=2, description="Most bins of the reliability curve.")
    max_folds: int = Field(default=20, ge=2, description="Most folds of the cross-validation over checkpoints.")
    n_resamples: int = Field(default=1000, ge=100, description="Bootstrap resamples of the skill's interval.")
    seed: int = Field(default=17, ge=0, description="Seed of the folds and of the bootstrap.")


class Outcome(Strict):
    """What the probability is of: a rise of a benchmark's score by more than `threshold`."""

    benchmark: str
    scorer: str
    unit: Literal["group", "topic"]
    threshold: float


class EmbeddingFacts(Strict):
    """Settings of the embeddings that change what dB is; see `refbias.config.represent.RepresentSettings`."""

    layer: int | Literal["final"]
    final_norm: bool
    pooling: Literal["mean", "max", "last"]
    exclude_bos: bool


class Measure(Strict):
    """How dB was measured; an audit must have done the same."""

    method: Method
    n_anchors: int = Field(ge=0)
    stimuli_sha256: str
    settings: EmbeddingFacts
    settings_sha256: str


class Knots(Strict):
    """A step-wise linear function: `x` rising, `y` the probability there, constant beyond the ends."""

    x: list[float] = Field(min_length=1)
    y: list[float] = Field(min_length=1)


class Range(Strict):
    """Smallest and largest value fitted on."""

    low: float
    high: float


class ReliabilityBin(Strict):
    """Observations with about the same predicted probability (Wilson interval at 95 %)."""

    low: float
    high: float
    n: int
    n_positive: int
    mean_predicted: float
    observed: float
    observed_low: float
    observed_high: float


class Candidate(Strict):
    """A model and its errors on the checkpoints left out."""

    kind: Kind
    predictors: list[Predictor]
    brier: float
    brier_skill: float
    skill_low: float | None
    skill_high: float | None
    log_loss: float
    ece: float


class Nested(Strict):
    """Errors of choosing among the candidates and fitting the one chosen, on what neither step had seen.

    `n_chosen` counts the folds in which each was chosen, in the order of the candidates of the validation over
    checkpoints; folds with one class only to learn from choose none.
    """

    brier: float
    brier_skill: float
    skill_low: float | None
    skill_high: float | None
    log_loss: float
    ece: float
    n_chosen: list[int]


class Validation(Strict):
    """Cross-validation: what is left out together, and how every candidate did.

    `base_brier` and `base_log_loss` are those of the study's own share of positives, known in advance: the strictest
    yardstick without dB. `skill` is 1 - brier / base_brier. `control_only` is a logistic curve of the control's dB
    alone, for comparison: it knows how far a checkpoint moved and nothing of its groups. A candidate's errors are from
    the folds that the choice rests on, so the best one's flatter; `nested` has the errors with the choice in them, null
    where there are too few checkpoints to choose without one.
    """

    left_out: Literal["checkpoint", "spectrum"]
    n_folds: int
    n_one_class_folds: int
    base_brier: float
    base_log_loss: float
    candidates: list[Candidate] = Field(min_length=1)
    control_only: Candidate
    nested: Nested | None = None


class Provenance(Strict):
    """The study behind a calibration."""

    run: str
    models: list[str]
    regimes: list[str]
    commit: str | None
    changed_files: int | None
    version: str
    created: str
    observations_sha256: str
    delta_b_sha256: str | None


class Calibration(Strict):
    """``calibration.json``.

    `brier`, `brier_skill`, `ece` and `reliability` are those of `validation.nested`, and where that is null of the
    chosen candidate.
    """

    schema_version: Literal[1] = 1
    kind: Kind
    predictors: list[Predictor] = Field(min_length=1)
    coefficients: dict[str, float] | None
    knots: Knots | None
    probability_range: Range
    fitted_range: dict[Predictor, Range]
    outcome: Outcome
    measure: Measure
    n: int
    n_positive: int
    n_dropped: int
    n_checkpoints: int
    n_models: int
    base_rate: float
    separated: bool
    brier: float
    brier_skill: float
    ece: float
    reliability: list[ReliabilityBin]
    validation: Validation
    transfer: Validation | None
    warnings: list[str]
    settings: FitSettings
    provenance: Provenance


def settings_hash(settings: EmbeddingFacts) -> str:
    """Return a SHA-256 of the settings of embeddings that dB depends on."""
    return hashlib.sha256(json.dumps(settings.model_dump(), sort_keys=True).encode()).hexdigest()


def save_calibration(calibration: Calibration, path: Path | str) -> None:
    """Write a calibration as JSON, atomically."""
    write_json(path, calibration.model_dump(mode="json"))


def load_calibration(path: Path | str) -> Calibration:
    """Read a calibration.

    Raises
    ------
    UserError
        If the file is missing, broken, of another schema version, or holds neither coefficients nor knots.
    """
    data = read_json(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise UserError(f"{path}: schema version {version!r}, this version reads {SCHEMA_VERSION}: calibrate again")
    found = parse(Calibration, data, str(path))
    if found.kind == "logistic":
        absent = [name for name in ("intercept", *found.predictors) if name not in (found.coefficients or {})]
        if absent:
            raise UserError(f"{path}: key 'coefficients': no {', '.join(absent)}: calibrate again")
        return found
    knots = found.knots
    if knots is None or len(knots.x) != len(knots.y) or knots.x != sorted(knots.x) or len(found.predictors) != 1:
        raise UserError(f"{path}: key 'knots': needs one predictor, x rising and y as long: calibrate again")
    return found
