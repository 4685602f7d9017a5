"""A tiny random RoBERTa sequence classifier with a tokenizer of its own."""

from pathlib import Path
from typing import Any

import torch

from tests.tiny import SENTENCES

POSITIONS = 40
VOCABULARY = 320
BOS, PAD, EOS, UNK, MASK = range(5)


def build_tokenizer(folder: Path, vocabulary: int = VOCABULARY) -> None:
    """Train a byte-level BPE with RoBERTa's special tokens and save it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from tokenizers.processors import RobertaProcessing
    from transformers import PreTrainedTokenizerFast

    special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    tokenizer.post_processor = RobertaProcessing(("</s>", EOS), ("<s>", BOS), add_prefix_space=False)
    names = {f"{name}_token": token for name, token in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


def build_roberta(folder: Path, labels: dict[int, str] | None = None, **changes: Any) -> Path:
    """Write a random classifier with labels ``LABEL_0`` and ``LABEL_1``, or others, and its tokenizer."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    labels = labels or {0: "LABEL_0", 1: "LABEL_1"}
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        # the default spread would leave every probability at one half
        initializer_range=0.6,
        id2label=labels,
        label2id={name: index for index, name in labels.items()},
        **changes,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        RobertaForSequenceClassification(config).save_pretrained(folder)
    build_tokenizer(folder)
    return folder
