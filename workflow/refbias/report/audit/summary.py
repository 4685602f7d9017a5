"""The audit in a few lines of plain text, for a terminal or a log."""

from refbias.config.audit_result import AuditResult, CheckpointResult
from refbias.report.audit.words import (
    CONTROL_NAME,
    EM_DASH,
    LEVEL_LABELS,
    clean,
    digits,
    finding,
    group_name,
    ordered_groups,
    span,
    stands_out,
)
from refbias.tables.formats import number, p_statement

WIDEST_NAME = 32


def summary_lines(result: AuditResult) -> list[str]:
    """Return the verdict and one line a group, lowest dB first, for every checkpoint.

    Names come from files that others wrote: control characters in them are replaced, so that no line can steer a
    terminal. The lines hold no markup.

    Parameters
    ----------
    result
        An audit's result.

    Returns
    -------
    list of str
        Lines without a line end.
    """
    lines = []
    if len(result.checkpoints) > 1:
        lines += [f"{LEVEL_LABELS[result.verdict.level]}: {result.verdict.sentence}", result.verdict.uncertainty, ""]
    for index, checkpoint in enumerate(result.checkpoints):
        lines += ([""] if index else []) + _checkpoint_lines(result, checkpoint)
    return [clean(line).rstrip() for line in lines]


def _checkpoint_lines(result: AuditResult, checkpoint: CheckpointResult) -> list[str]:
    verdict = checkpoint.verdict
    lines = [
        f"{checkpoint.name} against {result.reference.name}",
        f"{LEVEL_LABELS[verdict.level]}: {verdict.sentence}",
        verdict.uncertainty,
    ]
    rows = [*ordered_groups(checkpoint), *([checkpoint.control] if checkpoint.control else [])]
    names = [group_name(row.group) for row in checkpoint.groups] + [CONTROL_NAME]
    width = min(WIDEST_NAME, max(map(len, names)))
    places = digits(row.delta_b for row in rows)
    for row in rows:
        name = group_name(row.group)
        name = f"{name[: width - 1]}\u2026" if len(name) > width else name
        marked = "*" if row is not checkpoint.control and stands_out(row) else " "
        value = EM_DASH if row.delta_b is None else number(row.delta_b, places)
        cells = [f"{marked} {name:<{width}}", f"{value:>{places + 4}}"]
        cells.append(f"[{span(row.ci_low, row.ci_high, places)}]".replace(f"[{EM_DASH}]", EM_DASH))
        if row is not checkpoint.control:
            holm = p_statement(row.p_holm) if row.p_holm is not None else f"p {EM_DASH}"
            cells += [f"Holm {holm}", finding(row)]
        if row.probability is not None:
            cells.append(f"probability {number(row.probability, 2)}")
        lines.append("  ".join(cells))
    return lines + [f"Warning: {warning.sentence}" for warning in checkpoint.warnings]
