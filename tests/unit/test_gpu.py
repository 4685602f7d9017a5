"""Two GPU jobs on one host have different GPUs."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from refbias import gpu
from refbias.cli.main import main
from refbias.errors import UserError

CLAIM = """
import sys, time
from pathlib import Path
from refbias import gpu
gpu.WAIT_SECONDS = 0.05
gpu.claim(int(sys.argv[1]), Path(sys.argv[2]))
import os
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with two GPUs, as far as nvidia-smi says."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: one (UUID: a)'\necho '  MIG x'\necho 'GPU 1: two (UUID: b)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return tmp_path / "locks"


def start(wanted: int, folder: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(Path(gpu.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(wanted), str(folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_jobs_side_by_side_have_different_gpus_and_a_third_waits_for_one(host: Path) -> None:
    jobs = [start(1, host), start(1, host)]
    try:
        assert sorted(map(first_line, jobs)) == ["0", "1"]
        third = start(1, host)
        jobs.append(third)
        # far longer than it took the others, and it tries twenty times a second
        readable, _, _ = select.select([third.stdout], [], [], 1.0)
        assert not readable
        assert third.poll() is None
        # killed, not ended: the lock goes with the process
        jobs[0].kill()
        jobs[0].wait()
        assert first_line(third) in ("0", "1")
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def test_a_job_takes_as_many_as_it_was_granted(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_held", [])
    assert gpu.claim(2, host) == [0, 1]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    # what it starts inherits the choice and takes nothing itself
    assert gpu.claim(1, host) == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")


def test_a_schedulers_choice_stands(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert gpu.claim(1, host) == []
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    assert not host.exists()


def test_a_host_without_gpus_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu.device_count() == 0
    assert gpu.claim(1, tmp_path / "locks") == []
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_more_gpus_than_the_host_has_are_refused(host: Path) -> None:
    with pytest.raises(UserError, match=r"--gpu 3: this host has 2 GPU\(s\)"):
        gpu.claim(3, host)


def test_the_option_must_be_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shift", "--gpu", "two"]) == 2
    assert "--gpu 'two': expected a whole number" in capsys.readouterr().err
