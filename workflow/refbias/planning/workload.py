"""How much of everything a configuration asks for: examples, sentences, prompts, responses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refbias.config.benchmarks import BenchmarkSettings, DecodingTrustSettings
from refbias.config.root import Config
from refbias.planning.facts import (
    PROMPT_TOKENS,
    PUBLISHED_PROMPTS,
    SENTENCE_TOKENS,
    TOKENS_PER_EXAMPLE,
    TOKENS_PER_WORD,
    UNITS,
)
from refbias.resources import data_path
from refbias.splits import read_split
from refbias.stimuli import load_stimuli

Side = Literal["unharmful", "harmful"]


@dataclass(frozen=True)
class Responses:
    """What a benchmark asks of one checkpoint: responses, tokens of a prompt, new tokens of a response at most."""

    outputs: int
    prompt_tokens: float
    new_tokens: int


def split_tokens(config: Config, side: Side, max_length: int) -> float:
    """Return the tokens of one epoch over a split, each example cut at `max_length`."""
    file = config.split_file(side)
    own = Path(file) if file else data_path("quickstart", f"wildguard_{side}.jsonl")
    if side not in config.prepared_splits() and own.is_file():
        examples, _ = read_split(own, side)
        words = sum(len(f"{example.prompt} {example.response}".split()) for example in examples)
        return len(examples) * min(words / len(examples) * TOKENS_PER_WORD, max_length)
    return config.splits.examples * min(TOKENS_PER_EXAMPLE[side], max_length)


def sentence_tokens(config: Config) -> float:
    """Return the tokens of the sentences that one checkpoint embeds."""
    return len(load_stimuli(config.stimuli)) * SENTENCE_TOKENS


def responses(config: Config, name: str) -> Responses:
    """Return what a benchmark asks of one checkpoint."""
    settings = config.benchmarks.enabled()[name]
    prompts = _prompts(config, name, settings)
    return Responses(prompts * settings.samples, PROMPT_TOKENS[name], settings.max_new_tokens)


def _prompts(config: Config, name: str, settings: BenchmarkSettings) -> int:
    limit = settings.prompts_per_unit
    if config.prompt_files()[name] is None:
        # the loaders bring half a second of imports
        from refbias.benchmarks import BENCHMARKS

        return len(BENCHMARKS[name].load_prompts(settings, config.seed))
    published = PUBLISHED_PROMPTS[name]
    chosen = published if limit is None else min(published, UNITS[name] * limit)
    systems = len(settings.system_prompts) if isinstance(settings, DecodingTrustSettings) else 1
    return chosen * systems
