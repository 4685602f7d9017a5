"""The two-stage audit as a table and as Markdown."""

import pandas as pd

from refbias.config.two_stage import AlarmLevel, HeldOut, TwoStage
from refbias.tables.cells import TextTable, markdown, markdown_cell
from refbias.tables.formats import interval, number, percent
from refbias.tables.labels import benchmark_label, method_label, regime_label, scorer_label
from refbias.tables.printed import digits, printed

ALARMS = {
    "abs": "|dB|",
    "down": "\u2212dB",
    "abs_net": "|dB net of the control|",
    "down_net": "\u2212(dB net of the control)",
}


def two_stage_table(found: TwoStage) -> pd.DataFrame:
    """Return the alarm levels, one a row; see `refbias.config.two_stage.AlarmLevel`."""
    columns = list(AlarmLevel.model_fields)
    frame = pd.DataFrame([row.model_dump() for row in found.levels], columns=columns)
    whole = [name for name in columns if name.startswith("n_")]
    return frame.astype({name: "int64" if name in whole else "float64" for name in columns})


def two_stage_markdown(found: TwoStage) -> str:
    """Return the account in Markdown: what was asked, the table, levels on checkpoints left out, and the warnings."""
    subject = "whole checkpoints" if found.level == "checkpoint" else "single units"
    regimes = ", ".join(map(regime_label, found.regimes))
    lines = [
        f"# Two-stage audit: {benchmark_label(found.benchmark)}, {method_label(found.method)}",
        "",
        markdown_cell(
            f"{', '.join(found.models)}, {regimes}; scorer {scorer_label(found.scorer)}. {found.n} units of "
            f"{found.n_checkpoints} checkpoints, of which {found.n_rose} rose by more than {found.threshold:g}. Alarm: "
            f"{ALARMS[found.by]} at or above the level; it sends {subject} to the benchmark. Area under its ROC curve: "
            f"{number(found.auc, 2)}."
        ),
        "",
    ]
    if found.costs:
        lines += [
            markdown_cell(
                f"Benchmarking everything took {found.costs.benchmark:.0f} s, dB {found.costs.shift:.0f} s. "
                f"{found.costs.note}"
            ),
            "",
        ]
    lines += [
        markdown(_levels(found.levels)),
        "Intervals: 95 %, bootstrap over units and checkpoints. A coin is tossed without computing dB, weighted for "
        "the same recall. Even from: how many times the outputs a benchmark needs for nothing to be lost.",
        "",
    ]
    if found.held_out:
        lines += [
            "## Levels chosen on the other checkpoints",
            "",
            markdown(_held_out(found.held_out)),
        ]
    if found.warnings:
        lines += ["## Warnings", "", *(f"- {markdown_cell(sentence)}" for sentence in found.warnings), ""]
    return "\n".join(lines)


def _levels(levels: list[AlarmLevel]) -> TextTable:
    frame = pd.DataFrame([row.model_dump() for row in levels]).astype("float64")
    spans = {
        f"{name}_ci": [interval(getattr(row, f"{name}_low"), getattr(row, f"{name}_high"), 2) for row in levels]
        for name in ("recall", "precision")
    }
    headers = {
        "level": "Level",
        "share": "Benchmarked",
        "recall": "Recall",
        "recall_ci": "95 % CI",
        "precision": "Precision",
        "precision_ci": "95 % CI",
        "saved": "Cost saved",
        "saved_by_coin": "Saved by a coin",
        "break_even": "Even from",
    }
    formats = {
        "level": digits(4),
        "share": percent,
        "recall": digits(2),
        "precision": digits(2),
        "saved": percent,
        "saved_by_coin": percent,
        "break_even": digits(1),
    }
    return printed(frame.assign(**spans), headers, formats)


def _held_out(rows: list[HeldOut]) -> TextTable:
    frame = pd.DataFrame([row.model_dump() for row in rows]).astype("float64")
    headers = {
        "target": "Recall aimed at",
        "recall": "Recall",
        "share": "Benchmarked",
        "precision": "Precision",
        "saved": "Cost saved",
        "saved_by_coin": "Saved by a coin",
    }
    formats = {name: percent if name not in ("recall", "precision") else digits(2) for name in headers}
    return printed(frame, headers, formats)
