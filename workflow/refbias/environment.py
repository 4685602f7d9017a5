"""The environment in which Snakemake's jobs find the interpreter and the package."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from refbias.errors import UserError

SOURCE = Path(__file__).resolve().parent.parent
"""Folder that holds the package."""


def variables(python: Path, source: Path) -> dict[str, str]:
    """Return ``PATH`` and ``PYTHONPATH`` under which `python` and the package in `source` are found first."""
    found = {}
    for name, first in (("PATH", python.parent), ("PYTHONPATH", source)):
        rest = [part for part in os.environ.get(name, "").split(os.pathsep) if part and part != str(first)]
        found[name] = os.pathsep.join([str(first), *rest])
    return found


def prepare(source: Path) -> None:
    """Let jobs find this interpreter and the package's source.

    The interpreter that runs Snakemake runs the stages; a rule's conda environment or container
    goes before it. The source folder lets a stage run where the package is not installed.

    Parameters
    ----------
    source
        Folder that holds the package.
    """
    os.environ.update(variables(Path(sys.executable), source))


def find_interpreter(python: str) -> Path:
    """Return the absolute path of an interpreter, its links kept: they make the environment.

    Raises
    ------
    UserError
        If it is not there.
    """
    path = Path(python).absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UserError(
            f"{python}: no such interpreter: run `make env-vllm`, or name one in key 'generation.interpreter'"
        )
    return path


def become(python: str, arguments: Sequence[str]) -> None:
    """Run ``refbias`` with `arguments` under another interpreter, in this process's place.

    Returns where `python` runs already.

    Raises
    ------
    UserError
        If the interpreter is not there.
    """
    path = find_interpreter(python)
    if path == Path(sys.executable).absolute():
        return
    os.environ.update(variables(path, SOURCE))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), "-m", "refbias", *arguments])  # noqa: S606


def go_offline() -> None:
    """Let this process and the jobs that it starts take downloads from the caches alone."""
    os.environ["HF_HUB_OFFLINE"] = "1"
