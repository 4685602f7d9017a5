"""Time and memory of an audit and of a spectrum, against what one would do without refbias.

Each contestant works from folders of weights to dB (an audit) or to the embeddings of every checkpoint (a spectrum), in
a process of its own. The packaged model is the reference; the other checkpoints are copies of it with noise.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_weights
from safetensors.torch import save_file

from bench.measure import Result
from refbias.artifacts import atomic_path
from refbias.audit.compute import choose_dtype
from refbias.environment import SOURCE, variables

SIZES = {"targets": 10, "attributes": 40, "anchors": 250, "control": 50}
SPECTRUM_SIZES = {"targets": 3, "attributes": 20, "anchors": 100, "control": 20}
WEIGHTS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
NOISE = 0.02
"""Standard deviation of the noise on a matrix, in units of its mean absolute weight."""
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Answer:
    """What a contestant took: seconds (median over turns), peak memory in MB, its notes and embeddings."""

    seconds: float
    peak_mb: float
    notes: dict[str, Any]
    embeddings: dict[str, np.ndarray]


def changed_copy(source: Path, target: Path, seed: int) -> Path:
    """Write a copy of a checkpoint with noise on every matrix, once."""
    if (target / "config.json").is_file():
        return target
    target.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_weights(source / "model.safetensors")
    for value in tensors.values():
        if value.ndim > 1:
            noise = torch.randn(value.shape, generator=generator) * (NOISE * value.float().abs().mean())
            value += noise.to(value.dtype)
    with atomic_path(target / "model.safetensors") as path:
        save_file(tensors, path, metadata={"format": "pt"})
    # the configuration last: it says that the copy is whole
    for path in sorted(source.glob("*.json"), key=lambda path: path.name == "config.json"):
        if path.name != "manifest.json":
            shutil.copy2(path, target / path.name)
    return target


def in_turns(jobs: Mapping[str, Mapping[str, Any]], turns: int, cold: Sequence[str] = ()) -> dict[str, Answer]:
    """Run every job in a process of its own, in turns, every other turn in reverse.

    Parameters
    ----------
    jobs
        Name -> job; see `bench.contestants`. Those of one ``cache`` share a cache folder, others have their own.
    turns
        Turns.
    cold
        Jobs before which their cache folder is emptied.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    kept: dict[str, dict[str, np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for turn in range(turns):
            for name in list(jobs) if turn % 2 == 0 else list(reversed(jobs)):
                cache = scratch / f"cache-{jobs[name].get('cache', name)}"
                if name in cold:
                    shutil.rmtree(cache, ignore_errors=True)
                files = {"keep": str(scratch / f"{name}.safetensors"), "answer": str(scratch / f"{name}.json")}
                _run({**jobs[name], **files, "scratch": folder}, cache)
                found[name].append(json.loads(Path(files["answer"]).read_text()))
                kept[name] = load_file(files["keep"])
    return {
        name: Answer(
            statistics.median(answer["seconds"] for answer in answers),
            max(answer["peak_mb"] for answer in answers),
            answers[-1]["notes"],
            kept[name],
        )
        for name, answers in found.items()
    }


def _run(job: Mapping[str, Any], cache: Path) -> None:
    environment = {**os.environ, **variables(Path(sys.executable), SOURCE), "REFBIAS_CACHE": str(cache)}
    environment["PYTHONPATH"] += os.pathsep + str(_ROOT)
    environment["OMP_NUM_THREADS"] = str(job["threads"])
    command = [sys.executable, "-m", "bench.contestants", json.dumps(dict(job))]
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bench: contestant {job['contestant']} ended with code {done.returncode}:\n{done.stderr}")


def gap(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Return the largest difference between two contestants' embeddings, as share of the largest value."""
    if set(ours) != set(theirs):
        raise ValueError(f"{sorted(ours)} and {sorted(theirs)}: not the same checkpoints")
    largest = max(float(np.abs(matrix).max()) for matrix in ours.values())
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours) / largest


def audit_results(found: Mapping[str, Answer]) -> list[Result]:
    """Return the lines of an audit: cold and warm, against the contestants that were there.

    Parameters
    ----------
    found
        ``cold`` and ``warm``; ``padded``; ``other`` where sentence-transformers is installed; ``bfloat16`` where the
        processor has it.
    """
    labels = {"padded": "padded whole-model loop", "other": "sentence-transformers"}
    results = []
    for turn in ("cold", "warm"):
        ours = found[turn]
        if ours.notes["from_cache"] is (turn == "cold"):
            raise ValueError(f"the {turn} audit's reference was{' not' * (turn == 'warm')} in the cache")
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in ours.notes["parts"].items())
        for name, label in labels.items():
            measure = f"audit, {turn}: {label}"
            if name not in found:
                note = "skipped: not installed (pip install sentence-transformers, or make bench)"
                results.append(Result(measure, ours.seconds, None, "s", None, "> 1", note))
                continue
            theirs = found[name]
            difference = gap(ours.embeddings, theirs.embeddings)
            note = f"all statistics ({parts}), the other dB alone; largest difference {difference:.1e}"
            results.append(
                Result(measure, ours.seconds, theirs.seconds, "s", theirs.seconds / ours.seconds, "> 1", note)
            )
    cold = found["cold"]
    if "bfloat16" in found:
        fast = found["bfloat16"]
        moved = max(abs(fast.notes["delta_b"][group] - value) for group, value in cold.notes["delta_b"].items())
        note = f"both cold; dB of a group changes by at most {moved:.1e}"
        ratio = cold.seconds / fast.seconds
        results.append(
            Result("audit, cold: float32 instead of bfloat16", fast.seconds, cold.seconds, "s", ratio, "> 1", note)
        )
    for name in (name for name in labels if name in found):
        results.append(_memory(f"memory of an audit: {labels[name]}", cold, found[name]))
    return results


def spectrum_results(found: Mapping[str, Answer]) -> list[Result]:
    """Return the lines of a spectrum: ``streamed`` against ``files`` and ``in_place``."""
    ours, count = found["streamed"], len(found["streamed"].embeddings)
    labels = {"files": "merged files", "in_place": "whole model, merged in place"}
    results = []
    for name, label in labels.items():
        theirs = found[name]
        traffic = ", ".join(f"{key.removesuffix('_mb')} {mb} MB" for key, mb in {**ours.notes, **theirs.notes}.items())
        note = f"{count} checkpoints; {traffic}; largest difference {gap(ours.embeddings, theirs.embeddings):.1e}"
        ratio = theirs.seconds / ours.seconds
        wanted = "> 1" if name == "files" else ""
        results.append(Result(f"spectrum, streamed: {label}", ours.seconds, theirs.seconds, "s", ratio, wanted, note))
    return [*results, *(_memory(f"memory of a spectrum: {labels[name]}", ours, found[name]) for name in labels)]


def _memory(measure: str, ours: Answer, theirs: Answer) -> Result:
    note = "peak of the process, libraries included"
    return Result(measure, ours.peak_mb, theirs.peak_mb, "MB", theirs.peak_mb / ours.peak_mb, "> 1", note)


def run(model: Path, threads: int, turns: int) -> list[Result]:
    """Measure audits and spectra of the packaged model.

    Parameters
    ----------
    model
        Folder of the packaged model; the other checkpoints go beside it.
    threads
        CPU threads.
    turns
        Turns of the audits; of the spectra, which take longer, half as many.
    """
    ends = [changed_copy(model, model.with_name(f"{model.name}-{name}"), seed) for seed, name in enumerate("ab", 1)]
    common = {"model": str(model), "threads": threads}
    pair = {"reference": str(model), "audited": str(ends[0]), "stimuli": SIZES, "dtype": "float32"}
    jobs: dict[str, dict[str, Any]] = {
        # the second finds what the first kept
        "cold": {"contestant": "audit", "cache": "shared", **pair},
        "warm": {"contestant": "audit", "cache": "shared", **pair},
        "padded": {"contestant": "padded", **pair},
    }
    if importlib.util.find_spec("sentence_transformers") is not None:
        jobs["other"] = {"contestant": "other", **pair}
    if choose_dtype("auto", "cpu") == "bfloat16":
        jobs["bfloat16"] = {"contestant": "audit", **pair, "dtype": "bfloat16"}
    audits = in_turns({name: {**common, **job} for name, job in jobs.items()}, turns, ("cold", "bfloat16"))
    several = {"ends": [str(end) for end in ends], "weights": WEIGHTS, "stimuli": SPECTRUM_SIZES, **common}
    names = ("streamed", "in_place", "files")
    spectra = in_turns({name: {"contestant": f"spectrum_{name}", **several} for name in names}, max(1, turns // 2))
    return [*audit_results(audits), *spectrum_results(spectra)]
