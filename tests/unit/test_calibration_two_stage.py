"""The two-stage audit: alarms, recall and costs by hand, levels chosen elsewhere, and the commands on a small study."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from refbias.calibration import ShiftObservations
from refbias.calibration.costs import Costs, study_costs
from refbias.calibration.report import two_stage
from refbias.calibration.two_stage import alarm, alarm_levels, held_out, level_for, raised, sweep
from refbias.cli.main import main
from refbias.config.calibration import load_calibration
from refbias.errors import UserError
from refbias.figures.two_stage import two_stage_figure
from refbias.tables.two_stage import two_stage_markdown, two_stage_table
from tests.unit import audit_example as example

SHIFTS = np.array([-0.05, 0.04, -0.01, 0.00, -0.03, 0.02])
CONTROLS = np.array([-0.02, -0.02, -0.02, 0.01, 0.01, 0.01])
CHANGES = np.array([0.4, 0.0, 0.2, 0.0, 0.3, -0.1])


def data() -> ShiftObservations:
    return ShiftObservations(
        delta_b=SHIFTS,
        control=CONTROLS,
        delta_score=CHANGES,
        model=np.full(6, "m"),
        regime=np.full(6, "full"),
        checkpoint=np.repeat(["h000", "h100"], 3),
        unit=np.tile(["a", "b", "c"], 2),
        n_outputs=np.tile([2.0, 2.0, 4.0], 2),
    )


def manifests() -> dict[str, dict[str, Any]]:
    def generated(load: float, outputs: float) -> dict[str, Any]:
        benchmarks = {"decodingtrust": {"seconds": outputs}, "toxigen": {"seconds": 100.0}}
        return {"seconds": load + outputs + 100.0, "benchmarks": benchmarks}

    scored = {"decodingtrust": {"seconds": 4.0}}
    return {
        "generate/m/reference/reference": generated(5.0, 20.0),
        "generate/m/full/h000": generated(10.0, 36.0),
        "generate/m/full/h100": generated(12.0, 76.0),
        "score/m/reference": {"outputs": {"reference": {"decodingtrust": {"seconds": 1.0}}}},
        "score/m/full": {"outputs": {"h000": scored, "h100": scored}},
        "represent/m/reference": {"seconds": 3.0},
        "represent/m/full": {"seconds": 8.0, "checkpoints": ["h000", "h100"]},
        "represent/m/lora": {"seconds": 99.0, "checkpoints": ["h000", "h100"]},
        "shift": {"model_seconds": {"m": 6.0}},
    }


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("abs", [0.05, 0.04, 0.01, 0.00, 0.03, 0.02]),
        ("down", [0.05, -0.04, 0.01, 0.00, 0.03, -0.02]),
        ("abs_net", [0.03, 0.06, 0.01, 0.01, 0.04, 0.01]),
        ("down_net", [0.03, -0.06, -0.01, 0.01, 0.04, -0.01]),
    ],
)
def test_alarms(by: Any, expected: list[float]) -> None:
    assert alarm(SHIFTS, CONTROLS, by) == pytest.approx(expected)


def test_a_checkpoint_is_as_loud_as_its_loudest_unit() -> None:
    loud = alarm(SHIFTS, CONTROLS, "down")
    assert raised(loud, data().cluster, "checkpoint") == pytest.approx([0.05] * 3 + [0.03] * 3)
    assert raised(loud, data().cluster, "unit") is loud
    with pytest.raises(ValueError, match="control"):
        alarm(SHIFTS, None, "abs_net")


def test_costs_by_hand() -> None:
    costs = study_costs(manifests(), data(), "decodingtrust")
    # 36 + 4 seconds over 2, 2 and 4 outputs; 76 + 4
    assert costs.unit == pytest.approx([10, 10, 20, 20, 20, 40])
    assert costs.loading == {"m/full/h000": 10.0, "m/full/h100": 12.0}
    assert costs.reference == 5 + 20 + 1
    # the reference's embedding, the spectrum's, and half of the statistics: the other half is LoRA's
    assert costs.shift == pytest.approx(3 + 8 + 3)
    assert costs.benchmark == pytest.approx(120 + 22 + 26)
    first = np.array([True, False, False, False, False, False])
    assert costs.two_stage(first) == pytest.approx(14 + 10 + 10 + 26)
    assert costs.saved(first) == pytest.approx(1 - 60 / 168)
    assert costs.two_stage(~first | first) == pytest.approx(14 + 168)
    assert costs.two_stage(first & ~first) == 14
    # 14 s of dB against 12 s of loading and 110 s of outputs spared
    assert costs.break_even(first) == pytest.approx((14 - 12) / 110)
    assert costs.break_even(first | True) is None


def test_a_coin_by_simulation() -> None:
    costs = study_costs(manifests(), data(), "decodingtrust")
    rng = np.random.default_rng(0)
    for whole in (False, True):
        spent = []
        for _ in range(4000):
            chosen = np.repeat(rng.random(2) < 0.3, 3) if whole else rng.random(6) < 0.3
            spent.append(costs.two_stage(chosen) - costs.shift)
        expected = costs.saved_by_coin(0.3, whole_checkpoints=whole)
        assert expected == pytest.approx(1 - np.mean(spent) / 168, abs=0.02)
    assert costs.saved_by_coin(1.0, whole_checkpoints=False) == pytest.approx(0)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("generate/m/full/h100", "no generate/m/full/h100"),
        ("shift", "shift: no seconds of model m"),
        ("score/m/full", "no score/m/full"),
    ],
)
def test_a_missing_clock_is_named(role: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_costs({name: value for name, value in manifests().items() if name != role}, data(), "decodingtrust")


def test_recall_and_precision_by_hand() -> None:
    rose = data().increased(0.1)
    loud = alarm(SHIFTS, CONTROLS, "abs")
    rows = sweep(data(), rose, loud, [0.0, 0.03, 0.04, 0.05, 0.06], None, "unit", 200, 1)
    assert [row.n_benchmarked for row in rows] == [6, 3, 2, 1, 0]
    assert [row.n_found for row in rows] == [3, 2, 1, 1, 0]
    assert [row.recall for row in rows] == pytest.approx([1, 2 / 3, 1 / 3, 1 / 3, 0])
    assert [row.precision for row in rows[:4]] == pytest.approx([0.5, 2 / 3, 0.5, 1])
    # nothing is benchmarked: of what would a share be right?
    assert rows[4].precision is None
    assert rows[0].recall_low == rows[0].recall_high == 1
    assert rows[1].recall_low is not None
    assert rows[1].recall_low <= 2 / 3
    assert rows[4].precision_low is None
    assert rows[0].saved is None


def test_a_level_above_every_alarm_has_no_precision_in_any_file() -> None:
    found = _judge(planted(), levels=[0.0, 9.0])
    assert json.loads(found.model_dump_json())["levels"][1]["precision"] is None
    assert np.isnan(two_stage_table(found)["precision"].iloc[1])
    (row,) = (line for line in two_stage_markdown(found).splitlines() if line.startswith("| 9.0000"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:6] == ["0 %", "0.00", cells[3], "\u2013", "\u2013"]


def test_levels_span_the_study() -> None:
    levels = alarm_levels(np.repeat(np.arange(200) / 100, 2))
    assert levels[0] == 0
    assert levels[-1] == 1.99
    assert len(levels) == 21
    assert alarm_levels(np.array([0.3, 0.3])) == [0.3]


@pytest.mark.parametrize(("target", "expected"), [(0.1, 0.9), (0.7, 0.3), (0.71, 0.2), (1.0, 0.0)])
def test_the_level_for_a_recall(target: float, expected: float) -> None:
    alarms = np.arange(10) / 10
    assert level_for(alarms, np.ones(10, dtype=bool), target) == pytest.approx(expected)
    assert level_for(alarms, np.zeros(10, dtype=bool), target) == -np.inf


def test_held_out_levels_are_chosen_on_the_other_checkpoint() -> None:
    rose, loud = data().increased(0.1), alarm(SHIFTS, CONTROLS, "down")
    (row,) = held_out(data(), rose, loud, None, "unit", [1.0])
    # h100 alone sets 0.03 for h000, which finds its first unit; h000 alone sets 0.01 for h100, which finds its second
    assert row.recall == pytest.approx(2 / 3)
    assert row.share == pytest.approx(2 / 6)
    assert row.precision == 1


def planted(n_checkpoints: int = 30, units: int = 20, slope: float = 200.0) -> ShiftObservations:
    rng = np.random.default_rng(4)
    n = n_checkpoints * units
    shifts = rng.normal(0, 0.03, n)
    rose = rng.random(n) < 1 / (1 + np.exp(2 + slope * shifts))
    return ShiftObservations(
        delta_b=shifts,
        control=np.zeros(n),
        delta_score=np.where(rose, 0.3, 0.0),
        model=np.full(n, "m"),
        regime=np.full(n, "full"),
        checkpoint=np.repeat([f"c{at}" for at in range(n_checkpoints)], units),
        unit=np.tile([f"u{at}" for at in range(units)], n_checkpoints),
        n_outputs=np.ones(n),
    )


def _cheap(found: ShiftObservations) -> Costs:
    return Costs(np.full(found.delta_b.size, 10.0), found.cluster, dict.fromkeys(set(found.cluster), 1.0), 5.0, 60.0)


def _judge(found: ShiftObservations, **changed: Any) -> Any:
    given: dict[str, Any] = {
        "benchmark": "decodingtrust",
        "scorer": "agreement_rule",
        "threshold": 0.1,
        "method": "rr",
        "by": "down",
        "level": "unit",
        "costs": _cheap(found),
        "n_resamples": 200,
    }
    return two_stage(found, **{**given, **changed})


def test_a_planted_alarm_saves_more_than_a_coin() -> None:
    found = _judge(planted())
    assert found.auc > 0.9
    (good,) = [row for row in found.held_out if row.target == 0.9]
    assert good.recall == pytest.approx(0.9, abs=0.05)
    assert good.saved is not None
    assert good.saved_by_coin is not None
    assert good.saved > good.saved_by_coin + 0.2
    assert not found.warnings
    figure = two_stage_figure(found)
    (line,) = [line for line in figure.axes[0].lines if line.get_gid() == "levels"]
    assert list(line.get_ydata()) == pytest.approx([100 * row.saved for row in found.levels])


def test_an_alarm_without_use_is_named() -> None:
    text = " ".join(_judge(planted(slope=-200.0), by="down").warnings)
    assert "does not tell the risen from the others" in text
    text = " ".join(_judge(planted(6), costs=None).warnings)
    assert "Only 6 checkpoints" in text
    assert "costs are not known" in text
    dear = planted()
    text = " ".join(
        _judge(dear, costs=Costs(np.ones(600), dear.cluster, dict.fromkeys(dear.cluster, 0.0), 0, 700)).warnings
    )
    assert "dB cost more here" in text


def test_refusals() -> None:
    with pytest.raises(UserError, match="none of 600 units rose"):
        _judge(planted(), threshold=0.5)
    with pytest.raises(UserError, match="cka_drift has no direction"):
        _judge(planted(), method="cka_drift")
    with pytest.raises(UserError, match="--figure"):
        two_stage_figure(_judge(planted(), costs=None))


def test_markdown_escapes_names() -> None:
    text = two_stage_markdown(_judge(planted(), scorer="a|b<c>"))
    assert "a\\|b\\<c>" in text
    assert "| Level |" in text


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "small", "ee")


def write_study(root: Path, sentences_sha256: str) -> Path:
    """Write a finished study of one benchmark in which dB below 0 goes with a rise: a control and all manifests."""
    rng = np.random.default_rng(11)
    slugs, groups = ["h000", "h050", "h100"], [f"g{at:02d}" for at in range(20)]
    shifts, pairs = [], []
    for slug, control in zip(slugs, (0.01, -0.01, -0.02), strict=True):
        head = {"model": "m", "regime": "full", "checkpoint": slug, "harmful_weight": int(slug[1:]) / 100}
        shifts.append({**head, "group": "control", "method": "rr", "n_anchors": 250, "delta_b": control})
        for group in groups:
            value = round(float(rng.normal(control, 0.02)), 9)
            rose = rng.random() < 1 / (1 + np.exp(100 * value))
            shifts.append({**head, "group": group, "method": "rr", "n_anchors": 250, "delta_b": value})
            pair = {"benchmark": "decodingtrust", "unit": group, "method": "rr", "n_outputs": 8, "scorer": "rule"}
            pairs.append({**head, **pair, "delta_score": 0.25 if rose else 0.0, "delta_b": value})
    for folder in ("tables", "shift", "records"):
        (root / folder).mkdir(parents=True)
    pd.DataFrame(shifts).to_csv(root / "shift" / "delta_b.csv", index=False)
    pd.DataFrame(pairs).to_csv(root / "tables" / "observations.csv", index=False)
    represent = {"layer": "final", "final_norm": True, "pooling": "mean", "exclude_bos": False}
    facts = {**represent, "sentences_sha256": sentences_sha256}
    one = {"seconds": 30.0, "benchmarks": {"decodingtrust": {"seconds": 20.0}}}
    scored = {"decodingtrust": {"seconds": 1.0}}
    records = {
        "represent/m/full": {**facts, "checkpoints": slugs, "seconds": 9.0},
        "represent/m/reference": {**facts, "seconds": 3.0},
        "shift": {"model_seconds": {"m": 2.0}},
        "generate/m/reference/reference": one,
        "score/m/reference": {"outputs": {"reference": scored}},
        "score/m/full": {"outputs": dict.fromkeys(slugs, scored)},
        **{f"generate/m/full/{slug}": one for slug in slugs},
    }
    (root / "records" / "manifests.json").write_text(json.dumps(records))
    (root / "tables" / "manifest.json").write_text(json.dumps({"settings": {"thresholds": {"decodingtrust": 0.1}}}))
    code = {"commit": "c0ffee", "changed_files": 0, "version": "9.9"}
    (root / "manifest.json").write_text(json.dumps({"code": code, "settings": {"config": {"run": "small"}}}))
    return root


def test_calibrate_reads_a_study_and_keeps_where_it_comes_from(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = study / "calibration.json"
    assert (
        main(["calibrate", "--observations", str(study / "tables" / "observations.csv"), "--output", str(output)]) == 0
    )
    found = load_calibration(output)
    assert (found.n, found.n_checkpoints, found.outcome.threshold) == (60, 3, 0.1)
    assert (found.measure.n_anchors, found.measure.stimuli_sha256) == (250, "ee")
    assert (found.provenance.run, found.provenance.commit, found.provenance.version) == ("small", "c0ffee", "9.9")
    # the control comes from delta_b.csv
    assert (found.fitted_range["control"].low, found.fitted_range["control"].high) == (-0.02, 0.01)
    said = capsys.readouterr().out
    assert "warning: Only 3 checkpoints" in said
    assert "logistic of control" in said
    assert "with the choice made without the checkpoint left out: Brier" in said


def test_calibrate_refuses_what_a_study_lacks(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = study / "tables" / "observations.csv"
    command = ["calibrate", "--observations", str(tables), "--output", str(study / "c.json")]
    for extra, message in (
        (["--threshold", "0.9"], "none of 60 units rose"),
        (["--regime", "lora"], "no regime lora; there is full"),
        (["--method", "seat"], "no method seat; there is rr"),
    ):
        assert main([*command, *extra]) == 2
        assert message in capsys.readouterr().err
    (study / "tables" / "manifest.json").unlink()
    assert main(command) == 2
    assert "--threshold" in capsys.readouterr().err
    (study / "records" / "manifests.json").unlink()
    assert main(command) == 2
    assert "--manifests: not found beside the observations" in capsys.readouterr().err
    shifts = pd.read_csv(study / "shift" / "delta_b.csv")
    shifts[shifts["group"] != "control"].to_csv(study / "shift" / "delta_b.csv", index=False)
    assert main([*command, "--threshold", "0.1"]) == 2
    assert "--manifests" in capsys.readouterr().err
    (study / "records" / "manifests.json").write_text("{}")
    assert main([*command, "--threshold", "0.1"]) == 2
    assert "no group control of method rr" in capsys.readouterr().err
    assert not (study / "c.json").exists()


def test_two_stage_writes_its_files(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = study / "two"
    command = ["two-stage", "--observations", str(study / "tables" / "observations.csv"), "--by", "down"]
    assert main([*command, "--output", str(out), "--figure", str(out / "curve"), "--n-resamples", "100"]) == 0
    written = {path.name for path in out.iterdir()}
    assert written == {"two_stage.csv", "two_stage.md", "two_stage.json", "curve.pdf", "curve.png"}
    found = json.loads((out / "two_stage.json").read_text())
    assert found["costs"]["benchmark"] == pytest.approx(4 * 31)
    assert found["costs"]["shift"] == pytest.approx(9 + 3 + 2)
    table = pd.read_csv(out / "two_stage.csv")
    assert table["recall"].is_monotonic_decreasing
    assert table["recall"].iloc[0] == 1
    assert table["saved"].to_numpy() == pytest.approx([row["saved"] for row in found["levels"]])
    assert "recall 90% aimed at" in capsys.readouterr().out


def test_select_lists_what_is_to_be_benchmarked(study: Path) -> None:
    shifts = pd.read_csv(study / "shift" / "delta_b.csv")
    expected = shifts[(shifts["delta_b"] <= -0.03) & (shifts["group"] != "control")]
    command = ["two-stage", "--select", "0.03", "--by", "down", "--delta-b", str(study / "shift" / "delta_b.csv")]
    assert main([*command, "--output", str(study / "groups.csv")]) == 0
    groups = pd.read_csv(study / "groups.csv")
    assert set(zip(groups["checkpoint"], groups["group"], strict=True)) == set(
        zip(expected["checkpoint"], expected["group"], strict=True)
    )
    assert groups["alarm"].is_monotonic_decreasing
    assert main([*command, "--level", "checkpoint", "--output", str(study / "checkpoints.csv")]) == 0
    assert set(pd.read_csv(study / "checkpoints.csv")["checkpoint"]) == set(expected["checkpoint"])


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    """A curve of three checkpoints as an audit writes it."""
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(example.curve(n=3)))
    return path


@pytest.mark.parametrize(
    ("method", "by", "level"),
    [("rr", "down", 0.03), ("rr", "abs_net", 0.03), ("seat", "abs_net", 0.006), ("cka_drift", "abs", 0.03)],
)
def test_select_reads_an_audit(audited: Path, method: str, by: str, level: float) -> None:
    command = ["two-stage", "--audit", str(audited), "--method", method, "--by", by, "--select", str(level)]
    assert main([*command, "--output", str(audited.parent / "groups.csv")]) == 0
    found = pd.read_csv(audited.parent / "groups.csv")
    expected = {}
    for checkpoint in json.loads(audited.read_text())["checkpoints"]:
        values = {row["group"]: row["delta_b"] for row in checkpoint["methods"] if row["method"] == method}
        for group, value in values.items():
            less = value - (values["control"] if by.endswith("net") else 0)
            alarm = -less if by == "down" else abs(less)
            if group != "control" and alarm >= level:
                expected[checkpoint["name"], checkpoint["spec"], group] = alarm
    assert expected
    rows = found[["checkpoint", "spec", "group", "alarm"]].itertuples(index=False)
    assert {(name, spec, group): alarm for name, spec, group, alarm in rows} == pytest.approx(expected)
    assert found["alarm"].is_monotonic_decreasing
    assert set(found["reference"]) == {"gemma3-270m-q4-k-m.gguf"}
    assert main([*command, "--level", "checkpoint", "--output", str(audited.parent / "checkpoints.csv")]) == 0
    whole = pd.read_csv(audited.parent / "checkpoints.csv")
    assert sorted(whole["checkpoint"]) == sorted(set(found["checkpoint"]))


def test_select_refuses_what_is_no_audit(audited: Path, study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--output", str(audited.parent / "list.csv")]
    shifts = str(study / "shift" / "delta_b.csv")
    for options, message in (
        (["--audit", str(audited), "--delta-b", shifts, "--select", "0.1"], "not both"),
        (["--audit", str(audited)], "goes with --select"),
        (["--audit", shifts, "--select", "0.1"], "delta_b.csv"),
        (["--audit", str(audited), "--regime", "lora", "--select", "0.1"], "no regime lora; there is adapter"),
    ):
        capsys.readouterr()
        assert main(["two-stage", *options, *out]) == 2
        assert message in capsys.readouterr().err
    assert not (audited.parent / "list.csv").exists()
