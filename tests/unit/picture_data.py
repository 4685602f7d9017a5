"""Made-up result tables with the real shapes: 24 groups, 9 units, 7 checkpoints, gaps and a one-class benchmark."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from refbias.cli import records, tables
from refbias.config.pictures import PICTURES, lacking
from refbias.stats import above, pearson, roc_auc
from refbias.tables import group_names

WEIGHTS = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
TOPICS = [
    "sexual_orientation",
    "religion",
    "race",
    "ethnicity",
    "gender",
    "age",
    "disability",
    "socioeconomic_status",
    "nationality",
]
TOXIGEN = ["asian", "black", "jewish", "latino", "lgbtq", "mexican", "muslim", "physical_disability", "women"]
THRESHOLDS = {"wildguardmix": 0.1, "decodingtrust": 0.1, "toxigen": 0.03}
SCORERS = {"wildguardmix": "standin_valence", "decodingtrust": "agreement_rule", "toxigen": "standin_valence"}


def units_of(benchmark: str) -> list[str]:
    return {"wildguardmix": TOPICS, "decodingtrust": list(group_names()), "toxigen": TOXIGEN}[benchmark]


def slug(weight: float) -> str:
    return f"h{round(weight * 100):03d}"


def delta_b(model: str = "tiny") -> pd.DataFrame:
    rng = np.random.default_rng(3)
    rows = []
    for regime, size in (("full", 1.0), ("lora", 0.4)):
        for method, scale, anchors in (("rr", 0.2, 250), ("seat", 0.03, 0)):
            for group in [*group_names(), "control"]:
                start, end = rng.normal(0.4, 0.1), rng.normal(-1.2, 0.8)
                for weight in WEIGHTS:
                    value = size * scale * (start + (end - start) * weight**1.5)
                    rows.append(
                        {
                            "model": model,
                            "regime": regime,
                            "checkpoint": slug(weight),
                            "harmful_weight": weight,
                            "group": group,
                            "method": method,
                            "n_anchors": anchors,
                            "s_plus": value / 3,
                            "s_minus": value / 3 - value,
                            "b_reference": 0.1,
                            "b_audited": 0.1 + value,
                            "delta_b": value,
                            "ci_low": value - 0.1 * scale,
                            "ci_high": value + 0.12 * scale,
                        }
                    )
    return pd.DataFrame(rows)


def observations(shifts: pd.DataFrame) -> pd.DataFrame:
    """dB and changes that fall with it; ToxiGen under LoRA never rises, one DecodingTrust change is missing."""
    rng = np.random.default_rng(4)
    rows = []
    for (model, regime, method), frame in shifts[shifts["group"] != "control"].groupby(["model", "regime", "method"]):
        for benchmark in THRESHOLDS:
            for weight in WEIGHTS:
                values = frame[frame["harmful_weight"] == weight].set_index("group")["delta_b"]
                for at, unit in enumerate(units_of(benchmark)):
                    drawn = float(np.clip(rng.normal(0.08 + 0.5 * weight * (at % 5) / 4, 0.1), -0.3, 1))
                    change = round(drawn * 24) / 24
                    if benchmark == "toxigen" and regime == "lora":
                        change = min(change, 0.0)
                    rows.append(
                        {
                            "benchmark": benchmark,
                            "model": model,
                            "regime": regime,
                            "checkpoint": slug(weight),
                            "harmful_weight": weight,
                            "unit": unit,
                            "method": method,
                            "n_outputs": 24,
                            "scorer": SCORERS[benchmark],
                            "delta_score": change,
                            "delta_b": float(values.iloc[at]) - 0.1 * change,
                        }
                    )
    frame = pd.DataFrame(rows)
    # one draw of changes for both methods, as in a real table
    keys = ["benchmark", "regime", "checkpoint", "unit"]
    first = frame[frame["method"] == "rr"].set_index(keys)["delta_score"]
    frame["delta_score"] = first.loc[list(frame[keys].itertuples(index=False, name=None))].to_numpy()
    gone = (frame["benchmark"] == "decodingtrust") & (frame["unit"] == "women") & (frame["checkpoint"] == "h030")
    frame.loc[gone, "delta_score"] = np.nan
    return frame


def table1(pairs: pd.DataFrame) -> pd.DataFrame:
    rows = []
    keys = ["benchmark", "model", "regime", "method", "scorer"]
    for key, group in pairs.groupby(keys, sort=False):
        frame = group.dropna(subset=["delta_score"])
        threshold = THRESHOLDS[key[0]]
        label = above(frame["delta_score"], threshold)
        auc = roc_auc(-frame["delta_b"], label)
        found = pearson(frame["delta_b"], frame["delta_score"])
        gone = f"no AUC: one class only, no unit above {threshold:g}"
        one_class = bool(label.all() or not label.any())
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "threshold": threshold,
                "n": len(frame),
                "pearson_r": found.r,
                "pearson_p": found.p,
                "pearson_ci_low": found.r - 0.21,
                "pearson_ci_high": found.r + 0.19,
                "spearman_r": found.r * 0.9,
                "roc_auc": auc,
                "roc_auc_ci_low": auc - 0.08,
                "roc_auc_ci_high": auc + 0.07,
                "mae": 0.1234,
                "mae_oob": 0.1357,
                "n_positive": int(label.sum()),
                "note": f"no correlation: change of score is constant; {gone}" if one_class else "",
                "share_floor": 0.25,
                "share_ceiling": 0.0,
            }
        )
    return pd.DataFrame(rows)


def units(pairs: pd.DataFrame) -> pd.DataFrame:
    frame = pairs[pairs["method"] == "rr"].drop(columns=["method", "delta_b"]).copy()
    frame["n_missing"] = 1
    frame["reference_score"] = 0.2
    frame["score"] = frame["reference_score"] + frame["delta_score"]
    frame["delta_ci_low"], frame["delta_ci_high"] = frame["delta_score"] - 0.1, frame["delta_score"] + 0.1
    reference = frame[(frame["regime"] == "full") & (frame["checkpoint"] == "h000")].copy()
    reference["regime"] = reference["checkpoint"] = "reference"
    reference["score"] = reference["reference_score"]
    reference[["harmful_weight", "reference_score", "delta_score", "delta_ci_low", "delta_ci_high"]] = np.nan
    columns = [
        "benchmark",
        "model",
        "regime",
        "checkpoint",
        "harmful_weight",
        "unit",
        "scorer",
        "n_outputs",
        "n_missing",
        "score",
        "reference_score",
        "delta_score",
        "delta_ci_low",
        "delta_ci_high",
    ]
    return pd.concat([frame, reference], ignore_index=True)[columns]


def loss_history(start: float, end: float) -> pd.DataFrame:
    step = np.array([1, 2, 3, 5, 8, 12, 18, 25, 35, 48, 60])
    value = end + (start - end) * np.exp(-step / 12)
    return pd.DataFrame({"step": step, "epoch": step / 20, "loss": value, "learning_rate": 1e-4, "grad_norm": 1.0})


def write_run(root: Path, model: str = "tiny", regimes: tuple[str, ...] = ("full", "lora")) -> dict[str, Path]:
    """Write a run's tables, loss histories and manifests below `root`; return role -> manifest."""
    results = root / "results" / "demo"
    shifts = delta_b(model)
    pairs = observations(shifts)
    for name, frame in {
        "shift/delta_b.csv": shifts,
        "tables/observations.csv": pairs,
        "tables/units.csv": units(pairs),
        "tables/table1.csv": table1(pairs),
    }.items():
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(results / name, index=False, float_format="%.10g")
    manifests: dict[str, Path] = {}

    def manifest(role: str, stage: str, seconds: float, **facts: object) -> None:
        path = results / role / "manifest.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        versions = {"python": "3.11.9", "numpy": "2.4.6", "torch": "2.13.0"}
        content = {"stage": stage, "seconds": seconds, "peak_memory_mb": 812.4, "versions": versions, **facts}
        path.write_text(json.dumps(content), encoding="utf-8")
        manifests[role] = path

    manifest(f"models/{model}", "acquire", 40.2)
    for regime in regimes:
        for split, start, end in (("unharmful", 3.1, 1.2), ("harmful", 3.4, 0.9)):
            role = f"training/{model}/{regime}/{split}"
            manifest(role, "finetune", 130.0)
            loss_history(start, end + 0.3 * (regime == "lora")).to_csv(results / role / "loss.csv", index=False)
        manifest(f"represent/{model}/{regime}", "represent", 61.5, embed_seconds=56.0, checkpoints=["h000", "h100"])
        clocks = {name: {"seconds": 20.0 + at} for at, name in enumerate(THRESHOLDS)}
        manifest(f"generate/{model}/{regime}/h000", "generate", 75.0, benchmarks=clocks)
    quality = {
        "n": 80,
        "n_positive": 40,
        "auc": 0.91,
        "auc_ci_low": 0.84,
        "auc_ci_high": 0.97,
        "accuracy": 0.85,
        "recall": 0.8,
        "specificity": 0.9,
        "note": "",
    }
    evaluation = {"standin_valence": {"held_out": quality, "outputs": {**quality, "n": 120, "auc": 0.7771}}}
    for source in ("reference", *regimes):
        counts = {"h000": {name: {"n": 24, "seconds": 0.6} for name in THRESHOLDS}}
        manifest(f"score/{model}/{source}", "score", 3.0, scorer_evaluation=evaluation, outputs=counts)
    manifest("shift", "shift", 12.0, model_seconds={model: 9.0})
    manifest("tables", "analyse", 8.0)
    collected = {role: path for role, path in manifests.items() if role != "tables"}
    losses = [
        f"{role.removeprefix('training/')}={path.parent / 'loss.csv'}"
        for role, path in manifests.items()
        if role.startswith("training/")
    ]
    arguments = ["--manifests", *(f"{role}={path}" for role, path in collected.items()), "--losses", *losses]
    records.main([*arguments, "--output", str(results / "records")])
    arguments = ["--settings", json.dumps(table_stage(model, regimes)), "--output", str(results / "tables")]
    for name, file in {"table1": "tables/table1.csv", "observations": "tables/observations.csv"}.items():
        arguments += [f"--{name}", str(results / file)]
    tables.main([*arguments, "--manifests", str(results / "records/manifests.json")])
    return manifests


def lacks(regimes: tuple[str, ...] = ("full", "lora"), ablations: tuple[str, ...] = ()) -> dict[str, str]:
    return lacking(PICTURES.values(), regimes, THRESHOLDS, ablations)


def table_stage(model: str, regimes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "models": [model],
        "families": {model: None},
        "regimes": list(regimes),
        "thresholds": THRESHOLDS,
        "scorers": SCORERS,
        "lacks": lacks(regimes),
        "sources": {model: {"kind": "packaged_gguf"}},
        "stimuli": {"targets": 20, "attributes": 40, "anchors": 250, "control": 20},
        "splits": {"unharmful": None, "harmful": None},
        "prompts": dict.fromkeys(THRESHOLDS),
    }
