"""The target `audit`: a run that is an audit alone."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.audit_models import build, changed
from tests.workflow.conftest import Checkout, make_checkout

CONFIG = {
    "run": "tiny",
    "models": {},
    "audit": {
        "reference": "models/base",
        "audited": ["models/tuned"],
        "device": "cpu",
        "dtype": "float32",
        "stimuli": {"targets": 3, "attributes": 12, "anchors": 40, "control": 3},
    },
}


@pytest.fixture
def checkout(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    made = make_checkout(root, tmp_path / "checkout")
    (made.path / "config" / "tiny.yaml").write_text(yaml.safe_dump(CONFIG))
    base = build(made.path / "models" / "base")
    changed(base, made.path / "models" / "tuned", 0.2)
    return made


@pytest.mark.slow
def test_the_target_audit(checkout: Checkout, tmp_path: Path) -> None:
    assert checkout.would_run("audit") == {"audit_checkpoints": 1, "audit": 1}
    checkout.snakemake("audit")
    folder = checkout.path / "results" / "tiny" / "audit"
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {"audit.json", "report.html", "groups.csv", "manifest.json"}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["settings"]["reference"] == "models/base"
    assert checkout.would_run("audit") == {}
    # other weights are audited again
    changed(checkout.path / "models" / "base", tmp_path / "new", 0.1, seed=3)
    shutil.copyfile(tmp_path / "new" / "model.safetensors", checkout.path / "models" / "tuned" / "model.safetensors")
    assert checkout.would_run("audit") == {"audit_checkpoints": 1, "audit": 1}


@pytest.mark.slow
def test_a_condition_that_is_met_fails_the_target_and_keeps_the_result(checkout: Checkout) -> None:
    checkout.edit("config/tiny.yaml", "audit:\n", "audit:\n  fail_on: ['ci<-9', '|dB|>0.000001 and dB<9']\n")
    folder = checkout.path / "results" / "tiny" / "audit"
    kept = {"audit.json", "report.html", "groups.csv", "manifest.json"}
    # by the target of its own, and by the run's
    for target in (["audit"], []):
        assert checkout.would_run(*target).get("audit_gate") == 1
        done = checkout.snakemake(*target, check=False)
        assert done.returncode == 1
        assert "is met by" in done.stdout + done.stderr
        assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == kept
        assert "audit_checkpoints" not in checkout.would_run(*target)
    checkout.edit("config/tiny.yaml", "|dB|>0.000001", "|dB|>9")
    checkout.snakemake("audit")
    assert json.loads((folder / "gate.json").read_text())["exceeded"] == []
    assert checkout.would_run("audit") == {}
