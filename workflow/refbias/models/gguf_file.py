"""GGUF files: their bounds checked before any library reads them, then de-quantised into a plain directory.

A GGUF file is untrusted input whose header says how much to read and where. Every length and offset
is held against the size of the file first, so that a broken or hostile header costs neither memory
nor time (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

import contextlib
import functools
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.errors import UserError
from refbias.models.files import refuse_tokenizer_code
from refbias.models.load import refuse_incomplete
from refbias.models.sizes import MAX_COUNT, build_empty, check_total

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# bytes of a metadata value by its type's number; 8 = string, 9 = array
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_WHOLE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
_STRING, _ARRAY = 8, 9
_DEEPEST = 4
_MOST_DIMENSIONS = 4


class _Reader:
    """Walks over a header; every step stays inside the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def refuse(self, what: str) -> UserError:
        return UserError(f"{self.path}: not a whole GGUF file: {what} (byte {self.at}): copy or convert it again")

    def skip(self, size: int, what: str) -> int:
        start = self.at
        if size < 0 or size > len(self.data) - start:
            raise self.refuse(f"{what} reaches beyond the end of the file")
        self.at = start + size
        return start

    def number(self, code: str, what: str) -> int:
        start = self.skip(struct.calcsize("<" + code), what)
        return int(struct.unpack_from("<" + code, self.data, start)[0])

    def text(self, what: str) -> str:
        length = self.number("Q", f"length of {what}")
        start = self.skip(length, what)
        # names are short; what is long is a value that nobody reads here
        return self.data[start : start + min(length, 256)].decode("utf-8", "replace")

    def value(self, kind: int, key: str, depth: int = 0) -> int | None:
        """Pass over a value; return it where it is a whole number."""
        if kind == _STRING:
            self.text(f"value of {key!r}")
        elif kind == _ARRAY:
            self._array(key, depth)
        elif kind in _SIZES:
            start = self.skip(_SIZES[kind], f"value of {key!r}")
            return int(struct.unpack_from(f"<{_WHOLE[kind]}", self.data, start)[0]) if kind in _WHOLE else None
        else:
            raise self.refuse(f"value of {key!r} has the unknown type {kind}")
        return None

    def _array(self, key: str, depth: int) -> None:
        if depth >= _DEEPEST:
            raise self.refuse(f"value of {key!r} is nested too deeply")
        kind = self.number("I", f"type of {key!r}")
        count = self.number("Q", f"length of {key!r}")
        if kind in _SIZES:
            if count > len(self.data):
                raise self.refuse(f"value of {key!r} reaches beyond the end of the file")
            self.skip(count * _SIZES[kind], f"value of {key!r}")
            return
        # an element takes at least the eight bytes of its length
        if count > (len(self.data) - self.at) // 8:
            raise self.refuse(f"value of {key!r} reaches beyond the end of the file")
        for _ in range(count):
            self.value(kind, key, depth + 1)


def check_gguf(path: Path | str) -> int:
    """Hold every length and offset of a GGUF file against its size.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    int
        Number of tensors.

    Raises
    ------
    UserError
        If the file is missing, no GGUF file, of a version that is not read, or says of any part that
        it lies beyond the end; names the part.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if path.stat().st_size < 24:
        raise UserError(f"{path}: not a whole GGUF file: shorter than its header: copy it again")
    with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _check(_Reader(path, data))


def _check(reader: _Reader) -> int:
    if reader.data[:4] != MAGIC:
        raise UserError(f"{reader.path}: not a GGUF file (its first bytes are not 'GGUF')")
    reader.at = 4
    version = reader.number("I", "version")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UserError(f"{reader.path}: GGUF version {version}: versions {known} of little-endian files are read")
    n_tensors = reader.number("Q", "number of tensors")
    n_values = reader.number("Q", "number of metadata values")
    alignment = 32
    for _ in range(_bounded(reader, n_values, 12, "metadata values")):
        key = reader.text("a metadata key")
        found = reader.value(reader.number("I", f"type of {key!r}"), key)
        if key == "general.alignment" and found is not None:
            alignment = found
        # every block has tensors of its own; a loop is run for each
        if key.endswith(".block_count") and found is not None and found > n_tensors:
            raise reader.refuse(f"{key!r} is {found}, with {n_tensors} tensors in all")
        if key.endswith(".expert_count") and found is not None and found > MAX_COUNT:
            raise reader.refuse(f"{key!r} is {found}")
    if alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise reader.refuse(f"alignment {alignment} is no power of two")
    ends = [_tensor(reader) for _ in range(_bounded(reader, n_tensors, 24, "tensors"))]
    start = -(-reader.at // alignment) * alignment
    for name, offset, size in ends:
        if offset % alignment or offset + size > len(reader.data) - start:
            raise reader.refuse(f"tensor {name!r} reaches beyond the end of the file or is misplaced")
    if not ends:
        raise reader.refuse("it holds no tensor")
    return len(ends)


def _bounded(reader: _Reader, count: int, least: int, what: str) -> int:
    if count > (len(reader.data) - reader.at) // least:
        raise reader.refuse(f"{count} {what} do not fit into the file")
    return count


def _tensor(reader: _Reader) -> tuple[str, int, int]:
    """Return name, offset and bytes of the next tensor."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name = reader.text("a tensor's name")
    n_dimensions = reader.number("I", f"dimensions of {name!r}")
    if not 1 <= n_dimensions <= _MOST_DIMENSIONS:
        raise reader.refuse(f"tensor {name!r} has {n_dimensions} dimensions")
    elements, first = 1, 0
    for axis in range(n_dimensions):
        size = reader.number("Q", f"shape of {name!r}")
        first = first if axis else size
        elements *= size
    kind = reader.number("I", f"type of {name!r}")
    offset = reader.number("Q", f"offset of {name!r}")
    try:
        block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise reader.refuse(f"tensor {name!r} has the unknown type {kind}") from None
    if not elements or first % block:
        raise reader.refuse(f"tensor {name!r} has a shape that its type cannot hold")
    return name, offset, elements // block * width


def dequantise(path: Path, out_dir: Path, dtype: str) -> bool:
    """Write a GGUF file's model as a plain transformers directory.

    Parameters
    ----------
    path
        A file that `check_gguf` accepts.
    out_dir
        An existing folder.
    dtype
        ``float32`` or ``bfloat16``: number type of the de-quantised weights.

    Returns
    -------
    bool
        Whether the tokenizer puts a BOS before a text.

    Raises
    ------
    UserError
        If transformers cannot read a model of this architecture from GGUF, a tensor is missing, the metadata make
        a far larger model than the tensors, or a tokenizer beside the file asks for code of its own.
    """
    # a GGUF file names no type for its de-quantised weights
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = str(path.parent)
    # transformers looks for a tokenizer's settings beside the file
    refuse_tokenizer_code(folder)
    model: PreTrainedModel
    with one_parse():
        try:
            options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
            check_total(build_empty(path, config), _elements(path), path)
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                quantization_config=GgufConfig(dequantize=True),
                output_loading_info=True,
                trust_remote_code=False,
                **options,
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)
            refuse_incomplete(path, model, info)
        except UserError:
            raise
        # a damaged file can make three libraries stumble in any way; nothing of ours runs in here
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path}: transformers cannot read it ({type(error).__name__}: {text}): "
                "give the model as a directory of safetensors"
            ) from None
        adds_bos = tokenizer_adds_bos(path)
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path"):
        model.config.__dict__.pop(key, None)
    model.save_pretrained(out_dir, max_shard_size="1000GB")
    save_tokenizer(tokenizer, out_dir, adds_bos)
    return adds_bos


def _elements(path: Path) -> int:
    """Return the number of elements of a GGUF file's tensors."""
    from gguf import GGUFReader

    return sum(int(tensor.n_elements) for tensor in GGUFReader(str(path)).tensors)


@contextlib.contextmanager
def one_parse() -> Iterator[None]:
    """Let one parse of a GGUF file serve everything that reads it inside the block.

    transformers parses the file anew for configuration, weights and tokenizer, and a vocabulary of
    262,144 makes each parse take as long as the rest of the conversion.
    """
    import gguf
    import numpy as np

    parse = gguf.GGUFReader

    class PlainReader(gguf.GGUFReader):  # type: ignore[misc]
        """Slices the mapped file as a plain array: the millions of small slices of a memmap take twice as long."""

        @property
        def data(self) -> "npt.NDArray[np.uint8]":
            return self._plain

        @data.setter
        def data(self, mapped: "npt.NDArray[np.uint8]") -> None:
            self._plain = mapped.view(np.ndarray)

    gguf.GGUFReader = functools.cache(PlainReader)
    try:
        yield
    finally:
        gguf.GGUFReader = parse


def tokenizer_adds_bos(path: Path) -> bool:
    """Tell whether a GGUF file's metadata asks for a BOS before a text."""
    from gguf import GGUFReader

    field = GGUFReader(str(path)).fields.get("tokenizer.ggml.add_bos_token")
    return bool(field.contents()) if field is not None else False


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", out_dir: Path, adds_bos: bool) -> None:
    """Save a tokenizer that puts one BOS before a text, as the file's metadata asks for.

    The conversion from GGUF leaves the post-processor empty, so the flag would be lost.

    Raises
    ------
    UserError
        If a BOS is asked for and there is none.
    """
    import json

    from tokenizers.processors import TemplateProcessing

    if adds_bos:
        if tokenizer.bos_token_id is None:
            raise UserError(
                "tokenizer.ggml.add_bos_token is true, but the GGUF file names no BOS token "
                "(tokenizer.ggml.bos_token_id): use a complete file"
            )
        bos = str(tokenizer.bos_token)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.save_pretrained(out_dir)
    # how this machine came by the files is no property of the tokenizer
    path = out_dir / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in ("is_local", "local_files_only", "name_or_path")}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
