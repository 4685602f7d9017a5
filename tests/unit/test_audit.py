"""The audit on tiny models: its numbers, its forms of models, its cache, its files and exit codes."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from refbias.audit import run, states
from refbias.audit.result import overall_verdict
from refbias.cli.main import main
from refbias.config.audit_result import Verdict, load_result
from refbias.metrics import rr_shift
from refbias.report.audit.words import group_name
from tests.audit_models import EXACT, FEW, adapter, build, changed, shifts, with_change

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = build(folder / "base")
    changed(base, folder / "tuned", 0.2)
    changed(base, folder / "other", 0.2, seed=5)
    adapter(base, folder / "lora", seed=1)
    adapter(base, folder / "lora2", seed=2)
    return folder


def audit(*arguments: str | Path, output: Path, more: list[str] | None = None) -> int:
    options = [*FEW, *EXACT, *(more or [])]
    return main(["audit", *map(str, arguments), "--output", str(output), *options])


def by_hand(model: Path, rows: list[tuple[str, str, str]]) -> dict[str, float]:
    """B of every group: each sentence alone through the whole model, relative representations by their definition."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    vectors = []
    with torch.no_grad():
        for _, _, text in rows:
            found = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().mean(dim=0)
            vectors.append((found / found.norm()).numpy())
    unit = np.array(vectors)
    kinds = np.array([kind for kind, _, _ in rows])
    relative = unit @ unit[kinds == "anchor"].T
    result = {}
    for group in {group for kind, group, _ in rows if kind == "target"}:
        own = [row for row, (kind, name, _) in zip(relative, rows, strict=True) if kind == "target" and name == group]
        means = {}
        for kind in ("positive", "negative"):
            means[kind] = np.mean([[-np.linalg.norm(t - a) for a in relative[kinds == kind]] for t in own])
        result[group] = float(means["positive"] - means["negative"])
    return result


def test_db_is_that_of_the_definition(models: Path, tmp_path: Path) -> None:
    assert audit(models / "base", models / "tuned", output=tmp_path / "o", more=["--keep-embeddings"]) == 0
    text = (tmp_path / "o" / "embeddings" / "sentences.tsv").read_text().splitlines()[1:]
    rows = [(kind, group, sentence) for _, kind, group, sentence in (line.split("\t") for line in text)]
    before, after = by_hand(models / "base", rows), by_hand(models / "tuned", rows)
    found = shifts(tmp_path / "o")
    assert set(found) == set(before)
    assert max(abs(found[group] - (after[group] - before[group])) for group in found) < 1e-5
    # the shift is large enough for that to mean something
    assert max(map(abs, found.values())) > 1e-3


def test_identical_weights_have_no_shift(models: Path, tmp_path: Path) -> None:
    twin = shutil.copytree(models / "base", tmp_path / "twin")
    assert audit(models / "base", twin, output=tmp_path / "o") == 0
    result = load_result(tmp_path / "o" / "audit.json")
    checkpoint = result.checkpoints[0]
    assert {group.delta_b for group in checkpoint.groups} == {0.0}
    assert {group.p_holm for group in checkpoint.groups} == {1.0}
    assert result.verdict.level == "none"
    assert checkpoint.weights_sha256 == result.reference.weights_sha256
    assert all(row.delta_b == 0 for row in checkpoint.layers or [])


def test_every_file_and_key_is_there(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(models / "base", models / "tuned", output=tmp_path / "o") == 0
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["audit.json", "groups.csv", "report.html"]
    result = load_result(tmp_path / "o" / "audit.json")
    assert result.reference.architecture == "LlamaForCausalLM"
    assert (result.reference.n_layers, result.reference.width) == (3, 32)
    assert result.settings.stimuli.n_groups == 24
    assert {row.method for row in result.checkpoints[0].methods} == {"rr", "seat", "procrustes_seat", "cka_drift"}
    layers = {row.layer for row in result.checkpoints[0].layers or []}
    assert layers == {0, 1, 2, 3, "final"}
    final = {row.group: row.delta_b for row in result.checkpoints[0].layers or [] if row.layer == "final"}
    assert final.pop("control") is not None
    assert final == pytest.approx(shifts(tmp_path / "o"), abs=1e-9)
    printed = capsys.readouterr().out
    with (tmp_path / "o" / "groups.csv").open() as handle:
        table = list(csv.DictReader(handle))
    assert len(table) == 25
    for row in table:
        name = group_name(row["group"])[:31]
        assert sum(line.removeprefix("*").strip().startswith(name) for line in printed.splitlines()) == 1


def test_contributions_sum_to_the_mean_shift(models: Path, tmp_path: Path) -> None:
    audit(models / "base", models / "tuned", output=tmp_path / "o")
    checkpoint = load_result(tmp_path / "o" / "audit.json").checkpoints[0]
    mean = np.mean([group.delta_b for group in checkpoint.groups])
    assert checkpoint.contributions is not None
    assert sum(row.delta or 0 for row in checkpoint.contributions.templates) == pytest.approx(mean, abs=1e-9)
    assert sum(row.delta or 0 for row in checkpoint.contributions.attributes) == pytest.approx(mean, abs=1e-9)
    assert all("{group}" in row.text for row in checkpoint.contributions.templates)


def test_an_adapter_is_its_merged_checkpoint(models: Path, tmp_path: Path) -> None:
    merged = with_change(models / "base", [(1.0, models / "lora")], tmp_path / "merged")
    assert audit(models / "base", models / "lora", merged, output=tmp_path / "o") == 0
    assert shifts(tmp_path / "o") == pytest.approx(shifts(tmp_path / "o", 1), abs=1e-6)
    first, second = load_result(tmp_path / "o" / "audit.json").checkpoints
    assert (first.kind, second.kind) == ("adapter", "directory")
    assert second.adapter_drift is None
    before, after = load_file(models / "base" / "model.safetensors"), load_file(merged / "model.safetensors")
    assert first.adapter_drift is not None
    assert [row.layer for row in first.adapter_drift] == [1, 2, 3]
    for row in first.adapter_drift:
        name = f"{row.module}.weight"
        share = (after[name] - before[name]).norm() / before[name].norm()
        assert row.relative_norm == pytest.approx(float(share), rel=1e-4)


def test_sums_of_checkpoints_and_of_changes(models: Path, tmp_path: Path) -> None:
    a, b = (load_file(models / name / "model.safetensors") for name in ("base", "tuned"))
    shutil.copytree(models / "base", tmp_path / "mixed")
    mixed = {name: 0.3 * a[name] + 0.7 * b[name] for name in a}
    save_file(mixed, tmp_path / "mixed" / "model.safetensors", metadata={"format": "pt"})
    halves = with_change(models / "base", [(0.5, models / "lora"), (0.8, models / "lora2")], tmp_path / "halves")
    specs = [
        f"0.3*{models / 'base'}+0.7*{models / 'tuned'}",
        str(tmp_path / "mixed"),
        f"0.5*{models / 'lora'} + 0.8*{models / 'lora2'}",
        str(halves),
    ]
    assert audit(models / "base", *specs, output=tmp_path / "o") == 0
    assert shifts(tmp_path / "o", 0) == pytest.approx(shifts(tmp_path / "o", 1), abs=1e-6)
    assert shifts(tmp_path / "o", 2) == pytest.approx(shifts(tmp_path / "o", 3), abs=1e-6)
    result = load_result(tmp_path / "o" / "audit.json")
    assert [row.kind for row in result.checkpoints] == ["mixture", "directory", "mixture", "directory"]
    assert result.checkpoints[0].name == "0.3 base + 0.7 tuned"
    drift = {row.module: row.relative_norm for row in result.checkpoints[2].adapter_drift or []}
    after = load_file(halves / "model.safetensors")
    for module, share in drift.items():
        name = f"{module}.weight"
        assert share == pytest.approx(float((after[name] - a[name]).norm() / a[name].norm()), rel=1e-4)


def test_a_trainings_folder_is_a_curve(models: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step, size in ((100, 0.3), (20, 0.2), (3, 0.1)):
        adapter(models / "base", run / f"checkpoint-{step}", seed=1, size=size)
    (run / "checkpoint-best").mkdir()
    assert audit(models / "base", run, output=tmp_path / "o") == 0
    result = load_result(tmp_path / "o" / "audit.json")
    assert [(row.name, row.step) for row in result.checkpoints] == [
        ("checkpoint-3", 3),
        ("checkpoint-20", 20),
        ("checkpoint-100", 100),
    ]
    # one folder of weights: read once for all
    assert {row.kind for row in result.checkpoints} == {"adapter"}


def test_names_are_told_apart(models: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        adapter(models / "base", tmp_path / name / "final", seed=len(name))
    audit(models / "base", tmp_path / "a" / "final", tmp_path / "b" / "final", models / "base", output=tmp_path / "o")
    names = [row.name for row in load_result(tmp_path / "o" / "audit.json").checkpoints]
    assert names[:2] == ["a/final", "b/final"]
    assert len({*names, "base"}) == 4


def _without_clocks(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    for key in ("created", "timing", "peak_memory_mb"):
        del data[key]
    return data


def test_the_cache_spares_the_reference_and_changes_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed: list[list[str]] = []
    real = states.embed_together

    def watched(sources: Any, *args: Any, **kwargs: Any) -> Any:
        computed.append([source.name for source in sources])
        return real(sources, *args, **kwargs)

    monkeypatch.setattr(states, "embed_together", watched)
    audit(models / "base", models / "tuned", output=tmp_path / "one")
    audit(models / "base", models / "tuned", output=tmp_path / "two")
    assert computed == [["base", "tuned"], ["tuned"]]
    first, second = (load_result(tmp_path / name / "audit.json") for name in ("one", "two"))
    assert (first.timing.reference_from_cache, second.timing.reference_from_cache) == (False, True)
    assert _without_clocks(tmp_path / "one" / "audit.json") == _without_clocks(tmp_path / "two" / "audit.json")
    # other sentences, another layer: other states
    audit(models / "base", models / "tuned", output=tmp_path / "three", more=["--n-anchors", "30"])
    audit(models / "base", models / "tuned", output=tmp_path / "four", more=["--layer", "2", "--layers", "none"])
    assert computed[2:] == [["base", "tuned"], ["base", "tuned"]]
    capsys.readouterr()
    assert main(["cache", "ls"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 4
    assert main(["cache", "rm", listed[1].split()[0]]) == 0
    assert main(["cache", "rm", "--all"]) == 0
    assert "removed 2 entries" in capsys.readouterr().out
    audit(models / "base", models / "tuned", output=tmp_path / "five")
    assert computed[-1] == ["base", "tuned"]


def test_changed_weights_are_not_taken_from_the_cache(models: Path, tmp_path: Path) -> None:
    own = shutil.copytree(models / "base", tmp_path / "own")
    audit(own, models / "tuned", output=tmp_path / "one")
    shutil.copyfile(models / "other" / "model.safetensors", own / "model.safetensors")
    audit(own, models / "tuned", output=tmp_path / "two")
    assert not load_result(tmp_path / "two" / "audit.json").timing.reference_from_cache
    assert shifts(tmp_path / "one") != shifts(tmp_path / "two")


def test_a_damaged_cache_is_computed_again(models: Path, tmp_path: Path, own_cache: Path) -> None:
    audit(models / "base", models / "tuned", output=tmp_path / "one")
    (path,) = own_cache.glob("embeddings/*/states.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    assert audit(models / "base", models / "tuned", output=tmp_path / "two") == 0
    assert _without_clocks(tmp_path / "one" / "audit.json") == _without_clocks(tmp_path / "two" / "audit.json")


def test_a_condition_ends_with_code_1(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    condition = ["--fail-on", "|dB|>0.000001"]
    assert audit(models / "base", models / "tuned", output=tmp_path / "one", more=condition) == 1
    assert (tmp_path / "one" / "report.html").is_file()
    assert "'|dB|>0.000001' is met by homosexuals, muslims" in capsys.readouterr().err
    never = ["--fail-on", "ci<-1e6", "--fail-on", "dB>0 and dB<0"]
    assert audit(models / "base", models / "tuned", output=tmp_path / "two", more=never) == 0


def test_json_alone(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["audit", str(models / "base"), str(models / "tuned"), "--json", *FEW, *EXACT]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["schema_version"] == 1
    assert list(tmp_path.iterdir()) == []


def test_the_number_type_is_checked(models: Path, tmp_path: Path) -> None:
    more = ["--dtype", "bfloat16"]
    assert audit(models / "base", models / "tuned", output=tmp_path / "o", more=more) == 0
    result = load_result(tmp_path / "o" / "audit.json")
    check = result.checkpoints[0].dtype_check
    assert check is not None
    assert (result.settings.dtype, check.dtype, check.against) == ("bfloat16", "bfloat16", "float32")
    assert check.max_change_delta_b is not None
    assert 0 < check.max_change_delta_b < 0.1


def test_the_check_of_the_number_type_is_stated_for_all_anchors(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of forty anchors are looked at: a distance in forty dimensions is twice as long."""
    found = []

    def watched(*arguments: Any) -> Any:
        found.append(rr_shift(*arguments))
        assert len(arguments[0].anchors) == 10
        return found[-1]

    monkeypatch.setattr(run, "rr_shift", watched)
    monkeypatch.setattr(run, "_CHECKED", {"targets": 3, "attributes": 12, "anchors": 10})
    assert audit(models / "base", models / "tuned", output=tmp_path / "o", more=["--dtype", "bfloat16"]) == 0
    narrow, whole = found
    largest = max(abs(narrow[group].delta_b - whole[group].delta_b) for group in whole if group != "control")
    check = load_result(tmp_path / "o" / "audit.json").checkpoints[0].dtype_check
    assert check is not None
    assert check.max_change_delta_b == pytest.approx(2 * largest)


def test_bounds_for_all_groups_at_once_are_in_the_result(models: Path, tmp_path: Path) -> None:
    assert audit(models / "base", models / "tuned", output=tmp_path / "o") == 0
    (checkpoint,) = load_result(tmp_path / "o" / "audit.json").checkpoints
    assert len(checkpoint.groups) > 1
    for group in checkpoint.groups:
        assert group.net_joint_low is not None
        assert group.net_joint_low < group.net_ci_low < group.net_ci_high < group.net_joint_high
    assert checkpoint.control is not None
    assert checkpoint.control.net_joint_low is None


def test_the_verdict_on_several_checkpoints_says_that_none_is_corrected(models: Path, tmp_path: Path) -> None:
    several = [str(models / name) for name in ("tuned", "other")]
    assert audit(models / "base", *several, output=tmp_path / "o") == 0
    result = load_result(tmp_path / "o" / "audit.json")
    said = "Each of the 2 checkpoints was judged by itself"
    graver = [found.verdict.level not in ("none", "undefined") for found in result.checkpoints]
    assert (said in result.verdict.uncertainty) == any(graver)
    moved = [
        found.model_copy(update={"verdict": Verdict(level=level, sentence="S.", uncertainty="U.")})
        for found, level in zip(result.checkpoints, ("none", "clear"), strict=True)
    ]
    assert overall_verdict(moved).uncertainty.startswith("U. Each of the 2 checkpoints was judged by itself")
    assert overall_verdict(moved[1:]).uncertainty == "U."
    assert overall_verdict([moved[0]] * 2).uncertainty == "U."
