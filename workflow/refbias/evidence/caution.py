"""Warnings in words: when the numbers of an audit do not mean what they seem to."""

import math
from dataclasses import dataclass
from statistics import median

from refbias.evidence.records import AuditEvidence, AuditWarning, CollapseMeasures, WarningCode

# A quarter of the distance lost (or a third gained) between sentences or between the centroids of the attributes:
# a choice of ours, not yet held against real fine-tunings.
COLLAPSED = 0.75
FEWEST_TARGETS = 8
FEWEST_ATTRIBUTES = 20


@dataclass(frozen=True)
class Facts:
    """What warnings need beside the evidence.

    Attributes
    ----------
    tokenizers_differ : bool
        Whether the models split text differently.
    n_neutral : int
        Neutral sentences at hand.
    """

    tokenizers_differ: bool
    n_neutral: int


def scale_change(measures: CollapseMeasures) -> WarningCode | None:
    """Name a change of the common scale that is too large to be passed over.

    Parameters
    ----------
    measures : CollapseMeasures
        Of the pair of models.

    Returns
    -------
    str or None
        ``collapse`` where a ratio is below 0.75, else ``expansion`` where one is above 1 / 0.75.
    """
    ratios = [ratio for ratio in (measures.distance_ratio, measures.centroid_ratio) if not math.isnan(ratio)]
    if any(ratio < COLLAPSED for ratio in ratios):
        return "collapse"
    return "expansion" if any(ratio > 1 / COLLAPSED for ratio in ratios) else None


def smallest_p(n_positive: int, n_negative: int, n_permutations: int) -> float:
    """Smallest two-sided p-value that divisions of so many attributes can give.

    Parameters
    ----------
    n_positive, n_negative : int
        Attribute sentences.
    n_permutations : int
        Divisions drawn at most.

    Returns
    -------
    float
        One over the number of divisions; in exact enumeration of equal sets, two over it.
    """
    divisions = math.comb(n_positive + n_negative, n_positive)
    if divisions > n_permutations:
        return 1 / (n_permutations + 1)
    return min(1.0, (2 if n_positive == n_negative else 1) / divisions)


def can_reject(evidence: AuditEvidence) -> bool:
    """Tell whether any group could be significant after Holm's correction at all.

    Parameters
    ----------
    evidence : AuditEvidence
        For the numbers of sentences, groups and permutations, and the level.

    Returns
    -------
    bool
        Whether the smallest p-value times the number of groups is at most 1 - level.
    """
    least = smallest_p(evidence.n_positive, evidence.n_negative, evidence.n_permutations)
    return least * len(evidence.groups) <= 1 - evidence.level + 1e-12


def warnings_for(evidence: AuditEvidence, facts: Facts) -> tuple[AuditWarning, ...]:
    """Collect the warnings of one audited model.

    Parameters
    ----------
    evidence : AuditEvidence
        Without warnings yet.
    facts : Facts
        What else they need.

    Returns
    -------
    tuple of AuditWarning
        Each code at most once, the gravest first.
    """
    found = [
        _scale(evidence),
        _control(evidence),
        _anchors(evidence),
        _sentences(evidence),
        _neutral(evidence, facts),
    ]
    if facts.tokenizers_differ:
        text = (
            "The models split text into tokens differently, so their means over tokens weigh words differently: part "
            "of every shift may come from the tokenizers."
        )
        found.insert(0, AuditWarning("tokenizers_differ", text))
    return tuple(warning for warning in found if warning is not None)


def _scale(evidence: AuditEvidence) -> AuditWarning | None:
    code = scale_change(evidence.collapse)
    if code is None:
        return None
    measures = evidence.collapse
    parts = [f"distances between sentences are {measures.distance_ratio:.2f} times the reference's"]
    if not math.isnan(measures.centroid_ratio):
        parts.append(
            f"those between the centroids of positive and negative attributes {measures.centroid_ratio:.2f} times"
        )
    verb = "drew together" if code == "collapse" else "drew apart"
    text = (
        f"The audited model's sentences {verb} as a whole ({', '.join(parts)}): biases change in size with them, "
        "without any move towards either set of attributes."
    )
    return AuditWarning(code, text)


def _control(evidence: AuditEvidence) -> AuditWarning | None:
    control = evidence.control
    if control is None or control.p_value > 1 - evidence.level or control.delta_b == 0:
        return None
    # groups that stay where they were are no measure of how far groups move
    moved = [group for group in evidence.groups if group.p_holm <= 1 - evidence.level]
    typical = median(abs(group.delta_b) for group in moved or evidence.groups)
    if abs(control.delta_b) < typical:
        return None
    text = (
        f"The group-free control moved as much as the groups (dB {control.delta_b:+.4g}, median size over "
        f"{'the significant' if moved else 'all'} groups {typical:.4g}): most of the shift is not about groups."
    )
    return AuditWarning("control_moved", text)


def _anchors(evidence: AuditEvidence) -> AuditWarning | None:
    unsure = [
        group.group
        for group in evidence.groups
        if group.p_holm <= 1 - evidence.level and group.jackknife_low <= 0 <= group.jackknife_high
    ]
    if not unsure:
        return None
    text = (
        f"Halves of the anchors disagree about the direction of dB in {len(unsure)} of {len(evidence.groups)} groups "
        f"({shortened(unsure)}): more or other anchors may change the result."
    )
    return AuditWarning("anchors_disagree", text)


def _sentences(evidence: AuditEvidence) -> AuditWarning | None:
    targets = min(group.n_targets for group in evidence.groups)
    attributes = min(evidence.n_positive, evidence.n_negative)
    enough = targets >= FEWEST_TARGETS and attributes >= FEWEST_ATTRIBUTES
    if enough and can_reject(evidence):
        return None
    text = (
        f"Few sentences (at least {targets} targets a group, {evidence.n_positive} positive and {evidence.n_negative} "
        "negative attributes): intervals are rough"
    )
    if not can_reject(evidence):
        text += ", and no group can reach significance after the correction for the number of groups"
    return AuditWarning("few_sentences", f"{text}.")


def _neutral(evidence: AuditEvidence, facts: Facts) -> AuditWarning | None:
    wanted = evidence.n_positive + evidence.n_negative
    if facts.n_neutral >= wanted:
        return None
    text = (
        f"There are {facts.n_neutral} neutral sentences, too few to draw {wanted} pseudo-attributes from: the "
        "random-attribute null is missing."
    )
    return AuditWarning("few_anchors", text)


def shortened(names: list[str], most: int = 5) -> str:
    """List names, the first few in full.

    Parameters
    ----------
    names : list of str
        At least one.
    most : int
        Names written out.

    Returns
    -------
    str
        Separated by commas.
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
