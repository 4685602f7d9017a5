"""The paper's claims, each with the criterion by which a run's own tables decide it.

A claim is judged only from rows of models that stand for the paper's (``family`` in the configuration); one for which
rows are absent is not run. The criteria allow for the paper's rounding and for other sentence sets; they are printed
beside every verdict.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from refbias.stats import pearson
from refbias.tables.formats import correlation, number, p_statement
from refbias.tables.labels import CONTROL, METHOD_LABELS, benchmark_label, method_label, ordered
from refbias.tables.paper import FAMILIES
from refbias.tables.table3 import OURS, TOTAL, minutes_text
from refbias.tables.variants import PARTS, POOLING_METHODS, REGIME, first_rows

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"
BENCHMARKS = ("wildguardmix", "decodingtrust", "toxigen")
REGIMES = ("full", "lora")
LEVEL = 0.05
N_CELLS = len(FAMILIES) * len(REGIMES) * len(BENCHMARKS)
TOLERANCE = 0.05
STABLE_STD = 0.05
SEED_SHARE = 0.1
MINUTES = 3.5
RATIO = 2.5


@dataclass(frozen=True)
class Evidence:
    """The tables of a run from which claims are judged; None for those that were not made."""

    table1: pd.DataFrame
    observations: pd.DataFrame
    table3: pd.DataFrame
    table7: pd.DataFrame | None
    ablations: pd.DataFrame | None
    training_seeds: pd.DataFrame | None
    models: Sequence[str]
    families: Mapping[str, str | None]
    thresholds: Mapping[str, float]


class Verdict(NamedTuple):
    """What a run says of a claim, in a word and in numbers, with the models that it rests on."""

    verdict: str
    shown: str
    models: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """A claim: slug, where it stands in the paper, what it says, the criterion in words, and the judge."""

    name: str
    source: str
    paper: str
    criterion: str
    judge: Callable[[Evidence], Verdict]


def _verdict(holds: bool, shown: str, models: Sequence[str]) -> Verdict:
    return Verdict(REPRODUCED if holds else NOT_REPRODUCED, shown, tuple(dict.fromkeys(models)))


def _not_run(reason: str, models: Sequence[str] = ()) -> Verdict:
    return Verdict(NOT_RUN, reason, tuple(dict.fromkeys(models)))


def _cells(evidence: Evidence, method: str = "rr") -> pd.DataFrame:
    """Return table 1's rows of models with a family, which is a column; one row a cell."""
    rows = evidence.table1[evidence.table1["method"] == method]
    rows = rows.assign(family=[evidence.families.get(str(model)) or "" for model in rows["model"]])
    rows = rows[rows["family"].isin(FAMILIES) & rows["benchmark"].isin(BENCHMARKS) & rows["regime"].isin(REGIMES)]
    return rows.drop_duplicates(["family", "benchmark", "regime"])


def _all_cells(evidence: Evidence, column: str) -> tuple[pd.DataFrame, Verdict | None]:
    """Return the 18 cells, and the verdict where they or their numbers are not all there."""
    cells = _cells(evidence)
    known = cells[cells[column].notna()]
    if len(cells) < N_CELLS:
        return cells, _not_run(f"{len(cells)} of {N_CELLS} cells in this run", list(cells["model"]))
    if len(known) < N_CELLS:
        return cells, _not_run(f"{len(known)} of {N_CELLS} cells have a value", list(cells["model"]))
    return cells, None


def significant(evidence: Evidence) -> Verdict:
    """Count the cells in which r is below 0 with p below 0.05."""
    cells = _cells(evidence)
    if len(cells) < N_CELLS:
        return _all_cells(evidence, "n")[1] or _not_run("")
    n = int(((cells["pearson_r"] < 0) & (cells["pearson_p"] < LEVEL)).sum())
    without = int(cells["pearson_r"].isna().sum())
    shown = f"{n} of {N_CELLS} cells" + (f"; {without} have no r" if without else "")
    return _verdict(n >= 15, shown, list(cells["model"]))


def strongest(evidence: Evidence) -> Verdict:
    """Look at the lowest r."""
    cells, verdict = _all_cells(evidence, "pearson_r")
    if verdict:
        return verdict
    row = cells.iloc[int(cells["pearson_r"].to_numpy(np.float64).argmin())]
    low = float(row["pearson_r"])
    where = f"{benchmark_label(str(row['benchmark']))}, {row['model']}, {row['regime']}"
    return _verdict(low <= -0.84 + TOLERANCE, f"lowest r {correlation(low)} ({where})", list(cells["model"]))


def areas(evidence: Evidence) -> Verdict:
    """Look at the range of the AUC."""
    cells, verdict = _all_cells(evidence, "roc_auc")
    if verdict:
        return verdict
    low, high = float(cells["roc_auc"].min()), float(cells["roc_auc"].max())
    holds = low >= 0.65 - TOLERANCE and high >= 0.99 - TOLERANCE
    return _verdict(holds, f"AUC from {correlation(low)} to {correlation(high)}", list(cells["model"]))


def above_seat(evidence: Evidence) -> Verdict:
    """Compare the AUC of RR and SEAT under full fine-tuning on WildGuardMix and DecodingTrust."""
    wanted = [(family, benchmark) for family in FAMILIES for benchmark in BENCHMARKS[:2]]
    full = {method: rows[rows["regime"] == REGIME] for method in POOLING_METHODS for rows in [_cells(evidence, method)]}
    areas_of = {
        method: {
            (str(family), str(benchmark)): float(area)
            for family, benchmark, area in zip(rows["family"], rows["benchmark"], rows["roc_auc"], strict=True)
        }
        for method, rows in full.items()
    }
    pairs = [
        (areas_of["rr"][key], areas_of["seat"][key])
        for key in wanted
        if key in areas_of["rr"] and key in areas_of["seat"]
    ]
    models = list(full["rr"]["model"])
    known = [(rr, seat) for rr, seat in pairs if rr == rr and seat == seat]
    if len(known) < len(wanted):
        return _not_run(f"{len(known)} of {len(wanted)} pairs of AUC in this run", models)
    n = sum(rr > seat for rr, seat in known)
    return _verdict(n == len(wanted), f"RR above SEAT in {n} of {len(wanted)}", models)


def weaker_lora(evidence: Evidence) -> Verdict:
    """Compare mean r and its range over models between the regimes."""
    cells, verdict = _all_cells(evidence, "pearson_r")
    if verdict:
        return verdict
    mean = {regime: float(rows["pearson_r"].mean()) for regime, rows in cells.groupby("regime")}
    ranges = cells.groupby(["regime", "benchmark"])["pearson_r"].agg(np.ptp).groupby("regime").mean()
    shown = (
        f"mean r {correlation(mean['full'])} full, {correlation(mean['lora'])} LoRA; range over models, mean over "
        f"benchmarks, {correlation(ranges['full'])} full, {correlation(ranges['lora'])} LoRA"
    )
    holds = mean["lora"] > mean["full"] and ranges["lora"] > ranges["full"]
    return _verdict(holds, shown, list(cells["model"]))


def toxigen_pooled(evidence: Evidence) -> Verdict:
    """Correlate ToxiGen's pairs of all three families under full fine-tuning."""
    rows = evidence.observations
    rows = rows[(rows["benchmark"] == "toxigen") & (rows["regime"] == REGIME) & (rows["method"] == "rr")]
    rows = rows[[bool(evidence.families.get(str(model))) for model in rows["model"]]]
    rows = rows.dropna(subset=["delta_b", "delta_score"])
    found = {evidence.families[str(model)] for model in rows["model"]}
    models = list(dict.fromkeys(map(str, rows["model"])))
    if len(found) < len(FAMILIES):
        return _not_run(f"{len(found)} of {len(FAMILIES)} families in this run", models)
    result = pearson(rows["delta_b"].to_numpy(np.float64), rows["delta_score"].to_numpy(np.float64))
    if np.isnan(result.r):
        return _not_run("no correlation: one side is constant", models)
    shown = f"r = {correlation(result.r)}, {p_statement(result.p)}, n = {len(rows)}"
    return _verdict(result.r < 0 and result.p < LEVEL, shown, models)


def _first(evidence: Evidence) -> str | None:
    """Return the first model if it stands for Llama, which the paper's single-model tables show."""
    model = evidence.models[0]
    return model if evidence.families.get(model) == "llama" else None


def _variant_areas(evidence: Evidence, ablation: str) -> tuple[pd.DataFrame, Verdict | None]:
    """Return WildGuardMix's rows of one ablation for RR, and the verdict where there are none."""
    empty = evidence.table1.iloc[:0]
    model = _first(evidence)
    if model is None:
        return empty, _not_run("the first model does not stand for Llama")
    table = evidence.ablations
    wanted = {"ablation": ablation, "model": model, "regime": REGIME, "method": "rr"}
    if table is None or not np.logical_and.reduce([table[name] == value for name, value in wanted.items()]).any():
        return empty, _not_run("not part of this run", [model])
    rows = first_rows(table, ablation, model, evidence.thresholds, ["rr"])
    rows = rows[rows["benchmark"] == "wildguardmix"]
    if rows.empty or rows["roc_auc"].isna().any():
        return empty, _not_run("a variant has no AUC on WildGuardMix", [model])
    return rows, None


def stable(ablation: str) -> Callable[[Evidence], Verdict]:
    """Return the judge of the spread of AUC over the variants of an ablation."""

    def judge(evidence: Evidence) -> Verdict:
        rows, verdict = _variant_areas(evidence, ablation)
        if verdict:
            return verdict
        areas = rows["roc_auc"].to_numpy(np.float64)
        shown = f"{len(areas)} variants: std {number(areas.std(), 3)}, lowest {number(areas.min(), 3)}"
        return _verdict(bool(areas.std() <= STABLE_STD and areas.min() > 0.5), shown, list(rows["model"]))

    return judge


def stable_anchors(evidence: Evidence) -> Verdict:
    """Look at the spread of AUC over sources and numbers of anchors, means over seeds."""
    rows, verdict = _variant_areas(evidence, "anchors")
    if verdict:
        return verdict
    means = rows.groupby(["cell", "n_anchors"])["roc_auc"].mean().to_numpy(np.float64)
    sources = ", ".join(dict.fromkeys(map(str, rows["cell"])))
    shown = f"{len(means)} sets ({sources}): std {number(means.std(), 3)}, lowest {number(means.min(), 3)}"
    return _verdict(bool(means.std() <= STABLE_STD and means.min() > 0.5), shown, list(rows["model"]))


def pooling(evidence: Evidence) -> Verdict:
    """Compare RR and SEAT under each pooling."""
    _, verdict = _variant_areas(evidence, "pooling")
    model = _first(evidence)
    if verdict or model is None or evidence.ablations is None:
        return verdict or _not_run("not part of this run")
    rows = first_rows(evidence.ablations, "pooling", model, evidence.thresholds, POOLING_METHODS)
    wide = rows[rows["benchmark"] == "wildguardmix"].pivot(index="cell", columns="method", values="roc_auc")
    if set(POOLING_METHODS) - set(wide.columns) or wide.isna().to_numpy().any():
        return _not_run("RR or SEAT has no AUC under a pooling", [model])
    n = int((wide["rr"] > wide["seat"]).sum())
    return _verdict(n == len(wide), f"RR above SEAT in {n} of {len(wide)} poolings", [model])


def best_method(evidence: Evidence) -> Verdict:
    """Compare the AUC of all methods."""
    model = _first(evidence)
    if model is None:
        return _not_run("the first model does not stand for Llama")
    if evidence.table7 is None:
        return _not_run("full fine-tuning, WildGuardMix or DecodingTrust is not part of this run", [model])
    wide = evidence.table7.pivot(index="benchmark", columns="method", values="roc_auc").astype(np.float64)
    absent = [name for name in METHOD_LABELS if name not in wide.columns]
    if absent or len(wide) < 2 or wide.isna().to_numpy().any():
        reason = ", ".join(map(method_label, absent)) + " not in this run" if absent else "an AUC is missing"
        return _not_run(reason, [model])
    best = [(str(benchmark), str(row.idxmax())) for benchmark, row in wide.iterrows()]
    shown = "; ".join(f"{benchmark_label(benchmark)}: {method_label(method)}" for benchmark, method in best)
    return _verdict(all(method == "rr" for _, method in best), f"highest AUC: {shown}", [model])


def stable_seeds(evidence: Evidence) -> Verdict:
    """Compare the spread of dB over training seeds with the distance between the splits."""
    model = _first(evidence)
    if model is None:
        return _not_run("the first model does not stand for Llama")
    if evidence.training_seeds is None:
        return _not_run("not part of this run", [model])
    rows = evidence.training_seeds
    rows = rows[(rows["model"] == model) & (rows["method"] == "rr") & (rows["group"] != CONTROL)]
    rows = rows[rows["regime"] == ordered(rows["regime"], REGIMES)[0]] if len(rows) else rows
    by_group = rows.groupby(["split", "group"])["delta_b"]
    if rows["seed"].nunique() < 2 or rows["split"].nunique() < 2:
        return _not_run("fewer than two seeds or splits", [model])
    std = by_group.std(ddof=0).groupby("split").mean()
    mean = by_group.mean().groupby("split").mean()
    distance = float(abs(mean["unharmful"] - mean["harmful"]))
    shown = "; ".join(f"{split}: mean dB {number(mean[split], 3)}, std {number(std[split], 3)}" for split in mean.index)
    seeds = rows["seed"].nunique()
    return _verdict(bool(std.max() <= SEED_SHARE * distance), f"{seeds} seeds; {shown}", [model])


def _totals(evidence: Evidence) -> pd.DataFrame:
    rows = evidence.table3[evidence.table3["step"] == TOTAL]
    return rows.assign(family=[evidence.families.get(str(model)) or "" for model in rows["model"]])


def minutes(evidence: Evidence) -> Verdict:
    """Look at the cost of dB."""
    totals = _totals(evidence)
    rows = totals[(totals["task"] == OURS) & (totals["family"] != "") & totals["minutes"].notna()]
    if rows["family"].nunique() < len(FAMILIES):
        return _not_run(f"{rows['family'].nunique()} of {len(FAMILIES)} families timed", list(rows["model"]))
    shown = ", ".join(f"{row['model']} {minutes_text(row['minutes'])}" for _, row in rows.iterrows())
    devices = " and ".join(sorted(set(map(str, rows["device"]))))
    return _verdict(bool((rows["minutes"] <= MINUTES).all()), f"minutes: {shown} ({devices})", list(rows["model"]))


def cheaper(evidence: Evidence) -> Verdict:
    """Compare the benchmarks' cost with that of dB."""
    totals = _totals(evidence)
    rows = totals[(totals["family"] != "") & totals["minutes"].notna()]
    wide = rows.drop_duplicates(["family", "task"]).pivot(index="family", columns="task", values="minutes")
    absent = [name for name in (OURS, *BENCHMARKS) if name not in wide.columns]
    models = list(rows["model"])
    if absent or len(wide) < len(FAMILIES) or wide.isna().to_numpy().any():
        return _not_run("not every benchmark of the three families was timed", models)
    ratios = (wide[list(BENCHMARKS)].to_numpy(np.float64) / wide[[OURS]].to_numpy(np.float64)).ravel()
    shown = f"{number(float(ratios.min()), 1)} to {number(float(ratios.max()), 1)} times"
    return _verdict(bool((ratios >= RATIO).all()), shown, models)


_STABLE = f"population standard deviation of the AUC on WildGuardMix at most {STABLE_STD:g}, every AUC above 0.5"
CLAIMS = (
    Claim(
        "significant_correlations",
        "abstract, table 1",
        "r is negative and significant in 15 of 18 cells",
        f"r < 0 and p < {LEVEL:g} for RR in at least 15 of the {N_CELLS} cells of three families, two regimes and "
        "three benchmarks",
        significant,
    ),
    Claim(
        "strongest_correlation",
        "abstract, table 1",
        "r down to -0.84",
        f"lowest r of the {N_CELLS} cells at most {-0.84 + TOLERANCE:.2f} (the paper's, {TOLERANCE:g} allowed)",
        strongest,
    ),
    Claim(
        "auc_range",
        "abstract, table 1",
        "AUC from 0.65 to 0.99",
        f"lowest AUC of the {N_CELLS} cells at least {0.65 - TOLERANCE:.2f}, highest at least "
        f"{0.99 - TOLERANCE:.2f} (the paper's, {TOLERANCE:g} allowed)",
        areas,
    ),
    Claim(
        "rr_above_seat",
        "figures 7 and 8",
        "RR above SEAT on WildGuardMix and DecodingTrust for all families",
        "AUC of RR above that of SEAT in each of the three families on both benchmarks, full fine-tuning",
        above_seat,
    ),
    Claim(
        "weaker_under_lora",
        "table 1, figures 11 and 12",
        "weaker and more model-dependent under LoRA",
        "mean r of the nine LoRA cells above that of the nine full ones, and range of r over models, averaged over "
        "benchmarks, larger under LoRA",
        weaker_lora,
    ),
    Claim(
        "toxigen_pooled",
        "figure 15",
        "on ToxiGen, r = -0.49*** over the pairs of all models, full fine-tuning",
        f"r < 0 and p < {LEVEL:g} for RR over the pooled pairs of the three families",
        toxigen_pooled,
    ),
    Claim(
        "stable_anchors",
        "figure 4",
        "stable under the source and number of anchors",
        f"{_STABLE}, over sources and numbers (means over seeds; Llama, full fine-tuning, RR)",
        stable_anchors,
    ),
    Claim(
        "stable_attributes",
        "table 5a",
        "stable under the wording of the attributes: std 0.030",
        f"{_STABLE} (Llama, full fine-tuning, RR)",
        stable(PARTS["5a"]),
    ),
    Claim(
        "stable_targets",
        "table 5b",
        "stable under the templates of the target sentences: std 0.008",
        f"{_STABLE} (Llama, full fine-tuning, RR)",
        stable(PARTS["5b"]),
    ),
    Claim(
        "stable_seeds",
        "figure 5",
        "stable over three training seeds: mean dB 0.291 and -0.051, std 0.003",
        f"std over seeds, mean over groups, at most {SEED_SHARE:g} of the distance between the splits' mean dB (Llama, "
        "RR)",
        stable_seeds,
    ),
    Claim(
        "pooling",
        "table 6",
        "RR above SEAT under every pooling",
        "AUC of RR above that of SEAT on WildGuardMix under every pooling of the run (Llama, full fine-tuning)",
        pooling,
    ),
    Claim(
        "best_method",
        "table 7, figures 3 and 6",
        "RR has the highest AUC of the four methods",
        "AUC of RR the highest of all four methods on WildGuardMix and on DecodingTrust (Llama, full fine-tuning)",
        best_method,
    ),
    Claim(
        "three_minutes",
        "abstract, table 3",
        "about three minutes a model (2.9 to 3.2)",
        f"embedding and dB together at most {MINUTES:g} minutes a checkpoint for each family",
        minutes,
    ),
    Claim(
        "cheaper",
        "abstract, table 3",
        "3 to 50 times cheaper than the benchmarks",
        f"each benchmark at least {RATIO:g} times as long as dB for each family (3 after rounding)",
        cheaper,
    ),
)
