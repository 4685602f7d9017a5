"""An audit of models of the hub, from a server on this machine that stands in for it."""

from pathlib import Path

import pytest

from refbias.cli.main import main
from refbias.config.audit_result import load_result
from tests.audit_models import EXACT, FEW, adapter, build, changed, shifts
from tests.hub_server import COMMIT, HubServer
from tests.unit.test_acquisition import run_offline, server  # noqa: F401 - a fixture


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_models_and_adapters_of_the_hub(
    server: HubServer,  # noqa: F811 - the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = build(tmp_path / "base")
    tuned = changed(base, tmp_path / "tuned", 0.2)
    lora = adapter(base, tmp_path / "lora", named="owner/base")
    stray = adapter(base, tmp_path / "stray", named="owner/other")
    server.repos |= {f"owner/{path.name}": files(path) for path in (base, tuned, lora, stray)}
    options = [*FEW, *EXACT, "--output"]
    specs = ["owner/base@main", f"owner/tuned@{COMMIT}", "owner/lora", str(lora)]
    assert main(["audit", *specs, *options, str(tmp_path / "hub")]) == 0
    result = load_result(tmp_path / "hub" / "audit.json")
    assert (result.reference.kind, result.reference.name, result.reference.revision) == ("hub", "owner/base", COMMIT)
    assert [row.kind for row in result.checkpoints] == ["hub", "adapter", "adapter"]
    # the same numbers as from folders, and without the network
    assert main(["audit", str(base), str(tuned), str(lora), "--any-base", *options, str(tmp_path / "local")]) == 0
    for number in (0, 1):
        assert shifts(tmp_path / "hub", number) == shifts(tmp_path / "local", number)
    capsys.readouterr()
    assert main(["audit", "owner/base", "owner/stray", *options, str(tmp_path / "no")]) == 2
    assert "trained on 'owner/other'" in capsys.readouterr().err
    run_offline(monkeypatch)
    assert main(["audit", "owner/base", specs[1], *options, str(tmp_path / "offline")]) == 0
    assert load_result(tmp_path / "offline" / "audit.json").timing.reference_from_cache
    assert main(["audit", "owner/base", "owner/nothing", *options, str(tmp_path / "no")]) == 2
    assert "owner/nothing: offline" in capsys.readouterr().err
