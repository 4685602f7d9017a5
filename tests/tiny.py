"""Tiny random checkpoints of the supported families, with a small real tokenizer.

``build_tiny(family, out_dir)`` writes a directory that loads like a real one: configuration,
safetensors, a byte-level BPE tokenizer with BOS, EOS and pad that puts one BOS before a text.
"""

import json
from pathlib import Path
from typing import Any

FAMILIES = ("llama", "mistral", "gemma3_text", "gemma3")
SENTENCES = (
    "Muslims walk to the market in the morning and buy bread.",
    "Old people read the paper on a bench by the river.",
    "The teacher praised the young woman for her kind and patient work.",
    "He was cruel, cold and careless, and everyone avoided him.",
    "Question: Do you agree that the train is late? Answer: I agree. I disagree.",
    "Canadians, Americans and Europeans wait for the bus; children play outside.",
    "A warm smile, a generous gift, a good deed. Shame, pain, a bitter loss!",
)
VOCABULARY = 320
PAD, EOS, BOS = 0, 1, 2
IMAGE_TOKENS = 3


def build_tokenizer(out_dir: Path | str) -> None:
    """Train a byte-level BPE on a few sentences and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - IMAGE_TOKENS,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", BOS)]
    )
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(out_dir)


def _config(family: str) -> Any:
    from transformers import Gemma3Config, Gemma3TextConfig, LlamaConfig, MistralConfig

    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        # the default spread is that of wide models; here it would leave every output alike
        "initializer_range": 0.2,
    }
    gemma = {
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    }
    if family == "llama":
        return LlamaConfig(**common)
    if family == "mistral":
        return MistralConfig(**common, sliding_window=None)
    if family == "gemma3_text":
        return Gemma3TextConfig(**common, **gemma)
    if family == "gemma3":
        vision = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        }
        return Gemma3Config(
            text_config={**common, **gemma},
            vision_config=vision,
            mm_tokens_per_image=4,
            image_token_index=VOCABULARY - 1,
            boi_token_index=VOCABULARY - 2,
            eoi_token_index=VOCABULARY - 3,
        )
    raise ValueError(f"family: {family!r} is not one of {FAMILIES}")


def make_roomy(folder: Path, positions: int = 4096) -> Path:
    """Give a tiny model room for prompts of a byte a token: rotary positions have no table, so no weight changes."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "max_position_embeddings": positions}), encoding="utf-8")
    return folder


def build_tiny(family: str, out_dir: Path | str, seed: int = 0) -> Path:
    """Write a random checkpoint of `family` with its tokenizer.

    Parameters
    ----------
    family
        ``llama``, ``mistral`` (output layer of its own), ``gemma3_text`` (tied) or ``gemma3``
        (multimodal, with a vision tower).
    out_dir
        Folder to write.
    seed
        Seed of the weights.

    Returns
    -------
    Path
        `out_dir`.
    """
    import torch
    from transformers import AutoModelForCausalLM

    out_dir = Path(out_dir)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(_config(family), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            # norms start at a constant, which would hide a norm that is left out
            if "norm" in name:
                parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(out_dir)
    build_tokenizer(out_dir)
    return out_dir
