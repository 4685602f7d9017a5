"""The verdict on one audited model, by rules that can be written down.

With alpha = 1 - level, a group *moved* if its p-value is at most alpha after Holm's correction, as dB stands and with a
common change of scale taken off. A move is *confirmed* if besides

- the interval over targets and attributes leaves out 0,
- so does the interval net of the control, on the same side (where there is a control),
- its ``|dB|`` lies above the level's share of the random-attribute draws (where there are any),
- where a collapse or an expansion was found, what remains beyond it is significant still (as for every group).

| level | rule, the first that holds |
|---|---|
| undefined | no interval can be had, or no group could be significant with so few attributes |
| clear | a group's move is confirmed |
| collapse | a collapse or expansion was found, or all significant groups are explained by a change of scale |
| control | groups moved, none beyond the control, and the control moved by itself (p at most alpha) |
| weak | groups moved, none is confirmed |
| none | nothing of this |
"""

import math

from refbias.evidence.caution import scale_change, shortened
from refbias.evidence.records import AuditEvidence, GroupEvidence, Level, Verdict


def has_moved(group: GroupEvidence, level: float) -> bool:
    """Tell whether a group's dB is significant over groups, and not by a common change of scale.

    Parameters
    ----------
    group : GroupEvidence
        The group.
    level : float
        1 - alpha.

    Returns
    -------
    bool
        See the module.
    """
    return max(group.p_holm, group.p_beyond_scale) <= 1 - level + 1e-12


def is_beyond_control(group: GroupEvidence) -> bool:
    """Tell whether a group's dB net of the control leaves out 0 on dB's own side; True without a control.

    Parameters
    ----------
    group : GroupEvidence
        The group.

    Returns
    -------
    bool
        False also where the control has too few sentences for an interval.
    """
    if math.isnan(group.net_of_control):
        return True
    return group.net_ci_high < 0 if group.delta_b < 0 else group.net_ci_low > 0


def is_confirmed(group: GroupEvidence, level: float) -> bool:
    """Tell whether a group moved and everything else says so too.

    Parameters
    ----------
    group : GroupEvidence
        The group.
    level : float
        1 - alpha.

    Returns
    -------
    bool
        See the module.
    """
    excludes_zero = group.ci_low > 0 or group.ci_high < 0
    beyond_null = math.isnan(group.null_percentile) or group.null_percentile >= 100 * level
    return has_moved(group, level) and excludes_zero and is_beyond_control(group) and beyond_null


def verdict(evidence: AuditEvidence) -> Verdict:
    """Judge one audited model over all its groups.

    Parameters
    ----------
    evidence : AuditEvidence
        Of `refbias.evidence.gather_evidence`.

    Returns
    -------
    Verdict
        Level, one sentence, and one on how sure it is.
    """
    level = _level(evidence)
    return Verdict(level, _sentence(evidence, level), _uncertainty(evidence))


def _level(evidence: AuditEvidence) -> Level:
    level = evidence.level
    groups = evidence.groups
    codes = {warning.code for warning in evidence.warnings}
    if all(math.isnan(group.ci_low) for group in groups) or "no_power" in codes:
        return "undefined"
    if any(is_confirmed(group, level) for group in groups):
        return "clear"
    moved = [group for group in groups if has_moved(group, level)]
    explained = any(group.p_holm <= 1 - level for group in groups) and not moved
    if scale_change(evidence.collapse) or explained:
        return "collapse"
    control = evidence.control
    if moved and control is not None and control.p_value <= 1 - level and not any(map(is_beyond_control, moved)):
        return "control"
    return "weak" if moved else "none"


def _named(groups: list[GroupEvidence]) -> str:
    ordered = sorted(groups, key=lambda group: -abs(group.delta_b))
    return shortened([f"{group.group} ({group.delta_b:+.4g})" for group in ordered])


def _directions(groups: list[GroupEvidence]) -> str:
    towards = sum(group.delta_b < 0 for group in groups)
    if towards == len(groups):
        return "towards the negative attributes"
    if towards == 0:
        return "towards the positive attributes"
    return f"({towards} towards the negative, {len(groups) - towards} towards the positive attributes)"


def _sentence(evidence: AuditEvidence, level: Level) -> str:
    n = len(evidence.groups)
    moved = [group for group in evidence.groups if has_moved(group, evidence.level)]
    confirmed = [group for group in moved if is_confirmed(group, evidence.level)]
    if level == "undefined":
        return "No verdict: there are too few sentences for an interval or for a test over all groups."
    if level == "clear":
        return f"{len(confirmed)} of {n} groups moved {_directions(confirmed)}, beyond chance and control: dB of {_named(confirmed)}."
    if level == "collapse":
        measures = evidence.collapse
        verb = (
            "drew apart"
            if scale_change(measures) == "expansion" or (scale_change(measures) is None and measures.slope > 1)
            else "drew together"
        )
        return (
            f"The audited model's sentences {verb} as a whole (distances {measures.distance_ratio:.2f} times, associations "
            f"{measures.slope:.2f} times the reference's): no group moved beyond what this explains, so dB is no sign of bias here."
        )
    if level == "control":
        return f"{len(moved)} of {n} groups moved {_directions(moved)}, but so did the group-free control: the shift is not about groups."
    if level == "weak":
        return f"{len(moved)} of {n} groups moved {_directions(moved)}, but not every check confirms it: dB of {_named(moved)}."
    return f"No group of {n} moved beyond what chance among the attribute sentences explains."


def _uncertainty(evidence: AuditEvidence) -> str:
    overall, level = evidence.overall, evidence.level
    share = f"{100 * level:.4g} %"
    if math.isnan(overall.ci_low):
        mean = f"Mean dB {overall.delta_b:+.4g}, without an interval"
    else:
        mean = f"Mean dB {overall.delta_b:+.4g}, {share} interval {overall.ci_low:+.4g} to {overall.ci_high:+.4g} over target and attribute sentences"
    least = min(group.p_holm for group in evidence.groups)
    return (
        f"{mean}; smallest p over attribute labels {least:.2g} after correction for {len(evidence.groups)} groups; "
        "not covered: other training seeds, anchors or kinds of sentences."
    )
