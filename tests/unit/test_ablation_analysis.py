"""The table of the ablations against table 1 on the same pairs, and planted relations."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from refbias import analysis
from refbias.errors import UserError

GROUPS = pd.DataFrame(
    {
        "id": [f"g{at}" for at in range(6)],
        "topic": ["a", "a", "b", "b", "c", "c"],
        "toxigen": ["asian", "", "", "women", "", ""],
    }
)
CHECKPOINTS = ["h000", "h050", "h100"]
THRESHOLDS = {"decodingtrust": 0.1, "wildguardmix": 0.1, "toxigen": 0.03}


def units(seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    named = {"decodingtrust": list(GROUPS["id"]), "wildguardmix": ["a", "b", "c"], "toxigen": ["asian", "women"]}
    rows = [
        {
            "benchmark": benchmark,
            "model": model,
            "regime": regime,
            "checkpoint": checkpoint,
            "harmful_weight": 0.0,
            "unit": unit,
            "scorer": "s",
            "n_outputs": 9,
            "n_missing": 0,
            "score": 0.5,
            "reference_score": 0.5,
            "delta_score": float(generator.normal(0.1, 0.2)),
            "delta_ci_low": 0.0,
            "delta_ci_high": 0.0,
        }
        for benchmark, found in named.items()
        for model in ("m", "other")
        for regime in ("full", "lora")
        for checkpoint in CHECKPOINTS
        for unit in found
    ]
    return pd.DataFrame(rows)


def cell(values: dict[tuple[str, str], float], **name: object) -> pd.DataFrame:
    rows = [
        {
            "ablation": "anchors",
            "cell": "neutral",
            "n_anchors": 50,
            "seed": 0,
            **name,
            "model": "m",
            "regime": "full",
            "checkpoint": checkpoint,
            "harmful_weight": 0.0,
            "group": group,
            "method": name.get("method", "rr"),
            "delta_b": value,
        }
        for (checkpoint, group), value in values.items()
    ]
    return pd.DataFrame(rows)


def random_values(seed: int) -> dict[tuple[str, str], float]:
    generator = np.random.default_rng(seed)
    return {(checkpoint, group): float(generator.normal()) for checkpoint in CHECKPOINTS for group in GROUPS["id"]}


PAIRING = analysis.unit_groups(GROUPS)


def test_a_cell_has_the_numbers_of_table_1() -> None:
    shift, scores = cell(random_values(1)), units()
    found = analysis.ablation_table(shift, scores, PAIRING, THRESHOLDS)
    own = scores[(scores["model"] == "m") & (scores["regime"] == "full")]
    table = analysis.table1(analysis.observations(own, shift, PAIRING), THRESHOLDS, 100, 0)
    assert list(found.columns) == analysis.ABLATION_COLUMNS
    for column in ("benchmark", "model", "regime", "method", "threshold", "n", "n_positive"):
        assert list(found[column]) == list(table[column]), column
    for column in ("pearson_r", "pearson_p", "roc_auc"):
        np.testing.assert_array_equal(found[column], table[column])


def test_cells_stay_apart_and_in_order() -> None:
    parts = [
        cell(random_values(1), seed=0),
        cell(random_values(2), seed=1),
        cell(random_values(3), ablation="pooling", cell="max", n_anchors=0, seed=None, method="seat"),
    ]
    found = analysis.ablation_table(pd.concat(parts, ignore_index=True), units(), PAIRING, THRESHOLDS)
    assert len(found) == 9
    assert list(found["cell"]) == ["neutral"] * 6 + ["max"] * 3
    assert list(found["seed"].fillna(-1)) == [0] * 3 + [1] * 3 + [-1] * 3
    for at, part in enumerate(parts):
        alone = analysis.ablation_table(part, units(), PAIRING, THRESHOLDS)
        np.testing.assert_array_equal(alone["pearson_r"], found["pearson_r"][3 * at : 3 * at + 3])


def test_a_planted_relation_its_opposite_and_an_undirected_one() -> None:
    scores = units()
    own = scores[(scores["model"] == "m") & (scores["regime"] == "full") & (scores["benchmark"] == "decodingtrust")]
    change = {(row.checkpoint, row.unit): row.delta_score for row in own.itertuples()}
    generator = np.random.default_rng(4)
    noisy = {key: -value + 0.1 * generator.normal() for key, value in change.items()}
    r, p = scipy_stats.pearsonr(list(noisy.values()), list(change.values()))

    def row(values: dict[tuple[str, str], float], method: str) -> pd.Series:
        table = analysis.ablation_table(cell(values, method=method), own, PAIRING, THRESHOLDS)
        return table.iloc[0]

    planted, opposite = row(noisy, "rr"), row({key: -value for key, value in noisy.items()}, "rr")
    assert planted["pearson_r"] == pytest.approx(r)
    assert planted["pearson_p"] == pytest.approx(p)
    assert opposite["pearson_r"] == pytest.approx(-r)
    assert planted["roc_auc"] == pytest.approx(1 - opposite["roc_auc"])
    assert planted["roc_auc"] > 0.7
    undirected = row({key: -value for key, value in noisy.items()}, "cka_drift")
    assert undirected["pearson_r"] == pytest.approx(abs(r))
    assert undirected["roc_auc"] == pytest.approx(planted["roc_auc"])


def test_what_cannot_be_had_is_missing_with_the_reason() -> None:
    scores = units()
    scores.loc[scores["benchmark"] == "toxigen", "delta_score"] = np.nan
    scores.loc[scores["benchmark"] == "wildguardmix", "delta_score"] = 0.0
    found = analysis.ablation_table(cell(random_values(1)), scores, PAIRING, THRESHOLDS).set_index("benchmark")
    assert found.loc["toxigen", "n"] == 0
    assert "no change of score" in found.loc["toxigen", "note"]
    assert np.isnan(found.loc["wildguardmix", "roc_auc"])
    assert "change of score constant" in found.loc["wildguardmix", "note"]
    assert "one class only" in found.loc["wildguardmix", "note"]


def test_mistakes_name_the_cell() -> None:
    values = random_values(1)
    del values["h050", "g3"]
    with pytest.raises(UserError, match="ablation anchors, cell neutral: delta_b: no row for model m, full h050"):
        analysis.ablation_table(cell(values), units(), PAIRING, THRESHOLDS)
    with pytest.raises(UserError, match="column ablation, cell, n_anchors, seed absent"):
        analysis.ablation_table(pd.DataFrame({"model": []}), units(), PAIRING, THRESHOLDS)
    with pytest.raises(UserError, match="thresholds: none for benchmark"):
        analysis.ablation_table(cell(random_values(1)), units(), PAIRING, {})
