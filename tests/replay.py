"""A run of three models, two regimes and seven checkpoints with planted effects, in the pipeline's own files.

Sentences lie in a space of two attribute directions and one private direction each, so that every dB has a closed form:
a target sentence is ``(a, b, .., sqrt(1 - a^2 - b^2), ..)``, a positive attribute ``(1, 0, ..)``, a negative one
``(0, 1, ..)``, and the anchors repeat the two directions. Generations agree or disagree, so that every score is a
counted share. Clocks are planted in the manifests. Nothing here uses the package's metrics or statistics.
"""

import csv
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

FAMILIES = {"big-llama": "llama", "big-mistral": "mistral", "big-gemma": "gemma"}
REGIMES = ("full", "lora")
SPLITS = ("unharmful", "harmful")
WEIGHTS = {"h000": 0.0, "h010": 0.1, "h030": 0.3, "h050": 0.5, "h070": 0.7, "h090": 0.9, "h100": 1.0}
THRESHOLDS = {"wildguardmix": 0.1, "decodingtrust": 0.1, "toxigen": 0.03}
N_TARGETS = 3
N_ANCHORS = 6
N_PROMPTS, N_SAMPLES = 5, 5
N_OUTPUTS = N_PROMPTS * N_SAMPLES
REFERENCE_COUNT = 5
SEED, N_RESAMPLES = 11, 100
A, B = 0.5, 0.4
ATTRIBUTE_CELLS = ("base", "subj_v1", "subj_v2", "syn_v1", "syn_v2", "syn_v3")
TARGET_CELLS = ("base", "passive", "passive_rephrased", "syn_v1", "syn_v2", "syn_v3")
SOURCES = ("neutral", "words", "alpaca", "tulu")
COUNTS, ANCHOR_SEEDS = (50, 1000), (0, 1)
WITHOUT_ABLATIONS = f"""
run: replay
seed: {SEED}
models:
{chr(10).join(f"  {m}: {{source: {{kind: local, path: models/{m}}}, family: {f}}}" for m, f in FAMILIES.items())}
compute: {{device: cpu, dtype: float32}}
shift: {{n_resamples: {N_RESAMPLES}}}
analysis: {{n_resamples: {N_RESAMPLES}}}
benchmarks:
  wildguardmix: {{scorer: agreement_rule}}
  decodingtrust: {{scorer: agreement_rule}}
  toxigen: {{scorer: agreement_rule}}
"""
CONFIG = f"""{WITHOUT_ABLATIONS}
ablations: {{run: [attributes, targets, anchors, pooling]}}
training_seeds: {{seeds: [1, 2]}}
"""


@dataclass
class Planted:
    """What was planted.

    Attributes
    ----------
    shifts
        (model, regime, checkpoint, group, method) -> dB.
    changes
        (benchmark, model, regime, checkpoint, unit) -> change of score.
    units
        Benchmark -> unit -> its groups.
    clocks
        (task, step, model) -> seconds a checkpoint, where they are planted.
    ablations, seeds
        The tables of the ablations and of the training seeds.
    """

    shifts: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)
    changes: dict[tuple[str, str, str, str, str], float] = field(default_factory=dict)
    units: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    clocks: dict[tuple[str, str, str], float] = field(default_factory=dict)
    ablations: pd.DataFrame = field(default_factory=pd.DataFrame)
    seeds: pd.DataFrame = field(default_factory=pd.DataFrame)

    def unit_shift(self, benchmark: str, model: str, regime: str, checkpoint: str, unit: str, method: str) -> float:
        groups = self.units[benchmark][unit]
        return sum(self.shifts[model, regime, checkpoint, group, method] for group in groups) / len(groups)


def units_of(groups_file: Path) -> dict[str, dict[str, list[str]]]:
    """Benchmark -> unit -> groups, straight from the group table."""
    topics: dict[str, list[str]] = {}
    toxigen: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    with groups_file.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            topics.setdefault(row["topic"], []).append(row["id"])
            groups[row["id"]] = [row["id"]]
            if row["toxigen"]:
                toxigen.setdefault(row["toxigen"], []).append(row["id"])
    return {"wildguardmix": topics, "decodingtrust": groups, "toxigen": toxigen}


def associations(push: float) -> list[tuple[float, float]]:
    """(a, b) of a group's target sentences once it was pushed towards the negative attributes."""
    return [(A - push + 0.02 * i, B + push - 0.03 * i) for i in range(N_TARGETS)]


def expected_bias(method: str, push: float) -> float:
    """B in closed form: eq. 3, and eq. 6 with half of the anchors in either direction."""
    if method == "seat":
        return sum(a - b for a, b in associations(push)) / N_TARGETS
    half = math.sqrt(N_ANCHORS / 2)
    values = [half * (math.hypot(a, b - 1) - math.hypot(a - 1, b)) for a, b in associations(push)]
    return sum(values) / N_TARGETS


def expected_cka_drift(push: float) -> float:
    """1 - linear CKA of a group's target matrices, by centred Gram matrices."""
    grams = []
    for amount in (0.0, push):
        rows = np.array([target(a, b, i) for i, (a, b) in enumerate(associations(amount))])
        centre = np.eye(N_TARGETS) - 1 / N_TARGETS
        grams.append(centre @ rows @ rows.T @ centre)
    first, second = grams
    return 1 - float((first * second).sum() / math.sqrt((first * first).sum() * (second * second).sum()))


def expected_shift(method: str, push: float) -> float:
    """DB in closed form. The anchors are the same in both models, so Procrustes' map moves no target."""
    if method == "cka_drift":
        return expected_cka_drift(push)
    name = "seat" if method == "procrustes_seat" else method
    return expected_bias(name, push) - expected_bias(name, 0.0)


def target(a: float, b: float, index: int) -> list[float]:
    rest = [0.0] * N_TARGETS
    rest[index] = math.sqrt(1 - a * a - b * b)
    return [a, b, *rest]


def sentences(groups: list[str]) -> list[tuple[str, str, str, str]]:
    rows = [(f"{group}/t{i}", "target", group, "text") for group in groups for i in range(N_TARGETS)]
    rows += [(f"c{i}", "control", "", "text") for i in range(N_TARGETS)]
    rows += [(f"{kind[0]}{i}", kind, "", "text") for kind in ("positive", "negative") for i in range(2)]
    return rows + [(f"a{i}", "anchor", "", "text") for i in range(N_ANCHORS)]


def embeddings(groups: list[str], pushes: dict[str, float]) -> np.ndarray:
    rows = [
        target(a, b, i) for group in [*groups, "control"] for i, (a, b) in enumerate(associations(pushes.get(group, 0)))
    ]
    one, other = [1.0, 0.0, *[0.0] * N_TARGETS], [0.0, 1.0, *[0.0] * N_TARGETS]
    return np.array([*rows, one, one, other, other, *[one, other] * (N_ANCHORS // 2)], dtype=np.float32)


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def plant(checkout: Path, methods: tuple[str, ...]) -> Planted:
    """Write the outputs of all stages up to `represent` and `generate`, and those of the ablations.

    All files get one time stamp, so that none looks newer than what was made from it.
    """
    results = checkout / "results" / "replay"
    units = units_of(checkout / "data" / "stimuli" / "groups.tsv")
    groups = list(units["decodingtrust"])
    planted = Planted(units=units)
    rng = np.random.default_rng(SEED)
    for number, model in enumerate(FAMILIES):
        write_json(results / "models" / model / "manifest.json", {"stage": "acquire", "seconds": 1.0})
        _embed(results, planted, model, "reference", {"reference": {}}, groups, number)
        _generate(results, planted, model, "reference", "reference", {}, number)
        for regime in REGIMES:
            _train(results, model, regime)
            strength = {"full": 0.3, "lora": 0.2}[regime] * (1 - 0.1 * number)
            pushes = {slug: _pushes(rng, groups, strength * weight) for slug, weight in WEIGHTS.items()}
            for slug, found in pushes.items():
                for group in groups:
                    for method in methods:
                        planted.shifts[model, regime, slug, group, method] = expected_shift(method, found[group])
            _embed(results, planted, model, regime, pushes, groups, number)
            noise = 0.02 if regime == "full" else 0.06
            for slug in WEIGHTS:
                counts = _counts(rng, units, pushes[slug], noise)
                for (benchmark, unit), count in counts.items():
                    change = (count - REFERENCE_COUNT) / N_OUTPUTS
                    planted.changes[benchmark, model, regime, slug, unit] = change
                _generate(results, planted, model, regime, slug, counts, number)
    shifted, planted.ablations = _ablations(rng, planted)
    planted.seeds = _training_seeds(rng, groups)
    for regime, frame in shifted.groupby("regime"):
        folder = results / "ablations" / next(iter(FAMILIES)) / str(regime)
        write_json(folder / "manifest.json", {"stage": "ablate", "seconds": 1.0})
        frame.to_csv(folder / "delta_b.csv", index=False)
    planted.seeds.to_csv(results / "ablations" / "training_seeds.csv", index=False)
    for path in results.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return planted


def _pushes(rng: np.random.Generator, groups: list[str], size: float) -> dict[str, float]:
    shares = np.linspace(0.2, 1, len(groups))
    return {group: float(size * share + rng.normal(0, 0.01)) for group, share in zip(groups, shares, strict=True)}


def _counts(
    rng: np.random.Generator, units: dict[str, dict[str, list[str]]], pushes: dict[str, float], noise: float
) -> dict[tuple[str, str], int]:
    counts = {}
    for benchmark, members in units.items():
        for unit, groups in members.items():
            mean = sum(pushes[group] for group in groups) / len(groups)
            drawn = REFERENCE_COUNT + N_OUTPUTS * (1.8 * mean + rng.normal(0, noise))
            counts[benchmark, unit] = int(np.clip(round(drawn), 0, N_OUTPUTS))
    return counts


def _train(results: Path, model: str, regime: str) -> None:
    for split in SPLITS:
        folder = results / "training" / model / regime / split
        write_json(folder / "manifest.json", {"stage": "finetune", "seconds": 2.0})
        (folder / "loss.csv").write_text("step,epoch,loss\n1,0.1,3.0\n10,1.0,1.5\n100,3.0,0.75\n")
    for slug, weight in WEIGHTS.items():
        if 0 < weight < 1:
            write_json(
                results / "spectrum" / model / regime / slug / "manifest.json", {"stage": "merge", "seconds": 1.0}
            )


def _embed(
    results: Path,
    planted: Planted,
    model: str,
    source: str,
    pushes: dict[str, dict[str, float]],
    groups: list[str],
    number: int,
) -> None:
    folder = results / "embeddings" / model / source
    folder.mkdir(parents=True)
    rows = [("id", "kind", "group", "text"), *sentences(groups)]
    (folder / "sentences.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    for slug, found in pushes.items():
        save_file({"embeddings": embeddings(groups, found)}, folder / f"{slug}.safetensors")
    seconds = 120.0 + 10 * number
    planted.clocks["ours", "embed", model] = seconds
    alike = ("dtype", "layer", "final_norm", "pooling", "exclude_bos", "width", "tokenizer_sha256", "sentences_sha256")
    facts = {"stage": "represent", "seconds": 9.0, "embed_seconds": seconds * len(pushes), "device": "cpu"}
    write_json(folder / "manifest.json", {**dict.fromkeys(alike, "same"), **facts, "checkpoints": list(pushes)})


def _generate(
    results: Path,
    planted: Planted,
    model: str,
    source: str,
    slug: str,
    counts: dict[tuple[str, str], int],
    number: int,
) -> None:
    folder = results / "generations" / model / source / slug
    folder.mkdir(parents=True)
    prompts, clocks = [], {}
    for at, (benchmark, members) in enumerate(planted.units.items()):
        lines = []
        for unit in members:
            agree = counts.get((benchmark, unit), REFERENCE_COUNT)
            for prompt in range(N_PROMPTS):
                name = f"{unit}/{prompt}"
                prompts.append({"benchmark": benchmark, "unit": unit, "prompt_id": name, "system": "", "user": "u"})
                for sample in range(N_SAMPLES):
                    said = "I agree." if prompt * N_SAMPLES + sample < agree else "I disagree."
                    row = {"benchmark": benchmark, "unit": unit, "prompt_id": name, "sample": sample, "seed": 0}
                    lines.append({**row, "text": said, "n_tokens": 3, "finish": "stop"})
        (folder / f"{benchmark}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        # around their mean, which is what the table must show
        clocks[benchmark] = {"seconds": 600.0 * (at + 1) + 30 * number + 10 * (WEIGHTS.get(slug, 0) - 0.5)}
        planted.clocks[benchmark, "generate", model] = 600.0 * (at + 1) + 30 * number
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    write_json(folder / "manifest.json", {"stage": "generate", "seconds": 9.0, "device": "cpu", "benchmarks": clocks})


def area(score: list[float], label: list[bool]) -> float:
    """Area under the ROC curve by counting pairs."""
    positive = [value for value, flag in zip(score, label, strict=True) if flag]
    negative = [value for value, flag in zip(score, label, strict=True) if not flag]
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return wins / (len(positive) * len(negative))


def _ablations(rng: np.random.Generator, planted: Planted) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Shifts with noise of the cell's own, first model, both regimes; and the AUC and r that follow from them."""
    cells: list[tuple[str, str, int, int | str, tuple[str, ...]]] = [
        *(("attributes", cell, N_ANCHORS, "", ("rr", "seat")) for cell in ATTRIBUTE_CELLS),
        *(("targets", cell, N_ANCHORS, "", ("rr", "seat")) for cell in TARGET_CELLS),
        *(("pooling", cell, N_ANCHORS, "", ("rr", "seat")) for cell in ("mean", "max", "last")),
        *(("anchors", cell, n, seed, ("rr",)) for cell in SOURCES for n in COUNTS for seed in ANCHOR_SEEDS),
    ]
    model = next(iter(FAMILIES))
    groups = list(planted.units["decodingtrust"])
    shifted, rows = [], []
    for ablation, cell, n_anchors, seed, methods in cells:
        head = {"ablation": ablation, "cell": cell, "n_anchors": n_anchors, "seed": seed, "model": model}
        for regime in REGIMES:
            for method in methods:
                base = {(slug, g): planted.shifts[model, regime, slug, g, method] for slug in WEIGHTS for g in groups}
                size = 0.3 * float(np.std(list(base.values())))
                # rounded as a file of ten digits keeps it
                noisy = {place: float(f"{value + rng.normal(0, size):.10g}") for place, value in base.items()}
                shifted += [
                    {
                        **head,
                        "regime": regime,
                        "checkpoint": slug,
                        "harmful_weight": WEIGHTS[slug],
                        "group": group,
                        "method": method,
                        "delta_b": value,
                    }
                    for (slug, group), value in noisy.items()
                ]
                rows += [
                    {**head, "regime": regime, "method": method, **numbers}
                    for numbers in _numbers(planted, model, regime, noisy)
                ]
    return pd.DataFrame(shifted), pd.DataFrame(rows)


def _numbers(planted: Planted, model: str, regime: str, shifts: dict[tuple[str, str], float]) -> list[dict[str, Any]]:
    found = []
    for benchmark, units in planted.units.items():
        places = [(slug, unit) for slug in WEIGHTS for unit in units]
        x = [sum(shifts[slug, group] for group in units[unit]) / len(units[unit]) for slug, unit in places]
        changes = [planted.changes[benchmark, model, regime, slug, unit] for slug, unit in places]
        label = [change - THRESHOLDS[benchmark] > 1e-9 for change in changes]
        found.append(
            {
                "benchmark": benchmark,
                "threshold": THRESHOLDS[benchmark],
                "n": len(places),
                "n_positive": sum(label),
                "pearson_r": float(np.corrcoef(x, changes)[0, 1]),
                "pearson_p": 0.001,
                "roc_auc": area([-value for value in x], label),
                "note": "",
            }
        )
    return found


def _training_seeds(rng: np.random.Generator, groups: list[str]) -> pd.DataFrame:
    means = {"unharmful": 0.29, "harmful": -0.05}
    rows = [
        (next(iter(FAMILIES)), "full", split, seed, group, "rr", N_ANCHORS, mean + 0.002 * at + rng.normal(0, 0.003))
        for split, mean in means.items()
        for seed in (1, 2, 3)
        for at, group in enumerate([*groups, "control"])
    ]
    columns = ["model", "regime", "split", "seed", "group", "method", "n_anchors", "delta_b"]
    return pd.DataFrame(rows, columns=columns)
