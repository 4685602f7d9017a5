"""SIGKILL at every stage that matters: the next run completes, with byte-equal tables."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tests.workflow.conftest import THREADS, Checkout

TABLES = ["shift/delta_b.csv", "tables/observations.csv", "tables/units.csv", "tables/table1.csv", "tables/table1.tex"]
PATIENCE = 300.0


def start(checkout: Checkout) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "config/tiny.yaml", *THREADS]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen(
        command, cwd=checkout.path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def working(checkout: Checkout, stage: str) -> psutil.Process | None:
    """The process of a stage that works in the checkout."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        command = process.info["cmdline"] or []
        if process.info["cwd"] == str(checkout.path) and command[1:4] == ["-m", "refbias", stage]:
            return process
    return None


def kill_when(checkout: Checkout, stage: str, ready: Callable[[], bool]) -> None:
    """Run Snakemake and SIGKILL the stage's process as soon as `ready` holds."""
    with start(checkout) as run:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            assert run.poll() is None, f"the run ended before {stage} could be killed"
            process = working(checkout, stage)
            if process is not None and ready():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    break
            time.sleep(0.02)
        else:
            run.kill()
            pytest.fail(f"{stage} never got ready to be killed")
        assert run.wait(PATIENCE) != 0, "a killed job must fail the run"


def kill_snakemake(checkout: Checkout, stage: str) -> None:
    """SIGKILL Snakemake itself while a job of the stage runs; the orphan goes on."""
    with start(checkout) as run:
        limit = time.monotonic() + PATIENCE
        while working(checkout, stage) is None:
            assert run.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
        run.kill()


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_byte_equal_tables(finished: Checkout, copy: Checkout) -> None:
    results = copy.path / "results" / "tiny"
    # one endpoint is gone, and with it all that follows; Snakemake does not miss what only lies between
    follows = ["training/tiny-gemma/lora/harmful", "spectrum/tiny-gemma/lora", "embeddings/tiny-gemma/lora"]
    follows += [f"generations/tiny-gemma/lora/{slug}" for slug in ("h050", "h100")]
    for name in [*follows, "scores/tiny-gemma/lora", "shift", "tables"]:
        shutil.rmtree(results / name)
    (results / "report.html").unlink()
    kill_when(copy, "finetune", lambda: bool(list(results.glob("work/training/*/*/*/**/checkpoint-*"))))
    # a tiny generation is over before its first finished part can be seen; test_generation.py resumes from parts
    kill_when(copy, "generate", lambda: True)
    kill_when(copy, "analyse", lambda: True)
    assert not (results / "tables" / "table1.csv").exists()
    kill_snakemake(copy, "analyse")
    assert list((copy.path / ".snakemake" / "locks").iterdir())
    unlock = [sys.executable, "-m", "refbias", "unlock"]
    environment = {**os.environ, "PYTHONPATH": str(copy.path / "workflow")}
    subprocess.run(unlock, cwd=copy.path, env=environment, check=True, capture_output=True)
    copy.snakemake()
    for name in TABLES:
        assert (results / name).read_bytes() == (finished.path / "results" / "tiny" / name).read_bytes(), name
    assert not list(results.glob("work/**/*.safetensors")), "the resumable state goes on success"
