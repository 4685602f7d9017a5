"""How the cost of an audit grows with its sizes: seconds at some sizes, and the exponent that they fit.

    seconds = c n ** exponent

Sentences, layers and checkpoints are varied in the streamed forward of a random decoder, groups and anchors in the
statistics. An exponent of 1 is a cost in proportion; what does not grow at all pulls it below. Seconds are the
process's CPU seconds, of all its threads, so that they do not depend on what else the machine does.
"""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bench.evidence import models
from bench.measure import Result
from bench.streaming import write_tokenizer
from refbias.config.evidence import EvidenceSettings
from refbias.config.represent import RepresentSettings
from refbias.config.stimuli import StimuliSettings
from refbias.embed import tokenise
from refbias.evidence import gather_evidence, verdict
from refbias.models import Checkpoint, load_tokenizer
from refbias.stimuli import load_stimuli
from refbias.stream import between, single, stream_embeddings

SENTENCES = (150, 300, 600, 1200)
LAYERS = (2, 4, 8, 16)
CHECKPOINTS = (1, 2, 4, 8)
GROUPS = (3, 6, 12, 24)
ANCHORS = (125, 250, 500, 1000)
WIDTH, INNER, HEADS, VOCABULARY = 512, 1536, 8, 4000
USUAL_LAYERS, USUAL_SENTENCES = 4, 300
EMBEDDING_WIDTH = 640
WANTED = "<= 1.1"


@dataclass(frozen=True)
class Cost:
    """A line of costs.csv: CPU seconds at size `n` of what `axis` names."""

    axis: str
    n: int
    seconds: float


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log size, by least squares.

    Raises
    ------
    ValueError
        If there are fewer than two distinct sizes, or a number is not positive.
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2:
        raise ValueError("sizes: two or more are needed, with one time each")
    if min(sizes) <= 0 or min(seconds) <= 0:
        raise ValueError("sizes and seconds: must be positive")
    x, y = np.log(sizes), np.log(seconds)
    x = x - x.mean()
    return float((x @ y) / (x @ x))


def fitted(costs: Sequence[Cost]) -> list[Result]:
    """Return one line an axis: its exponent beside 1."""
    results = []
    for axis in dict.fromkeys(cost.axis for cost in costs):
        rows = [cost for cost in costs if cost.axis == axis]
        found = exponent([row.n for row in rows], [row.seconds for row in rows])
        note = ", ".join(f"{row.n}: {row.seconds:.2f} s" for row in rows)
        results.append(Result(f"cost: exponent in {axis}", found, 1.0, "power", None, WANTED, note))
    return results


def fastest(work: Mapping[int, Callable[[], object]], repeats: int) -> dict[int, float]:
    """Return the seconds of each size: the least of some turns, since nothing makes work faster than it is."""
    seconds = {size: float("inf") for size in work}
    for _ in range(repeats):
        for size, run in work.items():
            start = time.process_time()
            run()
            seconds[size] = min(seconds[size], time.process_time() - start)
    return seconds


def random_decoder(folder: Path, n_layers: int, texts: Sequence[str], seed: int = 0) -> Path:
    """Write a random Llama checkpoint of width 512 with a tokenizer made from the texts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=n_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=1024,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder, list(texts))
    return folder


def _streamed(folder: Path, texts: Sequence[str], ends: Sequence[Path] = (), count: int = 1) -> Callable[[], object]:
    """Return a streamed pass of one checkpoint, or of `count` between two ends."""
    tokens = tokenise(load_tokenizer(folder), texts)
    variants = [single("model", Checkpoint(folder))]
    if ends:
        first, last = map(Checkpoint, ends)
        variants = [between(f"{number}", first, last, (number + 0.5) / count) for number in range(count)]
    return lambda: stream_embeddings(variants, tokens, RepresentSettings(), bos=2, dtype=torch.float32)


def _statistics(**sizes: int) -> Callable[[], object]:
    reference, audited = models(EMBEDDING_WIDTH, **sizes)
    return lambda: verdict(gather_evidence(reference, audited, EvidenceSettings()))


def run(repeats: int) -> list[Cost]:
    """Measure all axes.

    Parameters
    ----------
    repeats
        Turns of the streamed passes; the statistics, which are long, are timed once.
    """
    texts = list(dict.fromkeys(sentence.text for sentence in load_stimuli(StimuliSettings())))
    # shuffled, so that any number of them has the same mix of lengths
    texts = [texts[row] for row in np.random.default_rng(17).permutation(len(texts))]
    few = texts[:USUAL_SENTENCES]
    with tempfile.TemporaryDirectory() as scratch:
        folders = {n: random_decoder(Path(scratch) / f"l{n}", n, texts) for n in LAYERS}
        usual = folders[USUAL_LAYERS]
        ends = [usual, random_decoder(Path(scratch) / "other", USUAL_LAYERS, texts, seed=1)]
        axes: dict[str, tuple[dict[int, Callable[[], object]], int]] = {
            "sentences": ({n: _streamed(usual, texts[:n]) for n in SENTENCES}, repeats),
            "layers": ({n: _streamed(folders[n], few) for n in LAYERS}, repeats),
            "checkpoints": ({n: _streamed(usual, few, ends, n) for n in CHECKPOINTS}, repeats),
            "groups": ({n: _statistics(groups=n) for n in GROUPS}, 1),
            "anchors": ({n: _statistics(anchors=n) for n in ANCHORS}, 1),
        }
        # what the first pass sets up is no size's work
        _streamed(usual, few)()
        return [
            Cost(axis, n, seconds)
            for axis, (work, turns) in axes.items()
            for n, seconds in fastest(work, turns).items()
        ]
