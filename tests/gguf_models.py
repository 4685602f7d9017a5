"""GGUF files of tiny Llama checkpoints, written with the format's library in the layout of llama.cpp's converter."""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

if TYPE_CHECKING:
    from gguf import GGUFWriter

_CONTROL, _NORMAL, _UNUSED = 3, 1, 5
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """Return what llama.cpp calls a tensor of a Llama checkpoint."""
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outer:
        return f"{outer[stem]}.weight"
    _, _, number, rest = stem.split(".", 3)
    return f"blk.{number}.{_NAMES[rest]}.weight"


def _paired(matrix: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Interleave the two halves of every head's rows: llama.cpp rotates neighbours, transformers halves."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def small_gguf(path: Path, describe: Callable[["GGUFWriter"], None]) -> bytes:
    """Write a Llama file of two small tensors, which `describe` gives its fields, and return its bytes."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    describe(writer)
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("output_norm.weight", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def write_gguf(source: Path, target: Path, *, without: Collection[str] = (), **lies: int) -> Path:
    """Write a tiny Llama checkpoint as a GGUF file in fp32.

    Parameters
    ----------
    source
        Checkpoint folder of `tests.tiny`.
    target
        The file.
    without
        Tensors (as the checkpoint calls them) that are left out.
    **lies
        ``block_count`` or ``embedding_length`` other than the checkpoint's.
    """
    from gguf import GGUFWriter

    target.parent.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(lies.get("embedding_length", config["hidden_size"]))
    writer.add_block_count(lies.get("block_count", config["num_hidden_layers"]))
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, source, config)
    for name, tensor in load_file(source / "model.safetensors").items():
        if name in without:
            continue
        matrix = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            matrix = _paired(matrix, heads)
        elif name.endswith("k_proj.weight"):
            matrix = _paired(matrix, kv_heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_tokenizer(writer: Any, source: Path, config: dict[str, Any]) -> None:
    stored = json.loads((source / "tokenizer.json").read_text())
    places = {number: token for token, number in stored["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in stored["added_tokens"]}
    numbers = range(config["vocab_size"])
    tokens = [special.get(number, places.get(number, f"[PAD{number}]")) for number in numbers]
    kinds = [_CONTROL if number in special else _NORMAL if number in places else _UNUSED for number in numbers]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(True)
