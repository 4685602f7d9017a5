"""Parts of a checkpoint's block that explain where dB comes from: sentences, adapter modules, common scale."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from refbias.config.audit_result import (
    AttributeContribution,
    AuditResult,
    CheckpointResult,
    ModuleDrift,
    TemplateContribution,
)
from refbias.report.audit.cells import Cell, Column, Table, numeric, words
from refbias.report.audit.charts import Heat, Plot, Row, heat_map, linear_scale, mark
from refbias.report.audit.facts import Facts
from refbias.report.audit.words import EM_DASH, digits
from refbias.tables.formats import number

# sentences shown at each end of a list of contributions
ENDS = 6


@dataclass(frozen=True)
class Ends:
    """The sentences that move dB most in either direction, and how many lie between them."""

    plot: Plot
    hidden: int


def contributions(checkpoint: CheckpointResult) -> tuple[Ends | None, Ends | None]:
    """Return the templates and the attributes that contribute most; None where there are none."""
    found = checkpoint.contributions
    if found is None:
        return None, None
    return _ends(found.templates), _ends(found.attributes)


def _ends(rows: Sequence[TemplateContribution] | Sequence[AttributeContribution]) -> Ends | None:
    known = sorted((row for row in rows if row.delta is not None), key=lambda row: (row.delta or 0.0, row.id))
    if not known:
        return None
    shown = known if len(known) <= 2 * ENDS else [*known[:ENDS], *known[-ENDS:]]
    scale = linear_scale([row.delta for row in shown])
    places = digits(row.delta for row in shown)
    drawn = tuple(
        Row(
            f"{row.text} ({row.kind})" if isinstance(row, AttributeContribution) else row.text,
            number(row.delta, places),
            (mark(scale, None, row.delta, None, strong=True, directed=True),),
        )
        for row in shown
    )
    return Ends(Plot(drawn, scale, scale.at(0.0)), len(rows) - len(shown))


def drift(checkpoint: CheckpointResult) -> tuple[Heat | None, Table | None]:
    """Return an adapter's drift by module and layer as a heat map, and by module as a table."""
    rows = [row for row in checkpoint.adapter_drift or [] if row.relative_norm is not None]
    if not rows:
        return None, None
    by_module: dict[str, list[ModuleDrift]] = {}
    for row in rows:
        by_module.setdefault(_module(row), []).append(row)
    places = digits(row.relative_norm for row in rows)
    table = Table(
        "Norm of the adapter's change of a matrix over the norm of the matrix, by module.",
        (
            Column("Module", numeric=False),
            Column("Layers"),
            Column("Mean"),
            Column("Largest", detail="its layer"),
        ),
        tuple(_drift_row(name, found, places) for name, found in by_module.items()),
    )
    layers = sorted({row.layer for row in rows if row.layer is not None})
    if not layers:
        return None, table
    values = {(_module(row), row.layer): row.relative_norm for row in rows}
    means = {name: _mean(found) for name, found in by_module.items()}
    return (
        heat_map(
            {name: [values.get((name, layer)) for layer in layers] for name in by_module},
            [str(layer) for layer in layers],
            {name: name for name in by_module},
            {name: number(mean, places) for name, mean in means.items()},
            signed=False,
        ),
        table,
    )


def _module(row: ModuleDrift) -> str:
    """Return a module's name without its place among the layers, so that those of all layers share a row.

    Layers count from 1, the blocks in a module's name from 0: ``model.layers.0.self_attn.q_proj`` is of layer 1. The
    first such number is the block's, a later one an expert's.
    """
    if row.layer is None:
        return row.module
    return re.sub(rf"^(?:.*?\.)?{row.layer - 1}\.", "", row.module)


def _mean(rows: Sequence[ModuleDrift]) -> float:
    return sum(row.relative_norm or 0.0 for row in rows) / len(rows)


def _drift_row(name: str, rows: Sequence[ModuleDrift], places: int) -> tuple[Cell, ...]:
    most = max(rows, key=lambda row: row.relative_norm or 0.0)
    mean = _mean(rows)
    where = "" if most.layer is None else f"layer {most.layer}"
    return (
        words(name),
        numeric(float(len(rows)), str(len(rows)), ""),
        numeric(mean, number(mean, places), ""),
        numeric(most.relative_norm, number(most.relative_norm, places), "", where),
    )


def scale_facts(checkpoint: CheckpointResult) -> Facts:
    """Say how the common scale of the representations changed; empty where it was not measured."""
    found = checkpoint.collapse
    if found is None:
        return ()

    def cell(value: float | None) -> str:
        return (
            f"{EM_DASH} (undefined: the reference does not tell the sets apart)" if value is None else number(value, 3)
        )

    return (
        ("Distances between sentences, audited over reference", cell(found.distance_ratio)),
        ("Gap between positive and negative attributes, likewise", cell(found.centroid_ratio)),
        ("Slope of audited on reference associations", cell(found.slope)),
        (
            "Mean cosine of two attribute sentences, reference and audited",
            f"{cell(found.mean_cosine_reference)} and {cell(found.mean_cosine_audited)}",
        ),
    )


def dtype_sentence(result: AuditResult, checkpoint: CheckpointResult) -> str:
    """Say how much the number type changed dB."""
    check = checkpoint.dtype_check
    if check is None:
        return f"Computed in {result.settings.dtype}; no other number type was held against it."
    change = check.max_change_delta_b
    if change is None:
        return f"The change of dB between {check.dtype} and {check.against} could not be computed."
    return (
        f"Against {check.against}, {check.dtype} changed no group's dB by more than {number(change, digits([change]))} "
        f"(measured on {check.n_sentences} sentences, stated for all anchors)."
    )
