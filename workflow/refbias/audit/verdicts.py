"""``--fail-on``: which groups of a result meet a condition."""

from refbias.config.audit import Condition, parse_condition
from refbias.config.audit_result import AuditResult, GroupResult
from refbias.errors import UserError


def exceeded(result: AuditResult, conditions: list[str]) -> list[tuple[str, str, str]]:
    """Return (condition, checkpoint, group) of every group that meets a condition; the control is none of them.

    ``ci<-0.02`` holds where the whole interval lies below -0.02, ``|ci|>0.02`` where it lies beyond 0.02 on
    either side; ``net`` is the same of dB net of the control. ``p`` is Holm's.

    Raises
    ------
    UserError
        If a condition asks for what was not computed.
    """
    found = []
    for text in conditions:
        parts = parse_condition(text)
        for checkpoint in result.checkpoints:
            for group in checkpoint.groups:
                if all(_holds(part, group, text) for part in parts):
                    found.append((text, checkpoint.name, group.group))
    return found


def _holds(condition: Condition, group: GroupResult, text: str) -> bool:
    low, high = _range(condition.quantity.strip("|"), group)
    if low is None or high is None:
        raise UserError(f"--fail-on {text!r}: {condition.quantity} of group {group.group} was not computed")
    if condition.quantity == "|dB|":
        return abs(low) > condition.value
    if condition.quantity.startswith("|"):
        return low > condition.value or high < -condition.value
    return low > condition.value if condition.sign == ">" else high < condition.value


def _range(quantity: str, group: GroupResult) -> tuple[float | None, float | None]:
    """Return both ends of an interval, or a number twice."""
    if quantity == "ci":
        return group.ci_low, group.ci_high
    if quantity == "net":
        return group.net_ci_low, group.net_ci_high
    numbers = {
        "dB": group.delta_b,
        "p": group.p_holm,
        "probability": group.probability,
        "percentile": group.null_percentile,
    }
    return numbers[quantity], numbers[quantity]
