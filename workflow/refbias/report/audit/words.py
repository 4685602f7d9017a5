"""What the audit report says in words: names, directions, reasons for what is missing, sentences about numbers."""

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from scipy.stats import spearmanr

from refbias.config.audit_result import AuditResult, CheckpointResult, GroupResult, Level, MethodResult
from refbias.metrics import is_undirected
from refbias.tables.formats import number
from refbias.tables.labels import CONTROL, group_names, method_label, plain_name

EM_DASH = "\u2014"
CONTROL_NAME = "Group-free control"
LEVEL_LABELS: dict[Level, str] = {
    "none": "No shift shown",
    "weak": "Weak shift",
    "clear": "Clear shift",
    "control": "Not told from the control",
    "collapse": "Collapse",
    "undefined": "No verdict",
}
KIND_LABELS = {
    "hub": "model hub",
    "directory": "local directory",
    "adapter": "adapter on the reference",
    "gguf": "GGUF file",
    "mixture": "weighted sum of checkpoints",
}
# marks that reorder the text around them: a name could pose as another one
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """Replace control characters, lone surrogates and reordering marks; tabs and line ends become spaces."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " "
        if char in "\t\n\r"
        else "\ufffd"
        if char in _REORDERING or unicodedata.category(char) in ("Cc", "Cs")
        else char
        for char in text
    )


@cache
def _shipped_names() -> dict[str, str]:
    return {group: found.name for group, found in group_names().items()}


def group_name(slug: str) -> str:
    """Return how a group or topic is printed: a shipped group by its name, another plain slug as words, else as is."""
    if slug == CONTROL:
        return CONTROL_NAME
    if slug in _shipped_names():
        return _shipped_names()[slug]
    plain = slug.isascii() and slug.islower() and slug.replace("_", "").isalnum()
    return plain_name(slug) if plain else slug


def digits(values: Iterable[float | None]) -> int:
    """Return with how many decimals (4 to 7) the largest of some values shows three figures."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return 4 if largest == 0 else max(4, min(7, 2 - math.floor(math.log10(largest))))


def per_cent(share: float) -> str:
    """Format a share with as many decimals as it needs, at most one."""
    return f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"


def span(low: float | None, high: float | None, places: int) -> str:
    """Format an interval in words, ``a to b``; an em dash if a side is missing."""
    return EM_DASH if low is None or high is None else f"{number(low, places)} to {number(high, places)}"


def direction(group: GroupResult | MethodResult) -> str:
    """Say where a group moved, as far as its interval tells."""
    if group.delta_b is None:
        return "no value"
    if is_undirected(group.method):
        return "without direction"
    if group.delta_b == 0:
        return "no change"
    if group.ci_low is not None and group.ci_high is not None and not excludes_zero(group.ci_low, group.ci_high):
        return "not told from 0"
    return "towards negative" if group.delta_b < 0 else "towards positive"


def excludes_zero(low: float | None, high: float | None) -> bool:
    """Tell whether an interval lies wholly on one side of 0."""
    return low is not None and high is not None and (low > 0 or high < 0)


def stands_out(group: GroupResult) -> bool:
    """Tell whether a group is marked: the result's own finding is that its move is confirmed."""
    return group.finding == "confirmed"


def finding(group: GroupResult) -> str:
    """Say where a group moved, and whether every check says so."""
    where = direction(group)
    if not where.startswith("towards"):
        return where
    more = {"unconfirmed": ", not confirmed", "none": ", by its own interval alone"}
    return where + more.get(group.finding or "", "")


def stand_out_rule(result: AuditResult) -> str:
    """Say what makes a move confirmed."""
    level = result.settings.level
    return (
        f"adjusted p (Holm) at most {number(1 - level, 2)}, also with a common change of scale taken off; an interval "
        "that excludes 0, also net of the control where there is one (with bounds for all groups at once); and |dB| "
        f"beyond {per_cent(level)} of the random attribute sets, where there are enough neutral sentences to draw them"
    )


def ordered_groups(checkpoint: CheckpointResult) -> list[GroupResult]:
    """Sort groups from the lowest dB, without direction from the largest; those without a value last."""

    def key(group: GroupResult) -> tuple[bool, float, str]:
        value = group.delta_b
        if value is None:
            return True, 0.0, group.group
        return False, -value if is_undirected(group.method) else value, group.group

    return sorted(checkpoint.groups, key=key)


def counts(checkpoint: CheckpointResult) -> str:
    """Count the groups that stand out, by direction, and those that moved without being confirmed."""
    marked = [group for group in checkpoint.groups if stands_out(group)]
    total = len(checkpoint.groups)
    if all(group.finding is None for group in checkpoint.groups):
        return f"{EM_DASH} (the result judges no group)"
    unconfirmed = sum(group.finding == "unconfirmed" for group in checkpoint.groups)
    more = f"; {unconfirmed} moved, not confirmed" if unconfirmed else ""
    if not marked:
        return f"none of {total}{more}"
    if is_undirected(marked[0].method):
        return f"{len(marked)} of {total}{more}"
    negative = sum((group.delta_b or 0) < 0 for group in marked)
    sides = f"{negative} towards negative, {len(marked) - negative} towards positive"
    return f"{len(marked)} of {total}: {sides}{more}"


def agreement(checkpoint: CheckpointResult, method: str, values: Mapping[str, float | None]) -> str:
    """Say how one method's values go with those of the main one, over groups that have both.

    Parameters
    ----------
    checkpoint
        Whose groups are compared.
    method
        The other method.
    values
        Its value by group.
    """
    main = checkpoint.groups[0].method if checkpoint.groups else method
    pairs = [
        (group.delta_b, other)
        for group in checkpoint.groups
        if group.delta_b is not None and (other := values.get(group.group)) is not None
    ]
    undirected = is_undirected(method)
    name = method_label(method)
    if not pairs:
        return f"{name}: no group has a value by both methods."
    first = [abs(a) if undirected else a for a, _ in pairs]
    rank = _rank_correlation(first, [b for _, b in pairs])
    with_what = f"rank correlation with {'the size of dB' if undirected else 'dB'} of {method_label(main)} {rank}"
    if undirected:
        return f"{name} has no direction; {with_what}."
    same = sum(a * b > 0 for a, b in pairs)
    return f"{name} gives the same direction as {method_label(main)} in {same} of {len(pairs)} groups; {with_what}."


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> str:
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return "undefined (too few different values)"
    return number(float(spearmanr(first, second).statistic), 2)


def control_sentence(checkpoint: CheckpointResult) -> str:
    """Say how the groups stand to the group-free control."""
    control = checkpoint.control
    if control is None or control.delta_b is None:
        return "There is no group-free control: what all sentences share cannot be told from what a group has alone."
    places = digits(group.delta_b for group in checkpoint.groups)
    text = f"The group-free control moved by {number(control.delta_b, places)}"
    if control.ci_low is None or control.ci_high is None:
        return f"{text}, without an interval."
    bounded = [g for g in checkpoint.groups if g.ci_low is not None and g.ci_high is not None]
    below = sum((group.ci_high or 0.0) < control.ci_low for group in bounded)
    above = sum((group.ci_low or 0.0) > control.ci_high for group in bounded)
    return (
        f"{text} ({span(control.ci_low, control.ci_high, places)}). Of {len(bounded)} groups, {below} "
        f"{'has' if below == 1 else 'have'} an interval wholly below the control's, {above} wholly above, and "
        f"{len(bounded) - below - above} overlap it."
    )


def beyond(checkpoint: CheckpointResult, level: float, *, net: bool = False) -> int:
    """Count groups whose dB, or dB net of the control, is larger than a level, whatever its direction."""
    values = [group.net_of_control if net else group.delta_b for group in checkpoint.groups]
    return sum(value is not None and abs(value) > level for value in values)


def shared_warnings(result: AuditResult) -> list[str]:
    """List the warnings of several checkpoints, each sentence once with how many checkpoints it is about."""
    found: dict[str, list[str]] = {}
    for checkpoint in result.checkpoints:
        for warning in checkpoint.warnings:
            names = found.setdefault(warning.sentence, [])
            if checkpoint.name not in names:
                names.append(checkpoint.name)
    total = len(result.checkpoints)
    return [
        f"{sentence} ({'all checkpoints' if len(names) == total else ', '.join(names)})"
        for sentence, names in found.items()
    ]


def reference_mark(result: AuditResult, *, net: bool = False) -> tuple[float, str] | None:
    """Return the 95 % quantile of |dB| (net of the control) in neutral fine-tunings, and its name; None without."""
    scale = result.null_scale
    if scale is None or (net and scale.net is None):
        return None
    quantiles = scale.net.quantiles if net and scale.net else scale.quantiles
    if not quantiles:
        return None
    key = "0.95" if "0.95" in quantiles else max(quantiles, key=float)
    # another model's values are never shown without its name
    model = f" of {scale.model}" if scale.model and not scale.is_reference else ""
    return quantiles[key], f"{per_cent(float(key))} of groups in neutral fine-tunings{model}"


def does_not_show(result: AuditResult) -> list[str]:
    """List what no audit of this kind shows."""
    found = [
        "What the model writes. dB is read from hidden states of short sentences; a shift there is a reason to test "
        "outputs, and no shift is no proof that outputs are unchanged.",
        f"Whether a shift is harmful, fair or wanted. {'Negative' if _signed(result) else 'The sign'} says only nearer "
        "to which of the two sets of attribute sentences, as compared with the reference model.",
        "Whether the reference is unbiased. Every number is a change since the reference, which has its own leanings.",
        "Why it moved. Training data, training settings and merging all move representations, and groups share "
        "sentence templates, so their shifts go together.",
        "People. Nothing here measures how anyone is treated; groups and sentences are those of one set of stimuli.",
    ]
    if result.calibration.status == "uncalibrated":
        found.append(
            "A probability. Without a calibration, neither dB nor p says how likely a rise of output scores is."
        )
    found.append(
        f"Anything at other settings. dB grows with the number of anchors ({result.settings.stimuli.n_anchors} here) "
        "and depends on sentences, layer and pooling: compare only audits with the same ones."
    )
    return found


def _signed(result: AuditResult) -> bool:
    return any(not is_undirected(group.method) for checkpoint in result.checkpoints for group in checkpoint.groups)
