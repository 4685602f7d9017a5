"""New tokens a second against plain ``model.generate`` on the same prompts and number of samples."""

import statistics
from typing import Any

import torch

from bench.measure import Result, take_turns
from refbias.benchmarks import BENCHMARKS, Sampling
from refbias.config.benchmarks import DecodingTrustSettings
from refbias.generation import Request
from refbias.generation.hf import generate
from refbias.models import prompt_ids

SAMPLING = Sampling(samples=4, temperature=1.0, top_p=1.0, max_new_tokens=24)
PROMPTS = 24


def plain_generate(model: Any, tokenizer: Any, requests: list[Request]) -> int:
    """Sample with transformers' own loop, all prompts in one left-padded batch; return the new tokens."""
    width = max(len(request.ids) for request in requests)
    ids = torch.full((len(requests), width), tokenizer.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        ids[row, width - len(request.ids) :] = torch.tensor(request.ids)
        mask[row, width - len(request.ids) :] = 1
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=SAMPLING.temperature,
        top_k=0,
        top_p=SAMPLING.top_p,
        num_return_sequences=SAMPLING.samples,
        max_new_tokens=SAMPLING.max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
    )
    new = out[:, width:]
    # what comes after the end is padding; the token that ends counts
    ended = (new == tokenizer.eos_token_id).cumsum(1)
    return int((ended - (new == tokenizer.eos_token_id).long() == 0).sum())


def run(model: Any, tokenizer: Any, repeats: int) -> list[Result]:
    """Measure generation.

    Parameters
    ----------
    model, tokenizer
        Causal language model and its tokenizer.
    repeats
        Turns.
    """
    settings = DecodingTrustSettings(system_prompts=["benign"], repeat_task=False)
    prompts = BENCHMARKS["decodingtrust"].load_prompts(settings, 17)[:PROMPTS]
    requests = [Request(p.id, p.unit, tuple(prompt_ids(tokenizer, p.messages, "auto"))) for p in prompts]
    counts: dict[str, list[int]] = {"refbias": [], "plain": []}

    def ours(_: None) -> None:
        outputs = generate(model, tokenizer, requests, SAMPLING, 17, benchmark="bench", batch_size=PROMPTS * 4)
        counts["refbias"].append(sum(output.n_tokens for output in outputs))

    def plain(_: None) -> None:
        counts["plain"].append(plain_generate(model, tokenizer, requests))

    torch.manual_seed(17)
    seconds = take_turns({"refbias": ours, "plain": plain}, [None], repeats)
    # sampled lengths differ from turn to turn
    rates = {name: statistics.median(counts[name][1:]) / seconds[name] for name in counts}
    note = f"{len(requests)} prompts x {SAMPLING.samples} samples, {SAMPLING.max_new_tokens} new tokens at most, fp32"
    return [
        Result(
            "generation: plain model.generate(do_sample=True)",
            rates["refbias"],
            rates["plain"],
            "new tokens/s",
            rates["refbias"] / rates["plain"],
            "> 1",
            note,
        )
    ]
