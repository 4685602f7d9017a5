"""Tensors out of safetensors files, read by range: a checkpoint is input that nobody vouches for.

The header is checked against the size of its file before anything is allocated, every tensor's
place, number type and shape against each other, and values on reading. Only what is asked for is
read, and every byte is counted. The format: eight bytes with the header's length (little endian),
a JSON header ``{name: {dtype, shape, data_offsets}}``, the data without gaps or overlaps.
"""

import contextlib
import json
import math
import os
import stat
import threading
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.models.adapter import language_name
from refbias.models.files import check_directory, weight_files

MAX_HEADER = 32 << 20
"""Largest header that is parsed, in bytes: that of 200,000 tensors, and a bound on the memory of a parse."""
MAX_TENSORS = 200_000
_MAX_DIMS = 8
_MAX_NAME = 512
_COPY = "copy it again"
# bits of an element in the file, and the type that torch reads it as
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8}
_BITS |= {"U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}
_BITS |= {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64, "F6_E2M3": 6, "F6_E3M2": 6}
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# of a float type: the unsigned integer of its width, its bits but for the sign, and the bits of infinity
_PATTERNS: dict[torch.dtype, tuple[type[np.unsignedinteger[Any]], int, int]] = {
    torch.float64: (np.uint64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    torch.float32: (np.uint32, 0x7FFFFFFF, 0x7F800000),
    torch.float16: (np.uint16, 0x7FFF, 0x7C00),
    torch.bfloat16: (np.uint16, 0x7FFF, 0x7F80),
}
_PIECE = 1 << 18  # bytes looked at together: they stay in a core's cache


@dataclass(frozen=True)
class Entry:
    """A tensor's place: number type as the file calls it, shape, first byte in the file and number of bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def parse_header(raw: bytes, where: str, data_start: int, file_size: int) -> dict[str, Entry]:
    """Return name -> place of the tensors that a header announces.

    Parameters
    ----------
    raw
        The header's bytes, at most `MAX_HEADER` of them.
    where
        What to call the file in an error.
    data_start
        Where the data begin in the file.
    file_size
        Bytes of the file.

    Raises
    ------
    UserError
        If the header is no JSON of the format, or does not describe a file of this size.
    """
    # a bound on the objects that JSON can make of it, before it makes them
    if raw.count(b"{") > MAX_TENSORS + 2 or raw.count(b"[") > 2 * (MAX_TENSORS + 2):
        raise UserError(f"{where}: the header announces more than {MAX_TENSORS} tensors: this is no checkpoint")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(f"{where}: the header is not JSON of the safetensors format ({reason}): {_COPY}") from None
    if not isinstance(header, dict):
        raise UserError(f"{where}: the header is no JSON object: {_COPY}")
    header.pop("__metadata__", None)
    entries = {name: _entry(name, value, where, data_start) for name, value in header.items()}
    end, last = data_start, "header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            kind = "overlaps" if entry.start < end else "leaves a gap after"
            raise UserError(f"{where}: tensor {name!r} {kind} {last!r}: {_COPY}")
        end, last = entry.start + entry.nbytes, name
    if end > file_size:
        raise UserError(f"{where}: truncated: {file_size} bytes, tensor {last!r} ends at {end}: {_COPY}")
    if end < file_size:
        raise UserError(f"{where}: {file_size - end} bytes after the last tensor {last!r}: {_COPY}")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(text: str) -> typing.NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**56


def _entry(name: str, value: Any, where: str, data_start: int) -> Entry:
    shown = f"{where}: tensor {name[:_MAX_NAME]!r}"
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise UserError(f"{shown}: not a name of 1 to {_MAX_NAME} printable characters: {_COPY}")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"{shown}: its entry must hold dtype, shape and data_offsets, nothing else: {_COPY}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise UserError(f"{shown}: unknown number type {str(dtype)[:40]!r}: save it in bfloat16 or float32")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(map(_whole, shape)):
        raise UserError(f"{shown}: shape is not a list of at most {_MAX_DIMS} sizes: {_COPY}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)):
        raise UserError(f"{shown}: data_offsets are not two whole numbers: {_COPY}")
    nbytes = -(-math.prod(shape) * _BITS[dtype] // 8)
    if offsets[1] - offsets[0] != nbytes:
        span = f"{offsets[1] - offsets[0]} bytes for {dtype} of shape {tuple(shape)}, which takes {nbytes}"
        raise UserError(f"{shown}: {span[:200]}: {_COPY}")
    return Entry(dtype, tuple(shape), data_start + offsets[0], nbytes)


class TensorFile:
    """One safetensors file, open for reading ranges of it.

    Raises
    ------
    UserError
        If it cannot be read, is no regular file, or its header does not hold; names the tensor.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            # a pipe or a device would block or never end
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise UserError(f"{self.path}: not a regular file: name a safetensors file")
            self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror}): {_COPY}") from None
        try:
            self.entries = self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> dict[str, Entry]:
        size = os.fstat(self._fd).st_size
        if size < 8:
            raise UserError(f"{self.path}: {size} bytes are no safetensors file: {_COPY}")
        length = int.from_bytes(os.pread(self._fd, 8, 0), "little")
        if length > size - 8:
            raise UserError(f"{self.path}: truncated: {size} bytes, the header alone takes {length}: {_COPY}")
        if length > MAX_HEADER:
            raise UserError(f"{self.path}: the header takes {length} bytes, at most {MAX_HEADER} are read: {_COPY}")
        raw = bytearray(length)
        self.fill(memoryview(raw), 8, "header")
        return parse_header(bytes(raw), str(self.path), 8 + length, size)

    def fill(self, buffer: memoryview, start: int, name: str) -> None:
        """Read ``len(buffer)`` bytes from `start` on into `buffer`; `name` is the tensor's, for an error."""
        done = 0
        while done < len(buffer):
            try:
                got = os.preadv(self._fd, [buffer[done : done + (1 << 30)]], start + done)
            except OSError as error:
                raise UserError(f"{self.path}: tensor {name!r} cannot be read ({error.strerror}): {_COPY}") from None
            if not got:
                raise UserError(f"{self.path}: truncated while it was read, in tensor {name!r}: {_COPY}")
            done += got

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._fd)


class Weights:
    """The tensors of a checkpoint over all its files, under the names of the text-only model.

    Of a multimodal checkpoint only the language tower has names here.
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], files: Sequence[TensorFile]) -> None:
        self.directory = directory
        self.config = dict(config)
        self.bytes_read = 0
        self._prefix = ""
        self._files = files
        self._lock = threading.Lock()
        self._where: dict[str, tuple[TensorFile, Entry, str]] = {}
        tower = "vision_config" in config and "text_config" in config
        for file in files:
            for stored, entry in file.entries.items():
                name = language_name(stored)
                if tower and name == stored:
                    continue
                if name in self._where:
                    other = self._where[name][0].path.name
                    raise UserError(
                        f"{file.path}: tensor {stored!r} is in {other} too: keep the files of one checkpoint"
                    )
                self._where[name] = (file, entry, stored)

    def names(self) -> list[str]:
        """Return the tensors' names."""
        return list(self._where)

    def without_prefix(self, prefix: str) -> None:
        """Call the tensors as the decoder alone does: without the prefix that the whole model gives their names."""
        self._prefix = prefix
        self._where = {name.removeprefix(prefix): place for name, place in self._where.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def _find(self, name: str) -> tuple[TensorFile, Entry, str]:
        if name not in self._where:
            raise UserError(f"{self.directory}: tensor {self._prefix + name!r} is missing: {_COPY}")
        return self._where[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._find(name)[1].shape

    def n_elements(self) -> int:
        """Return the number of elements of all tensors."""
        return sum(math.prod(entry.shape) for _, entry, _ in self._where.values())

    def nbytes(self, name: str) -> int:
        """Return a tensor's size in the file, in bytes."""
        return self._find(name)[1].nbytes

    def dtype(self, name: str) -> torch.dtype:
        """Return a tensor's number type.

        Raises
        ------
        UserError
            If it is none of the floating types that weights are computed with.
        """
        file, entry, stored = self._find(name)
        if entry.dtype not in _FLOATS:
            raise UserError(
                f"{file.path}: tensor {stored!r} is stored as {entry.dtype}: only F64, F32, F16 and BF16 are read; "
                "save the checkpoint in bfloat16"
            )
        return _FLOATS[entry.dtype]

    def read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """Read a tensor, into the bytes of `out` (uint8, its size) where given, and refuse NaN and infinity.

        Raises
        ------
        UserError
            If it is missing, truncated or not finite; names the file and the tensor.
        """
        file, entry, stored = self._find(name)
        dtype = self.dtype(name)
        raw = torch.empty(entry.nbytes, dtype=torch.uint8) if out is None else out
        file.fill(raw.numpy().data, entry.start, stored)
        self._count(entry.nbytes)
        self._refuse_non_finite(raw, dtype, file, stored)
        return raw.view(dtype).view(entry.shape)

    def read_rows(self, name: str, rows: Sequence[int]) -> torch.Tensor:
        """Read ascending rows of a matrix: shape (len(rows), columns); nothing between them is read."""
        file, entry, stored = self._find(name)
        dtype = self.dtype(name)
        if len(entry.shape) != 2 or not rows or max(rows) >= entry.shape[0] or list(rows) != sorted(set(rows)):
            raise ValueError(f"rows: not ascending rows of {name} {entry.shape}")
        width = entry.nbytes // entry.shape[0]
        raw = torch.empty(len(rows) * width, dtype=torch.uint8)
        view, first = raw.numpy().data, 0
        for last in range(1, len(rows) + 1):
            # neighbours in one call
            if last == len(rows) or rows[last] != rows[last - 1] + 1:
                file.fill(view[first * width : last * width], entry.start + rows[first] * width, stored)
                first = last
        self._count(len(view))
        self._refuse_non_finite(raw, dtype, file, stored)
        return raw.view(dtype).view(len(rows), entry.shape[1])

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.bytes_read += nbytes

    def _refuse_non_finite(self, raw: torch.Tensor, dtype: torch.dtype, file: TensorFile, stored: str) -> None:
        kind, mask, infinity = _PATTERNS[dtype]
        bits = raw.numpy().view(kind)
        step = _PIECE // bits.itemsize
        place = np.empty(min(step, len(bits)), dtype=kind)
        for start in range(0, len(bits), step):
            piece = bits[start : start + step]
            found = np.bitwise_and(piece, kind(mask), out=place[: len(piece)])
            # all exponent bits set: infinity or NaN
            if found.max() >= infinity:
                raise UserError(
                    f"{file.path}: tensor {stored!r} holds NaN or infinity: the checkpoint is broken; "
                    "take an earlier one, or copy it again"
                )

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_weights(directory: Path | str) -> Weights:
    """Open a checkpoint directory for reading its decoder's tensors.

    Raises
    ------
    UserError
        If the directory holds no readable checkpoint (see `refbias.models.files.check_directory`), a
        file of weights is missing, truncated or inconsistent, or two files hold the same tensor.
    """
    directory = Path(directory)
    config = check_directory(directory, tokenizer=False)
    files: list[TensorFile] = []
    try:
        for path in weight_files(directory):
            files.append(TensorFile(path))
        _check_index(directory / "model.safetensors.index.json", {file.path.name: file for file in files})
        return Weights(directory, config, files)
    except BaseException:
        for file in files:
            file.close()
        raise


def _check_index(index: Path, files: Mapping[str, TensorFile]) -> None:
    """Refuse an index that promises a tensor which its file does not hold."""
    if not index.is_file():
        return
    for name, file in read_json(index)["weight_map"].items():
        if name not in files[file].entries:
            raise UserError(f"{index}: tensor {name!r} is not in {file}: {_COPY}")
