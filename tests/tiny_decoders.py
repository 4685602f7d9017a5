"""Tiny random checkpoints of more decoders than `tests.tiny` has, for what should work with any of them."""

from pathlib import Path
from typing import Any

from tests.tiny import BOS, EOS, PAD, VOCABULARY, build_tokenizer

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
}
_SLIDING = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_OWN: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": True, "max_window_layers": 1, **_SLIDING},
    "qwen3": {"head_dim": 16},
    "phi3": {"original_max_position_embeddings": 128},
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 128, "n_inner": 48},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16},
    "gpt_neox": {},
    "olmo2": {},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16, **_SLIDING},
    "starcoder2": {},
    "mixtral": {"num_local_experts": 3},
    "gemma3n_text": {
        "head_dim": 16,
        "num_kv_shared_layers": 1,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "layer_types": ["full_attention", "full_attention", "full_attention"],
        "activation_sparsity_pattern": [0.0, 0.0, 0.0],
    },
}


def build_decoder(kind: str, out_dir: Path | str, seed: int = 0, **changes: Any) -> Path:
    """Write a random checkpoint of transformers' model type `kind` with its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    out_dir = Path(out_dir)
    config = AutoConfig.for_model(kind, **{**_COMMON, **_OWN[kind], **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # biases start at zero and norms at one, which would hide one that is left out
            if parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(out_dir)
    build_tokenizer(out_dir)
    return out_dir
