import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from refbias.cli import provenance
from refbias.config import root as config_root
from refbias.config import slices
from refbias.resources import data_path

CONFIG: dict[str, Any] = {
    "run": "demo",
    "seed": 5,
    "models": {
        "big": {"source": {"kind": "hub", "id": "owner/model", "revision": "abc123"}},
        "near": {"source": {"kind": "local", "path": "some/folder"}},
    },
    "regimes": {"full": {}, "lora": None},
}
MANIFESTS = {
    "acquire/big": {"source": {"revision": "abc123"}, "weights_sha256": {"model.safetensors": "00ff"}},
    "represent/big/full": {"device": "cuda", "platform": {"accelerators": ["A card"]}},
    "generate/big/full/h000": {"device": "cpu"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/core.lock").write_text("numpy==2.0\n")
    (tmp_path / "records").mkdir()
    (tmp_path / "records/manifests.json").write_text(json.dumps(MANIFESTS))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/table1.csv").write_text("n\n1\n")
    return tmp_path


def run(folder: Path) -> dict[str, Any]:
    config = config_root.from_mapping(CONFIG)
    settings = slices.provenance_slice(config, "config/demo.yaml")
    arguments = ["--settings", settings, "--manifests", "records/manifests.json", "--tables", "tables"]
    provenance.main([*arguments, "--output", "out"])
    found: dict[str, Any] = json.loads((folder / "out/manifest.json").read_text())
    return found


def test_everything_that_makes_a_run_is_said(folder: Path) -> None:
    found = run(folder)
    assert found["locks"] == {"envs/core.lock": hashlib.sha256(b"numpy==2.0\n").hexdigest()}
    assert found["models"]["big"]["source"]["revision"] == "abc123"
    assert found["models"]["big"]["weights_sha256"] == {"model.safetensors": "00ff"}
    assert found["seeds"]["seed"] == 5
    assert found["hardware"]["devices"] == {"generate": ["cpu"], "represent": ["A card", "cuda"]}
    assert found["hardware"]["processors"] >= 1
    groups = data_path("stimuli", "groups.tsv").read_bytes()
    assert found["data"]["stimuli/groups"]["sha256"] == hashlib.sha256(groups).hexdigest()
    assert found["data"]["prompts/decodingtrust/decodingtrust_user_prompts.csv"]["sha256"] != "absent"
    assert len(found["code"]["stages"]) == 10
    assert found["inputs"]["table1.csv"]["sha256"] == hashlib.sha256(b"n\n1\n").hexdigest()
    assert found["commands"]["table_3"] == "snakemake table_3 --cores 1 --resources gpu=1 --configfile config/demo.yaml"
    assert found["commands"]["figure_11"] == ""


def test_the_text_has_a_command_or_a_reason_for_every_picture(folder: Path) -> None:
    run(folder)
    text = (folder / "out/reproduce.md").read_text()
    assert "`snakemake table_1 --cores 1 --resources gpu=1 --configfile config/demo.yaml`" in text
    assert "not part of this run: LoRA" in text
    assert "owner/model, revision abc123" in text
    for number in range(1, 8):
        assert f"| table {number} |" in text
    for number in range(2, 17):
        assert f"| figure {number} |" in text


def test_data_files_are_those_that_the_run_reads(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("prompts", "split", "alpaca")}
    for name, path in files.items():
        path.write_text(f"{name}\n")
    local = {name: {"source": {"kind": "local", "path": str(path)}} for name, path in files.items()}
    config = config_root.from_mapping(
        {
            **CONFIG,
            "data": {"wildguardmix": local["prompts"], "alpaca": local["alpaca"]},
            "splits": {"unharmful": {"file": str(files["split"])}},
            "ablations": {},
        }
    )
    found = provenance.data_files(config)
    for role, name in (
        ("splits/unharmful", "split"),
        ("prompts/wildguardmix", "prompts"),
        ("data/alpaca", "alpaca"),
    ):
        digest = hashlib.sha256(files[name].read_bytes()).hexdigest()
        assert found[role] == {"file": str(files[name]), "sha256": digest}
    # made from WildGuardMix, but not yet here
    made = "results/demo/splits/wildguard_harmful.jsonl"
    assert found["splits/harmful"] == {"file": made, "sha256": "absent"}
    assert "prompts/wildguardmix/wildguardmix_test.jsonl" not in found
    assert "prompts/toxigen/toxigen" in found


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_the_checkout(folder: Path) -> None:
    assert provenance.commit() == {"commit": None, "changed_files": None}
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "envs"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=folder, check=True, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    assert provenance.commit() == {"commit": head.stdout.strip(), "changed_files": 0}
    (folder / "envs/core.lock").write_text("numpy==2.1\n")
    assert provenance.commit()["changed_files"] == 1


def test_seeds_are_found_at_any_depth() -> None:
    assert provenance.seeds({"seed": 1, "a": {"anchor_seeds": [2, 3], "b": 4}}) == {"seed": 1, "a.anchor_seeds": [2, 3]}
