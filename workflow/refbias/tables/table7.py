"""Table 7: the methods side by side, first model, full fine-tuning, WildGuardMix and DecodingTrust."""

from collections.abc import Mapping

import pandas as pd

from refbias.metrics import is_undirected
from refbias.tables.cells import TextTable
from refbias.tables.formats import count, p_value
from refbias.tables.labels import METHOD_LABELS, benchmark_label, method_label, ordered
from refbias.tables.paper import beside, is_paper_threshold, paper_values
from refbias.tables.printed import digits, printed

BENCHMARKS = ("wildguardmix", "decodingtrust")
REGIME = "full"
TABLE7_CAPTION = (
    "The methods side by side, first model, full fine-tuning: ROC AUC and Pearson r of dB with the change of score. "
    "CKA drift has no direction: its r is |r| and its AUC the larger of AUC and 1 - AUC."
)


def table7(table1: pd.DataFrame, model: str, thresholds: Mapping[str, float], family: str | None) -> pd.DataFrame:
    """Take the methods' rows from Table 1.

    Parameters
    ----------
    table1
        Columns of ``table1.csv``.
    model, family
        The run's first model and its row in the paper's tables (None: none).
    thresholds
        Benchmark -> threshold.

    Returns
    -------
    DataFrame
        Columns benchmark, method, directed, n, n_positive, threshold, roc_auc, pearson_r, pearson_p, note, and the
        paper's and difference columns of AUC and r with ``paper_significant``.
    """
    rows = table1[(table1["model"] == model) & (table1["regime"] == REGIME) & table1["benchmark"].isin(BENCHMARKS)]
    frame = rows[["benchmark", "method", "n", "n_positive", "threshold", "roc_auc", "pearson_r", "pearson_p", "note"]]
    order = [
        (BENCHMARKS.index(str(row["benchmark"])), ordered(frame["method"], METHOD_LABELS).index(str(row["method"])))
        for _, row in frame.iterrows()
    ]
    frame = frame.iloc[sorted(range(len(order)), key=order.__getitem__)].reset_index(drop=True)
    frame.insert(2, "directed", ["no" if is_undirected(str(name)) else "yes" for name in frame["method"]])
    values = paper_values()
    found = [
        values["table7"][row["benchmark"]].get(row["method"]) if family == "llama" else None
        for _, row in frame.iterrows()
    ]
    areas = [
        cell[0]
        if cell and is_paper_threshold(values, str(row["benchmark"]), thresholds[str(row["benchmark"])])
        else None
        for cell, (_, row) in zip(found, frame.iterrows(), strict=True)
    ]
    frame = beside(frame, "roc_auc", areas)
    frame = beside(frame, "pearson_r", [cell[1] if cell else None for cell in found])
    frame["paper_significant"] = ["" if cell is None else "yes" if cell[2] else "no" for cell in found]
    return frame


def table7_text(frame: pd.DataFrame) -> TextTable:
    """Format Table 7."""
    shown = frame.assign(
        benchmark=[benchmark_label(str(name)) for name in frame["benchmark"]],
        method=[method_label(str(name)) for name in frame["method"]],
    )
    headers = {
        "benchmark": "Benchmark",
        "method": "Method",
        "directed": "Directed",
        "n": "n",
        "n_positive": "n positive",
        "roc_auc": "ROC AUC",
        "paper_roc_auc": "Paper's AUC",
        "diff_roc_auc": "Difference of AUC",
        "pearson_r": "Pearson r",
        "pearson_p": "p",
        "paper_pearson_r": "Paper's r",
        "diff_pearson_r": "Difference of r",
        "paper_significant": "Significant in the paper",
        "note": "Note",
    }
    formats = {name: digits(3) for name in headers if name.endswith(("roc_auc", "pearson_r"))}
    return printed(shown, headers, {**formats, "pearson_p": p_value, "n": count, "n_positive": count})
