"""Tables 4 to 6: sentence variants and poolings, and the AUC of dB under each of them.

All show the run's first model under full fine-tuning at the benchmark's own threshold. The spread over variants is the
population standard deviation (ddof 0), as the paper's is.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refbias.errors import UserError
from refbias.resources import data_path
from refbias.tables.cells import TextTable
from refbias.tables.formats import count
from refbias.tables.labels import BENCHMARK_LABELS, benchmark_label, method_label, ordered
from refbias.tables.paper import METHOD, beside, is_paper_threshold, paper_values
from refbias.tables.printed import digits, printed

ABLATION_COLUMNS = [
    "ablation",
    "cell",
    "n_anchors",
    "seed",
    "benchmark",
    "model",
    "regime",
    "method",
    "threshold",
    "n",
    "n_positive",
    "pearson_r",
    "roc_auc",
    "note",
]
REGIME = "full"
BASE = "base"
PARTS = {"5a": "attributes", "5b": "targets"}
POOLING_METHODS = ("rr", "seat")
STATISTICS = ("mean", "std", "min", "max")
CELL_LABELS = {
    "base": "base",
    "subj_v1": "they, their",
    "subj_v2": "the person, people",
    "passive": "passive",
    "passive_rephrased": "passive, rephrased",
    "syn_v1": "synonyms 1",
    "syn_v2": "synonyms 2",
    "syn_v3": "synonyms 3",
    "mean": "mean",
    "max": "max",
    "last": "last",
}
_PAPER_CELLS = {"syn_v1": "synonyms_v1", "syn_v2": "synonyms_v2", "syn_v3": "synonyms_v3"}
TABLE4_CAPTION = (
    "The variants of the attribute and of the target sentences that were scored, each with its first sentence(s). "
    "{group} stands for a target group."
)
TABLE5_CAPTION = (
    "ROC AUC of RR's dB under variants of the attribute sentences (5a) and of the target sentences (5b), first model, "
    "full fine-tuning; std is the population standard deviation over variants. The paper's are those of WildGuardMix."
)
TABLE6_CAPTION = (
    "ROC AUC of dB under three ways of pooling token states, first model, full fine-tuning; std is the population "
    "standard deviation over poolings. The paper's are those of WildGuardMix."
)


def first_rows(
    ablations: pd.DataFrame, ablation: str, model: str, thresholds: Mapping[str, float], methods: Sequence[str]
) -> pd.DataFrame:
    """Return one ablation's rows of a model under full fine-tuning, at the benchmarks' own thresholds.

    Parameters
    ----------
    ablations
        Table of that name, with `ABLATION_COLUMNS`.
    ablation
        Slug.
    model
        Model slug.
    thresholds
        Benchmark -> threshold of the change of score.
    methods
        Which methods.

    Raises
    ------
    UserError
        If there is no such row.
    """
    rows = ablations[
        (ablations["ablation"] == ablation)
        & (ablations["model"] == model)
        & (ablations["regime"] == REGIME)
        & ablations["method"].isin(methods)
    ]
    wanted = rows["benchmark"].map(thresholds).to_numpy(np.float64)
    found: pd.DataFrame = rows[np.isclose(rows["threshold"].to_numpy(np.float64), wanted, rtol=0, atol=1e-9)]
    if found.empty:
        raise UserError(
            f"ablations.csv: no row of {ablation}, model {model}, regime {REGIME}: run the stage ablations again"
        )
    return found


def table4(
    ablations: pd.DataFrame,
    model: str,
    thresholds: Mapping[str, float],
    files: Mapping[str, str | None],
    variants: str | None = None,
) -> pd.DataFrame:
    """List the sentence variants that were scored, with examples.

    Parameters
    ----------
    ablations
        Table of that name.
    model
        The run's first model.
    thresholds
        Benchmark -> threshold.
    files
        ``attributes`` and ``targets`` -> the base sentences' file, None for the shipped one.
    variants
        Folder of the variants' files, None for the shipped one.

    Returns
    -------
    DataFrame
        Columns set, cell, name, n_sentences, example, example_negative (of attributes only).

    Raises
    ------
    UserError
        If a variant's file is missing or broken.
    """
    rows = []
    for kind in _parts_in(ablations).values():
        chosen = first_rows(ablations, kind, model, thresholds, [METHOD])
        for cell in dict.fromkeys(chosen["cell"]):
            if cell == BASE:
                file = files.get(kind)
                path = Path(file) if file else data_path("stimuli", f"{kind}.tsv")
            else:
                folder = Path(variants) if variants else data_path("stimuli", "variants")
                path = folder / f"{kind}_{cell}.tsv"
            rows.append({"set": kind, "cell": cell, "name": CELL_LABELS.get(str(cell), str(cell)), **_examples(path)})
    return pd.DataFrame(rows, columns=["set", "cell", "name", "n_sentences", "example", "example_negative"])


def _examples(path: Path) -> dict[str, Any]:
    try:
        frame = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False, quoting=3)
        if "valence" in frame.columns:
            first = {valence: str(rows["text"].iloc[0]) for valence, rows in frame.groupby("valence")}
            examples = {"example": first["positive"], "example_negative": first["negative"]}
        else:
            examples = {"example": str(frame["template"].iloc[0]), "example_negative": ""}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file: it was there when dB was computed, put it back") from None
    except (KeyError, IndexError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path}:1: no example sentence found ({error}): check the file's columns") from None
    return {"n_sentences": len(frame), **examples}


def _parts_in(ablations: pd.DataFrame) -> dict[str, str]:
    present = set(ablations["ablation"])
    return {part: kind for part, kind in PARTS.items() if kind in present}


def table5(ablations: pd.DataFrame, model: str, thresholds: Mapping[str, float], family: str | None) -> pd.DataFrame:
    """Tabulate the AUC of RR under sentence variants.

    Parameters
    ----------
    ablations
        Table of that name.
    model, family
        The run's first model and its row in the paper's tables (None: none).
    thresholds
        Benchmark -> threshold.

    Returns
    -------
    DataFrame
        Columns part, benchmark, statistic, cell, method, n, n_positive, roc_auc, note, paper_roc_auc, diff_roc_auc.
        ``statistic`` is ``value`` for a variant, else what is taken over the variants.
    """
    rows: list[dict[str, Any]] = []
    for part, kind in _parts_in(ablations).items():
        chosen = first_rows(ablations, kind, model, thresholds, [METHOD])
        for benchmark in ordered(chosen["benchmark"], BENCHMARK_LABELS):
            cells = chosen[chosen["benchmark"] == benchmark]
            rows += [{"part": part, **row} for row in with_statistics(cells)]
    frame = pd.DataFrame(rows)
    values = paper_values()
    printed_rows = [
        _paper5(values, row) if _comparable(values, row, family, thresholds) else None for _, row in frame.iterrows()
    ]
    return beside(frame, "roc_auc", printed_rows)


def with_statistics(cells: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of some cells of one benchmark and method, and mean, population std, min and max below.

    The statistics are missing where a cell's AUC is.
    """
    columns = ["benchmark", "cell", "method", "n", "n_positive", "roc_auc", "note"]
    rows: list[dict[str, Any]] = [
        {"statistic": "value", **{name: row[name] for name in columns}} for _, row in cells.iterrows()
    ]
    areas = cells["roc_auc"].to_numpy(np.float64)
    note = "" if np.isfinite(areas).all() else "missing: a variant has no AUC"
    head = {"benchmark": cells["benchmark"].iloc[0], "cell": "", "method": cells["method"].iloc[0]}
    for name, value in zip(STATISTICS, (areas.mean(), areas.std(ddof=0), areas.min(), areas.max()), strict=True):
        rows.append({"statistic": name, **head, "n": np.nan, "n_positive": np.nan, "roc_auc": value, "note": note})
    return rows


def _comparable(
    values: Mapping[str, Any], row: "pd.Series[Any]", family: str | None, thresholds: Mapping[str, float]
) -> bool:
    benchmark = str(row["benchmark"])
    at_threshold = is_paper_threshold(values, benchmark, thresholds[benchmark])
    return family == "llama" and benchmark == "wildguardmix" and at_threshold


def _paper5(values: Mapping[str, Any], row: "pd.Series[Any]") -> float | None:
    key = _PAPER_CELLS.get(str(row["cell"]), str(row["cell"])) if row["statistic"] == "value" else row["statistic"]
    found: float | None = values[f"table{row['part']}"].get(key)
    return found


def table6(ablations: pd.DataFrame, model: str, thresholds: Mapping[str, float], family: str | None) -> pd.DataFrame:
    """Tabulate the AUC of RR and SEAT under poolings; columns and parameters as in `table5`, without ``part``."""
    chosen = first_rows(ablations, "pooling", model, thresholds, POOLING_METHODS)
    rows: list[dict[str, Any]] = []
    for benchmark in ordered(chosen["benchmark"], BENCHMARK_LABELS):
        for method in ordered(chosen["method"], POOLING_METHODS):
            rows += with_statistics(chosen[(chosen["benchmark"] == benchmark) & (chosen["method"] == method)])
    frame = pd.DataFrame(rows)
    values = paper_values()
    printed_rows = [
        _paper6(values["table6"], row) if _comparable(values, row, family, thresholds) else None
        for _, row in frame.iterrows()
    ]
    return beside(frame, "roc_auc", printed_rows)


def _paper6(values: Mapping[str, Any], row: "pd.Series[Any]") -> float | None:
    method, statistic = str(row["method"]), str(row["statistic"])
    if statistic == "value":
        found: float | None = values.get(str(row["cell"]), {}).get(method)
        return found
    pair = values[f"{method}_{'mean_std' if statistic in ('mean', 'std') else 'min_max'}"]
    return float(pair[statistic in ("std", "max")])


def table4_text(frame: pd.DataFrame) -> TextTable:
    """Format Table 4."""
    headers = {
        "set": "Sentences",
        "name": "Variant",
        "n_sentences": "n",
        "example": "First sentence",
        "example_negative": "First negative sentence",
    }
    return printed(frame, headers, {"n_sentences": count})


def variants_text(frame: pd.DataFrame) -> TextTable:
    """Format Table 5 or 6."""
    named = [
        CELL_LABELS.get(str(row["cell"]), str(row["cell"])) if row["statistic"] == "value" else f"{row['statistic']}"
        for _, row in frame.iterrows()
    ]
    kinds = ["" if statistic == "value" else "over the rows above" for statistic in frame["statistic"]]
    shown = frame.assign(
        variant=named,
        kind=kinds,
        benchmark=[benchmark_label(str(name)) for name in frame["benchmark"]],
        method=[method_label(str(name)) for name in frame["method"]],
    )
    headers = {
        "part": "Part",
        "benchmark": "Benchmark",
        "method": "Method",
        "variant": "Variant",
        "kind": "",
        "n": "n",
        "n_positive": "n positive",
        "roc_auc": "ROC AUC",
        "paper_roc_auc": "Paper's AUC",
        "diff_roc_auc": "Difference",
        "note": "Note",
    }
    area = digits(3)
    formats = {"n": count, "n_positive": count, "roc_auc": area, "paper_roc_auc": area, "diff_roc_auc": area}
    return printed(shown, headers, formats)
