"""What an audit compares and how: the section ``audit`` of a configuration, and the command line's options."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from refbias.config.base import Device, Strict, refuse_half
from refbias.config.evidence import EvidenceSettings
from refbias.config.represent import RepresentSettings
from refbias.config.shift import CkaKernel, Method, ProcrustesFit
from refbias.errors import UserError

AuditDtype = Annotated[Literal["auto", "float32", "bfloat16"], BeforeValidator(refuse_half)]
LayerMap = Literal["auto", "all", "none"]
CROSS_FAMILY_METHODS: tuple[Method, ...] = ("rr", "cka_drift")
"""Methods that need neither one tokenizer nor one width."""
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
# the text goes on to the next sign with a number and a star behind it; a number may have a sign of its own (A+-0.5*B)
_TERM = re.compile(
    rf"\s*(?P<sign>[-+]?)\s*(?P<weight>[-+]?{_NUMBER})\s*\*\s*(?P<text>.+?)\s*(?=[-+]\s*[-+]?{_NUMBER}\s*\*|$)"
)
_QUANTITY = r"(?P<quantity>dB|\|dB\||ci|\|ci\||net|\|net\||p|probability|percentile)"
_CONDITION = re.compile(_QUANTITY + r"\s*(?P<sign>[<>])\s*(?P<value>[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)")

_RANGES = {"p": (0.0, 1.0), "probability": (0.0, 1.0), "percentile": (0.0, 100.0), "size": (0.0, math.inf)}


def weighted_terms(spec: str) -> list[tuple[float, str]]:
    """Return weight and model of every term of ``0.3*A+0.7*B`` or ``1.5*B-0.5*A``; nothing where it is no such sum."""
    found: list[tuple[float, str]] = []
    at = 0
    while at < len(spec):
        match = _TERM.match(spec, at)
        if match is None or (found and not match["sign"]):
            return []
        found.append((float(match["weight"]) * (-1 if match["sign"] == "-" else 1), match["text"]))
        at = match.end()
    return found


@dataclass(frozen=True)
class Condition:
    """One comparison of a group's quantity with a number."""

    quantity: str
    sign: Literal["<", ">"]
    value: float


def parse_condition(text: str) -> tuple[Condition, ...]:
    """Return the comparisons of ``dB<-0.02 and p<0.05``; all must hold in one group.

    Raises
    ------
    UserError
        If the text is no such thing; says how to write it.
    """
    found = []
    for part in re.split(r"\s+and\s+", text.strip()):
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise UserError(
                f"--fail-on {text!r}: write a quantity (dB, |dB|, ci, |ci|, net, |net|, p, percentile, probability), "
                "< or >, and a number, such as 'ci<-0.02' or 'dB<-0.02 and p<0.05'"
            )
        sign: Literal["<", ">"] = "<" if match["sign"] == "<" else ">"
        if match["quantity"].startswith("|") and sign == "<":
            raise UserError(f"--fail-on {text!r}: {match['quantity']} is a size: compare it with '>'")
        found.append(Condition(match["quantity"], sign, _sensible(match["quantity"], float(match["value"]), text)))
    return tuple(found)


def _sensible(quantity: str, value: float, text: str) -> float:
    """Return a number that some groups may exceed and others not, else refuse it: such a check could not fail."""
    low, high = _RANGES.get("size" if quantity.startswith("|") else quantity, (-math.inf, math.inf))
    if not math.isfinite(value) or not low <= value <= high:
        raise UserError(f"--fail-on {text!r}: {quantity} is compared with a finite number from {low:g} to {high:g}")
    return value


class AuditStimuli(Strict):
    """Which sentences an audit uses: a shipped pack, a pack's folder, or single files of one's own."""

    pack: str | None = Field(default=None, description="Name of a shipped pack, or a folder in its layout.")
    groups_file: str | None = Field(default=None, description="TSV of target groups; empty = shipped.")
    targets_file: str | None = Field(default=None, description="TSV of target templates; empty = shipped.")
    attributes_file: str | None = Field(default=None, description="TSV of attribute sentences; empty = shipped.")
    anchors_file: str | None = Field(default=None, description="TSV of anchors; empty = shipped.")
    control_file: str | None = Field(default=None, description="TSV of control targets; empty = shipped.")
    targets: int | None = Field(default=None, ge=1, description="First n target templates; empty = all.")
    attributes: int | None = Field(default=None, ge=1, description="First n attributes of each valence; empty = all.")
    anchors: int | None = Field(default=None, ge=1, description="First n anchors; empty = all.")
    control: int | None = Field(default=None, ge=1, description="First n control targets; empty = all.")

    @model_validator(mode="after")
    def _one_source(self) -> "AuditStimuli":
        files = [name for name in type(self).model_fields if name.endswith("_file") and getattr(self, name)]
        if self.pack and files:
            raise ValueError(f"a pack holds all files: leave out either `pack` or `{files[0]}`")
        return self


class AuditSettings(Strict):
    """One audit: a reference, checkpoints held against it, and how."""

    reference: str = Field(
        min_length=1,
        description="Hub id (`owner/name` or `owner/name@revision`), directory, adapter directory, `file.gguf`, "
        "`0.3*A+0.7*B`, `1.5*B-0.5*A`, or `packaged:gemma3-270m`.",
    )
    audited: list[str] = Field(
        min_length=1, description="As `reference`; a folder of `checkpoint-*` folders becomes a curve."
    )
    stimuli: AuditStimuli = Field(default=AuditStimuli(), description="Sentences.")
    represent: RepresentSettings = Field(default=RepresentSettings(), description="Layer, pooling and batching.")
    layer_map: LayerMap = Field(
        default="auto", description="dB at every layer: `all`, `none`, or `auto` = where its states fit in 1 GB."
    )
    dtype: AuditDtype = Field(
        default="auto", description="`auto`: bfloat16 where the processor multiplies it natively, else float32."
    )
    device: Device = Field(default="auto", description="`auto`: CUDA, else MPS, else CPU.")
    dtype_check: bool = Field(
        default=True, description="Under bfloat16, measure the change of dB against float32 on a part of the sentences."
    )
    methods: list[Method] | None = Field(
        default=None, min_length=1, description="Methods compared; empty = all that the pair of models allows."
    )
    procrustes_fit: ProcrustesFit = Field(default="anchors", description="As `shift.procrustes_fit`.")
    cka_kernel: CkaKernel = Field(default="linear", description="As `shift.cka_kernel`.")
    evidence: EvidenceSettings = Field(default=EvidenceSettings(), description="Intervals, tests and their seed.")
    cross_family: bool = Field(
        default=False, description="Allow another tokenizer, vocabulary or width: RR and CKA alone."
    )
    any_base: bool = Field(
        default=False, description="Accept an adapter that names another base; its shapes must still fit."
    )
    calibration: str | None = Field(default=None, description="Calibration that turns dB into a probability.")
    fail_on: list[str] = Field(
        default=[],
        description="Conditions on any group that make the audit end with exit code 1; the target `audit` then fails "
        "too, and keeps the result.",
    )
    memory_mb: int | None = Field(
        default=None, ge=64, description="Activations kept in memory, in MB; beyond it they go to disk; empty = free."
    )
    spill_dir: str | None = Field(
        default=None, description="Folder for what is beyond `memory_mb`; empty = the system's for temporary files."
    )
    keep_embeddings: bool = Field(default=False, description="Write the embeddings into the output folder too.")
    use_cache: bool = Field(default=True, description="Keep and use the reference's embeddings between audits.")

    @field_validator("fail_on")
    @classmethod
    def _conditions(cls, value: list[str]) -> list[str]:
        for text in value:
            try:
                parse_condition(text)
            except UserError as error:
                raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _possible(self) -> "AuditSettings":
        if self.methods is not None:
            if "rr" not in self.methods:
                raise ValueError("methods: rr is what the evidence is about: add it")
            barred = [name for name in self.methods if name not in CROSS_FAMILY_METHODS]
            if self.cross_family and barred:
                raise ValueError(
                    f"methods: {barred[0]} needs one width and tokenizer: with cross_family use rr, cka_drift"
                )
        if self.calibration is None and any("probability" in text for text in self.fail_on):
            raise ValueError("fail_on: a probability needs a calibration: name its file")
        if self.spill_dir is not None and self.memory_mb is None:
            raise ValueError("spill_dir: without memory_mb nothing goes to disk: say how much may stay in memory")
        return self

    def chosen_methods(self) -> list[Method]:
        """Return the methods, the paper's first."""
        if self.methods is not None:
            return list(self.methods)
        return list(CROSS_FAMILY_METHODS) if self.cross_family else ["rr", "seat", "procrustes_seat", "cka_drift"]
