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


def matrix_products(model: Any, tokens: Tokenised, settings: RepresentSettings, attention: bool) -> Callable[[], None]:
    """Return a function that computes the model's matrix products, and nothing else, at the batches used.

    Parameters
    ----------
    model
        Decoder.
    tokens, settings
        Sentences and the token budget that batches them.
    attention
        Whether the two products inside attention (scores and mixing) count too.
    """
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    config = model.config
    shapes = []
    for members in batches([len(ids) for ids in tokens.ids], settings.token_budget):
        shapes.append((len(members), len(tokens.ids[members[0]])))
    most = max(rows * length for rows, length in shapes)
    inputs = {width: torch.randn(most, width) for width in {weight.shape[1] for weight in weights}}
    heads, width = config.num_attention_heads, config.head_dim
    query = torch.randn(most * heads * width)

    def run() -> None:
        with torch.inference_mode():
            for rows, length in shapes:
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
    tokens = tokenise(tokenizer, texts)
    found: dict[str, np.ndarray] = {}

    def ours() -> None:
        found["refbias"] = embed_sentences(model, tokenizer, texts, settings)

    def loop() -> None:
        found["padded"] = padded_loop(model, tokenizer, texts)

    contestants: dict[str, Callable[[], object]] = {
        "refbias": ours,
        "products": matrix_products(model, tokens, settings, attention=False),
        "products and attention": matrix_products(model, tokens, settings, attention=True),
        "padded": loop,
    }
    has_other = importlib.util.find_spec("sentence_transformers") is not None
    if has_other:
        other = sentence_transformer(folder, torch.get_num_threads())

        def theirs() -> None:
            found["other"] = other.encode(texts, batch_size=BATCH, show_progress_bar=False)

        contestants["other"] = theirs
    timing = take_turns(contestants, repeats)
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    rate = 2 * weights * tokens.n_tokens / timing.median("products") / 1e9
    per_second = {name: tokens.n_tokens / timing.median(name) for name in contestants}
    scale = np.abs(found["refbias"]).max()
    note = f"{len(texts)} sentences, {tokens.n_tokens} tokens, budget {settings.token_budget}, {rate:.0f} GFLOP/s"
    results = [
        Result(
            "embedding: share of the rate of the model's linear layers",
            per_second["refbias"],
            per_second["products"],
            "tokens/s",
            timing.ratio("products", "refbias"),
            ">= 0.85",
            note,
        ),
        Result(
            "embedding: share of the rate of all matrix products, attention's too",
            per_second["refbias"],
            per_second["products and attention"],
            "tokens/s",
            timing.ratio("products and attention", "refbias"),
            "",
            "",
        ),
    ]
    rows = [("padded", "padded unsorted loop with all hidden states"), ("other", "sentence-transformers")]
    for name, label in rows:
        if name in timing.seconds:
            gap = f"largest difference {np.abs(found[name] - found['refbias']).max() / scale:.1e} of the largest value"
            speed = timing.ratio(name, "refbias")
            results.append(
                Result(f"embedding: {label}", per_second["refbias"], per_second[name], "tokens/s", speed, "> 1", gap)
            )
        else:
            note = "skipped: not installed (pip install sentence-transformers, or make bench)"
            results.append(Result(f"embedding: {label}", None, None, "tokens/s", None, "> 1", note))
    return results
