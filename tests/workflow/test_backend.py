"""The rules pick the interpreter by backend."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.conftest import warm


def commands(root: Path, tmp_path: Path, *generation: str) -> dict[str, list[str]]:
    """Shell commands of a dry run by stage; the vLLM environment need not be there for it."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--directory", str(tmp_path)]
    command += ["--dry-run", "--printshellcmds", "--cores", "1", "--configfile", str(root / "config" / "smoke.yaml")]
    if generation:
        command += ["--config", f"generation={{{', '.join(generation)}}}"]
    done = subprocess.run(command, env={**os.environ, **warm()}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in (done.stdout + done.stderr).splitlines():
        _, start, rest = line.partition("python -m refbias ")
        if start:
            found.setdefault(rest.split()[0], []).append(rest)
    return found


@pytest.mark.slow
def test_only_generation_runs_elsewhere(root: Path, tmp_path: Path) -> None:
    plain = commands(root, tmp_path)
    assert plain["generate"]
    assert not any("--python" in line for lines in plain.values() for line in lines)
    chosen = commands(root, tmp_path, "backend: vllm", "vllm: {tensor_parallel_size: 2}")
    assert {stage: len(lines) for stage, lines in chosen.items()} == {
        stage: len(lines) for stage, lines in plain.items()
    }
    assert all(line.startswith("generate --python .venv-vllm/bin/python --log") for line in chosen["generate"])
    # the tiny run is on the CPU
    assert all(" --gpu 0 " in line for line in chosen["generate"])
    assert not any("--python" in line for stage, lines in chosen.items() if stage != "generate" for line in lines)
    assert not any("--vllm-python" in line for lines in chosen.values() for line in lines)
    named = commands(root, tmp_path, "backend: vllm", "interpreter: /opt/vllm/bin/python")
    assert all(line.startswith("generate --python /opt/vllm/bin/python ") for line in named["generate"])
