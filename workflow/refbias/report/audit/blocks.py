"""One checkpoint of the audit report: its verdict, pictures, tables and sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from refbias.config.audit_result import AuditResult, AuditWarning, CheckpointResult, GroupResult, Verdict
from refbias.metrics import is_undirected
from refbias.report.audit.cells import Table
from refbias.report.audit.charts import Heat, Plot, Row, heat_map, linear_scale, mark
from refbias.report.audit.details import Ends, contributions, drift, dtype_sentence, scale_facts
from refbias.report.audit.facts import Facts
from refbias.report.audit.tables import (
    anchor_tables,
    group_table,
    layer_table,
    method_table,
    methods_by_group,
)
from refbias.report.audit.words import (
    CONTROL_NAME,
    EM_DASH,
    agreement,
    beyond,
    control_sentence,
    counts,
    digits,
    direction,
    group_name,
    ordered_groups,
    per_cent,
    reference_mark,
    stands_out,
)
from refbias.tables.formats import number
from refbias.tables.labels import CONTROL, method_label

# a reference line this many times farther out than any group would squeeze the picture: it is named, not drawn
FAR = 3.0


@dataclass(frozen=True)
class MethodPlot:
    """One method beside the others: its name, its own axis, one mark a group."""

    name: str
    plot: Plot
    directed: bool


@dataclass(frozen=True)
class Block:
    """All that the page shows of one checkpoint; None where there is nothing, with the reason in the template."""

    id: str
    name: str
    verdict: Verdict
    warnings: tuple[AuditWarning, ...]
    facts: Facts
    main: str
    directed: bool
    groups: Plot
    groups_alt: str
    line_note: str
    group_table: Table
    control: str
    scale: Facts
    methods: tuple[MethodPlot, ...]
    method_table: Table
    agreement: tuple[str, ...]
    layers: Heat | None
    layers_alt: str
    layer_table: Table | None
    templates: Ends | None
    attributes: Ends | None
    anchors: Table | None
    more_anchors: Table | None
    drift: Heat | None
    drift_table: Table | None
    dtype: str


def block(result: AuditResult, checkpoint: CheckpointResult, index: int) -> Block:
    """Lay out one checkpoint.

    Parameters
    ----------
    result
        The whole result.
    checkpoint
        One of its checkpoints.
    index
        Its place from 1, for the ids of the page.
    """
    level = result.settings.level
    groups = ordered_groups(checkpoint)
    directed = not groups or not is_undirected(groups[0].method)
    plot, note = group_plot(result, checkpoint, groups)
    columns = layer_columns(checkpoint)
    first, more = anchor_tables(checkpoint)
    drift_map, drift_table = drift(checkpoint)
    templates, attributes = contributions(checkpoint)
    return Block(
        id=f"c{index}",
        name=checkpoint.name,
        verdict=checkpoint.verdict,
        warnings=tuple(checkpoint.warnings),
        facts=_facts(result, checkpoint),
        main=method_label(groups[0].method) if groups else EM_DASH,
        directed=directed,
        groups=plot,
        groups_alt=_groups_alt(checkpoint, groups, level),
        line_note=note,
        group_table=group_table(result, checkpoint),
        control=control_sentence(checkpoint),
        scale=scale_facts(checkpoint),
        methods=tuple(_method_plots(checkpoint, groups)),
        method_table=method_table(checkpoint, level),
        agreement=_agreements(checkpoint, groups),
        layers=_layers(checkpoint, groups, columns) if columns else None,
        layers_alt=_layers_alt(checkpoint),
        layer_table=layer_table(checkpoint, columns) if columns else None,
        templates=templates,
        attributes=attributes,
        anchors=first,
        more_anchors=more,
        drift=drift_map,
        drift_table=drift_table,
        dtype=dtype_sentence(result, checkpoint),
    )


def _facts(result: AuditResult, checkpoint: CheckpointResult) -> Facts:
    control, overall = checkpoint.control, checkpoint.overall
    places = digits(group.delta_b for group in checkpoint.groups)
    known = [group.probability for group in checkpoint.groups if group.probability is not None]
    return (
        ("Groups that stand out", counts(checkpoint)),
        (
            "Mean over groups",
            number(overall.delta_b, places)
            if overall and overall.delta_b is not None
            else f"{EM_DASH} (not in this result)",
        ),
        (
            "Control moved by",
            number(control.delta_b, places)
            if control and control.delta_b is not None
            else f"{EM_DASH} (no control sentences)",
        ),
        *_beyond_scale(result, checkpoint, places),
        (
            "Highest probability",
            number(max(known), 2) if known else f"{EM_DASH} (uncalibrated)",
        ),
    )


def _beyond_scale(result: AuditResult, checkpoint: CheckpointResult, places: int) -> Facts:
    """Count the groups beyond the null scale, as they stand and net of the control."""
    own, net = reference_mark(result), reference_mark(result, net=True)
    if own is None:
        return (("Null scale", f"{EM_DASH} (none for this audit)"),)
    found = [(f"Beyond {own[1]}", f"{beyond(checkpoint, own[0])} groups (|dB| above {number(own[0], places)})")]
    if net is not None and checkpoint.control is not None:
        count = beyond(checkpoint, net[0], net=True)
        found.append(("The same, net of the control", f"{count} groups (above {number(net[0], places)})"))
    return tuple(found)


def group_plot(result: AuditResult, checkpoint: CheckpointResult, groups: Sequence[GroupResult]) -> tuple[Plot, str]:
    """Lay out the groups' intervals, and say where reference lines are that lie outside of the picture."""
    control = checkpoint.control
    shown = [*groups, *([control] if control else [])]
    directed = not groups or not is_undirected(groups[0].method)
    extent = [value for group in shown for value in (group.delta_b, group.ci_low, group.ci_high)]
    widest = max((abs(value) for value in extent if value is not None), default=0.0)
    lines: tuple[float, ...] = ()
    note = ""
    found = reference_mark(result)
    if found and directed:
        text = f"{number(found[0], digits([found[0]]))}: {found[1]} stayed below it in size"
        if widest and found[0] > FAR * widest:
            note = f"Not drawn, since far outside: {text}."
        else:
            lines = (-found[0], found[0])
            note = f"Dashed lines at \u00b1{text}."
    scale = linear_scale([*extent, *lines])
    places = digits(group.delta_b for group in shown)
    rows = [
        Row(
            group_name(group.group),
            EM_DASH if group.delta_b is None else number(group.delta_b, places),
            (
                mark(
                    scale,
                    group.ci_low,
                    group.delta_b,
                    group.ci_high,
                    strong=stands_out(group),
                    directed=directed and group.group != CONTROL,
                ),
            ),
            group.group == CONTROL,
        )
        for group in shown
    ]
    band = None
    if control and control.ci_low is not None and control.ci_high is not None:
        band = scale.at(control.ci_low), scale.at(control.ci_high)
    return Plot(tuple(rows), scale, scale.at(0.0), band, tuple(scale.at(line) for line in lines)), note


def _groups_alt(checkpoint: CheckpointResult, groups: Sequence[GroupResult], level: float) -> str:
    places = digits(group.delta_b for group in groups)
    marked = [group for group in groups if stands_out(group)]
    said = "; ".join(
        f"{group_name(group.group)} {number(group.delta_b, places)}, {direction(group)}" for group in marked
    )
    return (
        f"dB and {per_cent(level)} intervals of {len(groups)} groups, lowest first. "
        + (f"These stand out: {said}. " if marked else "No group stands out. ")
        + control_sentence(checkpoint)
        + " All numbers are in the table that follows."
    )


def _method_plots(checkpoint: CheckpointResult, groups: Sequence[GroupResult]) -> list[MethodPlot]:
    found = []
    for method, values in methods_by_group(checkpoint).items():
        directed = not is_undirected(method)
        scale = linear_scale(
            [edge for value in values.values() for edge in (value.delta_b, value.ci_low, value.ci_high)], wanted=3
        )
        rows = []
        for name in [*(group.group for group in groups), *([CONTROL] if checkpoint.control else [])]:
            value = values.get(name)
            sides = (value.ci_low, value.delta_b, value.ci_high) if value else (None, None, None)
            rows.append(
                Row(
                    group_name(name),
                    "",
                    (mark(scale, *sides, strong=True, directed=directed and name != CONTROL),),
                    name == CONTROL,
                )
            )
        control = values.get(CONTROL)
        band = None
        if control and control.ci_low is not None and control.ci_high is not None:
            band = scale.at(control.ci_low), scale.at(control.ci_high)
        found.append(MethodPlot(method_label(method), Plot(tuple(rows), scale, scale.at(0.0), band), directed))
    return found


def _agreements(checkpoint: CheckpointResult, groups: Sequence[GroupResult]) -> tuple[str, ...]:
    main = groups[0].method if groups else None
    return tuple(
        agreement(checkpoint, method, {name: value.delta_b for name, value in values.items()})
        for method, values in methods_by_group(checkpoint).items()
        if method != main
    )


def layer_columns(checkpoint: CheckpointResult) -> list[int | str]:
    """Return the layers that a checkpoint has values of, ``final`` last."""
    layers = {row.layer for row in checkpoint.layers or []}
    found: list[int | str] = [*sorted(layer for layer in layers if isinstance(layer, int))]
    return [*found, "final"] if "final" in layers else found


def _layers(checkpoint: CheckpointResult, groups: Sequence[GroupResult], columns: Sequence[int | str]) -> Heat:
    values = {(row.group, str(row.layer)): row.delta_b for row in checkpoint.layers or []}
    names = [*(group.group for group in groups), CONTROL]
    present = [name for name in names if any(key == name for key, _ in values)]
    means = {row.group: row.delta_b for row in checkpoint.layer_mean or []}
    places = digits(means.values())
    return heat_map(
        {name: [values.get((name, str(column))) for column in columns] for name in present},
        [str(column) for column in columns],
        {name: group_name(name) for name in present},
        {name: EM_DASH if means.get(name) is None else number(means[name], places) for name in present},
        signed=True,
    )


def _layers_alt(checkpoint: CheckpointResult) -> str:
    """Say for the largest values where they lie."""
    values = [row for row in checkpoint.layers or [] if row.delta_b is not None and row.group != CONTROL]
    if not values:
        return ""
    low = min(values, key=lambda row: row.delta_b or 0.0)
    high = max(values, key=lambda row: row.delta_b or 0.0)
    places = digits(row.delta_b for row in values)
    free = [row for row in checkpoint.layers or [] if row.delta_b is not None and row.group == CONTROL]
    text = (
        f"Lowest: {group_name(low.group)} at layer {low.layer} ({number(low.delta_b, places)}). "
        f"Highest: {group_name(high.group)} at layer {high.layer} ({number(high.delta_b, places)})."
    )
    if free:
        most = max(free, key=lambda row: abs(row.delta_b or 0.0))
        text += f" {CONTROL_NAME}: most at layer {most.layer} ({number(most.delta_b, places)})."
    return text
