"""Reading of safetensors files that nobody vouches for: what is wrong is one line that names it."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from refbias.errors import UserError
from refbias.stream.shards import MAX_HEADER, TensorFile, open_weights, parse_header
from tests.tiny import build_tiny

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16), "c": torch.zeros(0, 3)}


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def write(path: Path, header: Any, data: bytes = b"\0" * 8, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_files_of_the_library_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"note": "{[{["})
    file = TensorFile(tmp_path / "x.safetensors")
    assert {name: (part.dtype, part.shape) for name, part in file.entries.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("BF16", (4,)),
        "c": ("F32", (0, 3)),
    }
    for name, tensor in TENSORS.items():
        buffer = bytearray(file.entries[name].nbytes)
        file.fill(memoryview(buffer), file.entries[name].start, name)
        assert bytes(buffer) == tensor.view(torch.uint8).numpy().tobytes()
    file.close()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a": 1, "a": 2}', "a name occurs twice"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "not JSON"),
        (b"{" * 300_000, "more than 200000 tensors"),
        ([1], "no JSON object"),
        ({"a": 5}, "tensor 'a': its entry must hold"),
        ({"a": {**entry(), "code": "x"}}, "its entry must hold"),
        ({"a": entry(dtype="PICKLE")}, "unknown number type 'PICKLE'"),
        ({"a": entry(shape=[-1])}, "shape is not a list"),
        ({"a": entry(shape=[True])}, "shape is not a list"),
        ({"a": entry(shape=[2**60])}, "shape is not a list"),
        ({"a": entry(shape=[1] * 9)}, "shape is not a list"),
        ({"a": entry(offsets=[0])}, "data_offsets are not two"),
        ({"a": entry(offsets=[8, 0])}, "-8 bytes for F32"),
        ({"a": entry(shape=[3])}, r"8 bytes for F32 of shape \(3,\), which takes 12"),
        ({"a": entry(shape=[2**55] * 8)}, "8 bytes for F32"),
        ({"a": entry(), "b": entry()}, "tensor 'b' overlaps 'a'"),
        ({"a": entry(shape=[1], offsets=[4, 8])}, "tensor 'a' leaves a gap"),
        ({"a": entry(shape=[1], offsets=[0, 4])}, "4 bytes after the last tensor 'a'"),
        ({"a": entry(shape=[4], offsets=[0, 16])}, "truncated: .* tensor 'a' ends at"),
        ({"a\n\x1b[31m": entry()}, "not a name of 1 to 512 printable characters"),
        ({"": entry()}, "not a name"),
    ],
)
def test_headers_that_do_not_hold(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        TensorFile(write(tmp_path / "x.safetensors", header))
    assert "\n" not in str(caught.value)
    assert "x.safetensors: " in str(caught.value)


def test_sizes_are_checked_before_memory_is_taken(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        for length in (2**63, 2**40, 1000):
            with pytest.raises(UserError, match=f"truncated: .* bytes, the header alone takes {length}"):
                TensorFile(write(tmp_path / "x.safetensors", {"a": entry()}, length=length))
        path = tmp_path / "y.safetensors"
        write(path, {"a": entry()}, length=MAX_HEADER + 1)
        # a hole that takes no space
        os.truncate(path, 2**33)
        with pytest.raises(UserError, match="at most .* are read"):
            TensorFile(path)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    (tmp_path / "z.safetensors").write_bytes(b"\1\0")
    with pytest.raises(UserError, match="2 bytes are no safetensors file"):
        TensorFile(tmp_path / "z.safetensors")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "not a regular file"), ("none", "cannot be read"), (".", "not a regular file")):
        with pytest.raises(UserError, match=message):
            TensorFile(tmp_path / name)


numbers = st.one_of(st.integers(-3, 40), st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=3))
near = st.dictionaries(
    st.sampled_from(["dtype", "shape", "data_offsets", "x"]),
    st.one_of(numbers, st.sampled_from(["F32", "BF16", "U8"]), st.lists(numbers, max_size=4)),
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "F6_E2M3"]),
        "shape": st.lists(st.integers(0, 4), max_size=3),
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2).map(sorted),
    }
)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.dictionaries(st.text(max_size=5), st.one_of(near, entries, numbers), max_size=4).map(
            lambda value: json.dumps(value).encode()
        ),
        st.recursive(numbers, lambda part: st.lists(part) | st.dictionaries(st.text(max_size=2), part)).map(
            lambda value: json.dumps(value).encode()
        ),
    ),
    st.integers(8, 300),
)
def test_any_header_is_read_or_refused_in_one_line(raw: bytes, size: int) -> None:
    try:
        found = parse_header(raw, "f", 8 + len(raw), size)
    except UserError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return
    at = 8 + len(raw)
    for part in sorted(found.values(), key=lambda part: (part.start, part.nbytes)):
        assert part.start == at
        at += part.nbytes
    assert at == size


@given(st.binary(max_size=64), st.integers(0, 200), st.data())
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, cut: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save_file(TENSORS, path)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + len(junk)] = junk
    path.write_bytes(bytes(content[: max(0, len(content) - cut)]))
    try:
        file = TensorFile(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        file.close()


# --- directories -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("llama", tmp_path_factory.mktemp("tiny") / "m", seed=3)


def copied(folder: Path, out: Path) -> Path:
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out


def test_rows_and_tensors_are_counted(tiny: Path) -> None:
    from safetensors.torch import load_file

    expected = load_file(tiny / "model.safetensors")
    with open_weights(tiny) as weights:
        name = "model.embed_tokens.weight"
        rows = [0, 1, 2, 7, 9, 10, 319]
        assert torch.equal(weights.read_rows(name, rows), expected[name][rows])
        assert weights.bytes_read == len(rows) * 32 * 4
        for name, tensor in expected.items():
            assert torch.equal(weights.read(name), tensor)
            assert weights.shape(name) == tuple(tensor.shape)
            assert weights.dtype(name) == tensor.dtype
        assert weights.bytes_read == len(rows) * 32 * 4 + sum(tensor.nbytes for tensor in expected.values())
        assert set(weights.names()) == set(expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_values_that_are_not_finite_are_found_wherever_they_are(
    tiny: Path, tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    folder = copied(tiny, tmp_path / "m")
    tensor = torch.full((300, 1000), torch.finfo(dtype).max, dtype=dtype)
    for place in (0, 299_999, 131_072, -1):
        spoiled = tensor.clone()
        if place >= 0:
            spoiled.view(-1)[place] = value
        save_file({"t": spoiled}, folder / "model.safetensors")
        with open_weights(folder) as weights:
            if place < 0:
                assert torch.equal(weights.read("t"), tensor)
            else:
                with pytest.raises(UserError, match="model.safetensors: tensor 't' holds NaN or infinity"):
                    weights.read("t")


def test_directories_that_are_refused(tiny: Path, tmp_path: Path) -> None:
    cases: dict[str, tuple[Any, str]] = {
        "pickle": (lambda at: (at / "model.safetensors").rename(at / "pytorch_model.bin"), "only as pickle"),
        "code": (
            lambda at: (at / "config.json").write_text('{"auto_map": {"AutoModel": "evil.Model"}}'),
            r"config.json: asks for remote code \(auto_map\)",
        ),
        "nested": (
            lambda at: (at / "config.json").write_text('{"text_config": {"auto_map": {"AutoModel": "evil.Model"}}}'),
            r"config.json: asks for remote code \(auto_map\)",
        ),
        "list": (lambda at: (at / "config.json").write_text("[1]"), "config.json: no JSON object"),
        "deep": (lambda at: (at / "config.json").write_text('{"a":' * 100_000), "config.json.*not JSON"),
        "short": (lambda at: os.truncate(at / "model.safetensors", 50_000), "truncated: 50000 bytes"),
        "shard": (
            lambda at: (at / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
            ),
            "names model-00001-of-00002.safetensors that is missing",
        ),
        "path": (
            lambda at: (at / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}'),
            "names '../x.safetensors', which is no file name",
        ),
        "absent": (
            lambda at: (at / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model.safetensors"}}'),
            "tensor 'a' is not in model.safetensors",
        ),
        "index": (
            lambda at: (at / "model.safetensors.index.json").write_text('{"weight_map": [1]}'),
            "weight_map is no mapping of tensors to files",
        ),
    }
    for name, (spoil, message) in cases.items():
        folder = copied(tiny, tmp_path / name)
        spoil(folder)
        with pytest.raises(UserError, match=message) as caught:
            open_weights(folder)
        assert "\n" not in str(caught.value)


def test_a_tensor_in_two_files_and_one_of_a_strange_type(tiny: Path, tmp_path: Path) -> None:
    folder = copied(tiny, tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for name in ("a", "b"):
        save_file({"x": torch.zeros(3), name: torch.zeros(3, dtype=torch.int8)}, folder / f"{name}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}')
    with pytest.raises(UserError, match=r"b.safetensors: tensor 'x' is in a.safetensors too"):
        open_weights(folder)
    save_file({"b": torch.zeros(3)}, folder / "b.safetensors")
    with open_weights(folder) as weights, pytest.raises(UserError, match="tensor 'a' is stored as I8"):
        weights.read("a")
