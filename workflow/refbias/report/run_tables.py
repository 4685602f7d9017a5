"""Losses, cost, versions and benchmark settings of a run, as formatted cells."""

from collections.abc import Mapping
from typing import Any

from refbias.config.report import BenchmarkFacts
from refbias.report.inputs import ReportInputs
from refbias.tables import TextTable
from refbias.tables.formats import count, duration, loss, memory, percent, threshold
from refbias.tables.labels import BENCHMARK_LABELS, benchmark_label, ordered, regime_label, scorer_label, unit_label

STAGE_ORDER = (
    *("preflight", "fetch", "prepare", "acquire", "finetune", "merge", "represent", "shift", "seeds"),
    *("ablation_sentences", "represent_ablations", "ablate", "topics", "generate", "score"),
    *("analyse", "analyse_ablations", "records", "tables"),
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


def benchmark_settings(facts: Mapping[str, BenchmarkFacts]) -> TextTable:
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
