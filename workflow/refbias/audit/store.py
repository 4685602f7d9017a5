"""The user's cache folder: finished folders, each under a key made from all that it depends on.

Layout, below `refbias.acquisition.cache.cache_root`::

    embeddings/<key>/   states.safetensors, facts.json
    models/<key>/       a model de-quantised from a GGUF file, in transformers' layout
    hashes/<key>/       facts.json alone: SHA-256 of a large file, valid while its size and time stamp stay; or the
                        norms of a model's matrices

A folder is written under a temporary name and renamed, so that another process sees it whole or not
at all; of two that write the same key, the second finds the first's and drops its own. Nothing in
the cache is needed: what is removed is computed again.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError

from refbias.acquisition.cache import cache_root
from refbias.artifacts import read_json, sha256_file, write_json
from refbias.errors import UserError
from refbias.progress import step_bar

Kind = Literal["embeddings", "models", "hashes"]
KINDS: tuple[Kind, ...] = ("embeddings", "models", "hashes")
FACTS = "facts.json"
_SMALL = 1 << 20
_CHUNK = 1 << 20
_SHOWN_FROM = 1 << 28
"""Bytes from which on hashing a file takes long enough for a bar."""
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_hashes: dict[tuple[str, int, int, int], str] = {}
"""What this process hashed: a cache that cannot be written to must not make it hash a file twice."""


def key_of(facts: Mapping[str, Any]) -> str:
    """Return a key of 32 hexadecimal digits for everything that a cached folder depends on."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Entry:
    """A cached folder."""

    kind: Kind
    key: str
    name: str
    size_mb: float
    used: float

    @property
    def path(self) -> Path:
        """Where it lies."""
        return folder(self.kind, self.key)


def folder(kind: Kind, key: str) -> Path:
    """Return where the cache keeps a key, there or not."""
    return cache_root() / kind / key


def find(kind: Kind, key: str) -> Path | None:
    """Return a finished folder, marked as used now, or None."""
    place = folder(kind, key)
    # unlike Path.is_file, no error where the folder above may not be looked into
    if not os.path.isfile(place / FACTS):
        return None
    with contextlib.suppress(OSError):
        os.utime(place / FACTS)
    return place


@contextlib.contextmanager
def writing(kind: Kind, key: str, facts: Mapping[str, Any]) -> Iterator[Path]:
    """Yield an empty folder that becomes the key's if the block succeeds, and is gone otherwise.

    Who can do without what is kept catches the error and says so.

    Parameters
    ----------
    kind, key
        Where it will lie.
    facts
        What is in it (JSON values), written beside it; ``name`` is what a person calls it.

    Raises
    ------
    UserError
        If the cache's folder cannot be written to, or its disk is full.
    """
    place = folder(kind, key)
    temporary = place.parent / f".{key}.{os.getpid()}.part"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    except OSError as error:
        raise _unwritable(place.parent, error) from None
    try:
        yield temporary
        write_json(temporary / FACTS, dict(facts))
        try:
            os.rename(temporary, place)
        except OSError:
            # another process may have been faster: its folder holds the same
            if not os.path.isfile(place / FACTS):
                raise
    except (OSError, SafetensorError) as error:
        found = as_os_error(error)
        if found.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        raise _unwritable(place.parent, found) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unwritable(place: Path, error: OSError) -> UserError:
    return UserError(f"cache folder {place}: cannot be written to ({error.strerror}): set REFBIAS_CACHE to another")


def as_os_error(error: OSError | SafetensorError) -> OSError:
    """Return the error of the operating system behind one of safetensors, which keeps its number in the text alone.

    Raises
    ------
    SafetensorError
        As it is, where no such error is behind it.
    """
    if isinstance(error, OSError):
        return error
    match = _OS_ERROR.search(str(error))
    if match is None:
        raise error
    return OSError(int(match[1]), os.strerror(int(match[1])))


def entries() -> list[Entry]:
    """Return what the cache holds, the latest used first."""
    found = []
    for kind in KINDS:
        for facts in (cache_root() / kind).glob(f"*/{FACTS}"):
            with contextlib.suppress(OSError, UserError, AttributeError):
                name = str(read_json(facts).get("name", ""))
                size = sum(path.stat().st_size for path in facts.parent.rglob("*") if path.is_file())
                found.append(Entry(kind, facts.parent.name, name, size / 1e6, facts.stat().st_mtime))
    return sorted(found, key=lambda entry: -entry.used)


def remove(entry: Entry) -> None:
    """Remove a folder; whoever reads it at the moment has its files open or computes it again."""
    gone = entry.path.with_name(f".{entry.key}.{os.getpid()}.gone")
    with contextlib.suppress(FileNotFoundError):
        os.rename(entry.path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers(older_than_s: float = 24 * 3600.0) -> int:
    """Remove what processes that were killed left unfinished, or another version wrote otherwise; return how many."""
    count = 0
    for kind in KINDS:
        for path in (cache_root() / kind).glob("*"):
            with contextlib.suppress(OSError):
                unfinished = path.name.startswith(".") or not os.path.isfile(path / FACTS)
                if unfinished and time.time() - path.stat().st_mtime > older_than_s:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    count += 1
    return count


def file_hash(path: Path | str) -> str:
    """Return the SHA-256 of a file, from memory where neither its size nor its time stamp changed."""
    path = Path(path).resolve()
    state = path.stat()
    if state.st_size < _SMALL:
        return sha256_file(path)
    known = (str(path), state.st_size, state.st_mtime_ns, state.st_ino)
    if known in _hashes:
        return _hashes[known]
    key = hashlib.sha256(str(path).encode()).hexdigest()[:32]
    with contextlib.suppress(UserError, OSError, KeyError, TypeError):
        if (place := find("hashes", key)) is not None:
            stored = read_json(place / FACTS)
            if stored["file"] == list(known):
                return str(stored["sha256"])
    found = _long_hash(path, state.st_size)
    # a file that was written just now may change again within the same tick of the clock
    if time.time() - state.st_mtime > 2:
        _hashes[known] = found
        with contextlib.suppress(OSError):
            write_json(folder("hashes", key) / FACTS, {"name": str(path), "file": known, "sha256": found})
    return found


def _long_hash(path: Path, size: int) -> str:
    if size < _SHOWN_FROM:
        return sha256_file(path)
    digest = hashlib.sha256()
    with path.open("rb") as handle, step_bar(f"hash {path.name}", size / 1e6, "MB") as step:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            step(len(chunk) / 1e6)
    return digest.hexdigest()
