"""A relation planted between dB and behaviour comes out of the whole analysis, from scored outputs to table 1.

Frames have the real size: 7 checkpoints by 24 groups, 9 topics and 9 ToxiGen groups. The planted correlation is exact
(noise made orthogonal to dB within the sample) up to the grain of counted outputs; the planted AUC is a count of pairs.
"""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ortho_group

from refbias.analysis import auc_curve, observations, roc_curves, table1, unit_groups, unit_scores
from refbias.metrics import METHODS, Embeddings, shift_rows
from tests.independent import recompute_table1

CHECKPOINTS = {"h000": 0, "h010": 0.1, "h030": 0.3, "h050": 0.5, "h070": 0.7, "h090": 0.9, "h100": 1.0}
N_PROMPTS = 500
THRESHOLDS = {"wildguardmix": 0.1, "decodingtrust": 0.1, "toxigen": 0.03}
GROUPS = pd.DataFrame(
    {
        "id": [f"group{i:02d}" for i in range(24)],
        "topic": [f"topic{i % 9}" for i in range(24)],
        "toxigen": [f"tox{i}" if i < 9 else "" for i in range(24)],
    }
)
PAIRING = unit_groups(GROUPS)


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def _shifts(generator: np.random.Generator) -> pd.DataFrame:
    """Return dB that falls along the spectrum, with an effect of the group and noise."""
    effect = dict(zip(GROUPS["id"], generator.normal(size=24), strict=True))
    rows = [
        {
            "model": "m",
            "regime": "full",
            "checkpoint": checkpoint,
            "group": group,
            "method": "rr",
            "n_anchors": 100,
            "delta_b": 0.02 * (effect[group] - 2 * weight + generator.normal()),
        }
        for checkpoint, weight in CHECKPOINTS.items()
        for group in GROUPS["id"]
    ]
    return pd.DataFrame(rows)


def _unit_shift(shifts: pd.DataFrame, benchmark: str) -> pd.Series:
    """Return dB of each unit and checkpoint by plain look-ups."""
    table = {(row.checkpoint, row.group): row.delta_b for row in shifts.itertuples()}
    return pd.Series(
        {
            (checkpoint, unit): sum(table[checkpoint, group] for group in groups) / len(groups)
            for checkpoint in CHECKPOINTS
            for unit, groups in PAIRING[benchmark].items()
        }
    )


def _outputs(benchmark: str, regime: str, checkpoint: str, unit: str, score: float) -> pd.DataFrame:
    marked = round(score * N_PROMPTS)
    return pd.DataFrame(
        {
            "benchmark": benchmark,
            "model": "m",
            "regime": regime,
            "checkpoint": checkpoint,
            "unit": unit,
            "prompt_id": range(N_PROMPTS),
            "sample": 0,
            "scorer": "planted",
            "score": [1] * marked + [0] * (N_PROMPTS - marked),
        }
    )


def _pair_count(x: np.ndarray, label: np.ndarray) -> float:
    wins = [0.5 if a == b else float(a < b) for a in x[label] for b in x[~label]]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("planted", [-1.0, -0.68, 0.0, 0.68])
def test_planted_relation_comes_out_of_the_whole_analysis(planted: float, seed: int):
    generator = np.random.default_rng(seed)
    shifts = _shifts(generator)
    frames, expected = [], {}
    for benchmark in PAIRING:
        x = _unit_shift(shifts, benchmark)
        standard = _standard(x.to_numpy())
        noise = _standard(generator.normal(size=len(x)))
        noise = _standard(noise - standard * (noise @ standard) / len(x))
        change = 0.05 + 0.1 * (planted * standard + math.sqrt(1 - planted**2) * noise)
        label = change > THRESHOLDS[benchmark]
        expected[benchmark] = (_pair_count(x.to_numpy(), label), int(label.sum()))
        frames += [
            _outputs(benchmark, "full", checkpoint, unit, 0.45 + value)
            for (checkpoint, unit), value in zip(x.index, change, strict=True)
        ]
        frames += [_outputs(benchmark, "reference", "reference", unit, 0.45) for unit in PAIRING[benchmark]]
    units = unit_scores(pd.concat(frames, ignore_index=True), n_resamples=20, seed=0)
    pairs = observations(units, shifts, PAIRING)
    table = table1(pairs, THRESHOLDS, n_resamples=200, seed=0, units=units).set_index("benchmark")
    assert table["n"].to_dict() == {"wildguardmix": 63, "decodingtrust": 168, "toxigen": 63}
    for benchmark, (area, n_positive) in expected.items():
        row = table.loc[benchmark]
        assert abs(row["pearson_r"] - planted) < 0.02
        assert abs(row["roc_auc"] - area) < 0.03
        assert abs(row["n_positive"] - n_positive) <= 3
        # The residual of the planted line has standard deviation 0.1 sqrt(1 - r^2); a normal one's MAE is 0.798 of it.
        assert row["mae"] == pytest.approx(0.0798 * math.sqrt(1 - planted**2), abs=0.012)
        if planted == -1.0:
            assert row["roc_auc"] > 0.999
        if planted == 0.0:
            assert row["pearson_ci_low"] < 0 < row["pearson_ci_high"]
        if abs(planted) == 0.68:
            assert np.sign(planted) * row["pearson_ci_low" if planted > 0 else "pearson_ci_high"] > 0
            assert (row["roc_auc"] > 0.7) == (planted < 0)


def test_symmetric_null_gives_no_correlation_and_even_odds():
    """Every change occurs once with dB = +v and once with dB = -v, so r is 0 and the AUC one half exactly."""
    weights = np.array([-3, -2, -1, 0, 1, 2, 3]) / 100
    rows = []
    for benchmark, n_units in (("wildguardmix", 9), ("decodingtrust", 24), ("toxigen", 9)):
        changes = np.random.default_rng(n_units).choice([-0.05, 0.0, 0.05, 0.2], size=(n_units, 4))
        for unit in range(n_units):
            for position, (checkpoint, weight) in enumerate(CHECKPOINTS.items()):
                rows.append(
                    {
                        "benchmark": benchmark,
                        "model": "m",
                        "regime": "full",
                        "checkpoint": checkpoint,
                        "harmful_weight": weight,
                        "unit": f"u{unit:02d}",
                        "method": "rr",
                        "n_outputs": 100,
                        "scorer": "planted",
                        "delta_score": changes[unit, abs(position - 3)],
                        "delta_b": weights[position] * (1 + unit),
                    }
                )
    table = table1(pd.DataFrame(rows), THRESHOLDS, n_resamples=100, seed=0)
    np.testing.assert_allclose(table["pearson_r"], 0, atol=1e-12)
    np.testing.assert_allclose(table["roc_auc"], 0.5, atol=1e-12)


def test_opposite_sign_mirrors_every_number():
    generator = np.random.default_rng(7)
    shifts = _shifts(generator)
    frames = [
        _outputs("decodingtrust", "full", checkpoint, unit, float(np.clip(0.4 - 4 * value, 0, 1)))
        for (checkpoint, unit), value in _unit_shift(shifts, "decodingtrust").items()
    ]
    frames += [_outputs("decodingtrust", "reference", "reference", unit, 0.4) for unit in GROUPS["id"]]
    units = unit_scores(pd.concat(frames, ignore_index=True), n_resamples=20, seed=0)
    tables = []
    for sign in (1, -1):
        pairs = observations(units, shifts.assign(delta_b=sign * shifts["delta_b"]), PAIRING)
        tables.append(table1(pairs, THRESHOLDS, n_resamples=100, seed=0).iloc[0])
        expected = recompute_table1(pairs, THRESHOLDS, n_resamples=100, seed=0).iloc[0]
        for name in ("pearson_r", "roc_auc", "mae", "mae_oob", "pearson_ci_low", "roc_auc_ci_high"):
            assert tables[-1][name] == pytest.approx(expected[name], rel=1e-9)
    forth, back = tables
    assert forth["pearson_r"] == pytest.approx(-back["pearson_r"])
    assert forth["pearson_ci_low"] == pytest.approx(-back["pearson_ci_high"])
    assert forth["roc_auc"] == pytest.approx(1 - back["roc_auc"])
    assert forth["roc_auc_ci_low"] == pytest.approx(1 - back["roc_auc_ci_high"])
    assert forth["mae"] == pytest.approx(back["mae"])


@pytest.mark.parametrize("planted", [-0.68, 0.68])
def test_a_method_without_direction_shows_the_size_of_a_planted_relation(planted: float):
    """CKA drift that rises or falls with the change of score: |r| and the better AUC are those of a signed method."""
    generator = np.random.default_rng(11)
    n_units, n_checkpoints = 24, 7
    drift = np.abs(0.1 + 0.02 * generator.normal(size=n_units * n_checkpoints))
    standard = _standard(drift)
    noise = _standard(generator.normal(size=drift.size))
    noise = _standard(noise - standard * (noise @ standard) / drift.size)
    change = 0.05 + 0.1 * (planted * standard + math.sqrt(1 - planted**2) * noise)
    frame = pd.DataFrame(
        {
            "benchmark": "decodingtrust",
            "model": "m",
            "regime": "full",
            "checkpoint": np.repeat(list(CHECKPOINTS), n_units),
            "harmful_weight": np.repeat(list(CHECKPOINTS.values()), n_units),
            "unit": [f"u{i:02d}" for i in range(n_units)] * n_checkpoints,
            "method": "cka_drift",
            "n_outputs": 100,
            "scorer": "planted",
            "delta_score": change,
            "delta_b": drift,
        }
    )
    signed = table1(frame.assign(method="procrustes_seat"), THRESHOLDS, n_resamples=300, seed=0).iloc[0]
    assert signed["pearson_r"] == pytest.approx(planted, abs=1e-9)
    table = table1(frame, THRESHOLDS, n_resamples=300, seed=0)
    row = table.iloc[0]
    assert row["pearson_r"] == pytest.approx(0.68, abs=1e-9)
    assert row["pearson_p"] == signed["pearson_p"]
    assert 0 < row["pearson_ci_low"] < 0.68 < row["pearson_ci_high"]
    area = _pair_count(drift, change > 0.1)
    assert row["roc_auc"] == pytest.approx(max(area, 1 - area), abs=1e-12)
    assert row["roc_auc_ci_low"] > 0.5
    assert row["mae"] == signed["mae"]
    assert row["note"] == "undirected: |r|, max(AUC, 1 - AUC)"
    expected = recompute_table1(frame, THRESHOLDS, n_resamples=300, seed=0)
    pd.testing.assert_frame_equal(table[expected.columns], expected, check_dtype=False, rtol=1e-9, atol=1e-12)
    curve = auc_curve(frame, [0.0, 0.1, 0.2])["roc_auc"].to_numpy()
    assert curve[1] == pytest.approx(row["roc_auc"], abs=1e-12)
    assert (curve >= 0.5).all()
    points = roc_curves(frame, THRESHOLDS)
    assert np.trapezoid(points["true_positive_rate"], points["false_positive_rate"]) == pytest.approx(row["roc_auc"])


def test_an_interval_that_includes_no_relation_starts_there():
    generator = np.random.default_rng(3)
    rows = [
        {
            "benchmark": "toxigen",
            "model": "m",
            "regime": "lora",
            "checkpoint": checkpoint,
            "harmful_weight": weight,
            "unit": f"u{unit}",
            "method": "cka_drift",
            "n_outputs": 100,
            "scorer": "planted",
            "delta_score": generator.normal() / 20,
            "delta_b": abs(generator.normal()),
        }
        for checkpoint, weight in CHECKPOINTS.items()
        for unit in range(9)
    ]
    row = table1(pd.DataFrame(rows), THRESHOLDS, n_resamples=300, seed=0).iloc[0]
    assert (row["pearson_ci_low"], row["roc_auc_ci_low"]) == (0.0, 0.5)
    assert row["pearson_r"] < row["pearson_ci_high"]


def test_planted_geometry_comes_out_of_all_four_methods_as_planted():
    """From embeddings to table 1: targets pushed towards the negative attributes where behaviour got worse.

    Every method sees the push; a turn of the audited model on top of it leaves RR, SEAT, Procrustes-SEAT and CKA as
    they were. A model that was turned alone has no shift in any of them.
    """
    generator = np.random.default_rng(8)
    width, groups = 24, [f"group{i:02d}" for i in range(24)]

    def rows(count: int) -> np.ndarray:
        return generator.normal(size=(count, width)) + 0.5

    reference = Embeddings({group: rows(10) for group in groups}, rows(20), rows(20), rows(80))
    push = np.mean(reference.negative, axis=0) - np.mean(reference.positive, axis=0)
    push /= np.linalg.norm(push)
    turn = ortho_group.rvs(width, random_state=1)
    strength = generator.uniform(0.2, 1.0, size=24)
    spread = {group: generator.normal(size=(10, 1)) for group in groups}
    shifts, changes = [], {}
    for checkpoint, weight in CHECKPOINTS.items():
        audited = Embeddings(
            {
                # each sentence is pushed by its own amount: a common step would leave the group's inner geometry alone
                group: (np.asarray(matrix) + weight * size * (2 + spread[group]) * push) @ turn
                for (group, matrix), size in zip(reference.targets.items(), strength, strict=True)
            },
            np.asarray(reference.positive) @ turn,
            np.asarray(reference.negative) @ turn,
            np.asarray(reference.anchors) @ turn,
        )
        for row in shift_rows(reference, audited, METHODS, n_resamples=20, seed=0):
            shifts.append({"model": "m", "regime": "full", "checkpoint": checkpoint, **row})
        changes |= {(checkpoint, group): weight * size for group, size in zip(groups, strength, strict=True)}
    frame = pd.DataFrame(shifts)
    turned_only = frame[frame["checkpoint"] == "h000"]["delta_b"]
    assert turned_only.abs().max() < 1e-9
    outputs = [
        _outputs("decodingtrust", "full", checkpoint, group, 0.1 + 0.6 * change)
        for (checkpoint, group), change in changes.items()
    ]
    outputs += [_outputs("decodingtrust", "reference", "reference", group, 0.1) for group in groups]
    units = unit_scores(pd.concat(outputs, ignore_index=True), n_resamples=20, seed=0)
    table = table1(observations(units, frame, PAIRING), THRESHOLDS, n_resamples=100, seed=0).set_index("method")
    assert set(table.index) == set(METHODS)
    for method in ("rr", "seat", "procrustes_seat"):
        assert table.loc[method, "pearson_r"] < -0.8, method
    # a drift grows with the square of a small push
    assert table.loc["cka_drift", "pearson_r"] > 0.5
    assert (table["roc_auc"] > 0.85).all()
