"""A stand-in for vLLM, for tests: a response is its prompt without BOS, rotated by the response's seed.

What it is asked goes into the file that ``FAKE_VLLM_LOG`` names. ``FAKE_VLLM_KILL`` is the number of
the call at which the process ends itself, ``FAKE_VLLM_NAN`` that of a request whose logits are not
numbers, ``FAKE_VLLM_SHORT`` set makes the engine end responses for no reason.
"""

import hashlib
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class SamplingParams:
    def __init__(self, **options: Any) -> None:
        self.options = options


@dataclass
class Completion:
    token_ids: list[int]
    stop_reason: str | None = None


@dataclass
class Answer:
    prompt_token_ids: list[int]
    outputs: list[Completion]


def _note(**event: Any) -> None:
    if path := os.environ.get("FAKE_VLLM_LOG"):
        with Path(path).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(event) + "\n")


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        self.calls = self.requests = 0
        weights = Path(model) / "model.safetensors"
        _note(
            event="start",
            model=model,
            weights=hashlib.sha256(weights.read_bytes()).hexdigest(),
            tokenizer=(Path(model) / "tokenizer.json").is_file(),
            options=options,
        )

    def generate(
        self, prompts: list[dict[str, list[int]]], params: list[SamplingParams], use_tqdm: bool
    ) -> list[Answer]:
        self.calls += 1
        _note(
            event="generate",
            prompts=[prompt["prompt_token_ids"] for prompt in prompts],
            params=[one.options for one in params],
        )
        if str(self.calls) == os.environ.get("FAKE_VLLM_KILL"):
            os.kill(os.getpid(), signal.SIGKILL)
        wrong = int(os.environ.get("FAKE_VLLM_NAN", "-1")) - self.requests
        if 0 <= wrong < len(prompts):
            raise RuntimeError(f"NaNs detected in logits: {{'{wrong + self.requests}-0a1b2c3d': 7}}")
        self.requests += len(prompts)
        return [
            Answer(prompt["prompt_token_ids"], [Completion(echo(prompt["prompt_token_ids"], one.options))])
            for prompt, one in zip(prompts, params, strict=True)
        ]


def echo(prompt: list[int], options: dict[str, Any]) -> list[int]:
    """The tokens of a response."""
    body = prompt[1:]
    turn = options["seed"] % len(body)
    ids = (body[turn:] + body[:turn])[: options["max_tokens"]]
    ends = [at for at, token in enumerate(ids) if token in options["stop_token_ids"]]
    ids = ids[: ends[0] + 1] if ends else ids
    return ids[:1] if os.environ.get("FAKE_VLLM_SHORT") else ids
