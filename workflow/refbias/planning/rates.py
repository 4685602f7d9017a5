"""Seconds of a job on a card, from the numbers of `refbias.planning.facts`; closed forms, no measurement."""

import math

from refbias.planning.facts import (
    BANDWIDTH_SHARE,
    DECODE_SHARE,
    DISK_GB_S,
    PREFILL_SHARE,
    START_S,
    STEP_OVERHEAD_S,
    TRAINING_SHARE,
    Card,
)

TERA, GIGA = 1e12, 1e9
FULL_FLOPS, LORA_FLOPS, FORWARD_FLOPS = 6, 4, 2
"""Operations a parameter and token: forward 2, gradient of activations 2, gradient of weights 2."""


def training_seconds(parameters: float, tokens: float, card: Card, flops: float, slowdown: float = 1.0) -> float:
    """Return the time of a training: operations over the rate that training reaches.

    Parameters
    ----------
    parameters
        Weights of the model.
    tokens
        Tokens of all epochs.
    card
        The GPU.
    flops
        Operations a parameter and token, `FULL_FLOPS` or `LORA_FLOPS`.
    slowdown
        Factor of a memory plan.
    """
    return slowdown * flops * parameters * tokens / (card.tflops * TERA * TRAINING_SHARE)


def forward_seconds(parameters: float, tokens: float, card: Card) -> float:
    """Return the time in which whole sequences of `tokens` in all pass through the model."""
    return FORWARD_FLOPS * parameters * tokens / (card.tflops * TERA * PREFILL_SHARE)


def decoding_seconds(
    parameters: float, outputs: float, new_tokens: float, batch: int, card: Card, backend: str
) -> float:
    """Return the time in which `outputs` responses of `new_tokens` tokens are written, `batch` at a time.

    A step reads every weight once (bf16) or is bound by arithmetic, and has an overhead of its own.
    """
    reading = 2 * parameters / (card.bandwidth_gb_s * GIGA * BANDWIDTH_SHARE)
    arithmetic = FORWARD_FLOPS * parameters * batch / (card.tflops * TERA * DECODE_SHARE)
    step = max(reading, arithmetic) + STEP_OVERHEAD_S[backend]
    return math.ceil(outputs / batch) * new_tokens * step


def loading_seconds(weight_bytes: float) -> float:
    """Return the time in which a job starts and reads its weights."""
    return START_S + weight_bytes / (DISK_GB_S * GIGA)
