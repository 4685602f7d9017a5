"""Units, pairs and table 1 on small frames worked out by hand, and table 1 against independent lines."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from refbias.analysis import (
    OBSERVATION_COLUMNS,
    TABLE1_COLUMNS,
    UNIT_COLUMNS,
    auc_curve,
    harmful_weight,
    observations,
    roc_curves,
    table1,
    unit_groups,
    unit_scores,
)
from refbias.benchmarks import BENCHMARKS
from refbias.cli.main import main
from refbias.errors import UserError
from tests.independent import recompute_table1

GROUPS = pd.DataFrame(
    {
        "id": ["muslims", "jews", "women"],
        "topic": ["religion", "religion", "gender"],
        "toxigen": ["muslim", "jewish", "women"],
    }
)


def _outputs(regime: str, checkpoint: str, scores: dict[str, list[float]], **fixed: str) -> pd.DataFrame:
    """Two samples a prompt; the prompt ids are numbers, as a reader of a CSV would find them."""
    rows = [
        {
            "benchmark": "decodingtrust",
            "model": "m",
            "regime": regime,
            "checkpoint": checkpoint,
            "unit": unit,
            "prompt_id": position // 2,
            "sample": position % 2,
            "scorer": "rule",
            "score": score,
        }
        | fixed
        for unit, values in scores.items()
        for position, score in enumerate(values)
    ]
    return pd.DataFrame(rows)


def _reference(**fixed: str) -> pd.DataFrame:
    return _outputs("reference", "reference", {"women": [0, 0, 1, 0]}, **fixed)


def _units(*frames: pd.DataFrame, **kwargs) -> pd.DataFrame:
    return unit_scores(pd.concat(frames, ignore_index=True), n_resamples=200, seed=0, **kwargs)


def _delta_b(values: dict[str, float], checkpoint: str = "h100", method: str = "rr", anchors: int = 10) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "model": "m",
                "regime": "full",
                "checkpoint": checkpoint,
                "harmful_weight": harmful_weight(checkpoint),
                "group": group,
                "method": method,
                "n_anchors": anchors,
                "delta_b": value,
            }
            for group, value in values.items()
        ]
    )


# --- units


def test_slugs_give_weights():
    assert [harmful_weight(slug) for slug in ("h000", "h010", "h050", "h100")] == [0, 0.1, 0.5, 1]
    assert math.isnan(harmful_weight("reference"))
    for slug in ("h101", "h10", "full", ""):
        with pytest.raises(UserError, match="h000 to h100"):
            harmful_weight(slug)


def test_unit_score_and_change_by_hand():
    units = _units(_reference(), _outputs("full", "h030", {"women": [1, 1, 1, math.nan]}))
    assert units.columns.tolist() == UNIT_COLUMNS
    audited, reference = units[units["regime"] == "full"].iloc[0], units[units["regime"] == "reference"].iloc[0]
    assert (audited["n_outputs"], audited["n_missing"], audited["harmful_weight"]) == (4, 1, 0.3)
    assert (audited["score"], audited["reference_score"], audited["delta_score"]) == (1.0, 0.25, 0.75)
    # Prompt 0 changes by 1, prompt 1 by 1/2: every resample of the two lies between.
    assert (audited["delta_ci_low"], audited["delta_ci_high"]) == (0.5, 1.0)
    assert (reference["score"], reference["n_outputs"]) == (0.25, 4)
    assert reference[["harmful_weight", "reference_score", "delta_score"]].isna().all()


CHANGES = {"jobs/1": 1.0, "stem/2": 0.0, "jobs/3": 1.0, "weak/1": 0.0}


def _under_three_system_prompts(regime: str, checkpoint: str, scores: dict[str, float]) -> pd.DataFrame:
    """One output of each statement under every system prompt, with the ids that the loader writes."""
    return pd.DataFrame(
        [
            {
                "benchmark": "decodingtrust",
                "model": "m",
                "regime": regime,
                "checkpoint": checkpoint,
                "unit": "women",
                "prompt_id": f"women/{statement}/{system}",
                "sample": 0,
                "scorer": "rule",
                "score": score,
            }
            for statement, score in scores.items()
            for system in ("benign", "untargeted", "targeted")
        ]
    )


def test_a_statement_under_three_system_prompts_is_one_draw():
    """A change of 1 in two of four statements: one resample in 16 has none of them, of twelve prompts one in 4,096."""
    frames = [
        _under_three_system_prompts("reference", "reference", dict.fromkeys(CHANGES, 0.0)),
        _under_three_system_prompts("full", "h100", CHANGES),
    ]
    sources = {name: benchmark.source for name, benchmark in BENCHMARKS.items()}
    (change,) = _units(*frames, sources=sources).query("regime == 'full'").to_dict("records")
    assert (change["delta_score"], change["delta_ci_low"], change["delta_ci_high"]) == (0.5, 0.0, 1.0)
    (single,) = _units(*frames).query("regime == 'full'").to_dict("records")
    assert 0 < single["delta_ci_low"] < single["delta_ci_high"] < 1
    alone = [frame[frame["prompt_id"].str.contains("jobs/1")] for frame in frames]
    (change,) = _units(*alone, sources=sources).query("regime == 'full'").to_dict("records")
    assert change["delta_score"] == 1
    assert math.isnan(change["delta_ci_low"])


def test_the_command_resamples_statements(tmp_path):
    frames = {
        "reference": _under_three_system_prompts("reference", "reference", dict.fromkeys(CHANGES, 0.0)),
        "full": _under_three_system_prompts("full", "h100", CHANGES),
    }
    for name, frame in frames.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    shifts = dict.fromkeys(BENCHMARKS["decodingtrust"].units, -0.1)
    _delta_b(shifts).to_csv(tmp_path / "delta_b.csv", index=False)
    settings = {
        "analysis": {"n_resamples": 200},
        "thresholds": {"decodingtrust": 0.1},
        "seed": 0,
        "groups_file": None,
        "families": {},
    }
    command = ["analyse", "--settings", json.dumps(settings), "--shift", str(tmp_path / "delta_b.csv")]
    command += ["--scores", *(str(tmp_path / f"{name}.csv") for name in frames), "--output", str(tmp_path / "tables")]
    assert main(command) == 0
    units = pd.read_csv(tmp_path / "tables" / "units.csv").query("unit == 'women' and regime == 'full'")
    assert units[["delta_score", "delta_ci_low", "delta_ci_high"]].to_numpy().tolist() == [[0.5, 0.0, 1.0]]


def test_equal_changes_are_equal_numbers():
    ten = {"women": [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], "jews": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]}
    base = {"women": [1, 1, 1, 0, 0, 0, 0, 0, 0, 0], "jews": [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]}
    units = _units(_outputs("reference", "reference", base), _outputs("full", "h000", ten))
    assert units["delta_score"].dropna().tolist() == [0.1, 0.1]


def test_unit_without_scored_outputs_is_missing_not_zero():
    units = _units(
        _outputs("reference", "reference", {"women": [0, 1], "jews": [math.nan, math.nan]}),
        _outputs("full", "h100", {"women": [math.nan, math.nan], "jews": [1, 1]}),
    )
    audited = units[units["regime"] == "full"].set_index("unit")
    assert math.isnan(audited.loc["women", "score"])
    assert audited.loc["women", "n_missing"] == 2
    assert audited.loc["jews", "score"] == 1
    assert audited[["delta_score", "delta_ci_low"]].isna().all(axis=None)


def test_expected_unit_without_outputs_has_a_row():
    units = _units(
        _reference(), _outputs("full", "h100", {"women": [1, 1, 1, 1]}), expected={"decodingtrust": ["women", "jews"]}
    )
    empty = units[units["unit"] == "jews"]
    assert empty["regime"].tolist() == ["full", "reference"]
    assert empty["n_outputs"].tolist() == [0, 0]
    assert empty[["score", "delta_score"]].isna().all(axis=None)


def test_reference_serves_both_regimes_and_rows_keep_their_order():
    audited = [_outputs(regime, c, {"women": [1, 1, 1, 1]}) for regime in ("lora", "full") for c in ("h100", "h000")]
    units = _units(*audited, _reference())
    assert units["regime"].tolist() == ["full", "full", "lora", "lora", "reference"]
    assert units["checkpoint"].tolist() == ["h000", "h100", "h000", "h100", "reference"]
    assert units["delta_score"].tolist()[:4] == [0.75] * 4


def test_prompt_ids_read_as_numbers_and_as_text_are_the_same():
    audited = _outputs("full", "h100", {"women": [1, 1, 1, 1]})
    units = _units(_reference(), audited.assign(prompt_id=audited["prompt_id"].astype(str)))
    assert units["delta_score"].dropna().tolist() == [0.75]


def test_two_scorers_side_by_side_are_kept_apart():
    other = {"scorer": "guard"}
    units = _units(
        _reference(),
        _reference(**other),
        _outputs("full", "h100", {"women": [1, 1, 1, 1]}),
        _outputs("full", "h100", {"women": [0, 0, 0, 0]}, **other),
    )
    assert units[units["regime"] == "full"].set_index("scorer")["delta_score"].to_dict() == {
        "guard": -0.25,
        "rule": 0.75,
    }


def test_difference_between_two_scorers_is_refused():
    with pytest.raises(UserError, match=r"women: scored by guard, the reference by rule"):
        _units(_reference(), _outputs("full", "h100", {"women": [1, 1, 1, 1]}, scorer="guard"))


def _broken(column: str, value: object) -> pd.DataFrame:
    frame = _reference().astype(object)
    frame.loc[0, column] = value
    return frame


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([_outputs("full", "h100", {"women": [1, 1, 1, 1]})], "no outputs of the reference"),
        ([_reference(), _outputs("full", "h100", {"women": [1, 1]})], "1 prompts in one of"),
        ([_reference(), _outputs("full", "h100", {"jews": [1, 1]})], "1 prompts in one of"),
        ([_reference(), _reference()], "4 outputs occur twice"),
        ([_broken("score", -1)], "score -1; expected 0, 1 or empty"),
        ([_broken("score", "yes")], "score 'yes'; expected 0, 1 or empty"),
        ([_broken("unit", None)], "empty value in column unit"),
        ([_broken("checkpoint", "h000")], "belong together"),
        ([_reference().drop(columns="scorer")], "column scorer absent"),
        ([_reference().iloc[:0]], "no rows"),
    ],
)
def test_outputs_that_cannot_be_compared_are_refused(frames, message):
    with pytest.raises(UserError, match=message):
        _units(*frames)


# --- pairs


def test_units_of_the_three_benchmarks():
    assert unit_groups(GROUPS) == {
        "wildguardmix": {"religion": ("muslims", "jews"), "gender": ("women",)},
        "decodingtrust": {"muslims": ("muslims",), "jews": ("jews",), "women": ("women",)},
        "toxigen": {"muslim": ("muslims",), "jewish": ("jews",), "women": ("women",)},
    }
    partly = GROUPS.assign(toxigen=["muslim", None, ""])
    assert unit_groups(partly)["toxigen"] == {"muslim": ("muslims",)}
    with pytest.raises(UserError, match="column toxigen absent"):
        unit_groups(GROUPS.drop(columns="toxigen"))
    with pytest.raises(UserError, match="women occurs twice"):
        unit_groups(pd.concat([GROUPS, GROUPS.iloc[2:]]))


def test_topic_takes_the_mean_of_its_groups():
    names = {"benchmark": "wildguardmix", "scorer": "guard"}
    units = _units(
        _outputs("reference", "reference", {"religion": [0, 0], "gender": [0, 0]}, **names),
        _outputs("full", "h100", {"religion": [1, 1], "gender": [0, 1]}, **names),
    )
    pairs = observations(
        units,
        pd.concat(
            [
                _delta_b({"muslims": -1.0, "jews": -3.0, "women": 0.5, "control": 9.0}),
                _delta_b({"muslims": -0.1, "jews": 0.3, "women": 0.5}, method="seat", anchors=0),
            ]
        ),
        unit_groups(GROUPS),
    )
    assert pairs.columns.tolist() == OBSERVATION_COLUMNS
    assert pairs[["unit", "method"]].to_numpy().tolist() == [
        ["religion", "rr"],
        ["gender", "rr"],
        ["religion", "seat"],
        ["gender", "seat"],
    ]
    np.testing.assert_allclose(pairs["delta_b"], [-2.0, 0.5, 0.1, 0.5])
    np.testing.assert_allclose(pairs["delta_score"], [1.0, 0.5, 1.0, 0.5])
    assert pairs["n_outputs"].tolist() == [2] * 4


def test_missing_change_stays_an_observation():
    units = _units(_reference(), _outputs("full", "h100", {"women": [math.nan] * 4}))
    pairs = observations(units, _delta_b({"women": -1.0}), unit_groups(GROUPS))
    assert len(pairs) == 1
    assert pairs["delta_score"].isna().all()


@pytest.mark.parametrize(
    ("shifts", "message"),
    [
        (_delta_b({"jews": 1.0}), "no group women"),
        (_delta_b({"women": 1.0}, "h000"), "no row for model m, full h100, group women"),
        (pd.concat([_delta_b({"women": 1.0})] * 2), "two rows for model m, regime full, checkpoint h100, group women"),
        (pd.concat([_delta_b({"women": 1.0}), _delta_b({"jews": 1.0}, anchors=11)]), "mixes 10, 11 anchors"),
        (_delta_b({"women": 1.0}).drop(columns="n_anchors"), "column n_anchors absent"),
    ],
)
def test_shifts_that_do_not_match_are_refused(shifts, message):
    units = _units(_reference(), _outputs("full", "h100", {"women": [1, 1, 1, 1]}))
    with pytest.raises(UserError, match=message):
        observations(units, shifts, unit_groups(GROUPS))


def test_unpaired_unit_is_refused():
    units = _units(_reference(), _outputs("full", "h100", {"women": [1, 1, 1, 1]}))
    with pytest.raises(UserError, match="no target group is paired with decodingtrust unit women"):
        observations(units, _delta_b({"women": 1.0}), {"decodingtrust": {}})
    with pytest.raises(UserError, match="no audited checkpoint"):
        observations(_units(_reference()), _delta_b({"women": 1.0}), unit_groups(GROUPS))


# --- table 1


def _observations(seed: int, units: int = 6, slope: float = -0.5) -> pd.DataFrame:
    """Two benchmarks and two methods on a small table, with ties and one missing change."""
    generator = np.random.default_rng(seed)
    rows = []
    for benchmark in ("decodingtrust", "toxigen"):
        for method in ("rr", "seat"):
            for checkpoint in ("h000", "h010", "h030", "h050", "h070", "h090", "h100"):
                for unit in range(units):
                    shift = generator.normal() - harmful_weight(checkpoint)
                    rows.append(
                        {
                            "benchmark": benchmark,
                            "model": "m",
                            "regime": "full",
                            "checkpoint": checkpoint,
                            "harmful_weight": harmful_weight(checkpoint),
                            "unit": f"u{unit}",
                            "method": method,
                            "n_outputs": 20,
                            "scorer": "rule",
                            "delta_score": round(slope * shift / 5 + generator.normal() / 10, 2),
                            "delta_b": shift,
                        }
                    )
    frame = pd.DataFrame(rows, columns=OBSERVATION_COLUMNS)
    frame.loc[3, "delta_score"] = math.nan
    return frame


THRESHOLDS = {"decodingtrust": 0.1, "toxigen": 0.03}


def test_table_equals_independent_lines():
    frame = _observations(0)
    table = table1(frame, THRESHOLDS, n_resamples=300, seed=17)
    assert table.columns.tolist() == TABLE1_COLUMNS
    expected = recompute_table1(frame, THRESHOLDS, n_resamples=300, seed=17)
    pd.testing.assert_frame_equal(table[expected.columns], expected, check_dtype=False, rtol=1e-9, atol=1e-12)
    assert table["n"].tolist() == [41, 42, 42, 42]
    assert table["note"].tolist() == ["1 of 42 observations dropped: no change of score", "", "", ""]
    assert ((table["pearson_ci_low"] < table["pearson_r"]) & (table["pearson_r"] < table["pearson_ci_high"])).all()


def test_table_survives_a_csv(tmp_path):
    frame = _observations(1)
    frame.to_csv(tmp_path / "observations.csv", index=False, float_format="%.10g")
    again = pd.read_csv(tmp_path / "observations.csv")
    pd.testing.assert_frame_equal(table1(again, THRESHOLDS, 100, 0), table1(frame, THRESHOLDS, 100, 0), rtol=1e-7)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (0.0, "no correlation: change of score constant; no AUC: one class only, no unit above 0.1"),
        (0.5, "no correlation: change of score constant; no AUC: one class only, every unit above 0.1"),
        (math.nan, "42 of 42 observations dropped: no change of score"),
    ],
)
def test_what_cannot_be_computed_is_missing_with_the_reason(change, note):
    frame = _observations(2)[:42].assign(delta_score=change)
    row = table1(frame, THRESHOLDS, 50, 0).iloc[0]
    assert row["note"] == note
    assert row[["pearson_r", "pearson_p", "pearson_ci_low", "spearman_r", "roc_auc", "roc_auc_ci_high"]].isna().all()
    expected = recompute_table1(frame, THRESHOLDS, 50, 0)
    assert expected["n_positive"].tolist() == [row["n_positive"]]


def test_rare_class_gives_an_interval_from_the_resamples_that_have_it():
    frame = _observations(3)[:42].assign(delta_score=0.0)
    frame.loc[40, "delta_score"] = 0.3
    table = table1(frame, THRESHOLDS, 200, 0)
    assert table["n_positive"].tolist() == [1]
    assert "AUC" in table["note"][0]
    expected = recompute_table1(frame, THRESHOLDS, 200, 0)
    pd.testing.assert_frame_equal(table[expected.columns], expected, check_dtype=False, rtol=1e-9)


def test_one_checkpoint_has_no_interval():
    frame = _observations(4)[:6]
    frame = frame.assign(delta_score=[0.0, 0.2, 0.05, 0.3, 0.1, 0.15])
    row = table1(frame, THRESHOLDS, 50, 0).iloc[0]
    assert not math.isnan(row["pearson_r"])
    assert math.isnan(row["pearson_ci_low"])
    assert row["note"].startswith("no interval of r: needs two units and two checkpoints")


def test_shares_at_floor_and_ceiling():
    scores = {"women": [0, 0], "jews": [1, 1], "muslims": [0, 1]}
    units = _units(
        _outputs("reference", "reference", scores),
        _outputs("full", "h000", {"women": [0, 0], "jews": [0, 0], "muslims": [math.nan, math.nan]}),
        _outputs("full", "h100", {"women": [0, 1], "jews": [1, 1], "muslims": [0, 0]}),
    )
    shifts = {"women": 1.0, "jews": 2.0, "muslims": 4.0}
    pairs = observations(units, pd.concat([_delta_b(shifts), _delta_b(shifts, "h000")]), unit_groups(GROUPS))
    row = table1(pairs, THRESHOLDS, 50, 0, units).iloc[0]
    assert (row["share_floor"], row["share_ceiling"]) == (3 / 5, 1 / 5)


def test_threshold_of_every_benchmark_is_needed():
    with pytest.raises(UserError, match="none for benchmark toxigen"):
        table1(_observations(0), {"decodingtrust": 0.1}, 10, 0)


def test_curves_agree_with_the_table():
    frame = _observations(5)
    table = table1(frame, THRESHOLDS, 20, 0)
    curve = auc_curve(frame, [0.03, 0.1, 9.0])
    assert len(curve) == 4 * 3
    assert curve.loc[curve["threshold"] == 9.0, "roc_auc"].isna().all()
    merged = table.merge(curve, on=["benchmark", "method", "threshold"], suffixes=("", "_curve"))
    assert len(merged) == 4
    np.testing.assert_allclose(merged["roc_auc"], merged["roc_auc_curve"])
    assert (merged["n_positive"] == merged["n_positive_curve"]).all()
    for (_, points), area in zip(
        roc_curves(frame, THRESHOLDS).groupby(["benchmark", "method"], sort=False), table["roc_auc"], strict=True
    ):
        assert np.trapezoid(points["true_positive_rate"], points["false_positive_rate"]) == pytest.approx(area)


def test_curves_of_nothing_are_empty():
    nothing = _observations(6).assign(delta_score=math.nan)
    assert auc_curve(nothing, [0.1]).empty
    assert roc_curves(nothing, THRESHOLDS).empty
