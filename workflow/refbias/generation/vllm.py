"""Responses from the vLLM engine: one start a checkpoint, token ids in, a seed for every response.

The engine runs in this process (its workers beside it where a checkpoint is spread over GPUs), so
that a killed job leaves nothing running. It serves merged weights: a LoRA adapter is added to its
base in fp32, as everywhere, into a folder that is gone once the engine has read it; so is the
language tower of a multimodal checkpoint. A prompt's samples are requests of their own, each with
its own seed; the prefix cache computes what they share once.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import read_json
from refbias.config.generation import GenerationSettings
from refbias.config.models import Compute
from refbias.errors import UserError
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
from refbias.generation.seeds import item_seed
from refbias.models.files import check_directory, copy_side_files
from refbias.models.load import Checkpoint, load_lm, load_tokenizer, resolve_device, torch_dtype
from refbias.progress import token_bar

if TYPE_CHECKING:
    from refbias.benchmarks.base import Sampling

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""What the engine reads from the environment, where the user set nothing else."""
_MERGED = ".merged-"
_CPU_CACHE_GB = 4.0
_HOTTEST = 2.0  # the engine refuses a higher temperature
_NAN = re.compile(r"NaNs detected in logits: \{'(\d+)")


def engine_arguments(task: Task, folder: Path, device: str) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.LLM``.

    Parameters
    ----------
    task
        What is to be generated.
    folder
        Where the merged weights lie.
    device
        ``cpu`` or ``cuda``.
    """
    chosen = task.settings.vllm
    arguments: dict[str, Any] = {
        "model": str(folder),
        "tokenizer": str(task.tokenizer),
        "dtype": chosen.dtype or task.compute.dtype,
        "tensor_parallel_size": chosen.tensor_parallel_size,
        "gpu_memory_utilization": chosen.gpu_memory_utilization,
        "max_model_len": chosen.max_model_len or task.longest,
        "max_num_seqs": task.settings.batch_size,
        "enforce_eager": chosen.enforce_eager,
        "enable_prefix_caching": True,
        # a model's generation_config.json must not change how it is sampled
        "generation_config": "vllm",
        "load_format": "safetensors",
        "trust_remote_code": False,
        "seed": 0,
    }
    cache = chosen.kv_cache_gb or (_CPU_CACHE_GB if device == "cpu" else None)
    if cache is not None:
        arguments["kv_cache_memory_bytes"] = int(cache * 1e9)
    return arguments


def sampling_arguments(sampling: "Sampling", seed: int, eos: frozenset[int], stop: Sequence[str]) -> dict[str, Any]:
    """Return the keyword arguments of ``vllm.SamplingParams`` for one response.

    Parameters
    ----------
    sampling
        Temperature, top-p, new tokens at most; a sample is a request of its own.
    seed
        Of the response's own random stream.
    eos
        Ids that end a response.
    stop
        Strings that end a response.

    Raises
    ------
    UserError
        If the temperature is higher than the engine takes.
    """
    if sampling.temperature > _HOTTEST:
        raise UserError(
            f"key 'temperature': {sampling.temperature:g}: vLLM takes {_HOTTEST:g} at most: lower it, or use "
            "`generation.backend: hf`"
        )
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        "seed": seed,
        "stop": list(stop),
        "stop_token_ids": sorted(eos),
        # text is decoded here, as in every backend; the engine needs it to find a stop string only
        "detokenize": bool(stop),
    }


@contextlib.contextmanager
def served_folder(checkpoint: Checkpoint, tokenizer: Path, dtype: str, work: Path) -> Iterator[Path]:
    """Yield a folder that the engine can load: the checkpoint's own, or merged weights that are gone afterwards.

    Parameters
    ----------
    checkpoint
        Weights, with or without an adapter.
    tokenizer
        Folder of the tokenizer.
    dtype
        Number type of merged weights.
    work
        Folder for merged weights; what a killed job left there is removed.
    """
    for left in work.glob(f"{_MERGED}*"):
        shutil.rmtree(left)
    config = check_directory(checkpoint.weights)
    if checkpoint.adapter is None and not ("text_config" in config and "vision_config" in config):
        yield checkpoint.weights
        return
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_MERGED, dir=work) as folder:
        model = load_lm(checkpoint.weights, checkpoint.adapter, dtype=torch_dtype(dtype), device="cpu")
        model.save_pretrained(folder)
        del model
        copy_side_files(tokenizer, folder)
        yield Path(folder)


class _Session:
    """An engine that has read its weights."""

    def __init__(self, task: Task, engine: Any, sampling_class: Any, facts: dict[str, Any]) -> None:
        from transformers import AutoConfig

        self._task, self._engine, self._sampling_class, self._facts = task, engine, sampling_class, facts
        self._tokenizer = load_tokenizer(task.tokenizer)
        weights = task.checkpoint.weights
        found = AutoConfig.from_pretrained(str(weights), local_files_only=True, trust_remote_code=False)
        config = found.get_text_config()
        own = weights / "generation_config.json"
        extra = read_json(own).get("eos_token_id") if own.is_file() else None
        more = (extra,) if isinstance(extra, int) else tuple(extra or ())
        self._ends = Ends(self._tokenizer, eos_ids((*task.eos, *more), self._tokenizer, config), task.stop)
        self._vocabulary = int(config.vocab_size)
        limits = [getattr(config, "max_position_embeddings", None), task.settings.vllm.max_model_len]
        self._positions = min((limit for limit in limits if limit is not None), default=None)
        self._sent = 0

    def generate(self, requests: Sequence[Request], sampling: "Sampling", seed: int, *, benchmark: str) -> list[Output]:
        """Return ``sampling.samples`` responses to every prompt, by request, then sample.

        Raises
        ------
        UserError
            If a prompt cannot be read by this model (see `check_requests`), or a logit is not a number.
        """
        name = self._task.name
        check_requests(requests, self._tokenizer, self._vocabulary, self._positions, sampling.max_new_tokens, name)
        items = [
            (request, sample, item_seed(seed, benchmark, request.prompt_id, sample))
            for request in requests
            for sample in range(distinct_samples(sampling))
        ]
        prompts = [{"prompt_token_ids": list(request.ids)} for request, _, _ in items]
        params = [
            self._sampling_class(**sampling_arguments(sampling, own, self._ends.eos, self._ends.stop))
            for _, _, own in items
        ]
        first, self._sent = self._sent, self._sent + len(items)
        with token_bar(f"generate {name} {benchmark}", len(items), "responses") as bar:
            try:
                answers = self._engine.generate(prompts, params, use_tqdm=sys.stderr.isatty())
            except RuntimeError as error:
                found = _NAN.search(str(error))
                if found is None:
                    raise
                # the engine numbers its requests from 0
                request, sample, _ = items[int(found[1]) - first]
                raise UserError(
                    f"{name}: prompt {request.prompt_id}, sample {sample}: logits are not finite: check the "
                    "weights, or use dtype float32"
                ) from None
            bar.advance(len(items), sum(len(answer.outputs[0].token_ids) for answer in answers))
        outputs: dict[tuple[str, int], Output] = {}
        for (request, sample, own), answer in zip(items, answers, strict=True):
            outputs[request.prompt_id, sample] = self._output(request, sample, own, answer, sampling)
        return in_order(requests, sampling, seed, benchmark, outputs)

    def _output(self, request: Request, sample: int, seed: int, answer: Any, sampling: "Sampling") -> Output:
        if list(answer.prompt_token_ids) != list(request.ids):
            raise RuntimeError(f"{self._task.name}: prompt {request.prompt_id}: the engine read other token ids")
        output = self._ends.output(request, sample, seed, list(answer.outputs[0].token_ids))
        if output.finish == "length" and output.n_tokens < sampling.max_new_tokens:
            raise RuntimeError(
                f"{self._task.name}: prompt {request.prompt_id}, sample {sample}: the engine ended a response "
                f"({answer.outputs[0].stop_reason!r}) where nothing ends it"
            )
        return output

    def facts(self) -> dict[str, Any]:
        """Return what a manifest says of the engine."""
        return self._facts


@contextlib.contextmanager
def open_session(task: Task) -> Iterator[_Session]:
    """Start the engine on a checkpoint.

    Raises
    ------
    UserError
        If vLLM is not installed in this environment, or is built for another device.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # a result of NaN would be an ordinary token
    os.environ["VLLM_RAISE_ON_LOGIT_NANS"] = "1"
    device = resolve_device(task.compute.device)
    llm, sampling_class, built_for = _import_engine()
    if device != built_for:
        raise UserError(
            f"key 'compute.device': {device}, but this vLLM is built for {built_for}: use another device, or "
            f"`make env-vllm VLLM_BUILD={'cpu' if device == 'cpu' else 'gpu'}`"
        )
    start = time.perf_counter()
    dtype = task.settings.vllm.dtype or task.compute.dtype
    with served_folder(task.checkpoint, task.tokenizer, dtype, task.work) as folder:
        arguments = engine_arguments(task, folder, device)
        engine = llm(**arguments)
    facts = {key: value for key, value in arguments.items() if key not in ("model", "tokenizer")}
    yield _Session(task, engine, sampling_class, {**facts, "start_seconds": round(time.perf_counter() - start, 1)})


def _import_engine() -> tuple[Any, Any, str]:
    """Return ``vllm.LLM``, ``vllm.SamplingParams`` and the device that this vLLM is built for."""
    try:
        import vllm
        from vllm.platforms import current_platform
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise UserError(
            "vLLM is not installed beside this interpreter: run `make env-vllm`, or name an interpreter that has it "
            "in key 'generation.interpreter'"
        ) from None
    return vllm.LLM, vllm.SamplingParams, str(current_platform.device_type)


def complete(
    model_dir: Path | str,
    requests: Sequence[Request],
    max_new_tokens: int,
    *,
    generation: GenerationSettings | None = None,
    compute: Compute | None = None,
    name: str = "",
) -> list[str]:
    """Return greedy continuations by vLLM; see `refbias.generation.completion.complete`."""
    from refbias.generation import completion

    settings = (generation or GenerationSettings()).model_copy(update={"backend": "vllm"})
    return completion.complete(model_dir, requests, max_new_tokens, generation=settings, compute=compute, name=name)
