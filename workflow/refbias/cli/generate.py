"""Stage `generate`: one checkpoint's responses to the prompts of all benchmarks, in one process.

Part by part of each benchmark into a work folder, so that a killed run goes on where it was; a file
there is named by everything that its rows depend on. Put together in the output when all are there.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from refbias.artifacts import Stage, read_json, read_jsonl, sha256_file, versions, write_json, write_jsonl
from refbias.benchmarks import BENCHMARKS, Prompt, PromptSet, Sampling
from refbias.codehash import code_hash
from refbias.config.base import parse_json
from refbias.config.benchmarks import BenchmarkSettings, GenerateStage
from refbias.generation import BACKENDS, Request, Session, Task
from refbias.models import Checkpoint, load_tokenizer, prompt_ids, resolve_device, stop_ids
from refbias.models.chat import FROZEN_DATE, resolve_format
from refbias.models.files import weight_hashes

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

    def parts(self, work: Path, size: int) -> dict[Path, tuple[Request, ...]]:
        """Return file -> prompts of every part: at most `size` responses, and at least one prompt."""
        step = max(1, size // self.sampling.samples)
        starts = range(0, len(self.requests), step)
        return {
            work / f"{self.name}-{self.key}-{number:05d}.jsonl": self.requests[start : start + step]
            for number, start in enumerate(starts)
        }


def is_adapter(folder: Path) -> bool:
    """Whether a checkpoint folder holds a LoRA adapter."""
    return (folder / "adapter_config.json").is_file()


def _checkpoint(reference: Path, checkpoint: Path | None) -> Checkpoint:
    if checkpoint is None:
        return Checkpoint(reference)
    return Checkpoint(reference, checkpoint) if is_adapter(checkpoint) else Checkpoint(checkpoint)


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
        "generation": settings.generation.outcome(),
        "compute": [settings.compute.dtype, resolve_device(settings.compute.device), torch.get_num_threads()],
        "model": identity,
        "code": code_hash("refbias.cli.generate"),
        "versions": versions(),
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return Job(name, prompts, requests, sampling, key)


def _rows(job: Job, part: Sequence[Request], session: Session, seed: int) -> list[dict[str, Any]]:
    outputs = session.generate(part, job.sampling, seed, benchmark=job.name)
    # the order of the keys is the order of the columns
    columns = ("unit", "prompt_id", "sample", "seed", "text", "n_tokens", "finish")
    return [{"benchmark": job.name, **{column: getattr(output, column) for column in columns}} for output in outputs]


def _complete(
    jobs: Sequence[Job], parts: Mapping[str, Mapping[Path, tuple[Request, ...]]], task: Task, seed: int
) -> dict[str, Any]:
    """Generate the parts that are missing; the checkpoint is loaded once, and only if there are any."""
    if all(path.is_file() for files in parts.values() for path in files):
        return {"engine": {}, "new_tokens_per_second": None}
    tokens, seconds = 0, 0.0
    with BACKENDS[task.settings.backend](task) as session:
        for job in jobs:
            for number, (path, part) in enumerate(parts[job.name].items(), start=1):
                if path.is_file():
                    LOG.info("%s: %s, part %d is already generated", task.name, job.name, number)
                    continue
                start = time.perf_counter()
                rows = _rows(job, part, session, seed)
                taken = time.perf_counter() - start
                seconds += taken
                tokens += sum(row["n_tokens"] for row in rows)
                # first the clock: a finished part never lacks its own
                write_json(_clock(path), {"seconds": round(taken, 3)})
                write_jsonl(path, rows)
        return {"engine": session.facts(), "new_tokens_per_second": round(tokens / seconds, 1)}


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
    """Return the file that keeps how long a finished part took, for a process that resumes after it."""
    return path.with_suffix(".seconds.json")


def _seconds(parts: Iterable[Path]) -> float:
    return round(sum(float(read_json(_clock(path))["seconds"]) for path in parts), 3)


def _generate(settings: GenerateStage, args: argparse.Namespace) -> dict[str, Any]:
    """Write the outputs; return what the manifest says of them."""
    folders = [args.reference] if args.checkpoint is None else [args.reference, args.checkpoint]
    own = [folder for folder in folders if (folder / "tokenizer_config.json").is_file() and not is_adapter(folder)]
    tokenizer_folder = own[-1] if own else args.reference
    tokenizer = load_tokenizer(tokenizer_folder)
    form = resolve_format(tokenizer, settings.chat_format)
    stop = PLAIN_STOP if form == "plain" else ()
    identity = [model_identity(folder) for folder in folders]
    jobs = [_job(name, entry, settings, tokenizer, identity) for name, entry in settings.benchmarks.enabled().items()]
    parts = {job.name: job.parts(args.work, settings.generation.part_size) for job in jobs}
    kept = {name: sum(path.is_file() for path in files) for name, files in parts.items()}
    task = Task(
        checkpoint=_checkpoint(args.reference, args.checkpoint),
        tokenizer=tokenizer_folder,
        name=args.name,
        settings=settings.generation,
        compute=settings.compute,
        longest=max(len(request.ids) + job.sampling.max_new_tokens for job in jobs for request in job.requests),
        work=args.work,
        stop=stop,
        eos=tuple(stop_ids(tokenizer, settings.chat_format)),
    )
    facts = _complete(jobs, parts, task, settings.seed)
    outputs = {job.name: [row for path in parts[job.name] for row in read_jsonl(path)] for job in jobs}
    for job in jobs:
        # the parts stay until the end: a kill in between must find the work folder complete
        write_jsonl(args.output / f"{job.name}.jsonl", outputs[job.name])
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
        "dtype": facts["engine"].get("dtype", settings.compute.dtype),
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "chat_format": form,
        "template_date": FROZEN_DATE.date().isoformat(),
        "stop": list(stop),
        "stop_ids": stop_ids(tokenizer, settings.chat_format),
        "benchmarks": {
            job.name: {**_summary(job, outputs[job.name]), "seconds": _seconds(parts[job.name])} for job in jobs
        },
        "resumed": {name: count for name, count in kept.items() if count},
        **facts,
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
    parser.add_argument("--work", required=True, type=Path, help="Folder for finished parts, gone on success.")
    args = parser.parse_args(argv)
    settings = parse_json(GenerateStage, args.settings, "--settings")
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
