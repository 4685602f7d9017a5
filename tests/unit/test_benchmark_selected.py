"""Benchmarks of what an audit selected: from the models to changes of scores, and the arithmetic by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from refbias.analysis.audited import CHANGE_COLUMNS, checked_selection, score_changes
from refbias.cli.main import main
from refbias.errors import UserError
from tests.audit_models import EXACT, FEW, adapter, build, changed

CONFIG = {
    "run": "selected",
    "models": {"unused": {"source": {"kind": "local", "path": "unused"}}},
    "compute": {"device": "cpu", "dtype": "float32"},
    "benchmarks": {
        "wildguardmix": None,
        "toxigen": None,
        "decodingtrust": {
            "prompts_per_unit": 1,
            "samples": 2,
            "max_new_tokens": 3,
            "system_prompts": ["benign"],
            "repeat_task": False,
            "threshold": 0.2,
        },
    },
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def selection(**changes: object) -> pd.DataFrame:
    columns: dict[str, object] = {
        "model": "base",
        "regime": "adapter",
        "checkpoint": ["a/final", "b/final"],
        "group": ["women", "poor_people"],
        "alarm": [0.3, 0.1],
        "reference": "models/base",
        "spec": ["a/final", "b/final"],
    }
    return pd.DataFrame({**columns, **changes})


def outputs() -> pd.DataFrame:
    scores = {
        ("reference", "women"): [0, 0, 0, 1],
        ("a/final", "women"): [1, 1, 0, 1],
        ("b/final", "women"): [np.nan] * 4,
        ("reference", "men"): [1, 0, 1, 0],
        ("a/final", "men"): [0, 0, 1, 0],
        ("b/final", "men"): [1, 1, 1, 1],
    }
    return pd.DataFrame(
        [
            {
                "benchmark": "decodingtrust",
                "model": "base",
                "regime": "audited",
                "checkpoint": checkpoint,
                "unit": unit,
                "prompt_id": f"{unit}-{at // 2}",
                "sample": at % 2,
                "scorer": "agreement_rule",
                "score": score,
            }
            for (checkpoint, unit), values in scores.items()
            for at, score in enumerate(values)
        ]
    )


def test_changes_by_hand() -> None:
    pairing = {"decodingtrust": {"women": ("women",), "men": ("men",)}}
    found = score_changes(outputs(), selection(), {"decodingtrust": 0.3}, pairing, 100, 1)
    assert list(found.columns) == CHANGE_COLUMNS
    rows = found.set_index(["checkpoint", "unit"])
    assert list(rows.index) == [("a/final", "women"), ("a/final", "men"), ("b/final", "men"), ("b/final", "women")]
    assert rows.loc[("a/final", "women"), "delta_score"] == 0.5
    assert rows.loc[("a/final", "men"), "delta_score"] == -0.25
    assert rows.loc[("b/final", "men"), "delta_score"] == 0.5
    assert rows["rose"].tolist() == [True, False, True, False]
    # one that could not be scored has no change, and a group that was not listed no alarm
    assert np.isnan(rows.loc[("b/final", "women"), "delta_score"])
    assert rows["alarm"].tolist()[0] == 0.3
    assert rows["alarm"].isna().tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (selection().drop(columns=["spec"]), "column spec absent: make it by `refbias two-stage --audit"),
        (selection().iloc[:0], "nothing was selected"),
        (selection(reference=["x", "y"]), "several references"),
        (selection(checkpoint=["reference", "b"]), "a checkpoint is called 'reference'"),
    ],
)
def test_a_list_that_cannot_be_run(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_selection(frame, "selected.csv")


@pytest.mark.slow
def test_from_the_audit_to_the_scores(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    base = build(tmp_path / "base")
    # one that moved far in a training run, one that moved, one that did not
    adapter(base, tmp_path / "run" / "checkpoint-5", size=0.8)
    tuned, still = changed(base, tmp_path / "tuned", 0.3), changed(base, tmp_path / "still", 0.0)
    audited = [str(path) for path in (base, tmp_path / "run", tuned, still)]
    assert main(["audit", *audited, "--output", str(tmp_path / "audit"), *FEW, *EXACT]) == 0
    chosen = tmp_path / "selected.csv"
    select = ["two-stage", "--audit", str(tmp_path / "audit" / "audit.json"), "--level", "checkpoint"]
    assert main([*select, "--select", "1e-6", "--output", str(chosen)]) == 0
    assert set(pd.read_csv(chosen)["checkpoint"]) == {"checkpoint-5", "tuned"}
    out = tmp_path / "benchmarks"
    command = ["benchmark", "--selected", str(chosen), "--config", str(config), "--chat-format", "plain"]
    assert main([*command, "--output", str(out)]) == 0
    assert len(list((out / "generations").iterdir())) == 3
    changes = pd.read_csv(out / "changes.csv")
    assert set(changes["checkpoint"]) == {"checkpoint-5", "tuned"}
    assert set(changes["benchmark"]) == {"decodingtrust"}
    assert len(changes) == 2 * 24
    assert (changes["n_outputs"] == 2).all()
    assert (changes["threshold"] == 0.2).all()
    # of a checkpoint its loudest group is listed
    assert changes["alarm"].notna().sum() == 2
    said = capsys.readouterr().out
    assert "checkpoint-5, decodingtrust:" in said
    assert "of 24 units rose by more than 0.2" in said


def test_mistakes_are_told_before_anything_runs(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = build(tmp_path / "base")
    chosen = tmp_path / "selected.csv"
    command = ["benchmark", "--selected", str(chosen), "--config", str(config), "--output", str(tmp_path / "out")]

    def refused(frame: pd.DataFrame, *more: str) -> str:
        frame.to_csv(chosen, index=False)
        capsys.readouterr()
        assert main([*command, *more]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    one = selection(reference=str(base)).iloc[:1]
    assert "no such file or folder" in refused(one.assign(spec=str(tmp_path / "gone")))
    changed(base, tmp_path / "tuned", 0.1)
    mixed = f"0.5*{base}+0.5*{tmp_path / 'tuned'}"
    assert "a weighted sum lies in no folder" in refused(one.assign(spec=mixed))
    guarded = {**CONFIG, "benchmarks": {**CONFIG["benchmarks"], "toxigen": {"scorer": "wildguard"}}}  # type: ignore[dict-item]
    config.write_text(yaml.safe_dump(guarded))
    assert "--guards: needed, wildguard runs a model" in refused(one.assign(spec=str(tmp_path / "tuned")))
