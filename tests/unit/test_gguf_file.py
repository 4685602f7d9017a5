"""GGUF headers: what lies beyond the end of the file, or makes no sense, is refused before it costs anything."""

import contextlib
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refbias.errors import UserError
from refbias.models.gguf_file import check_gguf
from tests.gguf_models import small_gguf

if TYPE_CHECKING:
    from gguf import GGUFWriter


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file as the format's own library writes it."""

    def describe(writer: "GGUFWriter") -> None:
        writer.add_context_length(128)
        writer.add_token_list(["a", "bc", "déf"])
        writer.add_token_scores([0.0, 1.0, 2.0])

    return small_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", describe)


def check(folder: Path, content: bytes) -> int:
    path = folder / "x.gguf"
    path.write_bytes(content)
    return check_gguf(path)


def test_a_whole_file_passes(whole: bytes, tmp_path: Path) -> None:
    assert check(tmp_path, whole) == 2


def test_every_cut_is_refused(whole: bytes, tmp_path: Path) -> None:
    # the last tensor may be padded: what is missing of the padding is missing of no tensor
    for size in range(0, len(whole) - 32, 7):
        with pytest.raises(UserError, match="GGUF"):
            check(tmp_path, whole[:size])


def header(n_tensors: int, n_values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_values) + rest


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"GGML" + bytes(40), "not a GGUF file"),
        (header(1, 0, bytes(40), version=1), "version 1"),
        (header(1 << 62, 0, bytes(40)), "do not fit"),
        (header(0, 1 << 62, bytes(40)), "do not fit"),
        (header(0, 0, bytes(40)), "holds no tensor"),
        (header(1, 1, struct.pack("<Q", 1 << 63) + bytes(60)), "metadata key"),
        (header(1, 1, text(b"k") + struct.pack("<I", 99) + bytes(60)), "unknown type 99"),
        (header(1, 1, text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 61) + bytes(60)), "beyond the end"),
        (header(1, 1, text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 61) + bytes(60)), "beyond the end"),
        (header(1, 1, text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9 + bytes(60)), "nested"),
        (header(1, 1, text(b"general.alignment") + struct.pack("<II", 4, 3) + bytes(60)), "power of two"),
        (header(1, 0, tensor(b"w", (4, 1 << 61), 0, 0) + bytes(64)), "beyond the end"),
        (header(1, 0, tensor(b"w", (4,), 0, 1 << 62) + bytes(64)), "beyond the end"),
        (header(1, 0, tensor(b"w", (4,), 0, 1) + bytes(64)), "misplaced"),
        (header(1, 0, tensor(b"w", (0,), 0, 0) + bytes(64)), "cannot hold"),
        (header(1, 0, tensor(b"w", (33,), 2, 0) + bytes(64)), "cannot hold"),
        (header(1, 0, tensor(b"w", (4,), 4711, 0) + bytes(64)), "unknown type 4711"),
        (header(1, 0, tensor(b"w", (1,) * 9, 0, 0) + bytes(64)), "9 dimensions"),
    ],
    ids=range(18),
)
def test_lies_are_refused(content: bytes, word: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        check(tmp_path, content)
    assert word in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_file_and_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        check_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(UserError, match="shorter than its header"):
        check(tmp_path, b"")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(4, 200), new=st.binary(min_size=1, max_size=8))
def test_a_changed_header_is_refused_or_read(whole: bytes, tmp_path: Path, at: int, new: bytes) -> None:
    content = whole[:at] + new + whole[at + len(new) :]
    start = time.perf_counter()
    with contextlib.suppress(UserError):
        check(tmp_path, content)
    assert time.perf_counter() - start < 1
