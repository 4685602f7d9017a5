"""Training seeds: the configuration, the stage's table, and the rules' jobs."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from refbias.cli import seeds, shift
from refbias.config import root as config_root
from refbias.config import slices
from refbias.errors import UserError
from tests.workflow.conftest import warm

GROUPS, WIDTH, ANCHORS = ("Women", "Men"), 6, 5
FACTS = {
    "dtype": "float32",
    "layer": "final",
    "final_norm": True,
    "pooling": "mean",
    "exclude_bos": False,
    "width": WIDTH,
    "tokenizer_sha256": "t",
    "sentences_sha256": "s",
}


def _config(methods: dict[str, Any] | None = None, **chosen: Any) -> config_root.Config:
    data = {
        "run": "r",
        "seed": 17,
        "models": {"one": {"source": {"kind": "packaged_gguf"}}, "two": {"source": {"kind": "packaged_gguf"}}},
        "shift": {"methods": ["rr", "seat"], "n_resamples": 100, **(methods or {})},
        "training_seeds": {"seeds": [18, 19], **chosen},
    }
    return config_root.from_mapping(data)


# --- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"seeds": [17, 18]}, r"training_seeds.seeds': \[17, 18\]: must be distinct.*own 17"),
        ({"seeds": [18, 18]}, r"training_seeds.seeds'"),
        ({"seeds": [-1]}, r"training_seeds.seeds'"),
        ({"models": ["three"]}, r"training_seeds.models': 'three' is not one of the run's models \(one, two\)"),
        ({"regimes": ["both"]}, r"training_seeds.regimes"),
    ],
)
def test_repeats_without_a_base_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        _config(**chosen)
    assert "\n" not in str(caught.value)


def test_repeats_of_a_regime_or_an_endpoint_that_is_not_trained_are_refused() -> None:
    data = _config().model_dump(mode="json")
    with pytest.raises(UserError, match=r"training_seeds.regimes': 'full' is not run"):
        config_root.from_mapping({**data, "regimes": {"full": None}})
    data["models"]["one"]["endpoints"] = {"full": {"unharmful": "/u", "harmful": "/h"}}
    with pytest.raises(UserError, match=r"'one' has ready-made full endpoints"):
        config_root.from_mapping(data)


def test_defaults_and_slices() -> None:
    config = _config()
    assert config.training_seeds is not None
    assert config.training_seeds.model_slugs(config.models) == ["one"]
    assert config.training_seeds.regimes == ["full"]
    own, other = (json.loads(slices.finetune_slice(config, "one", "full", "harmful", s)) for s in (None, 18))
    assert (own.pop("seed"), other.pop("seed")) == (17, 18)
    assert own == other
    assert json.loads(slices.represent_slice(config, "one", "full", [0.0, 1.0]))["weights"] == [0.0, 1.0]
    assert len(json.loads(slices.represent_slice(config, "one", "full"))["weights"]) == 7


# --- the stage ----------------------------------------------------------------------------------


def _sentences() -> list[tuple[str, str, str]]:
    rows = [(f"t{g}{i}", "target", group) for g, group in enumerate(GROUPS) for i in range(3)]
    rows += [(f"{kind[0]}{i}", kind, "") for kind in ("positive", "negative") for i in range(4)]
    return rows + [(f"a{i}", "anchor", "") for i in range(ANCHORS)]


def _write(folder: Path, matrices: dict[str, np.ndarray], **facts: Any) -> None:
    folder.mkdir(parents=True)
    for slug, matrix in matrices.items():
        save_file({"embeddings": matrix.astype(np.float32)}, folder / f"{slug}.safetensors")
    lines = ["id\tkind\tgroup\ttext", *("\t".join((*row, "x")) for row in _sentences())]
    (folder / "sentences.tsv").write_text("\n".join(lines) + "\n")
    (folder / "manifest.json").write_text(json.dumps({**FACTS, **facts}))


def _rr_shift(reference: np.ndarray, audited: np.ndarray, group: str) -> float:
    """Equations 4 to 7, a sentence at a time."""

    def bias(matrix: np.ndarray) -> float:
        sets: dict[str, list[np.ndarray]] = {}
        for row, (_, kind, name) in zip(matrix.astype(np.float32).astype(float), _sentences(), strict=True):
            if kind != "target" or name == group:
                sets.setdefault(kind, []).append(row / np.linalg.norm(row))
        relative = {kind: [[float(x @ a) for a in sets["anchor"]] for x in rows] for kind, rows in sets.items()}

        def association(sentence: list[float], kind: str) -> float:
            return -float(np.mean([np.linalg.norm(np.subtract(sentence, other)) for other in relative[kind]]))

        return float(np.mean([association(s, "positive") - association(s, "negative") for s in relative["target"]]))

    return bias(audited) - bias(reference)


@pytest.fixture
def embedded(tmp_path: Path) -> tuple[Path, dict[tuple[str, int], np.ndarray], np.ndarray]:
    """Embeddings of a reference and of both endpoints under three seeds."""
    random = np.random.default_rng(1)
    reference = random.normal(size=(len(_sentences()), WIDTH))
    _write(tmp_path / "embeddings" / "one" / "reference", {"reference": reference})
    audited = {
        (split, seed): reference + random.normal(size=reference.shape) * 0.3
        for split in ("unharmful", "harmful")
        for seed in (17, 18, 19)
    }
    for seed in (17, 18, 19):
        base = tmp_path / "embeddings" / "one" / "full"
        folder = base if seed == 17 else tmp_path / "repeats" / "one" / "full" / "embeddings" / f"s{seed}"
        _write(folder, {"h000": audited["unharmful", seed], "h100": audited["harmful", seed]})
    return tmp_path, audited, reference


def _main(folder: Path, config: config_root.Config | None = None) -> Path:
    out = folder / "ablations" / "training_seeds.csv"
    seeds.main(
        [
            *("--settings", slices.seeds_slice(config or _config()), "--embeddings", str(folder / "embeddings")),
            *("--repeats", str(folder / "repeats"), "--models", "one", "--regimes", "full", "--output", str(out)),
        ]
    )
    return out


def test_table_holds_every_seed_and_the_runs_own(
    embedded: tuple[Path, dict[tuple[str, int], np.ndarray], np.ndarray],
) -> None:
    folder, audited, reference = embedded
    out = _main(folder)
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["model", "regime", "split", "seed", "group", "method", "n_anchors", "delta_b"]
    found = {(row["split"], int(row["seed"]), row["group"]): row for row in rows if row["method"] == "rr"}
    assert set(found) == {(*key, group) for key in audited for group in GROUPS}
    assert len(rows) == 2 * len(found)
    for (split, seed, group), row in found.items():
        assert int(row["n_anchors"]) == ANCHORS
        assert float(row["delta_b"]) == pytest.approx(_rr_shift(reference, audited[split, seed], group), abs=1e-6)
    manifest = json.loads(out.with_suffix(".manifest.json").read_text())
    assert manifest["n_rows"] == len(rows)
    assert set(manifest["inputs"]) == {"one/full/17", "one/full/18", "one/full/19"}


def test_methods_are_those_of_the_stage_shift_with_their_options(
    embedded: tuple[Path, dict[tuple[str, int], np.ndarray], np.ndarray],
) -> None:
    folder = embedded[0]
    options = {"methods": ["procrustes_seat", "cka_drift"], "procrustes_fit": "all", "cka_kernel": "rbf"}
    config = _config(options)
    slice_ = json.loads(slices.shift_slice(config))
    shift.main(
        [
            *("--settings", json.dumps({**slice_, "weights": [0.0, 1.0]}), "--models", "one", "--regimes", "full"),
            *("--embeddings", str(folder / "embeddings"), "--output", str(folder / "shift")),
        ]
    )
    places = {"unharmful": "h000", "harmful": "h100"}
    with (folder / "shift" / "delta_b.csv").open() as handle:
        wanted = {(r["checkpoint"], r["group"], r["method"]): r["delta_b"] for r in csv.DictReader(handle)}
    with _main(folder, config).open() as handle:
        rows = [row for row in csv.DictReader(handle) if row["seed"] == "17"]
    assert {(places[r["split"]], r["group"], r["method"]): r["delta_b"] for r in rows} == wanted
    with _main(folder, _config({**options, "procrustes_fit": "anchors", "cka_kernel": "linear"})).open() as handle:
        plain = [row for row in csv.DictReader(handle) if row["seed"] == "17"]
    assert all(a["delta_b"] != b["delta_b"] for a, b in zip(plain, rows, strict=True))


def test_what_a_method_does_not_have_is_an_empty_cell(
    embedded: tuple[Path, dict[tuple[str, int], np.ndarray], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        seeds,
        "shift_rows",
        lambda *_: [{"group": "Women", "method": "rr", "n_anchors": ANCHORS, "delta_b": float("nan")}],
    )
    with _main(embedded[0]).open() as handle:
        assert {row["delta_b"] for row in csv.DictReader(handle)} == {""}


def test_a_seed_that_was_embedded_otherwise_is_refused(
    embedded: tuple[Path, dict[tuple[str, int], np.ndarray], np.ndarray],
) -> None:
    folder = embedded[0]
    path = folder / "repeats" / "one" / "full" / "embeddings" / "s19" / "manifest.json"
    path.write_text(json.dumps({**FACTS, "pooling": "max"}))
    with pytest.raises(UserError, match=r"one/full, seed 19: pooling is 'max'"):
        _main(folder)


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seeds_key", [True, False])
def test_jobs_of_the_rules(root: Path, tmp_path: Path, seeds_key: bool) -> None:
    data = yaml.safe_load((root / "tests" / "workflow" / "tiny.yaml").read_text(encoding="utf-8"))
    if seeds_key:
        data["training_seeds"] = {"seeds": [4, 5], "regimes": ["full", "lora"]}
    path = tmp_path / "seeds.yaml"
    path.write_text(yaml.safe_dump({**data, "run": "seeds"}))
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--cores", "1", "--configfile", str(path)]
    command += ["--directory", str(tmp_path)]
    done = subprocess.run(command, cwd=root, env={**os.environ, **warm()}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {
        line.split()[0]: int(line.split()[1])
        for line in done.stdout.splitlines()
        if len(line.split()) == 2 and line.split()[1].isdigit()
    }
    wanted = {"finetune_seed": 8, "represent_seed": 4, "training_seeds": 1} if seeds_key else {}
    assert {rule: n for rule, n in counts.items() if "seed" in rule} == wanted
    assert counts["finetune"] == 4
