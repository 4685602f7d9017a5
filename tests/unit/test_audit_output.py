"""What an audit leaves: its folder wherever that lies, the numbers when the page fails, codes, bars, notices."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors.numpy import load_file

from refbias import progress
from refbias.artifacts import Stage, atomic_folder
from refbias.audit import states, store
from refbias.cli.main import main
from refbias.config.audit_result import load_result
from tests.audit_models import EXACT, FEW, build, changed, shifts, small_disk
from tests.tiny_decoders import build_decoder

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    changed(build(folder / "base"), folder / "tuned", 0.2)
    return folder


def audit(models: Path, output: Path | str, *more: str) -> int:
    return main(["audit", str(models / "base"), str(models / "tuned"), *FEW, *EXACT, "--output", str(output), *more])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


ALL = {"audit.json", "groups.csv", "report.html"}

# --- the folder ------------------------------------------------------------------------------


def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    return "."


def linked(folder: Path, _: pytest.MonkeyPatch) -> str:
    link = folder.with_name("link")
    link.symlink_to(folder)
    return str(link)


@pytest.mark.parametrize("place", [here, linked])
def test_a_folder_that_cannot_be_renamed_over_is_filled(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[..., str]
) -> None:
    folder = tmp_path / "o"
    folder.mkdir()
    number = folder.stat().st_ino
    output = place(folder, monkeypatch)
    assert audit(models, output, "--keep-embeddings") == 0
    assert names(folder) == {*ALL, "embeddings"}
    (folder / "manifest.json").write_text("{}")
    (folder / "gate.json").write_text("{}")
    (folder / ".o.999999.part").mkdir()
    assert audit(models, output, "--n-anchors", "30") == 0
    # nothing of the first vouches for the second, and the place is the same
    assert names(folder) == {*ALL, ".o.999999.part"}
    assert load_result(folder / "audit.json").settings.stimuli.n_anchors == 30
    assert folder.stat().st_ino == number
    assert names(tmp_path) <= {"o", "link"}


def test_a_mounted_volume_is_filled(models: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "volume", kilobytes=4096) as volume:
        (volume / "lost+found").mkdir()
        assert audit(models, volume) == 0
        assert audit(models, volume) == 0
        assert names(volume) == {*ALL, "lost+found"}


def test_a_writable_folder_in_one_that_is_not(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # root may write anywhere: what the system would say to others
    real, denied = os.access, tmp_path / "outer"
    (denied / "out").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != denied and real(path, mode))
    assert audit(models, denied / "out") == 0
    assert audit(models, denied / "new") == 2
    assert f"{denied} cannot be written to" in capsys.readouterr().err


def test_the_lock_of_a_stage_stays(tmp_path: Path) -> None:
    with Stage("audit", {}, tmp_path / "o") as stage:
        number = os.fstat(stage.lock).st_ino
        with atomic_folder(tmp_path / "o", ("audit.json",)) as folder:
            (folder / "audit.json").write_text("{}")
        assert (tmp_path / "o" / ".lock").stat().st_ino == number


def test_what_vouches_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "audit.json").write_text("old")
    (tmp_path / "b").write_text("old")
    moved = []
    real = os.replace

    def watched(source: Path, target: Path) -> None:
        moved.append(target.name)
        assert target.name == "audit.json" or not (tmp_path / "audit.json").exists()
        real(source, target)

    with atomic_folder(tmp_path, ("audit.json", "b", "c")) as folder:
        for name in ("audit.json", "a", "z"):
            (folder / name).write_text("new")
        monkeypatch.setattr(os, "replace", watched)
    assert moved == ["a", "z", "audit.json"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("a", "z", "audit.json"), "new"
    )


def test_a_failing_block_leaves_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "audit.json").write_text("old")

    def fail() -> None:
        with atomic_folder(tmp_path, ("audit.json",)) as folder:
            (folder / "audit.json").write_text("new")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert names(tmp_path) == {"audit.json"}
    assert (tmp_path / "audit.json").read_text() == "old"


# --- what is kept, and codes -----------------------------------------------------------------


def test_a_page_that_fails_does_not_take_the_numbers_with_it(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(models, tmp_path / "o") == 0
    expected = shifts(tmp_path / "o")
    monkeypatch.setattr("refbias.report.audit.render", lambda _: 1 / 0)
    assert audit(models, tmp_path / "o", "--seed", "3", "--fail-on", "|dB|>0.000001") == 70
    assert names(tmp_path / "o") == {"audit.json", "groups.csv"}
    assert load_result(tmp_path / "o" / "audit.json").settings.seed == 3
    assert shifts(tmp_path / "o") == expected
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "no report.html; the numbers are written to" in said


def test_a_crash_is_no_condition_that_is_met(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: Any) -> None:
        raise LookupError("a slip")

    monkeypatch.setattr("refbias.audit.run.all_states", crash)
    log = tmp_path / "a.log"
    assert audit(models, tmp_path / "o", "--fail-on", "dB<-9", "--log", str(log)) == 70
    assert "LookupError: a slip" in capsys.readouterr().err
    assert "LookupError: a slip" in log.read_text()


def test_a_condition_that_turns_out_not_to_be_computed_costs_no_result(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("refbias.audit.run.refuse_impossible", lambda *_: None)
    assert audit(models, tmp_path / "o", "--n-control", "1", "--fail-on", "net<0") == 2
    assert "was not computed" in capsys.readouterr().err
    assert names(tmp_path / "o") == ALL


def test_json_beside_embeddings(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert audit(models, tmp_path / "o", "--json", "--keep-embeddings") == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1
    assert names(tmp_path / "o") == {"audit.json", "embeddings"}
    kept = tmp_path / "o" / "embeddings"
    assert names(kept) == {"sentences.tsv", "reference.safetensors", "audited_001.safetensors"}
    n_rows = len((kept / "sentences.tsv").read_text().splitlines()) - 1
    assert load_file(kept / "audited_001.safetensors")["final"].shape == (n_rows, 32)


def full(*_: Any, **__: Any) -> None:
    """Fail as safetensors does on a full disk (see the test on one)."""
    raise states.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_embeddings_on_a_full_disk(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(models, tmp_path / "whole", "--keep-embeddings") == 0
    numbers = (tmp_path / "whole" / "audit.json").stat().st_size
    sentences = (tmp_path / "whole" / "embeddings" / "sentences.tsv").stat().st_size
    one = (tmp_path / "whole" / "embeddings" / "reference.safetensors").stat().st_size
    with monkeypatch.context() as patched:
        patched.setattr(states, "save_file", full)
        assert audit(models, tmp_path / "simulated", "--no-cache", "--keep-embeddings") == 2
    assert "no space left on its disk" in capsys.readouterr().err
    assert names(tmp_path) == {"whole"}
    with small_disk(tmp_path / "small", (numbers + sentences + one // 2) // 1024) as place:
        assert audit(models, place / "o", "--keep-embeddings") == 2
        assert "no space left on its disk" in capsys.readouterr().err
        assert names(place) == set()


def test_a_model_that_does_not_fit_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from refbias.errors import UserError

    def keep() -> None:
        with store.writing("models", "ab" * 16, {"name": "x.gguf"}) as folder:
            (folder / "config.json").write_text("{}")
            full()

    with pytest.raises(UserError, match=r"models: cannot be written to \(No space left on device\): set REFBIAS_CACHE"):
        keep()
    assert store.entries() == []


def test_a_group_without_sentences(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stimuli", "example", str(tmp_path / "own")]) == 0
    rows = "".join(f"t{n}\tThey wait at stop number {n}.\t{g}\n" for n, g in enumerate(("cyclists", "gardeners")))
    (tmp_path / "own" / "targets.tsv").write_text(f"id\ttemplate\tgroup\n{rows}")
    options = ["--stimuli", str(tmp_path / "own"), "--output", str(tmp_path / "o"), *EXACT]
    assert main(["audit", str(models / "base"), str(models / "tuned"), *options]) == 2
    assert "group 'night_workers' has no target sentence" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


# --- the gate --------------------------------------------------------------------------------


def test_the_gate_judges_a_finished_audit(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert audit(models, tmp_path / "o") == 0
    result = str(tmp_path / "o" / "audit.json")
    gate = tmp_path / "o" / "gate.json"
    assert main(["audit-gate", result, "--fail-on", "ci<-9", "--output", str(gate)]) == 0
    assert json.loads(gate.read_text()) == {"conditions": ["ci<-9"], "exceeded": []}
    found = shifts(tmp_path / "o")
    lowest = min(found, key=lambda name: found[name])
    condition = f"dB<{sorted(found.values())[1]:.12f}"
    assert main(["audit-gate", result, "--fail-on=ci<-9", f"--fail-on={condition}", "--output", str(gate)]) == 1
    assert json.loads(gate.read_text())["exceeded"] == [[condition, "tuned", lowest]]
    assert f"is met by {lowest} of tuned" in caplog.text
    assert main(["audit-gate", result, "--fail-on", "db=3"]) == 2
    assert main(["audit-gate", str(tmp_path / "none.json"), "--fail-on", "dB<0"]) == 2
    assert "none.json: no such file" in capsys.readouterr().err


# --- bars and notices ------------------------------------------------------------------------


def test_bars_show_hashing_and_statistics(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=shown, force_terminal=True, width=120, _environ={})
    )
    assert audit(models, tmp_path / "quiet") == 0
    assert "statistics" in shown.getvalue()
    assert "1/1 checkpoints" in shown.getvalue()
    assert "hash" not in shown.getvalue()
    expected = load_result(tmp_path / "quiet" / "audit.json")
    monkeypatch.setattr(store, "_SMALL", 0)
    monkeypatch.setattr(store, "_SHOWN_FROM", 0)
    assert audit(models, tmp_path / "loud") == 0
    assert "hash model.safetensors" in shown.getvalue()
    # the digest that is shown is the digest
    found = load_result(tmp_path / "loud" / "audit.json")
    assert found.reference.weights_sha256 == expected.reference.weights_sha256
    assert found.checkpoints[0].weights_sha256 == expected.checkpoints[0].weights_sha256


def test_a_model_that_is_loaded_whole_is_told(tmp_path: Path) -> None:
    base = build_decoder("mixtral", tmp_path / "base")
    changed(base, tmp_path / "tuned", 0.2)
    pair = [str(base), str(tmp_path / "tuned")]
    # the second time the reference comes from the cache
    for _ in range(2):
        assert main(["audit", *pair, *FEW, *EXACT, "--output", str(tmp_path / "o")]) == 0
        result = load_result(tmp_path / "o" / "audit.json")
        told = [row.sentence for row in result.checkpoints[0].warnings if row.code == "whole_model"]
        assert [sentence.split()[0] for sentence in told] == ["base", "tuned"]
        assert all("stores it in another form" in sentence for sentence in told)
        assert "is loaded whole, not layer by layer" in (tmp_path / "o" / "report.html").read_text()
    assert result.timing.reference_from_cache


def test_a_streamed_model_is_told_nothing_and_one_checkpoint_has_no_word_on_many(models: Path, tmp_path: Path) -> None:
    assert audit(models, tmp_path / "one") == 0
    result = load_result(tmp_path / "one" / "audit.json")
    assert "whole_model" not in {row.code for row in result.checkpoints[0].warnings}
    assert not any("checkpoints:" in sentence for sentence in result.limits)
    shutil.copytree(models / "tuned", tmp_path / "twin")
    arguments = [str(models / "base"), str(models / "tuned"), str(tmp_path / "twin")]
    assert main(["audit", *arguments, *FEW, *EXACT, "--output", str(tmp_path / "two")]) == 0
    limits = load_result(tmp_path / "two" / "audit.json").limits
    assert sum("(Holm), not over the 2 checkpoints:" in sentence for sentence in limits) == 1


# --- a cache that cannot be used -------------------------------------------------------------


def test_a_cache_that_cannot_be_written_to_only_costs_time(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert audit(models, tmp_path / "with") == 0
    (tmp_path / "file").write_text("")
    hashed = []
    real = store.sha256_file

    def watched(path: Path) -> str:
        hashed.append(path)
        return real(path)

    monkeypatch.setattr(store, "sha256_file", watched)
    monkeypatch.setattr(store, "_SMALL", 0)
    monkeypatch.setenv("REFBIAS_CACHE", str(tmp_path / "file"))
    for name in ("base", "tuned"):
        os.utime(models / name / "model.safetensors", (1e9, 1e9))
    assert audit(models, tmp_path / "without") == 0
    assert "states are not kept: cache folder" in caplog.text
    assert shifts(tmp_path / "without") == shifts(tmp_path / "with")
    # no memory on the disk, but one of this process
    assert sorted(path.parent.name for path in hashed if path.suffix == ".safetensors") == ["base", "tuned"]


def test_a_cache_that_may_not_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", denied)
    assert store.find("embeddings", "ab" * 16) is None


def test_hashes_are_listed_and_removed(
    models: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "_SMALL", 0)
    monkeypatch.setattr(store, "_hashes", {})
    for name in ("base", "tuned"):
        os.utime(models / name / "model.safetensors", (1e9, 1e9))
    assert audit(models, tmp_path / "o") == 0
    capsys.readouterr()
    assert main(["cache", "ls"]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if "  hashes  " in line]
    assert {line.split()[-1] for line in listed} >= {
        str(models / name / "model.safetensors") for name in ("base", "tuned")
    }
    monkeypatch.setattr(store, "_hashes", {})
    monkeypatch.setattr(store, "_long_hash", lambda *_: pytest.fail("is in the cache"))
    assert audit(models, tmp_path / "again") == 0
    # what a killed process, or an earlier version, left there
    (own_cache / "hashes" / "killed").mkdir()
    (own_cache / "hashes" / "earlier.json").write_text("{}")
    (own_cache / "hashes" / ".ab.1.part").mkdir()
    for path in own_cache.glob("hashes/*"):
        os.utime(path, (1e9, 1e9))
    (own_cache / "hashes" / "begun").mkdir()
    assert main(["cache", "rm", "--kind", "hashes", "--all"]) == 0
    said = capsys.readouterr().out
    assert f"removed {len(listed)} entries" in said
    assert "and 3 unfinished" in said
    assert names(own_cache / "hashes") == {"begun"}
    assert names(own_cache / "embeddings") != set()
