"""The report's tables, as formatted cells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from refbias.report.inputs import ReportInputs
from refbias.tables import TextTable
from refbias.tables.formats import (
    correlation,
    count,
    duration,
    interval,
    loss,
    memory,
    percent,
    score,
    shift,
    threshold,
)
from refbias.tables.labels import (
    BENCHMARK_LABELS,
    CONTROL,
    METHOD_LABELS,
    REGIME_LABELS,
    GroupName,
    benchmark_label,
    method_label,
    ordered,
    plain_name,
    regime_label,
    scorer_label,
    unit_label,
)

REFERENCE = "reference"
STAGE_ORDER = ("acquire", "finetune", "merge", "represent", "shift", "generate", "score", "analyse", "figures")
CONTROL_NAME = "Group-free control"
# width of a drawn interval, in its own units
BAR_WIDTH = 200.0


@dataclass(frozen=True)
class Bar:
    """Where an interval and its middle are drawn, from 0 to `BAR_WIDTH`; None where there is no number."""

    low: float | None
    middle: float | None
    high: float | None


@dataclass(frozen=True)
class GroupTable:
    """dB per group of one model, regime and method at the harmful endpoint.

    Attributes
    ----------
    model, regime, method
        What it shows.
    rows
        One checkpoint's rows of ``delta_b.csv``, lowest dB first.
    table
        Their cells.
    bars
        Their drawn intervals.
    zero
        Where 0 is drawn.
    control
        Which rows are the control's.
    """

    model: str
    regime: str
    method: str
    rows: pd.DataFrame
    table: TextTable
    bars: tuple[Bar, ...]
    zero: float
    control: tuple[bool, ...]


@dataclass(frozen=True)
class UnitTable:
    """Scores of one benchmark, model and regime by checkpoint and unit."""

    benchmark: str
    model: str
    regime: str
    table: TextTable


def group_tables(delta_b: pd.DataFrame, groups: Mapping[str, GroupName]) -> Iterator[GroupTable]:
    """Format dB per group at the harmful endpoint, one table a model, regime and method.

    Parameters
    ----------
    delta_b
        The table of that name.
    groups
        Group id -> name and topic.

    Yields
    ------
    GroupTable
        Rows sorted from the lowest dB.
    """
    for model in sorted(delta_b["model"].unique()):
        for regime in ordered(delta_b["regime"], REGIME_LABELS):
            for method in ordered(delta_b["method"], METHOD_LABELS):
                rows = delta_b[
                    (delta_b["model"] == model) & (delta_b["regime"] == regime) & (delta_b["method"] == method)
                ]
                end = rows[rows["harmful_weight"] == rows["harmful_weight"].max()]
                if not end.empty:
                    yield _group_table(model, regime, method, end.sort_values(["delta_b", "group"]), groups)


def _group_table(
    model: str, regime: str, method: str, rows: pd.DataFrame, groups: Mapping[str, GroupName]
) -> GroupTable:
    free = rows.loc[rows["group"] == CONTROL, "delta_b"]
    base = float(free.iloc[0]) if len(free) else float("nan")
    cells = []
    for _, row in rows.iterrows():
        group = str(row["group"])
        named = groups.get(group, GroupName(plain_name(group), ""))
        name, topic = (CONTROL_NAME, "") if group == CONTROL else (named.name, named.topic)
        cells.append(
            (
                name,
                topic,
                shift(row["delta_b"]),
                interval(row["ci_low"], row["ci_high"], 4),
                shift(row["s_plus"]),
                shift(row["s_minus"]),
                "" if group == CONTROL else shift(row["delta_b"] - base),
            )
        )
    headers = ("Group", "Topic", "dB", "95 % CI", "change of S+", "change of S\u2212", "dB less control")
    edges = rows[["ci_low", "ci_high", "delta_b"]]
    low, high = min(0.0, float(edges.min().min())), max(0.0, float(edges.max().max()))
    scale = BAR_WIDTH / (high - low) if high > low else 0.0

    def place(value: Any) -> float | None:
        return None if pd.isna(value) else round((float(value) - low) * scale, 1)

    return GroupTable(
        model,
        regime,
        method,
        rows,
        TextTable(headers, (False, False, True, True, True, True, True), tuple(cells)),
        tuple(Bar(place(r["ci_low"]), place(r["delta_b"]), place(r["ci_high"])) for _, r in rows.iterrows()),
        place(0.0) or 0.0,
        tuple(group == CONTROL for group in rows["group"]),
    )


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


def losses(inputs: ReportInputs) -> TextTable:
    """Format the first and last loss of each training."""
    rows = []
    for (model, regime, split), history in inputs.losses.items():
        known = history.dropna(subset=["loss"])
        first, last = (float(known["loss"].iloc[at]) if len(known) else float("nan") for at in (0, -1))
        steps = count(known["step"].max()) if len(known) else count(None)
        verdict = ("fell" if last < first else "did not fall") if len(known) > 1 else "too few records"
        rows.append((model, regime_label(regime), split, steps, loss(first), loss(last), verdict))
    headers = ("Model", "Regime", "Split", "Updates", "First loss", "Last loss", "Outcome")
    return TextTable(headers, (False, False, False, True, True, True, False), tuple(rows))


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


def cost(manifests: Mapping[str, Mapping[str, Any]]) -> TextTable:
    """Format time and memory by stage, from the manifests' own clocks."""
    stages = ordered((str(manifest.get("stage", "unknown")) for manifest in manifests.values()), STAGE_ORDER)
    rows = []
    total = sum(float(manifest.get("seconds", 0)) for manifest in manifests.values())
    for stage in stages:
        chosen = [manifest for manifest in manifests.values() if str(manifest.get("stage", "unknown")) == stage]
        seconds = sum(float(manifest.get("seconds", 0)) for manifest in chosen)
        peak = max((float(manifest.get("peak_memory_mb", 0)) for manifest in chosen), default=0.0)
        share = percent(seconds / total if total else None)
        rows.append((stage, count(len(chosen)), duration(seconds), share, memory(peak or None)))
    if rows:
        peak = max(float(manifest.get("peak_memory_mb", 0)) for manifest in manifests.values())
        rows.append(("all", count(len(manifests)), duration(total), percent(1.0), memory(peak or None)))
    headers = ("Stage", "Processes", "Time, summed", "Share", "Peak memory of a process")
    return TextTable(headers, (False, True, True, True, True), tuple(rows))


def versions(manifests: Mapping[str, Mapping[str, Any]]) -> TextTable:
    """Format the versions of the libraries; all of them where stages differ."""
    found: dict[str, set[str]] = {}
    for manifest in manifests.values():
        for name, version in manifest.get("versions", {}).items():
            found.setdefault(str(name), set()).add(str(version))
    rows = tuple((name, " and ".join(sorted(found[name]))) for name in sorted(found))
    return TextTable(("Library", "Version"), (False, False), rows)


def benchmark_settings(facts: Mapping[str, Any]) -> TextTable:
    """Format how each benchmark was run."""
    rows = tuple(
        (
            benchmark_label(name),
            unit_label(name),
            "shipped, own text" if one.prompts is None else one.prompts,
            count(one.samples),
            threshold(one.temperature),
            threshold(one.top_p),
            count(one.max_new_tokens),
            scorer_label(one.scorer),
            threshold(one.threshold),
        )
        for name, one in ((name, facts[name]) for name in ordered(facts, BENCHMARK_LABELS))
    )
    headers = (
        "Benchmark",
        "Unit",
        "Prompts",
        "Responses a prompt",
        "Temperature",
        "Top-p",
        "New tokens at most",
        "Scorer",
        "Threshold",
    )
    return TextTable(headers, (False, False, False, True, True, True, True, False, True), rows)


def method_names(table1: pd.DataFrame) -> list[str]:
    """Return the methods of table 1 in the order in which they are shown."""
    return ordered((str(name) for name in table1["method"]), METHOD_LABELS)


__all__ = [
    "Bar",
    "GroupTable",
    "UnitTable",
    "behaviour",
    "benchmark_settings",
    "cost",
    "group_tables",
    "losses",
    "method_label",
    "method_names",
    "scorer_quality",
    "unit_tables",
    "versions",
]
