"""Greedy continuations of token ids, for models that judge text: one function for every backend.

Where the backend's interpreter is another than this one, a process of that interpreter does the
work: ``python -m refbias.generation.completion REQUEST.json ANSWER.json``.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from refbias.artifacts import read_json, write_json
from refbias.benchmarks.base import Sampling
from refbias.config.generation import GenerationSettings
from refbias.config.models import Compute
from refbias.environment import SOURCE, find_interpreter, variables
from refbias.errors import UserError
from refbias.generation import BACKENDS, Request, Task
from refbias.models.load import Checkpoint

_MODULES = {"hf": "transformers", "vllm": "vllm"}


def complete(
    model_dir: Path | str,
    requests: Sequence[Request],
    max_new_tokens: int,
    *,
    generation: GenerationSettings | None = None,
    compute: Compute | None = None,
    name: str = "",
) -> list[str]:
    """Return the greedy continuation of every request.

    Parameters
    ----------
    model_dir
        Folder of the model with its tokenizer.
    requests
        Prompts as token ids, each with the one BOS that the model wants, under ids of their own.
    max_new_tokens
        New tokens at most; the model's EOS ends a continuation sooner.
    generation, compute
        Backend, engine and interpreter; device and number type. The configuration's defaults where left out.
    name
        What to call the model in an error; the folder's name where left out.

    Returns
    -------
    list of str
        Texts of the new tokens alone, without special tokens, in the order of `requests`.

    Raises
    ------
    UserError
        If the model cannot be loaded, a request cannot be read by it, or the backend's interpreter is
        not there.
    ValueError
        If two requests have the same id.
    """
    settings, device = generation or GenerationSettings(), compute or Compute()
    if len({request.prompt_id for request in requests}) < len(requests):
        raise ValueError("requests: two have the same id")
    if not requests:
        return []
    name = name or Path(model_dir).name
    if settings.python() and find_spec(_MODULES[settings.backend]) is None:
        return _elsewhere(Path(model_dir), requests, max_new_tokens, settings, device, name)
    return _here(Path(model_dir), requests, max_new_tokens, settings, device, name)


def _here(
    folder: Path,
    requests: Sequence[Request],
    new_tokens: int,
    settings: GenerationSettings,
    compute: Compute,
    name: str,
) -> list[str]:
    sampling = Sampling(samples=1, temperature=0.0, top_p=1.0, max_new_tokens=new_tokens)
    with tempfile.TemporaryDirectory(prefix="refbias-") as work:
        task = Task(
            checkpoint=Checkpoint(folder),
            tokenizer=folder,
            name=name,
            settings=settings,
            compute=compute,
            longest=max(len(request.ids) for request in requests) + new_tokens,
            work=Path(work),
        )
        with BACKENDS[settings.backend](task) as session:
            outputs = session.generate(requests, sampling, 0, benchmark="completion")
    return [output.text for output in outputs]


def _elsewhere(
    folder: Path,
    requests: Sequence[Request],
    new_tokens: int,
    settings: GenerationSettings,
    compute: Compute,
    name: str,
) -> list[str]:
    python = find_interpreter(settings.python() or sys.executable)
    with tempfile.TemporaryDirectory(prefix="refbias-") as work:
        question, answer = Path(work) / "request.json", Path(work) / "answer.json"
        write_json(
            question,
            {
                "model_dir": str(folder.absolute()),
                "requests": [[request.prompt_id, list(request.ids)] for request in requests],
                "max_new_tokens": new_tokens,
                "generation": settings.model_dump(mode="json"),
                "compute": compute.model_dump(mode="json"),
                "name": name,
            },
        )
        command = [str(python), "-m", "refbias.generation.completion", str(question), str(answer)]
        environment = {**os.environ, **variables(python, SOURCE)}
        done = subprocess.run(command, env=environment, stdout=2, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: {' '.join(command[:3])} ended with code {done.returncode}: see above")
        found: dict[str, Any] = read_json(answer)
    if "error" in found:
        raise UserError(found["error"])
    return [str(text) for text in found["texts"]]


def main(question: str, answer: str) -> None:
    """Answer one request file."""
    asked = read_json(question)
    settings = GenerationSettings.model_validate(asked["generation"])
    compute = Compute.model_validate(asked["compute"])
    requests = [Request(prompt_id, "", tuple(ids)) for prompt_id, ids in asked["requests"]]
    try:
        texts = _here(Path(asked["model_dir"]), requests, asked["max_new_tokens"], settings, compute, asked["name"])
    except UserError as error:
        write_json(answer, {"error": str(error)})
        return
    write_json(answer, {"texts": texts})


if __name__ == "__main__":
    main(*sys.argv[1:])
