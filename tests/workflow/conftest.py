"""A copy of the checkout in which a tiny run was made, for tests of what reruns."""

import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny import build_tiny

# one thread a job, so that two tiny jobs run side by side: most of a job's time is its imports
THREADS = [
    "--set-threads",
    *(f"{rule}=1" for rule in ("finetune", "merge_full", "merge_lora", "represent", "generate")),
]
COPIED = ["Snakefile", "workflow", "config", "profiles", "envs", "data", "pyproject.toml"]
SKIPPED = shutil.ignore_patterns("__pycache__", ".mypy_cache")


@functools.cache
def warm() -> dict[str, str]:
    """Environment in which Snakemake and its jobs are forks of a process with their imports (see warm/server.py)."""
    folder = Path(tempfile.mkdtemp(prefix="refbias-"))
    address, programs = folder / "socket", Path(__file__).parent / "warm"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-P", str(programs / "server.py"), str(address)]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)

    def stop() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(stop)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return {"REFBIAS_TESTS_WARM": str(address), "PYTHONPATH": str(programs)}


@dataclass(frozen=True)
class Checkout:
    """A folder that holds the project; Snakemake runs in it with the tests' interpreter."""

    path: Path

    def snakemake(self, *arguments: str, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
        # targets first: the options after them take as many values as follow
        command = [sys.executable, "-m", "snakemake", *arguments]
        command += ["--cores", "2", "--configfile", "config/tiny.yaml", *THREADS]
        # the path is the warm one alone: another checkout's package must not be found first
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **warm()}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done

    def would_run(self, *arguments: str) -> dict[str, int]:
        """Job counts by rule of a dry run; empty where nothing is to be done."""
        done = self.snakemake("--dry-run", *arguments)
        output = done.stdout + done.stderr
        if "Nothing to be done" in output:
            return {}
        table = output.split("Job stats:", 1)[1].split("total", 1)[0]
        return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)\s*$", table, re.MULTILINE)}

    def edit(self, path: str, old: str, new: str) -> None:
        target = self.path / path
        text = target.read_text(encoding="utf-8")
        assert old in text, f"{path} holds no {old!r}"
        target.write_text(text.replace(old, new, 1), encoding="utf-8")


def make_checkout(root: Path, path: Path) -> Checkout:
    """Copy the project's files, without results, into `path`."""
    path.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, path / name, ignore=SKIPPED, dirs_exist_ok=True)
        else:
            shutil.copy2(source, path / name)
    shutil.copy2(root / "tests" / "workflow" / "tiny.yaml", path / "config" / "tiny.yaml")
    return Checkout(path)


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout in which the whole tiny run was made. Do not edit it: copy it first."""
    checkout = make_checkout(root, tmp_path_factory.mktemp("finished"))
    build_tiny("gemma3_text", checkout.path / "models" / "gemma3_text")
    checkout.snakemake()
    return checkout


@pytest.fixture
def copy(finished: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the finished checkout that a test may edit."""
    target = tmp_path / "copy"
    shutil.copytree(finished.path, target, copy_function=shutil.copy2)
    return Checkout(target)
