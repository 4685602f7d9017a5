"""Responses from a transformers model in this process.

Token ids go in; nothing is templated or given a BOS here. Prompts of similar length share a
batch. What its prompts begin with in common is computed once, the rest of each prompt once for
all its samples, unpadded (prompts of exactly equal length together); then all samples decode side
by side, their keys and values right-aligned. A response that has ended leaves the batch. The
output layer, most of a small model's cost, runs at the last position only, and never for prompts
alone: their last tokens are the first that are decoded.

``model.generate`` is not used: it computes the prompt once a sample, keeps ended rows in the
batch to the end, copies its cache at each token and draws from one random stream for the batch.
"""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from refbias.benchmarks.base import Sampling
from refbias.errors import UserError
from refbias.fast import fused_forward
from refbias.generation.base import (
    Ends,
    Output,
    Request,
    Task,
    check_requests,
    distinct_samples,
    eos_ids,
    in_order,
)
from refbias.generation.cache import empty_cache, grouped_attention, keep_rows, place, widened
from refbias.generation.sampling import sample_tokens, uniforms
from refbias.generation.seeds import item_seed
from refbias.models.heap import keep_freed_memory
from refbias.models.load import load_lm, load_tokenizer, torch_dtype
from refbias.progress import Bar, token_bar

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.cache_utils import Cache

_SHARED = 8  # a common beginning shorter than this is not worth a pass of its own
_PREFILL_TOKENS = 4096  # prompt tokens computed at once
_STOP_EVERY = 4  # tokens between searches for a stop string
_COMPACT = 8  # ended rows are dropped when they are 1/8 of the batch: dropping copies the cache


@dataclasses.dataclass
class _Row:
    """A response in the making."""

    request: Request
    sample: int
    seed: int
    ids: list[int] = dataclasses.field(default_factory=list)
    done: bool = False


@dataclasses.dataclass(frozen=True)
class _Run:
    """What stays the same over a call of `generate`."""

    model: "PreTrainedModel"
    sampling: Sampling
    ends: Ends
    name: str


class _Session:
    """A transformers model in this process."""

    def __init__(self, task: Task, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> None:
        self._task, self._model, self._tokenizer = task, model, tokenizer

    def generate(self, requests: Sequence[Request], sampling: Sampling, seed: int, *, benchmark: str) -> list[Output]:
        """Return responses by request, then sample; see `generate`."""
        return generate(
            self._model,
            self._tokenizer,
            requests,
            sampling,
            seed,
            benchmark=benchmark,
            batch_size=self._task.settings.batch_size,
            stop=self._task.stop,
            eos=self._task.eos,
            name=self._task.name,
        )

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the engine."""
        return {"dtype": self._task.compute.dtype, "threads": torch.get_num_threads()}


@contextlib.contextmanager
def open_session(task: Task) -> Iterator[_Session]:
    """Load a checkpoint for generation.

    Raises
    ------
    UserError
        If the checkpoint cannot be loaded; see `refbias.models.load.load_lm`.
    """
    keep_freed_memory()
    model = load_lm(
        task.checkpoint.weights,
        task.checkpoint.adapter,
        dtype=torch_dtype(task.compute.dtype),
        device=task.compute.device,
    )
    yield _Session(task, model, load_tokenizer(task.tokenizer))


def generate(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    requests: Sequence[Request],
    sampling: Sampling,
    seed: int,
    *,
    benchmark: str,
    batch_size: int = 64,
    stop: Sequence[str] = (),
    eos: Collection[int] = (),
    name: str = "model",
) -> list[Output]:
    """Generate `sampling.samples` responses to every prompt.

    Parameters
    ----------
    model
        Causal language model in evaluation mode.
    tokenizer
        Its tokenizer.
    requests
        Prompts as token ids.
    sampling
        Samples, temperature (0: greedy), top-p, new tokens at most.
    seed
        Seed of the run. A response's random stream depends on it, on `benchmark`, on the prompt's
        id and on the sample's number, and on nothing else.
    benchmark
        Slug that separates the random streams of benchmarks.
    batch_size
        Responses decoded together. It changes outputs only through floating-point rounding.
    stop
        A response ends where one of these strings begins.
    eos
        Ids that end a response, beside those of the model's own configuration.
    name
        What to call the model in an error and in the progress bar.

    Returns
    -------
    list of Output
        By request, then sample.

    Raises
    ------
    UserError
        If a prompt cannot be read by this model (see `check_requests`), or a logit is not finite.
    """
    vocabulary = model.get_input_embeddings().weight.shape[0]
    positions = getattr(model.config, "max_position_embeddings", None)
    check_requests(requests, tokenizer, vocabulary, positions, sampling.max_new_tokens, name)
    ended_by = eos_ids(tuple(eos), tokenizer, model.config, getattr(model, "generation_config", None))
    run = _Run(model, sampling, Ends(tokenizer, ended_by, tuple(stop)), name)
    distinct = distinct_samples(sampling)
    found: dict[tuple[str, int], Output] = {}
    total = len(requests) * distinct
    with (
        torch.inference_mode(),
        fused_forward(model),
        grouped_attention(model),
        token_bar(f"generate {name} {benchmark}", total, "responses") as bar,
    ):
        for chunk in _chunks(requests, distinct, batch_size):
            rows = [
                _Row(request, sample, item_seed(seed, benchmark, request.prompt_id, sample))
                for request, sample in chunk
            ]
            _decode(run, rows, bar)
            for row in rows:
                found[row.request.prompt_id, row.sample] = run.ends.output(row.request, row.sample, row.seed, row.ids)
    return in_order(requests, sampling, seed, benchmark, found)


def _chunks(requests: Sequence[Request], samples: int, batch_size: int) -> list[list[tuple[Request, int]]]:
    """Split all responses into batches of even size; a prompt's samples stay together where they fit."""
    order = sorted(requests, key=lambda request: (len(request.ids), request.ids, request.prompt_id))
    if samples > batch_size:
        items = [(request, sample) for request in order for sample in range(samples)]
        parts = np.array_split(np.arange(len(items)), -(-len(items) // batch_size))
        return [[items[index] for index in part] for part in parts]
    parts = np.array_split(np.arange(len(order)), -(-len(order) * samples // (batch_size // samples * samples)))
    return [[(order[index], sample) for index in part for sample in range(samples)] for part in parts]


def _common(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many first tokens all prompts share; each keeps at least one of its own."""
    most = min(len(prompt) for prompt in prompts) - 1
    first = prompts[0]
    length = next((at for at in range(most) if any(prompt[at] != first[at] for prompt in prompts)), most)
    return length if length >= _SHARED and len(prompts) > 1 else 0


def _read(run: _Run, prompts: Sequence[Sequence[int]], cache: "Cache") -> None:
    """Add the keys and values of prompts of equal length to `cache`; the output layer does not run."""
    ids = torch.tensor(prompts, device=next(run.model.parameters()).device)
    run.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)


def _prefill(run: _Run, rows: Sequence[_Row], capacity: int) -> "Cache":
    """Return a cache of all rows' prompts without their last token, right-aligned."""
    holders: dict[tuple[int, ...], list[int]] = {}
    for number, row in enumerate(rows):
        holders.setdefault(row.request.ids, []).append(number)
    layers = run.model.config.get_text_config().num_hidden_layers
    cache = empty_cache(layers, capacity)
    width = max(map(len, holders)) - 1
    shared = _common(list(holders))
    prefix = empty_cache(layers, shared)
    if shared:
        _read(run, [next(iter(holders))[:shared]], prefix)
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for prompt in holders:
        by_length.setdefault(len(prompt) - 1, []).append(prompt)
    for length, prompts in by_length.items():
        if not length:
            continue
        most = max(1, _PREFILL_TOKENS // max(1, length - shared))
        for start in range(0, len(prompts), most):
            part = prompts[start : start + most]
            filled = widened(prefix, len(part), length) if shared else empty_cache(layers, length)
            if length > shared:
                _read(run, [prompt[shared:-1] for prompt in part], filled)
            place(cache, [holders[prompt] for prompt in part], filled, width, len(rows))
    return cache


def _decode(run: _Run, rows: Sequence[_Row], bar: Bar) -> None:
    """Complete `rows` in place."""
    limit = run.sampling.max_new_tokens
    lengths = torch.tensor([len(row.request.ids) for row in rows])
    width = int(lengths.max())
    random = np.stack([uniforms(row.seed, limit) for row in rows])
    cache = _prefill(run, rows, width + limit - 1)
    device = next(run.model.parameters()).device
    mask = (torch.arange(width + limit)[None] >= (width - lengths)[:, None]).to(device)
    # the prompts' last tokens open the loop, so that one pass of the output layer serves all rows
    tokens = torch.tensor([row.request.ids[-1] for row in rows])
    active = list(rows)
    for step in range(limit):
        logits = run.model(
            input_ids=tokens[:, None].to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            attention_mask=mask[:, : width + step],
            position_ids=(lengths - 1 + step)[:, None].to(device),
        ).logits[:, -1]
        tokens, finite = sample_tokens(logits, random[:, step], run.sampling.temperature, run.sampling.top_p)
        before = sum(row.done for row in active)
        _append(run, active, tokens, finite, step)
        ended = sum(row.done for row in active)
        bar.advance(ended - before, len(active) - before)
        if ended == len(active):
            break
        if ended * _COMPACT >= len(active):
            keep = torch.tensor([number for number, row in enumerate(active) if not row.done])
            keep_rows(cache, keep.to(device))
            active = [row for row in active if not row.done]
            tokens, lengths, random, mask = tokens[keep], lengths[keep], random[keep.numpy()], mask[keep.to(device)]
    bar.advance(sum(not row.done for row in rows), 0)


def _append(run: _Run, active: Sequence[_Row], tokens: torch.Tensor, finite: torch.Tensor, step: int) -> None:
    for row, token, usable in zip(active, tokens.tolist(), finite.tolist(), strict=True):
        if row.done:
            continue
        if not usable:
            raise UserError(
                f"{run.name}: prompt {row.request.prompt_id}, sample {row.sample}, new token {step + 1}: "
                "logits are not finite: check the weights, or use dtype float32"
            )
        row.ids.append(token)
        row.done = token in run.ends.eos
        if run.ends.stop and not row.done and step % _STOP_EVERY == _STOP_EVERY - 1:
            row.done = run.ends.stop_at(run.ends.text(row.ids)) is not None
