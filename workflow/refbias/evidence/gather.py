"""Gather the evidence beside every group's dB from the embeddings of a reference and an audited model."""

import math
from dataclasses import dataclass, replace

import numpy as np

from refbias.config.evidence import EvidenceSettings
from refbias.evidence.anchors import half_shifts
from refbias.evidence.caution import Facts, warnings_for
from refbias.evidence.collapse import beyond_scale, collapse_measures
from refbias.evidence.interval import (
    AttributeDraws,
    Bounds,
    Redrawn,
    Studentised,
    attribute_draws,
    interval,
    joint_intervals,
    redraw,
    studentised,
    target_draws,
)
from refbias.evidence.null import neutral_changes, null_draws, percentile_of
from refbias.evidence.pairs import Pairs, pair_matrices
from refbias.evidence.permutation import Labels, holm, label_draws, permutation_p
from refbias.evidence.records import AuditEvidence, CollapseMeasures, GroupEvidence, Method, Overall
from refbias.metrics.shift import Embeddings
from refbias.metrics.vectors import FloatArray

NAN = float("nan")


def gather_evidence(
    reference: Embeddings,
    audited: Embeddings,
    settings: EvidenceSettings,
    *,
    control: str | None = "control",
    method: Method = "rr",
    tokenizers_differ: bool = False,
) -> AuditEvidence:
    """Compute dB of every group with all that speaks for and against it.

    Parameters
    ----------
    reference, audited : Embeddings
        The same sentences in both models, in the same order; widths may differ between the models.
    settings : EvidenceSettings
        Numbers of draws, level and seed.
    control : str or None
        Name of the group-free control among the targets; None if there is none.
    method : str
        ``rr`` or ``seat``.
    tokenizers_differ : bool
        Whether the models split text into tokens differently: then a warning says so.

    Returns
    -------
    AuditEvidence
        The groups in the reference's order. Where nothing changed, dB is 0, every p is 1 and there is no warning but
        those about the stimuli.

    Raises
    ------
    ValueError
        Naming model and argument, on bad input, when the models hold different sentences, when the control is not
        among the targets, or when there is no group beside it.
    """
    if control is not None and control not in reference.targets:
        raise ValueError(f"control: {control!r} is not among the targets; pass None where there is no control")
    pairs = pair_matrices(reference, audited, method)
    names = [group for group in pairs.groups if group != control]
    if not names:
        raise ValueError("targets: no group beside the control")
    measures = collapse_measures(pairs)
    tests = _tests(pairs, measures, names, control, settings)
    ranges = _intervals(pairs, names, control, settings)
    spreads = _spreads(pairs, settings)
    found = {
        group: _evidence(pairs, group, tests, ranges, spreads)
        for group in (*names, *((control,) if control is not None else ()))
    }
    evidence = AuditEvidence(
        method=method,
        groups=tuple(found[name] for name in names),
        control=None if control is None else found[control],
        overall=Overall(*ranges.overall),
        collapse=measures,
        warnings=(),
        n_positive=pairs.n_positive,
        n_negative=pairs.change.shape[1] - pairs.n_positive,
        n_anchors=pairs.models[0].attributes.shape[1] if method == "rr" else 0,
        n_permutations=settings.n_permutations,
        level=settings.level,
    )
    n_neutral = 0 if pairs.models[0].neutral is None else len(pairs.models[0].neutral)
    facts = Facts(tokenizers_differ, n_neutral)
    return replace(evidence, warnings=warnings_for(evidence, facts))


@dataclass(frozen=True)
class _Tests:
    """p-values by group, and dB without a common change of scale."""

    plain: dict[str, float]
    adjusted: dict[str, float]
    beyond_scale: dict[str, float]
    remainder: dict[str, float]


@dataclass(frozen=True)
class _Ranges:
    """Intervals by group, of dB, of dB net of the control alone and for all at once, and of the mean over groups."""

    own: dict[str, Bounds]
    net: dict[str, Bounds]
    joint: dict[str, Bounds]
    overall: Bounds


@dataclass(frozen=True)
class _Spreads:
    """Percentile in the random-attribute null and range over halves of the anchors, by group."""

    percentile: dict[str, float]
    halves: dict[str, tuple[float, float]]


def _group_means(change: FloatArray, pairs: Pairs, names: list[str]) -> FloatArray:
    """Mean change of every attribute (rows) in every group (columns)."""
    return np.stack([change[pairs.groups[name]].mean(axis=0) for name in names], axis=1)


def _shifts(change: FloatArray, pairs: Pairs, names: list[str]) -> FloatArray:
    """Return dB of every group from a matrix of changes."""
    means = _group_means(change, pairs, names)
    shifts: FloatArray = means[: pairs.n_positive].mean(axis=0) - means[pairs.n_positive :].mean(axis=0)
    return shifts


def _tests(
    pairs: Pairs, measures: CollapseMeasures, names: list[str], control: str | None, settings: EvidenceSettings
) -> _Tests:
    n_negative = pairs.change.shape[1] - pairs.n_positive
    labels = label_draws(pairs.n_positive, n_negative, settings.n_permutations, settings.seed)
    families = [names] if control is None else [names, [control]]
    plain: dict[str, float] = {}
    adjusted: dict[str, float] = {}
    beyond: dict[str, float] = {}
    remainder: dict[str, float] = {}
    rests = beyond_scale(pairs, measures)
    for family in families:

        def p_values(change: FloatArray, family: list[str] = family, labels: Labels = labels) -> FloatArray:
            return permutation_p([change[pairs.groups[name]] for name in family], pairs.n_positive, labels)

        own = p_values(pairs.change)
        rest = [holm(own), *(holm(p_values(change)) for change in rests)]
        shifts = np.stack([_shifts(change, pairs, family) for change in (pairs.change, *rests)])
        plain |= dict(zip(family, own.tolist(), strict=True))
        adjusted |= dict(zip(family, rest[0].tolist(), strict=True))
        beyond |= dict(zip(family, np.max(rest, axis=0).tolist(), strict=True))
        agree = (np.sign(shifts) == np.sign(shifts[-1])).all(axis=0)
        nearest = np.sign(shifts[-1]) * np.abs(shifts).min(axis=0)
        remainder |= dict(zip(family, np.where(agree, nearest, 0.0).tolist(), strict=True))
    return _Tests(plain, adjusted, beyond, remainder)


def _intervals(pairs: Pairs, names: list[str], control: str | None, settings: EvidenceSettings) -> _Ranges:
    """Intervals on common draws: of attributes for all, of targets for groups of one size, the control apart."""
    n_negative = pairs.change.shape[1] - pairs.n_positive
    attributes = attribute_draws(pairs.n_positive, n_negative, settings.n_resamples, settings.seed)
    small = min(pairs.n_positive, n_negative) < 2
    drawn: dict[int, FloatArray] = {}

    def draw(change: FloatArray) -> Redrawn:
        if len(change) not in drawn:
            drawn[len(change)] = target_draws(len(change), settings.n_resamples, settings.seed)
        return redraw(change, drawn[len(change)], attributes)

    def bounds(found: Studentised, *sizes: int) -> Bounds:
        few = small or min(sizes) < 2
        return Bounds(found.value, NAN, NAN) if few else joint_intervals([found], settings.level)[0]

    changes = {group: pairs.change[rows] for group, rows in pairs.groups.items()}
    own: dict[str, Bounds] = {}
    nothing = Bounds(NAN, NAN, NAN)
    net, joint = dict.fromkeys(changes, nothing), dict.fromkeys(changes, nothing)
    base: Redrawn | None = None
    n_control = 0
    if control is not None:
        # no template of the control is one of the groups'
        n_control = len(changes[control])
        targets = target_draws(n_control, settings.n_resamples, settings.seed, stream=1)
        base = redraw(changes[control], targets, attributes)
        own[control] = bounds(studentised([(1.0, base)], attributes), n_control)
    family: dict[str, Studentised] = {}
    for name in names:
        block, n_targets = draw(changes[name]), len(changes[name])
        own[name] = bounds(studentised([(1.0, block)], attributes), n_targets)
        if base is not None:
            found = studentised([(1.0, block), (-1.0, base)], attributes)
            net[name] = joint[name] = bounds(found, n_targets, n_control)
            if not math.isnan(net[name].low):
                family[name] = found
    joint |= dict(zip(family, joint_intervals(list(family.values()), settings.level), strict=True))
    return _Ranges(own, net, joint, _overall([changes[name] for name in names], attributes, settings))


def _overall(changes: list[FloatArray], attributes: AttributeDraws, settings: EvidenceSettings) -> Bounds:
    """Interval of the mean over groups; groups of one size share their templates, others are drawn apart."""
    n_targets = {len(change) for change in changes}
    if len(n_targets) == 1:
        changes = [np.mean(changes, axis=0)]
    blocks: list[tuple[float, Redrawn]] = []
    for number, change in enumerate(changes):
        targets = target_draws(len(change), settings.n_resamples, settings.seed, stream=2 + number)
        blocks.append((1 / len(changes), redraw(change, targets, attributes)))
    found = interval(blocks, attributes, settings.level)
    small = min(attributes.positive.shape[1], attributes.negative.shape[1], *n_targets) < 2
    return Bounds(found.value, NAN, NAN) if small else found


def _spreads(pairs: Pairs, settings: EvidenceSettings) -> _Spreads:
    n_negative = pairs.change.shape[1] - pairs.n_positive
    names = list(pairs.groups)
    percentile, halves = dict.fromkeys(names, NAN), dict.fromkeys(names, (NAN, NAN))
    changes = neutral_changes(pairs)
    draws = None
    if changes is not None:
        draws = null_draws(changes, pairs.n_positive, n_negative, settings.n_null, settings.seed)
    if draws is not None:
        percentile = dict(zip(names, percentile_of(_shifts(pairs.change, pairs, names), draws).tolist(), strict=True))
    found = half_shifts(pairs, settings.n_jackknife, settings.seed)
    if found is not None:
        lows, highs = found.min(axis=0).tolist(), found.max(axis=0).tolist()
        halves = dict(zip(names, zip(lows, highs, strict=True), strict=True))
    return _Spreads(percentile, halves)


def _evidence(pairs: Pairs, group: str, tests: _Tests, ranges: _Ranges, spreads: _Spreads) -> GroupEvidence:
    rows, p = pairs.groups[group], pairs.n_positive
    change = pairs.change[rows].mean(axis=0)
    s_plus, s_minus = float(change[:p].mean()), float(change[p:].mean())
    delta_b = s_plus - s_minus
    spread = float(change.std(ddof=1))
    reference = pairs.reference[rows]
    b_reference = float(reference[:, :p].mean() - reference[:, p:].mean())
    net = ranges.net[group]
    return GroupEvidence(
        group=group,
        n_targets=rows.stop - rows.start,
        delta_b=delta_b,
        ci_low=ranges.own[group].low,
        ci_high=ranges.own[group].high,
        p_value=tests.plain[group],
        p_holm=tests.adjusted[group],
        beyond_scale=tests.remainder[group],
        p_beyond_scale=tests.beyond_scale[group],
        s_plus=s_plus,
        s_minus=s_minus,
        b_reference=b_reference,
        b_audited=b_reference + delta_b,
        net_of_control=net.value,
        net_ci_low=net.low,
        net_ci_high=net.high,
        net_joint_low=ranges.joint[group].low,
        net_joint_high=ranges.joint[group].high,
        null_percentile=spreads.percentile[group],
        effect_size=delta_b / spread if spread > 0 else 0.0,
        jackknife_low=spreads.halves[group][0],
        jackknife_high=spreads.halves[group][1],
    )
