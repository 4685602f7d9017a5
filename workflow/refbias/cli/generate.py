"""Generate responses of one checkpoint to the prompts of all benchmarks, in one process.

A benchmark's file is finished in the work folder first, under a name that carries the hash of
everything it depends on; a run that was killed finds it there and does not generate it again.
"""

import argparse
import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import Stage, atomic_path, read_jsonl, sha256_file, write_jsonl
from refbias.benchmarks import BENCHMARKS, Prompt, Sampling
from refbias.config.base import parse_json
from refbias.config.benchmarks import BenchmarkSettings, GenerateStage
from refbias.errors import UserError
from refbias.generation import Request, hf
from refbias.models import load_lm, load_tokenizer, prompt_ids, resolve_device, stop_ids, torch_dtype
from refbias.models.chat import resolve_format
from refbias.models.heap import keep_freed_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# a base model without a chat template may go on with the next question itself
PLAIN_STOP = ("\nQuestion:",)


def weights_of(reference: Path, checkpoint: Path | None) -> tuple[Path, Path | None]:
    """Return the folders of weights and adapter of a checkpoint (None: the reference itself).

    Raises
    ------
    UserError
        If the folder holds neither a model nor an adapter.
    """
    if checkpoint is None:
        return reference, None
    if (checkpoint / "adapter_config.json").is_file():
        return reference, checkpoint
    if (checkpoint / "config.json").is_file():
        return checkpoint, None
    raise UserError(f"{checkpoint}: holds neither config.json nor adapter_config.json: name a checkpoint folder")


def fingerprint(settings: GenerateStage, benchmark: str, prompts: Sequence[Prompt], manifests: Sequence[Path]) -> str:
    """Return a hash of all that one benchmark's responses depend on, but for the code."""
    chosen = getattr(settings.benchmarks, benchmark).model_dump(mode="json", exclude={"scorer", "threshold", "prompts"})
    facts: dict[str, Any] = {
        "settings": chosen,
        "generation": settings.generation.model_dump(mode="json"),
        "compute": settings.compute.model_dump(mode="json"),
        "chat_format": settings.chat_format,
        "seed": settings.seed,
        "prompts": [dataclasses.asdict(prompt) for prompt in prompts],
        "models": [sha256_file(path) if path.is_file() else str(path) for path in manifests],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Generator:
    """Loads the model when the first response is asked for: a resumed run may need none."""

    def __init__(self, settings: GenerateStage, weights: Path, adapter: Path | None, name: str) -> None:
        self.settings, self.weights, self.adapter, self.name = settings, weights, adapter, name
        self.model: PreTrainedModel | None = None
        self.seconds, self.tokens = 0.0, 0

    def run(
        self, tokenizer: "PreTrainedTokenizerBase", benchmark: str, chosen: BenchmarkSettings, prompts: Sequence[Prompt]
    ) -> list[dict[str, Any]]:
        """Return one row a response."""
        if self.model is None:
            compute = self.settings.compute
            self.model = load_lm(
                self.weights, self.adapter, dtype=torch_dtype(compute.dtype), device=resolve_device(compute.device)
            )
        chat_format = self.settings.chat_format
        requests = [
            Request(prompt.id, prompt.unit, tuple(prompt_ids(tokenizer, prompt.messages, chat_format)))
            for prompt in prompts
        ]
        start = time.perf_counter()
        outputs = hf.generate(
            self.model,
            tokenizer,
            requests,
            Sampling(chosen.samples, chosen.temperature, chosen.top_p, chosen.max_new_tokens),
            self.settings.seed,
            benchmark=benchmark,
            batch_size=self.settings.generation.batch_size,
            stop=PLAIN_STOP if resolve_format(tokenizer, chat_format) == "plain" else (),
            eos=stop_ids(tokenizer, chat_format),
            name=self.name,
        )
        self.seconds += time.perf_counter() - start
        self.tokens += sum(output.n_tokens for output in outputs)
        return [{"benchmark": benchmark, **dataclasses.asdict(output)} for output in outputs]


def main(argv: list[str]) -> None:
    """Write ``<benchmark>.jsonl`` for every benchmark, ``prompts.jsonl`` and the manifest."""
    parser = argparse.ArgumentParser(prog="refbias generate", description=__doc__)
    parser.add_argument("--settings", required=True, help="JSON slice of the configuration")
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference model")
    parser.add_argument(
        "--checkpoint", type=Path, help="folder of a checkpoint or adapter; the reference where left out"
    )
    parser.add_argument("--name", required=True, help="what to call the checkpoint")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder of finished parts, gone on success")
    options = parser.parse_args(argv)
    settings = parse_json(GenerateStage, options.settings, "--settings")
    weights, adapter = weights_of(options.reference, options.checkpoint)
    manifests = [folder / "manifest.json" for folder in (weights, adapter) if folder]
    inputs = {f"weights_{at}": path for at, path in enumerate(manifests) if path.is_file()}
    with Stage("generate", settings.model_dump(mode="json"), options.output, inputs) as stage:
        keep_freed_memory()
        tokenizer = load_tokenizer(options.reference)
        generator = Generator(settings, weights, adapter, options.name)
        listed: list[dict[str, Any]] = []
        notes: dict[str, Any] = {}
        for benchmark, chosen in settings.benchmarks.enabled().items():
            found = BENCHMARKS[benchmark].load(chosen, settings.seed)
            notes[benchmark] = dict(found.notes)
            listed.extend(
                {
                    "benchmark": benchmark,
                    "prompt_id": prompt.id,
                    "unit": prompt.unit,
                    "user": prompt.messages[-1].content,
                }
                for prompt in found.prompts
            )
            part = options.work / f"{benchmark}-{fingerprint(settings, benchmark, found.prompts, manifests)}.jsonl"
            if not part.is_file():
                write_jsonl(part, generator.run(tokenizer, benchmark, chosen, found.prompts))
            notes[benchmark]["n_outputs"] = len(read_jsonl(part))
            with atomic_path(options.output / f"{benchmark}.jsonl") as target:
                shutil.copyfile(part, target)
        write_jsonl(options.output / "prompts.jsonl", listed)
        stage.record(checkpoint=options.name, benchmarks=notes, **cost(settings, generator))
    shutil.rmtree(options.work, ignore_errors=True)


def cost(settings: GenerateStage, generator: Generator) -> dict[str, Any]:
    """Return number type, device, threads, and the tokens and seconds of what this process generated."""
    import torch

    return {
        "dtype": settings.compute.dtype,
        "device": resolve_device(settings.compute.device),
        "threads": torch.get_num_threads(),
        "new_tokens": generator.tokens,
        "generation_seconds": round(generator.seconds, 3),
    }
