"""``--fail-on``: which groups of a result meet a condition."""

from typing import TYPE_CHECKING

from refbias.config.audit import Condition, parse_condition
from refbias.config.audit_result import AuditResult, GroupResult
from refbias.errors import UserError

if TYPE_CHECKING:
    from refbias.audit.stimuli import Stimuli


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


def met_lines(found: list[tuple[str, str, str]]) -> list[str]:
    """Return a line for every condition and checkpoint of `exceeded`."""
    lines = []
    for condition, name in dict.fromkeys((text, name) for text, name, _ in found):
        groups = ", ".join(group for text, other, group in found if (text, other) == (condition, name))
        lines.append(f"--fail-on {condition!r} is met by {groups} of {name}")
    # a terminal obeys control characters, and a model's name may hold some
    return ["".join(letter if letter.isprintable() else "?" for letter in line) for line in lines]


def refuse_impossible(conditions: list[str], stimuli: "Stimuli") -> None:
    """Refuse conditions on what cannot be computed from these sentences, before any model is read.

    Raises
    ------
    UserError
        Naming the quantity, and the sentences that it needs.
    """
    sizes = {group: sum(row.group == group for row in stimuli.of_kind("target")) for group in stimuli.groups}
    n_positive, n_negative, n_anchors, n_control = (
        len(stimuli.of_kind(kind)) for kind in ("positive", "negative", "anchor", "control")
    )
    group = min(sizes, key=lambda name: sizes[name])
    of_interval = {
        f"2 target sentences of group {group}, there are": sizes[group],
        "2 attribute sentences of each valence, there are": min(n_positive, n_negative),
    }
    of_net = {**of_interval, "2 control sentences, there are": n_control}
    for text in conditions:
        for part in parse_condition(text):
            quantity = part.quantity.strip("|")
            needed = {"ci": of_interval, "net": of_net}.get(quantity, {})
            lacking = [f"{what} {number}" for what, number in needed.items() if number < 2]
            if quantity == "percentile" and n_anchors < n_positive + n_negative:
                lacking = [f"as many anchors as attributes ({n_positive + n_negative}), there are {n_anchors}"]
            if lacking:
                raise UserError(
                    f"--fail-on {text!r}: {part.quantity} needs {lacking[0]}: add some, or another condition"
                )


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
