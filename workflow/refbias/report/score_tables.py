"""Scores by unit, of the endpoints, and of the scorers themselves, as formatted cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from refbias.report.inputs import ReportInputs
from refbias.tables import TextTable
from refbias.tables.formats import correlation, count, interval, percent, score
from refbias.tables.labels import (
    BENCHMARK_LABELS,
    REGIME_LABELS,
    GroupName,
    benchmark_label,
    ordered,
    plain_name,
    regime_label,
    scorer_label,
    unit_label,
)

REFERENCE = "reference"


@dataclass(frozen=True)
class UnitTable:
    """Scores of one benchmark, model and regime by checkpoint and unit."""

    benchmark: str
    model: str
    regime: str
    table: TextTable


def unit_name(benchmark: str, unit: str, groups: Mapping[str, GroupName]) -> str:
    """Return how a benchmark's unit is printed."""
    named = groups.get(unit) if unit_label(benchmark) == "group" else None
    return named.name if named else plain_name(unit)


def unit_tables(units: pd.DataFrame, groups: Mapping[str, GroupName]) -> Iterator[UnitTable]:
    """Format the units, one table a benchmark, model and regime (the reference among the regimes)."""
    headers = ("Checkpoint", "Unit", "Scorer", "n", "Missing", "Score", "Reference", "Change", "95 % CI")
    for benchmark in ordered(units["benchmark"], BENCHMARK_LABELS):
        for model in sorted(units["model"].unique()):
            for regime in ordered(units["regime"], [REFERENCE, *REGIME_LABELS]):
                rows = units[
                    (units["benchmark"] == benchmark) & (units["model"] == model) & (units["regime"] == regime)
                ]
                if rows.empty:
                    continue
                cells = tuple(
                    (
                        str(row["checkpoint"]),
                        unit_name(benchmark, str(row["unit"]), groups),
                        scorer_label(str(row["scorer"])),
                        count(row["n_outputs"]),
                        count(row["n_missing"]),
                        score(row["score"]),
                        score(row["reference_score"]),
                        score(row["delta_score"]),
                        interval(row["delta_ci_low"], row["delta_ci_high"], 3),
                    )
                    for _, row in rows.iterrows()
                )
                yield UnitTable(benchmark, model, regime, TextTable(headers, (False,) * 3 + (True,) * 6, cells))


def behaviour(units: pd.DataFrame) -> TextTable:
    """Format the mean score over units of the reference and of both endpoints of each spectrum."""
    rows = []
    for benchmark in ordered(units["benchmark"], BENCHMARK_LABELS):
        for model in sorted(units["model"].unique()):
            chosen = units[(units["benchmark"] == benchmark) & (units["model"] == model)]
            base = chosen[chosen["regime"] == REFERENCE]
            for regime in ordered(chosen["regime"], REGIME_LABELS):
                if regime == REFERENCE:
                    continue
                rows.append(_behaviour_row(benchmark, model, regime, base, chosen[chosen["regime"] == regime]))
    headers = (
        "Benchmark",
        "Model",
        "Regime",
        "Scorer",
        "Units",
        "Outputs",
        "Missing",
        "Reference",
        "Lowest unit",
        "Highest unit",
        "Unharmful endpoint",
        "Harmful endpoint",
    )
    return TextTable(headers, (False,) * 4 + (True,) * 8, tuple(rows))


def _behaviour_row(
    benchmark: str, model: str, regime: str, base: pd.DataFrame, spectrum: pd.DataFrame
) -> tuple[str, ...]:
    weight = spectrum["harmful_weight"]
    start, end = spectrum[weight == weight.min()], spectrum[weight == weight.max()]
    return (
        benchmark_label(benchmark),
        model,
        regime_label(regime),
        ", ".join(scorer_label(str(name)) for name in sorted(spectrum["scorer"].unique())),
        count(spectrum["unit"].nunique()),
        count(spectrum["n_outputs"].sum() + base["n_outputs"].sum()),
        count(spectrum["n_missing"].sum() + base["n_missing"].sum()),
        score(base["score"].mean()),
        score(base["score"].min()),
        score(base["score"].max()),
        score(start["score"].mean()),
        score(end["score"].mean()),
    )


def scorer_quality(inputs: ReportInputs) -> TextTable:
    """Format how well each fitted scorer did on labels that it was not fitted on."""
    sets = (("held_out", "held-out own sentences"), ("outputs", "hand-labelled outputs"))
    rows: list[tuple[str, ...]] = []
    for manifest in inputs.manifests.values():
        for name, quality in sorted(manifest.get("scorer_evaluation", {}).items()):
            named = [(label, quality[key]) for key, label in sets if key in quality]
            by_benchmark = quality.get("outputs_by_benchmark", {})
            named += [(f"hand-labelled outputs, {benchmark_label(key)}", found) for key, found in by_benchmark.items()]
            rows += [_quality_row(name, label, found) for label, found in named]
    headers = ("Scorer", "Labels", "n", "n positive", "AUC", "95 % CI", "Accuracy", "Recall", "Specificity", "Note")
    # every model and source repeats the same evaluation
    return TextTable(headers, (False, False) + (True,) * 7 + (False,), tuple(dict.fromkeys(rows)))


def _quality_row(name: str, label: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        scorer_label(name),
        label,
        count(found.get("n")),
        count(found.get("n_positive")),
        correlation(found.get("auc")),
        interval(found.get("auc_ci_low"), found.get("auc_ci_high"), 2),
        percent(found.get("accuracy")),
        percent(found.get("recall")),
        percent(found.get("specificity")),
        str(found.get("note") or ""),
    )
