"""The two generation backends on the same token ids: greedy responses compared, and new tokens a second.

The engine lives in a process of its own interpreter and takes turns with transformers in this one.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.measure import Result, take_turns
from refbias.benchmarks.base import Sampling
from refbias.config.stimuli import StimuliSettings
from refbias.environment import SOURCE, variables
from refbias.generation import Output, Request
from refbias.generation.hf import generate
from refbias.stimuli import load_stimuli

NEW_TOKENS = 32
PROMPTS = 100
BATCHES = {1: 4, 16: 32, 64: 64}  # batch -> prompts that are timed at it
WANTED = 95
_WORDS = 5


class Engine:
    """vLLM under its own interpreter."""

    def __init__(self, python: Path, folder: Path, longest: int, threads: int, generation: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        environment = {**os.environ, **variables(python.absolute(), SOURCE), "OMP_NUM_THREADS": str(threads)}
        # the bench's own folder too
        environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).resolve().parent.parent)
        command = [str(python), "-m", "bench.engine", str(folder), str(writing)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=2, text=True, pass_fds=(writing,)
        )
        os.close(writing)
        self._replies = os.fdopen(reading)
        self.facts = self._ask({"longest": longest, "device": "cpu", "generation": generation})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        line = self._replies.readline()
        if not line:
            raise SystemExit(f"bench: vLLM ended with code {self._process.wait()}: see above")
        found: dict[str, Any] = json.loads(line)
        return found

    def generate(self, requests: Sequence[Request], batch: int) -> tuple[list[Output], float]:
        """Return greedy responses and the seconds that they took."""
        prompts = [list(request.ids) for request in requests]
        found = self._ask({"prompts": prompts, "batch": batch, "new_tokens": NEW_TOKENS})
        return [Output(**output) for output in found["outputs"]], float(found["seconds"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def short_prompts(tokenizer: Any) -> list[Request]:
    """Return beginnings of the shipped anchor sentences, as token ids."""
    sentences = [sentence for sentence in load_stimuli(StimuliSettings()) if sentence.kind == "anchor"]
    texts = [" ".join(sentence.text.split()[:_WORDS]) for sentence in sentences]
    chosen = list(dict.fromkeys(texts))[:PROMPTS]
    return [Request(str(number), "", tuple(tokenizer(text)["input_ids"])) for number, text in enumerate(chosen)]


def differences(ours: Sequence[Output], theirs: Sequence[Output]) -> list[tuple[str, str, str]]:
    """Return (prompt, transformers' text, vLLM's text) of the responses that are not the same."""
    return [
        (mine.prompt_id, mine.text, other.text)
        for mine, other in zip(ours, theirs, strict=True)
        if (mine.text, mine.n_tokens) != (other.text, other.n_tokens)
    ]


def run(model: Any, tokenizer: Any, folder: Path, python: Path, threads: int, repeats: int) -> list[Result]:
    """Compare the backends.

    Parameters
    ----------
    model, tokenizer, folder
        Causal language model, its tokenizer and where both lie.
    python
        Interpreter of the vLLM environment.
    threads
        CPU threads of each.
    repeats
        Turns.
    """
    requests = short_prompts(tokenizer)
    longest = max(len(request.ids) for request in requests) + NEW_TOKENS
    engine = Engine(python, folder, longest, threads, {"batch_size": max(BATCHES), "vllm": {"kv_cache_gb": 1.0}})
    try:
        return [_agreement(model, tokenizer, requests, engine), *_rates(model, tokenizer, requests, engine, repeats)]
    finally:
        engine.close()


def _greedy(model: Any, tokenizer: Any, requests: Sequence[Request], batch: int) -> list[Output]:
    sampling = Sampling(samples=1, temperature=0.0, top_p=1.0, max_new_tokens=NEW_TOKENS)
    found = []
    for first in range(0, len(requests), batch):
        part = requests[first : first + batch]
        found += generate(model, tokenizer, part, sampling, 0, benchmark="bench", batch_size=batch)
    return found


def _agreement(model: Any, tokenizer: Any, requests: Sequence[Request], engine: Engine) -> Result:
    ours = _greedy(model, tokenizer, requests, 16)
    theirs, _ = engine.generate(requests, 16)
    found = differences(ours, theirs)
    for prompt, mine, other in found:
        print(f"bench: prompt {prompt} {tokenizer.decode(requests[int(prompt)].ids)!r}")
        print(f"  transformers: {mine!r}\n  vLLM:         {other!r}")
    same = len(requests) - len(found)
    note = f"{NEW_TOKENS} new tokens, fp32, greedy; the engine started in {engine.facts['start_seconds']:.0f} s"
    return Result("vLLM: responses equal to transformers'", same, len(requests), "prompts", None, f">= {WANTED}", note)


def _rates(model: Any, tokenizer: Any, requests: Sequence[Request], engine: Engine, repeats: int) -> list[Result]:
    results = []
    for batch, count in BATCHES.items():
        part = requests[:count]
        tokens = {
            "hf": sum(output.n_tokens for output in _greedy(model, tokenizer, part, batch)),
            "vllm": sum(output.n_tokens for output in engine.generate(part, batch)[0]),
        }
        seconds = take_turns(
            {
                "hf": lambda size: _greedy(model, tokenizer, part, size),  # noqa: B023
                "vllm": lambda size: engine.generate(part, size),  # noqa: B023
            },
            [batch],
            repeats,
        )
        rates = {name: tokens[name] / seconds[name] for name in tokens}
        note = f"{count} prompts, fp32, greedy; baseline: transformers here"
        results.append(
            Result(
                f"vLLM: batch {batch}",
                rates["vllm"],
                rates["hf"],
                "new tokens/s",
                rates["vllm"] / rates["hf"],
                "",
                note,
            )
        )
    return results
