"""Thresholds that turn an audit into a check: which groups exceed them.

An interval is one group's own: with a threshold of 0 and 24 groups that did not move, more than one such check in three
fails by chance (of 95 % intervals, below 0 alone). Thresholds away from 0 mean what they say.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from refbias.errors import UserError
from refbias.evidence.records import GroupEvidence

Quantity = Literal["ci", "net", "probability"]
_SPEC = re.compile(r"\s*(ci|net|probability|\|ci\||\|net\|)\s*(<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True)
class FailOn:
    """A threshold that a group may exceed.

    Attributes
    ----------
    quantity : str
        ``ci``: the whole interval of dB lies beyond the threshold; ``net``: that of dB net of the control;
        ``probability``: the calibrated probability.
    either_side : bool
        Whether a move in either direction counts.
    below : bool
        Whether beyond means below.
    threshold : float
        In units of the quantity.
    """

    quantity: Quantity
    either_side: bool
    below: bool
    threshold: float


def parse_fail_on(spec: str) -> FailOn:
    """Read a threshold.

    Parameters
    ----------
    spec : str
        ``ci<-0.05`` (the whole interval is below -0.05: a move towards the negative attributes), ``ci>0.05``,
        ``|ci|>0.05`` (beyond 0.05 on either side), the same with ``net``, or ``probability>0.8``.

    Returns
    -------
    FailOn
        The threshold.

    Raises
    ------
    UserError
        If it is none of these, or the threshold makes no sense for its quantity.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"--fail-on: {spec!r} is no threshold: write ci<-0.05, |net|>0.05 or probability>0.8")
    name, sign, number = match.groups()
    threshold = float(number)
    either, below = name.startswith("|"), sign == "<"
    if not math.isfinite(threshold):
        raise UserError(f"--fail-on: {spec!r}: the threshold must be a finite number")
    if either and (below or threshold < 0):
        raise UserError(f"--fail-on: {spec!r}: a size is compared with > and a threshold of at least 0")
    if name == "probability" and (below or not 0 <= threshold < 1):
        raise UserError(f"--fail-on: {spec!r}: a probability is compared with > and a threshold from 0 up to 1")
    quantity: Quantity = "probability" if name == "probability" else "net" if "net" in name else "ci"
    return FailOn(quantity, either, below, threshold)


def exceeded_groups(
    rule: FailOn, groups: Iterable[GroupEvidence], probabilities: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """Name the groups that exceed a threshold.

    Parameters
    ----------
    rule : FailOn
        The threshold.
    groups : iterable of GroupEvidence
        Of one audited model.
    probabilities : mapping of str to float, or None
        Calibrated probability of each group, if there is a calibration.

    Returns
    -------
    tuple of str
        In the order given.

    Raises
    ------
    UserError
        If the quantity was not computed: no calibration, no control, or too few sentences for an interval.
    """
    return tuple(group.group for group in groups if _exceeds(rule, group, probabilities))


def _exceeds(rule: FailOn, group: GroupEvidence, probabilities: Mapping[str, float] | None) -> bool:
    if rule.quantity == "probability":
        if probabilities is None or group.group not in probabilities:
            raise UserError(
                f"--fail-on: no calibrated probability for {group.group}: give a calibration, or a threshold on ci"
            )
        return probabilities[group.group] > rule.threshold
    low, high = (group.net_ci_low, group.net_ci_high) if rule.quantity == "net" else (group.ci_low, group.ci_high)
    if math.isnan(low) or math.isnan(high):
        missing = "a control with two sentences or more" if rule.quantity == "net" else "two targets and attributes"
        raise UserError(f"--fail-on: {group.group} has no {rule.quantity} interval, which needs {missing}")
    if rule.either_side:
        return low > rule.threshold or high < -rule.threshold
    return high < rule.threshold if rule.below else low > rule.threshold
