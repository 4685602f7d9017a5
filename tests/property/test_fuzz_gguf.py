"""Any GGUF file is read, or told in one line what to mend."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refbias.models.gguf_file import check_gguf, dequantise
from tests.fuzzing import FEW, MANY, edited, edits, result_or_line
from tests.gguf_models import small_gguf

if TYPE_CHECKING:
    from gguf import GGUFWriter


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file that names an architecture and holds values of every kind."""

    def describe(writer: "GGUFWriter") -> None:
        writer.add_context_length(64)
        writer.add_embedding_length(4)
        writer.add_block_count(1)
        writer.add_feed_forward_length(4)
        writer.add_head_count(1)
        writer.add_vocab_size(3)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_merges(["a b"])
        writer.add_add_bos_token(True)

    return small_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", describe)


@MANY
@given(content=st.binary(max_size=120).map(lambda rest: b"GGUF\x03\x00\x00\x00" + rest))
def test_any_gguf_header_is_read_or_a_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(content)
    result_or_line(lambda: check_gguf(path))


@MANY
@given(changes=edits)
def test_an_edited_gguf_file_is_read_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, gguf_bytes: bytes, changes: list[tuple[float, bytes]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "edited.gguf"
    path.write_bytes(edited(gguf_bytes, changes))
    result_or_line(lambda: check_gguf(path))


@FEW
@given(changes=st.one_of(st.just([]), edits))
def test_what_passes_the_check_is_dequantised_or_a_line(
    tmp_path_factory: pytest.TempPathFactory, gguf_bytes: bytes, changes: list[tuple[float, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("dequantise")
    path = folder / "model.gguf"
    path.write_bytes(edited(gguf_bytes, changes))
    (folder / "out").mkdir()

    def read() -> None:
        check_gguf(path)
        dequantise(path, folder / "out", "float32")

    result_or_line(read)
