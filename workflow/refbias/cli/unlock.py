"""Remove the lock of a Snakemake process that was killed.

Snakemake leaves its lock behind on SIGKILL. The lock is removed only when no other Snakemake
process works in the same folder.
"""

import argparse
import logging
import os
import shutil
from pathlib import Path

from refbias.errors import UserError


def _living_snakemake(folder: Path) -> int | None:
    import psutil

    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["pid", "cmdline", "cwd"]):
        command = process.info["cmdline"] or []
        named = any(Path(part).name == "snakemake" or part == "snakemake" for part in command[:4])
        if named and process.pid not in own and process.info["cwd"] == str(folder):
            return int(process.pid)
    return None


def main(argv: list[str]) -> None:
    """Remove a stale ``.snakemake/locks``.

    Raises
    ------
    UserError
        If a Snakemake process is at work in the folder.
    """
    parser = argparse.ArgumentParser(prog="refbias unlock", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="folder that snakemake works in")
    folder = parser.parse_args(argv).folder.resolve()
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return
    living = _living_snakemake(folder)
    if living is not None:
        raise UserError(f"{folder}: snakemake is at work here (process {living}): wait for it or stop it")
    shutil.rmtree(locks)
    logging.getLogger("refbias").info("removed the lock of a snakemake process that no longer lives")
