"""Which GPUs a process takes where several GPU jobs run on one host.

Snakemake counts GPUs and assigns none: two jobs at once would both take the first. A scheduler such as Slurm sets
``CUDA_VISIBLE_DEVICES``, and then nothing is left to do. Otherwise each process locks a file for each GPU that it
takes, so that jobs of one user on one host have different ones; the lock goes with the process, however it ends.
"""

import fcntl
import logging
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from refbias.errors import UserError

LOG = logging.getLogger(__name__)
WAIT_SECONDS = 5.0
# open files whose locks this process keeps until it ends
_held: list[IO[str]] = []


def device_count() -> int:
    """Count the host's NVIDIA GPUs with ``nvidia-smi``; 0 where there is none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def claim(wanted: int, folder: Path | None = None) -> list[int]:
    """Take GPUs for this process alone, and let it see no other.

    Waits until enough are free. Sets ``CUDA_VISIBLE_DEVICES``, so it must come before the first use of CUDA; programs
    that this process starts inherit the choice.

    Parameters
    ----------
    wanted
        GPUs that the job was granted.
    folder
        Where the locks lie; by default one folder a user in the system's temporary directory.

    Returns
    -------
    list of int
        Indices of the GPUs taken; empty where ``CUDA_VISIBLE_DEVICES`` is set already or the host has no GPU.

    Raises
    ------
    UserError
        If more are wanted than the host has.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ or wanted < 1:
        return []
    present = device_count()
    if present == 0:
        return []
    if wanted > present:
        raise UserError(f"--gpu {wanted}: this host has {present} GPU(s): lower `--resources gpu=` or the job's share")
    place = folder or Path(tempfile.gettempdir()) / f"refbias-gpu-{os.getuid()}"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = False
    while len(taken := _try_lock(place, present, wanted)) < wanted:
        if not said:
            LOG.info("waiting for %d of %d GPU(s): others of this user's jobs have them", wanted, present)
            said = True
        time.sleep(WAIT_SECONDS)
    # nvidia-smi counts in the order of the bus, CUDA by default in that of speed
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, taken))
    return taken


def _try_lock(folder: Path, present: int, wanted: int) -> list[int]:
    """Lock `wanted` GPUs, or none at all: two jobs that each wait for the other's would wait forever."""
    taken: dict[int, IO[str]] = {}
    for index in range(present):
        handle = (folder / f"{index}.lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            continue
        taken[index] = handle
        if len(taken) == wanted:
            _held.extend(taken.values())
            return list(taken)
    for lock in taken.values():
        lock.close()
    return []
