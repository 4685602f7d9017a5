"""The environment in which Snakemake's jobs find the interpreter and the package."""

import os
import sys
from pathlib import Path


def prepare(source: Path) -> None:
    """Let jobs find this interpreter and the package's source.

    The interpreter that runs Snakemake runs the stages; a rule's conda environment or container
    goes before it. The source folder lets a stage run where the package is not installed.

    Parameters
    ----------
    source
        Folder that holds the package.
    """
    for name, first in (("PATH", Path(sys.executable).parent), ("PYTHONPATH", source)):
        rest = [part for part in os.environ.get(name, "").split(os.pathsep) if part and part != str(first)]
        os.environ[name] = os.pathsep.join([str(first), *rest])


def go_offline() -> None:
    """Let this process and the jobs that it starts take downloads from the caches alone."""
    os.environ["HF_HUB_OFFLINE"] = "1"
