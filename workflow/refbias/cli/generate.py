"""Stage `generate`: one checkpoint's responses to the prompts of all benchmarks, in one process.

Benchmark by benchmark into a work folder, so that a killed run goes on where it was; a file there
is named by everything that its rows depend on. Moved into the output when all are there.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from refbias.artifacts import Stage, atomic_path, read_json, read_jsonl, sha256_file, versions, write_json, write_jsonl
from refbias.benchmarks import BENCHMARKS, Prompt, PromptSet, Sampling
from refbias.codehash import code_hash
from refbias.config.base import parse_json
from refbias.config.benchmarks import BenchmarkSettings, GenerateStage
from refbias.generation.base import Request
from refbias.generation.hf import generate
from refbias.models import load_lm, load_tokenizer, prompt_ids, resolve_device, stop_ids, torch_dtype
from refbias.models.chat import resolve_format
from refbias.models.files import weight_hashes
from refbias.models.heap import keep_freed_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOG = logging.getLogger(__name__)
PLAIN_STOP = ("\nQuestion:",)
"""In the plain format a base model goes on with the next question; the answer ends there."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One benchmark's work: prompts, their ids, sampling, and the key of its rows."""

    name: str
    prompts: PromptSet
    requests: tuple[Request, ...]
    sampling: Sampling
    key: str


def is_adapter(folder: Path) -> bool:
    """Whether a checkpoint folder holds a LoRA adapter."""
    return (folder / "adapter_config.json").is_file()


def model_identity(folder: Path) -> Any:
    """Return what names the weights in `folder`: its manifest's hash, or those of the weights."""
    manifest = folder / "manifest.json"
    return sha256_file(manifest) if manifest.is_file() else weight_hashes(folder)


def prompt_row(benchmark: str, prompt: Prompt, request: Request) -> dict[str, Any]:
    """Return a line of ``prompts.jsonl``."""
    turns = {message.role: message.content for message in prompt.messages}
    return {
        "benchmark": benchmark,
        "unit": prompt.unit,
        "prompt_id": prompt.id,
        "system": turns.get("system", ""),
        "user": turns["user"],
        "n_tokens": len(request.ids),
    }


def _job(name: str, entry: BenchmarkSettings, settings: GenerateStage, tokenizer: Any, identity: Any) -> Job:
    prompts = BENCHMARKS[name].load(entry, settings.seed)
    requests = tuple(
        Request(prompt.id, prompt.unit, tuple(prompt_ids(tokenizer, prompt.messages, settings.chat_format)))
        for prompt in prompts.prompts
    )
    sampling = Sampling(entry.samples, entry.temperature, entry.top_p, entry.max_new_tokens)
    content = {
        "benchmark": name,
        "requests": [dataclasses.asdict(request) for request in requests],
        "sampling": dataclasses.asdict(sampling),
        "seed": settings.seed,
        "generation": settings.generation.model_dump(mode="json"),
        "compute": [settings.compute.dtype, resolve_device(settings.compute.device), torch.get_num_threads()],
        "model": identity,
        "code": code_hash("refbias.cli.generate"),
        "versions": versions(),
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return Job(name, prompts, requests, sampling, key)


def _load(settings: GenerateStage, reference: Path, checkpoint: Path | None) -> "PreTrainedModel":
    options: dict[str, Any] = {"dtype": torch_dtype(settings.compute.dtype), "device": settings.compute.device}
    if checkpoint is None:
        return load_lm(reference, **options)
    if is_adapter(checkpoint):
        return load_lm(reference, adapter=checkpoint, **options)
    return load_lm(checkpoint, **options)


def _run(
    job: Job,
    settings: GenerateStage,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    stop: Sequence[str],
    name: str,
) -> list[dict[str, Any]]:
    outputs = generate(
        model,
        tokenizer,
        job.requests,
        job.sampling,
        settings.seed,
        benchmark=job.name,
        batch_size=settings.generation.batch_size,
        stop=stop,
        eos=stop_ids(tokenizer, settings.chat_format),
        name=name,
    )
    # the order of the keys is the order of the columns
    columns = ("unit", "prompt_id", "sample", "seed", "text", "n_tokens", "finish")
    return [{"benchmark": job.name, **{column: getattr(output, column) for column in columns}} for output in outputs]


def _summary(job: Job, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n_prompts": len(job.requests),
        "n_outputs": len(rows),
        "n_new_tokens": sum(row["n_tokens"] for row in rows),
        "finish": dict(sorted(Counter(row["finish"] for row in rows).items())),
        "sampling": dataclasses.asdict(job.sampling),
        "prompts_sha256": hashlib.sha256(repr([(r.prompt_id, r.ids) for r in job.requests]).encode()).hexdigest(),
        "notes": dict(job.prompts.notes),
    }


def _clock(path: Path) -> Path:
    """Return the file that keeps how long a finished benchmark took, for a process that resumes after it."""
    return path.with_suffix(".seconds.json")


def _generate(settings: GenerateStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the outputs; return what the manifest says of them."""
    folders = [args.reference] if args.checkpoint is None else [args.reference, args.checkpoint]
    own = [folder for folder in folders if (folder / "tokenizer_config.json").is_file() and not is_adapter(folder)]
    tokenizer = load_tokenizer(own[-1] if own else args.reference)
    form = resolve_format(tokenizer, settings.chat_format)
    stop = PLAIN_STOP if form == "plain" else ()
    identity = [model_identity(folder) for folder in folders]
    jobs = [_job(name, entry, settings, tokenizer, identity) for name, entry in settings.benchmarks.enabled().items()]
    files = {job.name: args.work / f"{job.name}-{job.key}.jsonl" for job in jobs}
    kept = [job.name for job in jobs if files[job.name].is_file()]
    tokens, seconds = 0, 0.0
    if len(kept) < len(jobs):
        model = _load(settings, args.reference, args.checkpoint)
        for job in jobs:
            if job.name in kept:
                LOG.info("%s: %s is already generated", args.name, job.name)
                continue
            start = time.perf_counter()
            rows = _run(job, settings, model, tokenizer, stop, args.name)
            taken = time.perf_counter() - start
            seconds += taken
            tokens += sum(row["n_tokens"] for row in rows)
            # first the clock: a finished file never lacks its own
            write_json(_clock(files[job.name]), {"seconds": round(taken, 3)})
            write_jsonl(files[job.name], rows)
    for job in jobs:
        # copied, not moved: a kill in between must find the work folder complete
        with atomic_path(args.output / f"{job.name}.jsonl") as path:
            shutil.copyfile(files[job.name], path)
    write_jsonl(
        args.output / "prompts.jsonl",
        [
            prompt_row(job.name, prompt, request)
            for job in jobs
            for prompt, request in zip(job.prompts.prompts, job.requests, strict=True)
        ],
    )
    return {
        "checkpoint": args.name,
        "backend": settings.generation.backend,
        "batch_size": settings.generation.batch_size,
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "chat_format": form,
        "stop": list(stop),
        "stop_ids": stop_ids(tokenizer, settings.chat_format),
        "benchmarks": {
            job.name: {**_summary(job, read_jsonl(files[job.name])), **read_json(_clock(files[job.name]))}
            for job in jobs
        },
        "resumed": kept,
        "new_tokens_per_second": round(tokens / seconds, 1) if seconds else None,
    }


def main(argv: Sequence[str]) -> None:
    """Write ``<benchmark>.jsonl`` for every benchmark, ``prompts.jsonl`` and the manifest."""
    parser = argparse.ArgumentParser(
        prog="refbias generate", description="Generate responses to the benchmark prompts."
    )
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration.")
    parser.add_argument("--reference", required=True, type=Path, help="Folder of the reference model.")
    parser.add_argument("--checkpoint", type=Path, help="Folder of a checkpoint or adapter; absent: the reference.")
    parser.add_argument("--name", required=True, help="Slug of the checkpoint.")
    parser.add_argument("--output", required=True, type=Path, help="Folder for outputs and manifest.")
    parser.add_argument("--work", required=True, type=Path, help="Folder for finished benchmarks, gone on success.")
    args = parser.parse_args(argv)
    settings = parse_json(GenerateStage, args.settings, "--settings")
    keep_freed_memory()
    manifests = {"reference": args.reference / "manifest.json"}
    if args.checkpoint is not None:
        manifests["checkpoint"] = args.checkpoint / "manifest.json"
    inputs = {role: path for role, path in manifests.items() if path.is_file()}
    with Stage("generate", settings.model_dump(mode="json"), args.output, inputs) as stage:
        stage.record(**_generate(settings, args))
    for path in (*args.work.glob("*.jsonl"), *args.work.glob("*.seconds.json")):
        path.unlink()
    # somebody else's files in the folder, such as a log, stay
    with contextlib.suppress(OSError):
        args.work.rmdir()
