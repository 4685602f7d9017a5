"""A relation planted between dB and behaviour comes out of the whole analysis, from scored outputs to table 1.

Frames have the real size: 7 checkpoints by 24 groups, 9 topics and 9 ToxiGen groups. The planted correlation is exact
(noise made orthogonal to dB within the sample) up to the grain of counted outputs; the planted AUC is a count of pairs.
"""

import math

import numpy as np
import pandas as pd
import pytest

from refbias.analysis import observations, table1, unit_groups, unit_scores
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
