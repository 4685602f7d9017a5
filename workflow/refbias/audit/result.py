"""From the states of two models to an entry of ``audit.json``."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from refbias.audit.sources import Source
from refbias.audit.stimuli import Stimuli
from refbias.config.audit import AuditSettings
from refbias.config.audit_result import (
    AnchorShift,
    AttributeContribution,
    AuditWarning,
    CheckpointResult,
    CollapseResult,
    Contributions,
    DtypeCheck,
    Finding,
    GroupResult,
    LayerMean,
    LayerResult,
    Level,
    MethodResult,
    ModuleDrift,
    OverallResult,
    TemplateContribution,
    Verdict,
)
from refbias.config.shift import Method
from refbias.evidence import (
    AuditEvidence,
    GroupEvidence,
    anchor_shifts,
    confirmed_groups,
    contributions,
    gather_evidence,
    moved_groups,
    verdict,
)
from refbias.metrics import Embeddings, chosen_methods, shift_rows
from refbias.stimuli.groups import CONTROL

# the gravest first: what is said of several checkpoints together
_GRAVITY: tuple[Level, ...] = ("clear", "control", "collapse", "weak", "undefined", "none")
_MOST_ANCHORS = 10


@dataclass(frozen=True)
class Measured:
    """What was measured of one checkpoint beside its states at the layer that dB is about."""

    weights_sha256: str
    tokenizers_differ: bool
    layers: tuple[list[LayerResult], list[LayerMean]] | None
    drift: list[ModuleDrift] | None
    dtype_check: DtypeCheck | None
    warnings: list[AuditWarning]


def checkpoint_result(
    source: Source,
    reference: Embeddings,
    audited: Embeddings,
    stimuli: Stimuli,
    settings: AuditSettings,
    measured: Measured,
) -> CheckpointResult:
    """Hold one audited model against the reference.

    Parameters
    ----------
    source
        The audited model.
    reference, audited
        The same sentences in both models.
    stimuli
        Those sentences.
    settings
        Methods and evidence.
    measured
        What else is known of it.

    Raises
    ------
    ValueError
        Naming model and argument, on states without a direction or of no use to a method.
    """
    control = CONTROL if CONTROL in reference.targets else None
    evidence = gather_evidence(
        reference, audited, settings.evidence, control=control, tokenizers_differ=measured.tokenizers_differ
    )
    found = verdict(evidence)
    layers, means = measured.layers or (None, None)
    shifts = anchor_shifts(reference, audited, _MOST_ANCHORS)
    anchors = stimuli.of_kind("anchor")
    return CheckpointResult(
        name=source.name,
        spec=source.spec,
        kind=source.kind,
        weights_sha256=measured.weights_sha256,
        step=source.step,
        verdict=Verdict(level=found.level, sentence=found.sentence, uncertainty=found.uncertainty),
        groups=[_group(group, evidence, stimuli) for group in evidence.groups],
        control=None if evidence.control is None else _group(evidence.control, evidence, stimuli),
        overall=OverallResult(**dataclasses.asdict(evidence.overall)),
        collapse=CollapseResult(**dataclasses.asdict(evidence.collapse)),
        methods=_methods(evidence, reference, audited, settings, control),
        layers=layers,
        layer_mean=means,
        contributions=_contributions(reference, audited, stimuli, control),
        anchors=[
            AnchorShift(
                group=group,
                id=anchors[shift.index].id,
                text=anchors[shift.index].text,
                change=shift.change,
                reference=shift.reference,
                audited=shift.audited,
            )
            for group, most in shifts.items()
            if group != control
            for shift in most
        ],
        adapter_drift=measured.drift,
        dtype_check=measured.dtype_check,
        warnings=[AuditWarning(code=item.code, sentence=item.sentence) for item in evidence.warnings]
        + measured.warnings,
    )


def _group(group: GroupEvidence, evidence: AuditEvidence, stimuli: Stimuli) -> GroupResult:
    finding: Finding = "none"
    if group in moved_groups(evidence):
        finding = "confirmed" if group in confirmed_groups(evidence) else "unconfirmed"
    return GroupResult(
        topic=stimuli.topics.get(group.group, ""),
        method=evidence.method,
        finding=finding,
        **dataclasses.asdict(group),
    )


def _methods(
    evidence: AuditEvidence,
    reference: Embeddings,
    audited: Embeddings,
    settings: AuditSettings,
    control: str | None,
) -> list[MethodResult]:
    """Return every method's value, the control's too; RR and SEAT with two-way intervals, the others over targets."""
    names = settings.chosen_methods()
    rows = _of_evidence(evidence)
    if "seat" in names:
        # the interval alone is wanted of it: the fewest draws of all else
        few = settings.evidence.model_copy(update={"n_permutations": 1000, "n_null": 200, "n_jackknife": 2})
        rows += _of_evidence(gather_evidence(reference, audited, few, control=control, method="seat"))
    rest: list[Method] = [name for name in names if name not in ("rr", "seat")]
    methods = chosen_methods(rest, procrustes_fit=settings.procrustes_fit, cka_kernel=settings.cka_kernel)
    found = shift_rows(reference, audited, methods, settings.evidence.n_resamples, settings.evidence.seed)
    free = {row["method"]: float(row["delta_b"]) for row in found if row["group"] == control}
    for row in found:
        values = {key: row[key] for key in ("method", "group", "delta_b", "ci_low", "ci_high")}
        if row["group"] != control and row["method"] in free:
            values["net_of_control"] = float(row["delta_b"]) - free[row["method"]]
        rows.append(MethodResult.model_validate(values))
    return rows


def _of_evidence(evidence: AuditEvidence) -> list[MethodResult]:
    """Return the values of a method that has evidence of its own, the control last."""
    return [
        MethodResult(
            method=evidence.method,
            group=group.group,
            delta_b=group.delta_b,
            ci_low=group.ci_low,
            ci_high=group.ci_high,
            net_of_control=group.net_of_control,
            net_ci_low=group.net_ci_low,
            net_ci_high=group.net_ci_high,
        )
        for group in (*evidence.groups, *((evidence.control,) if evidence.control else ()))
    ]


def _contributions(reference: Embeddings, audited: Embeddings, stimuli: Stimuli, control: str | None) -> Contributions:
    found = contributions(reference, audited, control=control)
    by_group: dict[str, list[str]] = {}
    for row in stimuli.of_kind("target"):
        by_group.setdefault(row.group, []).append(row.id.partition(".")[0])
    ids = next(iter(by_group.values()))
    # sentences of one group alone are no templates of all
    shared = found.templates is not None and all(own == ids for own in by_group.values())
    templates = list(zip(ids, found.templates.tolist(), strict=True)) if shared and found.templates is not None else []
    attributes = [
        AttributeContribution(id=row.id, kind=kind, text=row.text, delta=delta)
        for kind, values in (("positive", found.positive), ("negative", found.negative))
        for row, delta in zip(stimuli.of_kind(kind), values.tolist(), strict=True)
    ]
    return Contributions(
        templates=[
            TemplateContribution(id=name, text=stimuli.templates.get(name, ""), delta=delta)
            for name, delta in templates
        ],
        attributes=attributes,
    )


def overall_verdict(checkpoints: Sequence[CheckpointResult]) -> Verdict:
    """Return what is said of all audited models together: of several, the gravest verdict and where it is."""
    if len(checkpoints) == 1:
        return checkpoints[0].verdict
    first = min(checkpoints, key=lambda found: _GRAVITY.index(found.verdict.level))
    alike = sum(found.verdict.level == first.verdict.level for found in checkpoints)
    largest = max(
        (found for found in checkpoints if found.verdict.level == first.verdict.level),
        key=lambda found: abs(found.overall.delta_b or 0.0) if found.overall else 0.0,
    )
    uncertainty = largest.verdict.uncertainty
    if first.verdict.level not in ("none", "undefined"):
        uncertainty += (
            f" Each of the {len(checkpoints)} checkpoints was judged by itself and the gravest verdict is shown: that "
            "one of them moved by chance grows likelier with their number, and nothing corrects for it."
        )
    return Verdict(
        level=first.verdict.level,
        sentence=f"{alike} of {len(checkpoints)} checkpoints alike, the largest mean shift in {largest.name}: "
        f"{largest.verdict.sentence}",
        uncertainty=uncertainty,
    )
