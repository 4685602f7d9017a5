"""Table 1: how dB goes with the change of score, as cells, Markdown and LaTeX."""

import pandas as pd

from refbias.metrics import is_undirected
from refbias.tables.cells import TextTable, latex, markdown, markdown_cell
from refbias.tables.formats import (
    MINUS,
    STAR_NOTE,
    correlation,
    count,
    interval,
    p_value,
    percent,
    score,
    stars,
    threshold,
)
from refbias.tables.labels import (
    METHOD_LABELS,
    benchmark_label,
    is_stand_in,
    method_label,
    ordered,
    regime_label,
    scorer_label,
)

TABLE1_COLUMNS = [
    "benchmark",
    "model",
    "regime",
    "method",
    "scorer",
    "threshold",
    "n",
    "pearson_r",
    "pearson_p",
    "pearson_ci_low",
    "pearson_ci_high",
    "spearman_r",
    "roc_auc",
    "roc_auc_ci_low",
    "roc_auc_ci_high",
    "mae",
    "mae_oob",
    "n_positive",
    "note",
]

_TABLE1_HEADERS = (
    ("Benchmark", False),
    ("Model", False),
    ("Regime", False),
    ("Method", False),
    ("Scorer", False),
    ("n", True),
    ("Pearson r", True),
    ("95 % CI of r", True),
    ("p", True),
    ("Spearman", True),
    ("Threshold", True),
    ("n positive", True),
    ("ROC AUC", True),
    ("95 % CI of AUC", True),
    ("MAE in-sample", True),
    ("MAE out-of-bag", True),
    ("At floor", True),
    ("At ceiling", True),
    ("Note", False),
)


def _table1_row(row: "pd.Series[float]") -> tuple[str, ...]:
    return (
        benchmark_label(str(row["benchmark"])),
        str(row["model"]),
        regime_label(str(row["regime"])),
        method_label(str(row["method"])),
        scorer_label(str(row["scorer"])),
        count(row["n"]),
        correlation(row["pearson_r"]) + stars(row["pearson_p"]),
        interval(row["pearson_ci_low"], row["pearson_ci_high"], 2),
        p_value(row["pearson_p"]),
        correlation(row["spearman_r"]),
        threshold(row["threshold"]),
        count(row["n_positive"]),
        correlation(row["roc_auc"]),
        interval(row["roc_auc_ci_low"], row["roc_auc_ci_high"], 2),
        score(row["mae"]),
        score(row["mae_oob"]),
        percent(row.get("share_floor")),
        percent(row.get("share_ceiling")),
        str(row["note"]),
    )


def table1(frame: pd.DataFrame) -> TextTable:
    """Format Table 1.

    Parameters
    ----------
    frame
        Columns of ``table1.csv``; ``share_floor`` and ``share_ceiling`` may be left out. Row order is kept.

    Returns
    -------
    TextTable
        One row a benchmark, model, regime and method.
    """
    full = frame.assign(note=frame["note"].fillna(""))
    return TextTable(
        tuple(header for header, _ in _TABLE1_HEADERS),
        tuple(numeric for _, numeric in _TABLE1_HEADERS),
        tuple(_table1_row(row) for _, row in full.iterrows()),
    )


def table1_caption(frame: pd.DataFrame) -> str:
    """Return what Table 1 shows, naming the scorers and saying which of them are stand-ins."""
    stand_ins = sorted({str(name) for name in frame["scorer"] if is_stand_in(str(name))})
    warning = (
        f" Scored by a stand-in ({', '.join(stand_ins)}): not comparable with values of the benchmark's own scorer."
        if stand_ins
        else ""
    )
    undirected = [method_label(name) for name in ordered(frame["method"], METHOD_LABELS) if is_undirected(name)]
    sides = (
        f" {' and '.join(undirected)} has no direction: |r|, and the larger of AUC and 1 {MINUS} AUC."
        if undirected
        else ""
    )
    return (
        "Relation between dB and the change of score. Pairs of dB and change of score over checkpoints and units; "
        "AUC of dB below a cutoff against change of score above the threshold; MAE of the change of score predicted "
        f"from dB, in score units. {STAR_NOTE}. A dash is a value that could not be had; the note says "
        f"why.{sides}{warning}"
    )


def table1_markdown(frame: pd.DataFrame) -> str:
    """Return Table 1 in Markdown, its caption below."""
    return f"{markdown(table1(frame))}\n{markdown_cell(table1_caption(frame))}\n"


def table1_latex(frame: pd.DataFrame) -> str:
    """Return Table 1 in LaTeX."""
    return latex(table1(frame), table1_caption(frame), "tab:table1")
