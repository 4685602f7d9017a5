"""Embedding throughput against the machine's matrix products, a padded loop and sentence-transformers."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.measure import Result, take_turns
from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, batches, embed_sentences, tokenise

BATCH = 32  # sentences a batch of the two baselines: the default of sentence-transformers


def matrix_products(model: Any, attention: bool, budget: int) -> Callable[[Tokenised], None]:
    """Return a function that computes the model's matrix products, and nothing else, at the batches used.

    Parameters
    ----------
    model
        Decoder.
    attention
        Whether the two products inside attention (scores and mixing) count too.
    budget
        Tokens a batch holds at most.
    """
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    config = model.config
    most = 2 * budget
    inputs = {width: torch.randn(most, width) for width in {weight.shape[1] for weight in weights}}
    heads, width = config.num_attention_heads, config.head_dim
    query = torch.randn(most * heads * width)

    def run(tokens: Tokenised) -> None:
        with torch.inference_mode():
            for members in batches([len(ids) for ids in tokens.ids], budget):
                rows, length = len(members), len(tokens.ids[members[0]])
                for weight in weights:
                    torch.nn.functional.linear(inputs[weight.shape[1]][: rows * length], weight)
                if attention:
                    states = query[: rows * heads * length * width].view(rows * heads, length, width)
                    for _ in range(config.num_hidden_layers):
                        torch.bmm(torch.bmm(states, states.transpose(1, 2)), states)

    return run


def padded_loop(model: Any, tokenizer: Any, texts: list[str]) -> np.ndarray:
    """Embed as a plain loop does: batches in the given order, padded, all hidden states returned."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(texts), BATCH):
            batch = tokenizer(texts[start : start + BATCH], return_tensors="pt", padding=True, padding_side="right")
            states = model(**batch, output_hidden_states=True, use_cache=False).hidden_states[-1]
            mask = batch["attention_mask"][..., None].to(states.dtype)
            parts.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(parts)


def sentence_transformer(folder: Path, threads: int) -> Any:
    """Return the model as sentence-transformers loads it, with mean pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    torch.set_num_threads(threads)
    body = Transformer(str(folder), model_kwargs={"dtype": torch.float32})
    size = body.auto_model.config.hidden_size
    return SentenceTransformer(modules=[body, Pooling(size, pooling_mode="mean")], device="cpu")


def run(model: Any, tokenizer: Any, folder: Path, texts: list[str], budget: int | None, repeats: int) -> list[Result]:
    """Measure everything about embeddings.

    Parameters
    ----------
    model, tokenizer, folder
        Decoder without output layer, its tokenizer and where both lie.
    texts
        Sentences.
    budget
        Tokens a batch; None: the configuration's default.
    repeats
        Turns.
    """
    settings = RepresentSettings() if budget is None else RepresentSettings(token_budget=budget)
    return [
        *_against_products(model, tokenizer, texts, settings, repeats),
        *_against_others(model, tokenizer, folder, texts, settings, repeats),
    ]


def _against_products(
    model: Any, tokenizer: Any, texts: list[str], settings: RepresentSettings, repeats: int
) -> list[Result]:
    tokens = tokenise(tokenizer, texts)
    total = tokens.n_tokens
    bare = matrix_products(model, False, settings.token_budget)
    full = matrix_products(model, True, settings.token_budget)
    seconds = take_turns(
        {
            "refbias": lambda texts: embed_sentences(model, tokenizer, texts, settings),
            "linear": lambda _: bare(tokens),
            "all": lambda _: full(tokens),
        },
        [texts],
        repeats,
    )
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    rate = 2 * weights * total / seconds["linear"] / 1e9
    note = f"{len(texts)} sentences, {total} tokens, budget {settings.token_budget}, {rate:.0f} GFLOP/s"
    ours = total / seconds["refbias"]
    return [
        Result(
            f"embedding: {label}", ours, total / seconds[name], "tokens/s", seconds[name] / seconds["refbias"], *rest
        )
        for name, label, *rest in (
            ("linear", "share of the rate of the model's linear layers", ">= 0.85", note),
            ("all", "share of the rate of all matrix products, attention's too", "", ""),
        )
    ]


def _against_others(
    model: Any, tokenizer: Any, folder: Path, texts: list[str], settings: RepresentSettings, repeats: int
) -> list[Result]:
    found: dict[str, np.ndarray] = {}
    labels = {"padded": "padded unsorted loop with all hidden states", "other": "sentence-transformers"}
    contestants: dict[str, Callable[[list[str]], np.ndarray]] = {
        "refbias": lambda texts: embed_sentences(model, tokenizer, texts, settings),
        "padded": lambda texts: padded_loop(model, tokenizer, texts),
    }
    if importlib.util.find_spec("sentence_transformers") is not None:
        other = sentence_transformer(folder, torch.get_num_threads())
        contestants["other"] = lambda texts: other.encode(texts, batch_size=BATCH, show_progress_bar=False)

    def kept(name: str) -> Callable[[list[str]], object]:
        return lambda texts: found.update({name: contestants[name](texts)})

    seconds = take_turns({name: kept(name) for name in contestants}, [texts], max(1, repeats // 2))
    total = tokenise(tokenizer, texts).n_tokens
    results = []
    for name, label in labels.items():
        measure = f"embedding: {label}"
        if name not in seconds:
            note = "skipped: not installed (pip install sentence-transformers, or make bench)"
            results.append(Result(measure, None, None, "tokens/s", None, "> 1", note))
            continue
        gap = np.abs(found[name] - found["refbias"]).max() / np.abs(found["refbias"]).max()
        rates = total / seconds["refbias"], total / seconds[name]
        note = f"largest difference {gap:.1e} of the largest value"
        results.append(Result(measure, *rates, "tokens/s", rates[0] / rates[1], "> 1", note))
    return results
