import json
from pathlib import Path

import pytest

from refbias.cli import records
from refbias.errors import UserError


def test_manifests_and_losses_are_collected(tmp_path: Path) -> None:
    for role in ("shift", "represent/m/full"):
        path = tmp_path / role / "manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"stage": role, "seconds": 2.5}))
    loss = tmp_path / "loss.csv"
    loss.write_text("step,epoch,loss\n1,0.5,2.25\n2,1.0,\n")
    manifests = [f"{role}={tmp_path / role / 'manifest.json'}" for role in ("shift", "represent/m/full")]
    arguments = ["--manifests", *manifests, "--losses", f"m/full/harmful={loss}", "--output", str(tmp_path / "out")]
    records.main(arguments)
    found = json.loads((tmp_path / "out/manifests.json").read_text())
    assert found == {role: {"stage": role, "seconds": 2.5} for role in ("shift", "represent/m/full")}
    assert (tmp_path / "out/losses.csv").read_text().splitlines() == [
        "model,regime,split,step,loss",
        "m,full,harmful,1,2.25",
        "m,full,harmful,2,",
    ]


@pytest.mark.parametrize("text", ["shift", "=path", "role="])
def test_a_name_and_a_path_are_needed(text: str) -> None:
    with pytest.raises(UserError, match="expected NAME=PATH"):
        records.named_path(text, "--manifests")


def test_bad_losses_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected MODEL/REGIME/SPLIT=PATH"):
        records.loss_rows("m/full", tmp_path / "loss.csv")
    with pytest.raises(UserError, match=r"loss\.csv: no such file"):
        records.loss_rows("m/full/harmful", tmp_path / "loss.csv")
    (tmp_path / "loss.csv").write_text("step\n1\n")
    with pytest.raises(UserError, match=r"loss\.csv:1: column 'loss' is missing"):
        records.loss_rows("m/full/harmful", tmp_path / "loss.csv")


def test_a_manifest_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        records.main(["--manifests", f"shift={tmp_path / 'manifest.json'}", "--output", str(tmp_path / "out")])
