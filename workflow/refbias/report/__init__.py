"""The report: one HTML page that holds a whole run, opens offline and asks nothing of the network.

It shows numbers and figures only, never a text that a model wrote, and everything that enters the page is escaped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refbias.config.report import ReportStage
from refbias.metrics import is_undirected
from refbias.report import run_tables, score_tables, sentences, shift_tables
from refbias.report.inputs import ReportInputs, load
from refbias.report.paper_tables import absent, paper_tables
from refbias.report.pictures import Picture, caption, loss_picture, paper_pictures, spectrum_pictures
from refbias.report.sections import Section, environment
from refbias.tables import group_names, table1, table1_caption
from refbias.tables.formats import threshold
from refbias.tables.labels import (
    BENCHMARK_LABELS,
    METHOD_LABELS,
    benchmark_label,
    is_stand_in,
    method_label,
    ordered,
    regime_label,
    scorer_label,
    unit_label,
)
from refbias.tables.reproduction import REPRODUCTION_CAPTION, reproduction_text

TEMPLATE = "report.html.j2"


@dataclass(frozen=True)
class Finding:
    """What Table 1 says about one benchmark, model and regime, one sentence a method."""

    title: str
    sentences: tuple[str, ...]


def findings(inputs: ReportInputs) -> Iterator[Finding]:
    """Put Table 1 into words."""
    frame = inputs.table1
    for benchmark in ordered(frame["benchmark"], BENCHMARK_LABELS):
        rows = frame[frame["benchmark"] == benchmark]
        for (model, regime), cell in rows.groupby(["model", "regime"], sort=True):
            yield Finding(
                f"{benchmark_label(benchmark)}, {model}, {regime_label(str(regime))}",
                tuple(sentences.relation(row) for _, row in cell.iterrows()),
            )


def _pictures(settings: ReportStage, inputs: ReportInputs) -> Iterator[Picture]:
    for model in settings.models:
        for regime in settings.regimes:
            yield from spectrum_pictures(inputs.figures, model, regime, inputs.table1)
        yield loss_picture(inputs.figures, model)
    yield from paper_pictures(inputs.figures, settings.lacks)


def render(settings: ReportStage, inputs: ReportInputs, sections: Sequence[Section] = ()) -> str:
    """Return the report's HTML.

    Parameters
    ----------
    settings
        What the run was.
    inputs
        What it left.
    sections
        Of further lenses, drawn behind the figures.

    Returns
    -------
    str
        A page without scripts and without any address outside of it and its neighbours.

    Raises
    ------
    UserError
        If a figure is missing.
    """
    groups = group_names(settings.stimuli.groups_file)
    tables = list(shift_tables.group_tables(inputs.delta_b, groups))
    methods = ordered((str(name) for name in inputs.table1["method"]), METHOD_LABELS)
    templates = environment()
    templates.filters |= {
        "benchmark_label": benchmark_label,
        "method_label": method_label,
        "regime_label": regime_label,
        "scorer_label": scorer_label,
        "unit_label": unit_label,
        "setting": threshold,
    }
    context: dict[str, Any] = {
        "settings": settings,
        "title": settings.title or settings.run,
        "stand_in_scorers": sorted(
            {facts.scorer for facts in settings.benchmarks.values() if is_stand_in(facts.scorer)}
        ),
        "stand_ins": sentences.stand_ins(settings),
        "limits": sentences.limits(settings, methods),
        "methods": methods,
        "undirected": [method for method in methods if is_undirected(method)],
        "sources": {name: sentences.model_description(source) for name, source in settings.models.items()},
        "tallies": [sentences.tally(inputs.table1, method) for method in methods],
        "findings": list(findings(inputs)),
        "table1": table1(inputs.table1),
        "table1_caption": table1_caption(inputs.table1),
        "claims": reproduction_text(inputs.reproduction[inputs.reproduction["kind"] == "claim"]),
        "claims_caption": REPRODUCTION_CAPTION,
        "absent": absent(settings.lacks),
        "paper_tables": list(paper_tables(inputs.paper_tables)),
        "groups": [(table, sentences.control(table.rows, table.method)) for table in tables],
        "bar_width": shift_tables.BAR_WIDTH,
        "anchors": sorted({int(n) for n in inputs.delta_b["n_anchors"].dropna() if n > 0}),
        "captions": {kind: caption(kind) for kind in ("delta_b", "units")},
        "pictures": list(_pictures(settings, inputs)),
        "behaviour": score_tables.behaviour(inputs.units),
        "units": list(score_tables.unit_tables(inputs.units, groups)),
        "quality": score_tables.scorer_quality(inputs),
        "losses": run_tables.losses(inputs),
        "benchmarks": run_tables.benchmark_settings(settings.benchmarks),
        "cost": run_tables.cost(inputs.manifests),
        "versions": run_tables.versions(inputs.manifests),
        "links": inputs.links,
        "sections": list(sections),
    }
    return templates.get_template(TEMPLATE).render(context)


__all__ = ["Finding", "ReportInputs", "Section", "findings", "load", "render"]
