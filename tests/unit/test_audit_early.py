"""What an audit refuses before it reads a model, and what its options say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refbias.calibration import ShiftObservations, fit_calibration
from refbias.cli.main import main
from refbias.config.audit import weighted_terms
from refbias.config.audit_result import load_result
from refbias.config.calibration import (
    EmbeddingFacts,
    Measure,
    Outcome,
    Provenance,
    save_calibration,
    settings_hash,
)
from refbias.stream import passes
from tests.audit_models import EXACT, FEW, build, changed, shifts, with_sum

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    changed(build(folder / "base"), folder / "tuned", 0.2)
    return folder


def calibration(path: Path, sha256: str, n_anchors: int = 40) -> Path:
    """Write a calibration of a study whose scores rose where dB net of the control was low."""
    random = np.random.default_rng(1)
    n, control = 14 * 24, np.repeat(random.normal(0, 0.03, 14), 24)
    net = random.normal(0, 0.03, n)
    data = ShiftObservations(
        delta_b=net + control,
        control=control,
        delta_score=np.where(net + random.normal(0, 0.02, n) < 0, 0.3, -0.1),
        model=np.full(n, "m"),
        regime=np.full(n, "full"),
        checkpoint=np.repeat([f"c{at}" for at in range(14)], 24),
        unit=np.tile([f"u{at}" for at in range(24)], 14),
        n_outputs=np.full(n, 8.0),
    )
    facts = EmbeddingFacts(layer="final", final_norm=True, pooling="mean", exclude_bos=False)
    found = fit_calibration(
        data,
        outcome=Outcome(benchmark="toxigen", scorer="rule", unit="group", threshold=0.1),
        measure=Measure(
            method="rr",
            n_anchors=n_anchors,
            stimuli_sha256=sha256,
            settings=facts,
            settings_sha256=settings_hash(facts),
        ),
        provenance=Provenance(
            run="study",
            models=["m"],
            regimes=["full"],
            commit=None,
            changed_files=None,
            version="1",
            created="2026-01-01T00:00:00+00:00",
            observations_sha256="o",
            delta_b_sha256=None,
        ),
    )
    save_calibration(found, path)
    return path


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> None:
        raise AssertionError("a model was looked for")

    monkeypatch.setattr("refbias.audit.run.resolve_reference", read)


PROBABLE = ["--fail-on", "probability>0.5"]


@pytest.mark.usefixtures("no_models")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--calibration", "{tmp}/typo.json", *PROBABLE], "typo.json: no such file"),
        (["--calibration", "{tmp}/broken.json"], "broken.json"),
        (["--calibration", "{tmp}/other.json"], "stimuli sha256 0123 in the calibration"),
        (["--n-anchors", "20", "--fail-on", "percentile>95"], "percentile needs as many anchors as attributes (24)"),
        (["--n-control", "1", "--fail-on", "net<0"], "net needs 2 control sentences, there are 1"),
        (["--n-targets", "1", "--fail-on", "dB<0 and |ci|>0.1"], "|ci| needs 2 target sentences of group"),
        (["--n-attributes", "1", "--fail-on", "ci>0"], "ci needs 2 attribute sentences of each valence, there are 1"),
        (["--memory", "64", "--spill-dir", "{tmp}/broken.json"], "--spill-dir {tmp}/broken.json: cannot be written"),
        (["--spill-dir", "{tmp}"], "spill_dir: without memory_mb nothing goes to disk"),
        (["--json", "--keep-embeddings"], "--keep-embeddings: --json alone writes no folder"),
    ],
)
def test_what_cannot_be_is_refused_before_any_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    calibration(tmp_path / "other.json", "0123")
    chosen = [option.format(tmp=tmp_path) for option in options]
    output = [] if "--json" in options else ["--output", str(tmp_path / "o")]
    assert main(["audit", "owner/a", "owner/b", *FEW, *EXACT, *output, *chosen]) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("refbias: error:")]
    assert words.format(tmp=tmp_path) in said
    assert not (tmp_path / "o").exists()


def test_what_was_asked_of_enough_sentences_is_answered(models: Path, tmp_path: Path) -> None:
    pair = [str(models / "base"), str(models / "tuned")]
    sha256 = "?"
    for number, more in enumerate(([], ["--calibration", str(tmp_path / "c.json"), *PROBABLE])):
        folder = tmp_path / f"o{number}"
        asked = ["--fail-on", "percentile>100", "--fail-on", "net<-9", "--fail-on", "ci>9"]
        code = main(["audit", *pair, *FEW, *EXACT, "--output", str(folder), *asked, *more])
        result = load_result(folder / "audit.json")
        if number:
            likely = [group.group for group in result.checkpoints[0].groups if (group.probability or 0.0) > 0.5]
            assert all(group.probability is not None for group in result.checkpoints[0].groups)
            assert code == (1 if likely else 0)
            assert likely
        else:
            assert code == 0
            sha256 = result.settings.stimuli.sha256
            calibration(tmp_path / "c.json", sha256)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("0.3*A+0.7*B", [(0.3, "A"), (0.7, "B")]),
        ("1.5*B-0.5*A", [(1.5, "B"), (-0.5, "A")]),
        ("-0.5*A+1.5*B", [(-0.5, "A"), (1.5, "B")]),
        ("1.5*B+-0.5*A", [(1.5, "B"), (-0.5, "A")]),
        ("1e-3*runs/a-1 + .999 * org/b-2", [(0.001, "runs/a-1"), (0.999, "org/b-2")]),
        ("0.5*run-100-0.5*run-200", [(0.5, "run-100"), (-0.5, "run-200")]),
        ("0.5*A+0.5*B*2", [(0.5, "A"), (0.5, "B*2")]),
        ("org/model-1", []),
        ("A+0.5*B", []),
        ("2*", []),
        ("", []),
    ],
)
def test_terms_of_a_sum(spec: str, expected: list[tuple[float, str]]) -> None:
    assert weighted_terms(spec) == expected


def test_a_negative_weight_goes_before_or_behind(models: Path, tmp_path: Path) -> None:
    base, tuned = models / "base", models / "tuned"
    beyond = with_sum([(-0.5, base), (1.5, tuned)], tmp_path / "beyond")
    specs = [f"-0.5*{base}+1.5*{tuned}", f"1.5*{tuned}-0.5*{base}", str(beyond)]
    assert main(["audit", str(base), *specs, *FEW, *EXACT, "--output", str(tmp_path / "o")]) == 0
    expected = shifts(tmp_path / "o", 2)
    assert max(map(abs, expected.values())) > 1e-3
    for number in (0, 1):
        assert shifts(tmp_path / "o", number) == pytest.approx(expected, abs=1e-6)
    assert load_result(tmp_path / "o" / "audit.json").checkpoints[0].spec == specs[0]


def test_a_weight_beyond_all_numbers_is_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = models / "base"
    assert main(["audit", str(base), f"1e999*{base}+0.5*{models / 'tuned'}", "--output", str(tmp_path / "o")]) == 2
    assert "a weight is not a finite number" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_states_beyond_the_memory_go_where_the_user_says(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    class Watched(passes.Activations):
        """As few states in memory as can be: these models' own fit into the least that the option allows."""

        def __init__(self, *args: Any) -> None:
            assert args[-2] == 64
            used.append(args[-1])
            super().__init__(*args[:-2], 0, args[-1])

    options = ["audit", str(models / "base"), str(models / "tuned"), *FEW, *EXACT, "--no-cache"]
    assert main([*options, "--output", str(tmp_path / "kept")]) == 0
    monkeypatch.setattr(passes, "Activations", Watched)
    place = tmp_path / "large" / "disk"
    more = ["--memory", "64", "--spill-dir", str(place)]
    assert main([*options, "--output", str(tmp_path / "spilled"), *more]) == 0
    assert set(used) == {place}
    assert list(place.iterdir()) == []
    assert shifts(tmp_path / "spilled") == shifts(tmp_path / "kept")


def test_a_spill_folder_in_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from refbias.stream.activations import psutil, spill_folder

    class Mount:
        def __init__(self, mountpoint: Path, fstype: str) -> None:
            self.mountpoint, self.fstype = str(mountpoint), fstype

    inner = tmp_path / "disk"
    mounts = [Mount(Path("/"), "ext4"), Mount(tmp_path, "tmpfs"), Mount(inner, "xfs")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    assert spill_folder(str(inner / "states")) == inner / "states"
    assert caplog.text == ""
    assert spill_folder(str(tmp_path / "states")) == tmp_path / "states"
    assert "states, which is memory itself (tmpfs): name a disk by --spill-dir" in caplog.text
