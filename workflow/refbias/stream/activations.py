"""The states of all sentences between two blocks: in memory as far as allowed, beyond that in files.

Files have no name, so nothing is left whatever ends the run. They are mapped, and what was read or
written is unmapped at once: their pages are the kernel's to keep or to write out.
"""

import logging
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import torch

from refbias.errors import UserError

LOG = logging.getLogger(__name__)
_IN_MEMORY = ("tmpfs", "ramfs")


class Activations:
    """States of each batch (b, l, d) for several variants, written and read one batch at a time.

    Parameters
    ----------
    n_variants
        Number of checkpoints that go through together.
    shapes
        (b, l) of every batch.
    width
        d.
    dtype, device
        Of the states in memory; a file's states go there when they are read.
    memory_mb
        MB (1e6 bytes) that stay in memory; variants beyond go to files whole. None: no bound.
    spill_dir
        Folder for the files; None: the system's folder for temporary files.

    Raises
    ------
    UserError
        If the disk cannot hold the files.
    """

    def __init__(
        self,
        n_variants: int,
        shapes: Sequence[tuple[int, int]],
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        memory_mb: int | None,
        spill_dir: Path | None,
    ) -> None:
        self._shapes = [(*shape, width) for shape in shapes]
        self._dtype, self._device = dtype, device
        sizes = [rows * length * width for rows, length in shapes]
        self._starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
        nbytes = self._starts[-1] * dtype.itemsize
        fits = n_variants if memory_mb is None else min(n_variants, int(memory_mb * 1e6) // max(nbytes, 1))
        self._kept = [torch.empty(self._starts[-1], dtype=dtype, device=device) for _ in range(fits)]
        self._maps: list[mmap.mmap] = []
        self.memory_mb = fits * nbytes / 1e6
        self.seconds = 0.0
        # batches may come and go in several threads
        self._lock = threading.Lock()
        try:
            for _ in range(n_variants - fits):
                self._maps.append(_mapped_file(spill_dir, nbytes))
        except BaseException:
            self.close()
            raise

    def get(self, variant: int, batch: int) -> torch.Tensor:
        """Return the states of a batch; those in memory are no copy."""
        if variant < len(self._kept):
            return self._view(self._kept[variant], batch)
        start = time.perf_counter()
        found = self._view(self._spilled(variant), batch).to(self._device, copy=True)
        self._release(variant, batch)
        self._spent(start)
        return found

    def put(self, variant: int, batch: int, states: torch.Tensor) -> None:
        """Keep the states of a batch in the place of the earlier ones."""
        if variant < len(self._kept):
            self._view(self._kept[variant], batch).copy_(states)
            return
        start = time.perf_counter()
        self._view(self._spilled(variant), batch).copy_(states)
        self._release(variant, batch)
        self._spent(start)

    def _spent(self, start: float) -> None:
        with self._lock:
            self.seconds += time.perf_counter() - start

    def _view(self, flat: torch.Tensor, batch: int) -> torch.Tensor:
        return flat[self._starts[batch] : self._starts[batch + 1]].view(self._shapes[batch])

    def _spilled(self, variant: int) -> torch.Tensor:
        return torch.frombuffer(self._maps[variant - len(self._kept)], dtype=self._dtype, count=self._starts[-1])

    def _release(self, variant: int, batch: int) -> None:
        place = self._maps[variant - len(self._kept)]
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        # a page that two batches share is mapped again when the other is read
        first = self._starts[batch] * self._dtype.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(len(place), self._starts[batch + 1] * self._dtype.itemsize)
        place.madvise(mmap.MADV_DONTNEED, first, last - first)

    def close(self) -> None:
        """Give memory and files back."""
        self._kept.clear()
        # a map that a tensor still looks at goes with that tensor
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def spill_folder(named: str | None) -> Path:
    """Return the folder for states that do not fit into memory, made and tried before any work.

    A folder of a file system in memory is taken with a notice: what goes there saves nothing.

    Parameters
    ----------
    named
        The user's; None: the system's folder for temporary files.

    Raises
    ------
    UserError
        If no file can be written there.
    """
    where = Path(tempfile.gettempdir() if named is None else named).expanduser()
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        raise UserError(f"--spill-dir {where}: cannot be written to ({error.strerror}): name another folder") from None
    if (kind := _file_system(where)) in _IN_MEMORY:
        LOG.warning(
            "states beyond --memory go to %s, which is memory itself (%s): name a disk by --spill-dir", where, kind
        )
    return where


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder lies on; empty where the system does not tell."""
    mounts: dict[Path, str] = {Path(found.mountpoint): found.fstype for found in psutil.disk_partitions(all=True)}
    place = folder.resolve()
    return next((mounts[parent] for parent in (place, *place.parents) if parent in mounts), "")


def _mapped_file(folder: Path | None, nbytes: int) -> mmap.mmap:
    where = folder or Path(tempfile.gettempdir())
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where) as handle:
            # a full disk is told here, and not by a signal when the map is written
            os.posix_fallocate(handle.fileno(), 0, max(nbytes, 1))
            return mmap.mmap(handle.fileno(), max(nbytes, 1))
    except OSError as error:
        raise UserError(
            f"{where}: no room for {nbytes / 1e6:.0f} MB of intermediate states ({error.strerror}): "
            "name another folder (--spill-dir), or allow more memory (--memory)"
        ) from None
