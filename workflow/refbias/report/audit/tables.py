"""The audit report's tables of one checkpoint: groups, methods, layers, sentences, anchors, modules."""

from collections.abc import Sequence

from refbias.config.audit_result import AnchorShift, AuditResult, CheckpointResult, GroupResult, MethodResult
from refbias.report.audit.cells import Cell, Column, Table, numeric, words
from refbias.report.audit.words import (
    EM_DASH,
    digits,
    finding,
    group_name,
    ordered_groups,
    per_cent,
    span,
    stands_out,
)
from refbias.tables.formats import count, number, p_value
from refbias.tables.labels import CONTROL, METHOD_LABELS, method_label, ordered

# groups whose anchors are shown at once, the others folded away
ANCHOR_GROUPS = 4
NO_CONTROL = "no control sentences"
NO_VALUE = "not computed"


def group_table(result: AuditResult, checkpoint: CheckpointResult) -> Table:
    """Return every group's evidence, from the lowest dB; the control at the foot."""
    groups = ordered_groups(checkpoint)
    level = result.settings.level
    control = [checkpoint.control] if checkpoint.control else []
    places = digits(group.delta_b for group in [*groups, *control])
    interval = f"{per_cent(level)} interval"
    columns = (
        Column("Group", numeric=False),
        Column("Topic", numeric=False),
        Column("dB", detail=interval),
        Column("Adjusted p", detail="unadjusted"),
        Column("Net of control", detail=interval),
        Column("Beyond scale", detail="adjusted p"),
        Column("Change of S+"),
        Column("Change of S\u2212"),
        Column("Null percentile"),
        Column("Effect size"),
        Column("Halves, lowest", detail="highest"),
        Column("B before", detail="B after"),
        Column("Sentences"),
        Column("Probability"),
    )
    return Table(
        "All groups, lowest dB first. Those in bold stand out.",
        columns,
        tuple(_group_row(result, group, places) for group in groups),
        tuple(_group_row(result, group, places) for group in control),
        sorted_by=2 if any(group.delta_b is not None for group in groups) else None,
        marked=frozenset(index for index, group in enumerate(groups) if stands_out(group)),
    )


def _group_row(result: AuditResult, group: GroupResult, places: int) -> tuple[Cell, ...]:
    control = group.group == CONTROL
    own = "the control itself" if control else ""

    def shift(value: float | None, why: str, detail: str = "") -> Cell:
        return numeric(value, number(value, places), why, detail)

    return (
        words(group_name(group.group), "" if control else finding(group)),
        words(group_name(group.topic)) if group.topic else Cell(EM_DASH, why=own or "no topic in the stimuli"),
        shift(group.delta_b, "no value could be computed", span(group.ci_low, group.ci_high, places)),
        numeric(
            group.p_holm,
            p_value(group.p_holm),
            "not adjusted, or no permutation test",
            p_value(group.p_value) if group.p_value is not None else EM_DASH,
        ),
        shift(group.net_of_control, own or NO_CONTROL, span(group.net_ci_low, group.net_ci_high, places)),
        shift(
            group.beyond_scale,
            "not computed",
            EM_DASH if group.p_beyond_scale is None else p_value(group.p_beyond_scale),
        ),
        shift(group.s_plus, NO_VALUE),
        shift(group.s_minus, NO_VALUE),
        numeric(group.null_percentile, number(group.null_percentile, 1), "too few neutral sentences to draw from"),
        numeric(group.effect_size, number(group.effect_size, 2), NO_VALUE),
        numeric(
            group.jackknife_low,
            number(group.jackknife_low, places),
            "too few anchors, or a method without anchors",
            EM_DASH if group.jackknife_high is None else number(group.jackknife_high, places),
        ),
        shift(group.b_reference, NO_VALUE, number(group.b_audited, places) if group.b_audited is not None else EM_DASH),
        numeric(float(group.n_targets), count(group.n_targets), NO_VALUE),
        numeric(
            group.probability,
            number(group.probability, 2),
            own or ("uncalibrated" if result.calibration.status == "uncalibrated" else "not given by the calibration"),
        ),
    )


def methods_by_group(checkpoint: CheckpointResult) -> dict[str, dict[str, MethodResult]]:
    """Return method -> group -> its value, the main method's taken from the groups themselves."""
    found: dict[str, dict[str, MethodResult]] = {}
    rows = [*checkpoint.groups, *([checkpoint.control] if checkpoint.control else [])]
    for row in rows:
        main = MethodResult.model_validate({key: getattr(row, key) for key in MethodResult.model_fields})
        found.setdefault(row.method, {})[row.group] = main
    for value in checkpoint.methods:
        found.setdefault(value.method, {}).setdefault(value.group, value)
    return {method: found[method] for method in ordered(found, METHOD_LABELS)}


def method_table(checkpoint: CheckpointResult, level: float) -> Table:
    """Return dB of every group by every method, in the order of the main method."""
    by_method = methods_by_group(checkpoint)
    has_control = checkpoint.control is not None
    columns = [Column("Group", numeric=False)]
    for method in by_method:
        columns.append(Column(method_label(method), detail=f"{per_cent(level)} interval"))
        if has_control:
            columns.append(Column(f"{method_label(method)}, net of control"))
    places = {method: digits(value.delta_b for value in values.values()) for method, values in by_method.items()}

    def row(group: str) -> tuple[Cell, ...]:
        cells = [words(group_name(group))]
        for method, values in by_method.items():
            value = values.get(group)
            if value is None:
                cells += [Cell(EM_DASH, why="not measured for this group")] * (2 if has_control else 1)
                continue
            cells.append(_with_interval(value.delta_b, value.ci_low, value.ci_high, places[method], NO_VALUE))
            if has_control:
                why = "the control itself" if group == CONTROL else NO_VALUE
                net = (value.net_of_control, value.net_ci_low, value.net_ci_high)
                cells.append(_with_interval(*net, places[method], why))
        return tuple(cells)

    return Table(
        "The methods' values, and less the control's value by the same method. Their scales differ: compare order and "
        "direction, not size.",
        tuple(columns),
        tuple(row(group.group) for group in ordered_groups(checkpoint)),
        (row(CONTROL),) if has_control else (),
    )


def _with_interval(value: float | None, low: float | None, high: float | None, places: int, why: str) -> Cell:
    text = "" if low is None or high is None else span(low, high, places)
    return numeric(value, number(value, places), why, text)


def layer_table(checkpoint: CheckpointResult, columns: Sequence[int | str]) -> Table:
    """Return dB of every group at every layer and its mean over the blocks."""
    layers = checkpoint.layers or []
    values = {(row.group, row.layer): row.delta_b for row in layers}
    means = {row.group: row.delta_b for row in checkpoint.layer_mean or []}
    places = digits(values.values())

    def row(group: str) -> tuple[Cell, ...]:
        found = [*(values.get((group, layer)) for layer in columns), means.get(group)]  # type: ignore[arg-type]
        return (words(group_name(group)), *(numeric(value, number(value, places), NO_VALUE) for value in found))

    present = {key for key, _ in values}
    return Table(
        "dB by layer: 0 is the token embeddings, k the output of block k, final the output after the last norm.",
        (Column("Group", numeric=False), *(Column(str(layer)) for layer in columns), Column("Mean of blocks")),
        tuple(row(group.group) for group in ordered_groups(checkpoint) if group.group in present),
        (row(CONTROL),) if CONTROL in present else (),
    )


def _anchor_table(rows: Sequence[AnchorShift], caption: str) -> Table:
    """Return the anchors whose similarity to each group changed most, groups in the order given."""
    places = digits(row.change for row in rows)
    return Table(
        caption,
        (
            Column("Group", numeric=False),
            Column("Change of cosine", detail="before to after"),
            Column("Anchor", numeric=False),
        ),
        tuple(
            (
                words(group_name(row.group)),
                numeric(row.change, number(row.change, places), NO_VALUE, _both(row.reference, row.audited, places)),
                words(row.text, row.id),
            )
            for row in rows
        ),
    )


def _both(before: float | None, after: float | None, places: int) -> str:
    # an audit of an earlier version kept the change alone
    return "" if before is None or after is None else span(before, after, places)


def anchor_tables(checkpoint: CheckpointResult) -> tuple[Table | None, Table | None]:
    """Return the anchors of the groups with the largest dB, and of the others; None where there are none."""
    rows = checkpoint.anchors or []
    if not rows:
        return None, None
    size = {group.group: abs(group.delta_b or 0.0) for group in checkpoint.groups}
    names = sorted({row.group for row in rows}, key=lambda name: (-size.get(name, 0.0), name))
    ordered = [
        row
        for name in names
        for row in sorted((row for row in rows if row.group == name), key=lambda row: -abs(row.change or 0.0))
    ]
    first = [row for row in ordered if row.group in names[:ANCHOR_GROUPS]]
    rest = [row for row in ordered if row.group not in names[:ANCHOR_GROUPS]]
    caption = "Anchors whose mean cosine with a group's sentences changed most; above 0: nearer than before."
    return (
        _anchor_table(first, f"{caption} The {min(len(names), ANCHOR_GROUPS)} groups with the largest dB."),
        _anchor_table(rest, f"{caption} The other groups.") if rest else None,
    )


def overview_table(result: AuditResult) -> Table:
    """Return one row a checkpoint: verdict, lowest and highest group, control, how many stand out."""
    rows = []
    places = digits(group.delta_b for checkpoint in result.checkpoints for group in checkpoint.groups)
    for checkpoint in result.checkpoints:
        present = [group for group in checkpoint.groups if group.delta_b is not None]
        low = min(present, key=lambda group: group.delta_b or 0.0, default=None)
        high = max(present, key=lambda group: group.delta_b or 0.0, default=None)
        marked = sum(stands_out(group) for group in checkpoint.groups)
        overall, control = checkpoint.overall, checkpoint.control
        rows.append(
            (
                words(checkpoint.name),
                numeric(checkpoint.step, count(checkpoint.step), "no step in its name"),
                numeric(float(marked), f"{marked} of {len(checkpoint.groups)}", NO_VALUE),
                *(
                    numeric(
                        group.delta_b if group else None,
                        number(group.delta_b, places) if group else "",
                        "no group has a value",
                        group_name(group.group) if group else "",
                    )
                    for group in (low, high)
                ),
                numeric(
                    overall.delta_b if overall else None, number(overall.delta_b, places) if overall else "", NO_VALUE
                ),
                numeric(
                    control.delta_b if control else None, number(control.delta_b, places) if control else "", NO_CONTROL
                ),
                words(checkpoint.verdict.sentence, checkpoint.verdict.uncertainty),
            )
        )
    columns = (
        Column("Checkpoint", numeric=False),
        Column("Step"),
        Column("Stand out"),
        Column("Lowest dB"),
        Column("Highest dB"),
        Column("Mean dB"),
        Column("Control"),
        Column("Verdict", numeric=False),
    )
    return Table("Each checkpoint against the reference, in the order given.", columns, tuple(rows))
