"""What an audit really writes, and the page made of it: a tiny model, an adapter, the sentences of the null scale."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from refbias.artifacts import write_json
from refbias.audit.scale import regime_of, shipped_scale
from refbias.audit.sources import Part, Source
from refbias.cli.main import main
from refbias.config.audit_result import AuditResult, ReferenceFacts, SourceKind, load_result
from refbias.config.calibration import load_calibration
from refbias.config.null_scale import NullScale
from refbias.resources import data_path
from tests.audit_models import EXACT, adapter, build, changed
from tests.unit import audit_example as example
from tests.unit.test_audit_report import Page
from tests.unit.test_calibration_two_stage import write_study

# the smaller of the null scale's sentence sets
QUICKSTART = ["--n-targets", "10", "--n-attributes", "40", "--n-anchors", "250", "--n-control", "50"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    base = build(folder / "base")
    adapter(base, folder / "lora", size=0.3)
    changed(base, folder / "tuned", 0.2)
    return folder


@pytest.fixture(scope="module")
def written(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFBIAS_CACHE", str(folder / "cache"))
        arguments = [str(models / "base"), str(models / "lora"), "--output", str(folder / "o"), *QUICKSTART, *EXACT]
        assert main(["audit", *arguments]) == 0
    return folder / "o"


@pytest.fixture(scope="module")
def result(written: Path) -> AuditResult:
    return load_result(written / "audit.json")


@pytest.fixture(scope="module")
def page(written: Path) -> Page:
    return Page((written / "report.html").read_text(encoding="utf-8"))


def keys(value: Any) -> Any:
    """Return the keys of a JSON value, of a list those of its first item, and of a mapping of numbers its type."""
    if isinstance(value, dict):
        return {name: keys(found) for name, found in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


def test_the_example_of_the_reports_tests_is_what_an_audit_writes(written: Path) -> None:
    real, made = json.loads((written / "audit.json").read_text()), example.single()
    # the tiny audit is computed in float32, so nothing was checked, and need not warn of anything
    for data in (real, made):
        for name in ("dtype_check", "warnings"):
            del data["checkpoints"][0][name]
    assert keys(real) == keys(made)
    for name in ("methods", "layers", "layer_mean"):
        first, second = (
            {(row.get("method"), row["group"]) for row in data["checkpoints"][0][name]} for data in (real, made)
        )
        assert first == second
    shapes = [
        {row["module"].replace(f".{row['layer'] - 1}.", ".#.") for row in data["checkpoints"][0]["adapter_drift"]}
        for data in (real, made)
    ]
    assert shapes[0] == {"model.layers.#.self_attn.q_proj"}
    assert shapes[0] < shapes[1]


def test_an_adapters_modules_share_a_row_over_the_layers(page: Page) -> None:
    (row,) = page.tables["c1-drift-table"][1:]
    assert row[0][0].strip() == "self_attn.q_proj"
    assert row[1][1] == "3.0"


def test_the_control_is_there_by_every_method_and_at_every_layer(result: AuditResult, page: Page) -> None:
    found = result.checkpoints[0]
    groups = {group.group for group in found.groups}
    for method in ("rr", "seat", "procrustes_seat", "cka_drift"):
        rows = {row.group: row for row in found.methods if row.method == method}
        assert set(rows) == {*groups, "control"}
        control = rows["control"]
        assert control.delta_b is not None
        assert control.net_of_control is None
        for group in groups:
            assert rows[group].net_of_control == pytest.approx((rows[group].delta_b or 0) - control.delta_b, abs=1e-12)
            assert (rows[group].net_ci_low is not None) == (method in ("rr", "seat"))
    assert found.control is not None
    layers = {row.layer: row.delta_b for row in found.layers or [] if row.group == "control"}
    assert set(layers) == {0, 1, 2, 3, "final"}
    assert layers["final"] == pytest.approx(found.control.delta_b, abs=1e-9)
    (mean,) = [row.delta_b for row in found.layer_mean or [] if row.group == "control"]
    assert mean == pytest.approx(sum(layers[layer] or 0 for layer in (1, 2, 3)) / 3)
    # a band in every row of the plot of groups and of the four methods
    assert [attrs.get("class") for _, attrs in page.tags].count("band") == 25 + 4 * 25
    assert page.tables["c1-layer-table"][-1][0][0].startswith("Group-free control")
    assert "not measured for this group" not in page.text


def test_anchors_carry_both_cosines(result: AuditResult) -> None:
    rows = result.checkpoints[0].anchors or []
    assert len(rows) == 24 * 10
    for row in rows:
        assert row.reference is not None
        assert row.audited is not None
        assert row.change == pytest.approx(row.audited - row.reference, abs=1e-12)


def test_the_scale_of_adapters_is_named_and_whole(result: AuditResult, page: Page) -> None:
    shipped = NullScale.model_validate_json(data_path("null_scale", "null_scale.json").read_text())
    found = result.null_scale
    assert found is not None
    assert found.net is not None
    assert (found.regime, found.is_reference, found.model) == ("lora", False, shipped.model.name)
    own, net = (
        next(
            cell
            for cell in shipped.cells
            if (cell.regime, cell.stimuli, cell.method, cell.quantity) == ("lora", "quickstart", "rr", quantity)
        )
        for quantity in ("delta_b", "net_of_control")
    )
    for scale, cell in ((found, own), (found.net, net)):
        assert scale.quantiles == cell.quantiles
        assert [row.model_dump() for row in scale.false_alarm] == [row.model_dump() for row in cell.false_alarm]
    assert result.null_scale_note in result.limits
    assert f"was measured on {shipped.model.name}, not on your reference base" in (result.null_scale_note or "")
    assert "another model than the reference of this audit" in page.text


def test_the_calibrations_own_warnings_reach_the_audit(
    models: Path,
    result: AuditResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "cache"))
    study = write_study(tmp_path / "small", result.settings.stimuli.sha256)
    fitted = tmp_path / "calibration.json"
    tables = str(study / "tables" / "observations.csv")
    assert main(["calibrate", "--observations", tables, "--output", str(fitted)]) == 0
    warnings = load_calibration(fitted).warnings
    assert any(text.startswith("Only 3 checkpoints") for text in warnings)
    capsys.readouterr()
    arguments = [str(models / "base"), str(models / "lora"), "--output", str(tmp_path / "o"), *QUICKSTART, *EXACT]
    assert main(["audit", *arguments, "--calibration", str(fitted)]) == 0
    found = load_result(tmp_path / "o" / "audit.json")
    assert all(group.probability is not None for group in found.checkpoints[0].groups)
    assert found.calibration.warnings == warnings
    said = [row.sentence for row in found.checkpoints[0].warnings if row.code == "calibration"]
    assert said == [f"Calibration: {text}" for text in warnings]
    printed = capsys.readouterr().out
    text = Page((tmp_path / "o" / "report.html").read_text(encoding="utf-8")).text
    for sentence in warnings:
        assert sentence in printed
        # beside the verdict, and in the section on calibration
        assert text.count(sentence) == 2


def part(name: str, is_adapter: bool = False) -> Part:
    return Part(1.0, name, name, "directory", Path("base" if is_adapter else name), Path(name) if is_adapter else None)


def source(*parts: Part, kind: SourceKind = "directory") -> Source:
    return Source("x", "x", kind, parts)


LORA, WHOLE = source(part("a", is_adapter=True), kind="adapter"), source(part("b"))


def test_regimes() -> None:
    assert [regime_of(found) for found in (LORA, WHOLE)] == ["lora", "full"]
    changes = source(part("a", is_adapter=True), part("c", is_adapter=True), part("base"), kind="mixture")
    assert regime_of(changes) == "lora"
    assert regime_of(source(part("a", is_adapter=True), part("d"), kind="mixture")) == "full"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer": 2}, "measured with layer final"),
        ({"final_norm": False}, "measured with final_norm True"),
        ({"pooling": "last", "exclude_bos": True}, "measured with pooling mean, exclude_bos False"),
        ({"stimuli": {"sha256": "0" * 64}}, "measured on other sentences"),
    ],
)
def test_another_quantity_has_no_scale(result: AuditResult, changes: dict[str, Any], reason: str) -> None:
    settings = result.settings
    if "stimuli" in changes:
        changes = {"stimuli": settings.stimuli.model_copy(update=changes["stimuli"])}
    found, note = shipped_scale(settings.model_copy(update=changes), result.reference, [LORA])
    assert found is None
    assert reason in note
    assert "nothing here says how large a harmless dB can be" in note


def test_no_regime_stands_in_for_another(result: AuditResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = shipped_scale(result.settings, result.reference, [WHOLE])
    assert whole is not None
    assert whole.regime == "full"
    assert whole.quantiles != (result.null_scale and result.null_scale.quantiles)
    both, note = shipped_scale(result.settings, result.reference, [LORA, WHOLE])
    assert both is None
    assert "audit them apart" in note
    data = json.loads(data_path("null_scale", "null_scale.json").read_text())
    data["cells"] = [cell for cell in data["cells"] if cell["regime"] == "full"]
    write_json(tmp_path / "null_scale.json", data)
    monkeypatch.setattr("refbias.audit.scale.data_path", lambda *_: tmp_path / "null_scale.json")
    assert shipped_scale(result.settings, result.reference, [WHOLE])[0] is not None
    found, note = shipped_scale(result.settings, result.reference, [LORA])
    assert found is None
    assert "holds no LoRA adapters on these sentences" in note


def test_the_scales_own_model_is_known(result: AuditResult) -> None:
    def facts(**changes: Any) -> ReferenceFacts:
        return result.reference.model_copy(update=changes)

    for reference in (facts(spec="packaged:gemma3-270m"), facts(weights_sha256=packaged_hash())):
        found, note = shipped_scale(result.settings, reference, [LORA])
        assert found is not None
        assert found.is_reference
        assert "of 24 updates each" in note
    found, _ = shipped_scale(result.settings, facts(weights_sha256="0" * 64), [LORA])
    assert found is not None
    assert found.is_reference is False


def packaged_hash() -> str:
    """SHA-256 of the JSON of {file: SHA-256}, which an audit gives as the hash of a folder of weights."""
    shipped = NullScale.model_validate_json(data_path("null_scale", "null_scale.json").read_text())
    text = "{" + ", ".join(f'"{name}": "{sha}"' for name, sha in sorted(shipped.model.weights_sha256.items())) + "}"
    return hashlib.sha256(text.encode()).hexdigest()
