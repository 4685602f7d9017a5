"""The layer-streamed forward of a large random Llama checkpoint: seconds a layer, share of the matrix rate, memory.

The checkpoint has the shapes of a Llama of 8B parameters and as many layers as asked for. Its
weights are random, so only the cost means something.
"""

import contextlib
import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.measure import Result
from refbias.artifacts import atomic_path, write_json
from refbias.config.represent import RepresentSettings
from refbias.embed import Tokenised, batches, tokenise
from refbias.lanes import N_LANES, Lanes
from refbias.models import Checkpoint, load_tokenizer
from refbias.stream import StreamResult, single, stream_embeddings

HIDDEN, INNER, HEADS, KEY_HEADS, VOCABULARY = 4096, 14336, 32, 8, 128256
POOL = 1 << 26  # random numbers drawn once; a tensor is a stretch of them from a place of its own
LIMIT_MB = 3000.0


def _shapes() -> dict[str, tuple[int, int]]:
    narrow = HIDDEN // HEADS * KEY_HEADS
    return {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (narrow, HIDDEN),
        "self_attn.v_proj": (narrow, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Write a byte-level tokenizer of up to 4,000 pieces made from the texts; it puts BOS before a text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def random_checkpoint(folder: Path, n_layers: int, texts: list[str], seed: int = 0) -> Path:
    """Write a random Llama checkpoint of the 8B shape in bfloat16, four layers a file; once.

    Parameters
    ----------
    folder
        Where to write it.
    n_layers
        Decoder layers; 32 are the whole 8B (16 GB).
    texts
        What the tokenizer is made from.
    seed
        Of the weights.
    """
    if (folder / "config.json").is_file() and json.loads((folder / "config.json").read_text())[
        "num_hidden_layers"
    ] == n_layers:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(POOL, generator=generator).mul_(0.02).bfloat16()
    pool = torch.cat([pool, pool])

    def drawn(*shape: int) -> torch.Tensor:
        count, parts = shape[0] * shape[1], []
        while count:
            start = int(torch.randint(POOL, (1,), generator=generator))
            parts.append(pool[start : start + min(count, POOL)])
            count -= len(parts[-1])
        return torch.cat(parts).view(shape)

    def ones() -> torch.Tensor:
        return torch.ones(HIDDEN, dtype=torch.bfloat16)

    files: dict[str, str] = {}

    def save(tensors: dict[str, torch.Tensor]) -> None:
        name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
        with atomic_path(folder / name) as path:
            save_file(tensors, path, metadata={"format": "pt"})
        files.update(dict.fromkeys(tensors, name))

    save({"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN)})
    for first in range(0, n_layers, 4):
        tensors = {}
        for layer in range(first, min(first + 4, n_layers)):
            stem = f"model.layers.{layer}"
            tensors |= {f"{stem}.{name}.weight": drawn(*shape) for name, shape in _shapes().items()}
            tensors |= {f"{stem}.{name}.weight": ones() for name in ("input_layernorm", "post_attention_layernorm")}
        save(tensors)
    save({"model.norm.weight": ones(), "lm_head.weight": drawn(VOCABULARY, HIDDEN)})
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})
    write_tokenizer(folder, texts)
    write_json(folder / "config.json", _config(n_layers))
    return folder


def _config(n_layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": n_layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }


def layer_products(tokens: Tokenised, budget: int, dtype: torch.dtype, n_lanes: int = 1) -> float:
    """Return seconds for one layer's matrix products, and nothing else, at the batches that are used.

    Parameters
    ----------
    tokens, budget
        Sentences, and tokens that a batch holds at most.
    dtype
        Number type.
    n_lanes
        Batches under way at once; with one, each product has all threads.
    """
    weights = [torch.randn(shape).mul_(0.02).to(dtype) for shape in _shapes().values()]
    sizes = [len(part) * len(tokens.ids[part[0]]) for part in batches([len(ids) for ids in tokens.ids], budget)]
    inputs = {width: torch.randn(max(sizes), width).to(dtype) for width in (HIDDEN, INNER)}

    def multiply(batch: int) -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]][: sizes[batch]], weight)

    with Lanes(n_lanes) as lanes:
        lanes.map(multiply, sizes[:N_LANES])
        start = time.perf_counter()
        lanes.map(multiply, sizes)
        return time.perf_counter() - start


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Yield a list that holds the largest resident memory (MB) seen inside the context, this process's own pages."""
    peak, stop = [0.0], threading.Event()
    # what earlier work freed is no part of it
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)

    def watch() -> None:
        page = os.sysconf("SC_PAGESIZE")
        while not stop.is_set():
            peak[0] = max(peak[0], int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6)
            stop.wait(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def _pass_seconds(result: StreamResult) -> float:
    """Return what the layers took: computing, and whatever it waited for."""
    return sum(result.seconds[what] for what in ("wait", "merge", "compute", "spill"))


def run(folder: Path, texts: list[str], n_layers: int, turns: int, budget: int | None) -> list[Result]:
    """Measure the streamed pass of a random 8B checkpoint of `n_layers` layers.

    Parameters
    ----------
    folder
        Where the checkpoint lies or is written to.
    texts
        Sentences.
    n_layers
        Layers; the cost of a layer is the same for all.
    turns
        Passes; each is held against the bare matrix products timed just before and after it: one product at a time
        on all threads, and as many at once as the pass has lanes.
    budget
        Tokens a batch; None: the default.
    """
    random_checkpoint(folder, n_layers, texts)
    tokens = tokenise(load_tokenizer(folder), texts)
    settings = RepresentSettings() if budget is None else RepresentSettings(token_budget=budget)
    used = settings.token_budget

    def streamed() -> StreamResult:
        variants = [single("m", Checkpoint(folder))]
        return stream_embeddings(variants, tokens, settings, bos=2, dtype=torch.bfloat16, name="random-8b")

    def bare() -> tuple[float, float]:
        one, both = (layer_products(tokens, used, torch.bfloat16, n_lanes) for n_lanes in (1, N_LANES))
        return one, both

    passes = []
    peak = 0.0
    before = bare()
    for _ in range(turns):
        with _watched() as seen:
            result = streamed()
        peak = max(peak, seen[0])
        after = bare()
        # each pass is held against the rates just before and after it: those of a shared machine drift
        one, both = ((early + late) / 2 for early, late in zip(before, after, strict=True))
        passes.append((_pass_seconds(result) / n_layers, one, both, result))
        before = after
    middle = len(passes) // 2
    layer, base, _, result = sorted(passes, key=lambda turn: turn[1] / turn[0])[middle]
    pairs = sorted(((layer, both) for layer, _, both, _ in passes), key=lambda pair: pair[1] / pair[0])
    layer_of_both, base_of_both = pairs[middle]
    flops = 2 * sum(height * width for height, width in _shapes().values()) * tokens.n_tokens
    note = (
        f"{n_layers} layers of the 8B shape, {len(tokens.texts)} sentences, {tokens.n_tokens} tokens, budget {used}, "
        f"{flops / base / 1e9:.0f} GFLOP/s bare; " + ", ".join(f"{k} {v:.1f} s" for k, v in result.seconds.items())
    )
    read = sum(result.bytes_read.values()) / 1e6
    return [
        Result(
            "streaming: share of the machine's bf16 matrix rate", layer, base, "s/layer", base / layer, ">= 0.9", note
        ),
        Result(
            "streaming: share of the rate of two products at once",
            layer_of_both,
            base_of_both,
            "s/layer",
            base_of_both / layer_of_both,
            "",
            f"{flops / base_of_both / 1e9:.0f} GFLOP/s bare",
        ),
        Result("streaming: peak memory", peak, LIMIT_MB, "MB", LIMIT_MB / peak, "> 1", f"{read:.0f} MB read"),
    ]
