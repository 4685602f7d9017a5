"""Contestants of an audit and of a spectrum, each in a process of its own: ``python -m bench.contestants JOB``.

So the peak of memory is the contestant's, and none profits from what another left behind. A job is a JSON object with
``contestant``, ``model`` (a folder), ``threads``, ``keep`` (file for the embeddings of the audited checkpoints), and
what the contestant needs; seconds, peak memory and notes go to the file ``answer``. Importing libraries does not count.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from bench.embedding import padded_loop, sentence_transformer
from refbias.audit.run import run_audit
from refbias.audit.stimuli import choose_stimuli, split
from refbias.config.audit import AuditSettings, AuditStimuli
from refbias.config.represent import RepresentSettings
from refbias.embed import embed_tokens, tokenise
from refbias.metrics import rr_shift
from refbias.models import Checkpoint, load_base, load_tokenizer
from refbias.models.heap import keep_freed_memory
from refbias.spectrum import load_merged_into, merge_full
from refbias.stream import between, stream_embeddings

Job = dict[str, Any]
Found = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Embeddings by name, and notes."""


def _texts(job: Job) -> list[str]:
    return [row.text for row in choose_stimuli(AuditStimuli(**job["stimuli"])).sentences]


def _shifts(job: Job, reference: np.ndarray, audited: np.ndarray) -> Found:
    rows = choose_stimuli(AuditStimuli(**job["stimuli"])).sentences
    found = rr_shift(split(reference, rows), split(audited, rows))
    return {"audited": audited}, {"delta_b": {group: shift.delta_b for group, shift in found.items()}}


def audit(job: Job) -> Found:
    """Audit as `refbias audit` does, all statistics included; without the layer map, which no other contestant has."""
    settings = AuditSettings(
        reference=job["reference"],
        audited=[job["audited"]],
        stimuli=AuditStimuli(**job["stimuli"]),
        layer_map="none",
        dtype=job["dtype"],
        dtype_check=False,
        device="cpu",
    )
    done = run_audit(settings)
    (checkpoint,) = done.result.checkpoints
    timing = done.result.timing
    notes = {
        "delta_b": {row.group: row.delta_b for row in checkpoint.groups},
        "parts": {"read": timing.read, "embed": timing.embed, "statistics": timing.statistics},
        "from_cache": timing.reference_from_cache,
    }
    return {"audited": done.states[checkpoint.name]["final"]}, notes


def padded(job: Job) -> Found:
    """Load each whole model, embed in padded batches in the given order, and compute dB alone."""
    found = []
    for folder in (job["reference"], job["audited"]):
        model, tokenizer = load_base(folder, dtype=torch.float32), load_tokenizer(Path(folder))
        found.append(padded_loop(model, tokenizer, _texts(job)))
    return _shifts(job, *found)


def other(job: Job) -> Found:
    """Load and embed each model with sentence-transformers, and compute dB alone."""
    found = []
    for folder in (job["reference"], job["audited"]):
        model = sentence_transformer(Path(folder), job["threads"])
        found.append(np.asarray(model.encode(_texts(job), show_progress_bar=False), np.float32))
    return _shifts(job, *found)


def spectrum_streamed(job: Job) -> Found:
    """Push all checkpoints of the spectrum through the layers together."""
    first, last = (Path(folder) for folder in job["ends"])
    tokenizer = load_tokenizer(first)
    variants = [between(f"{weight:g}", Checkpoint(first), Checkpoint(last), weight) for weight in job["weights"]]
    result = stream_embeddings(
        variants,
        tokenise(tokenizer, _texts(job)),
        RepresentSettings(),
        bos=tokenizer.bos_token_id,
        dtype=torch.float32,
    )
    found = {name: layers["final"] for name, layers in result.embeddings.items()}
    return found, {"read_mb": round(sum(result.bytes_read.values()) / 1e6)}


def spectrum_in_place(job: Job) -> Found:
    """Load one whole model and replace its weights by every merge in turn."""
    first, last = (Path(folder) for folder in job["ends"])
    tokenizer, model = load_tokenizer(first), load_base(first, dtype=torch.float32)
    tokens = tokenise(tokenizer, _texts(job))
    found = {}
    for weight in job["weights"]:
        load_merged_into(model, Checkpoint(first), Checkpoint(last), weight)
        found[f"{weight:g}"] = embed_tokens(model, tokens, RepresentSettings(), bos=tokenizer.bos_token_id)
    return found, {}


def spectrum_files(job: Job) -> Found:
    """Write every merged checkpoint, load it and embed with it."""
    first, last = (Path(folder) for folder in job["ends"])
    tokenizer = load_tokenizer(first)
    tokens = tokenise(tokenizer, _texts(job))
    found, written = {}, 0
    for weight in job["weights"]:
        with tempfile.TemporaryDirectory(dir=job["scratch"]) as folder:
            merge_full(first, last, weight, folder)
            # an end is a link to the endpoint's file
            written += 0 if weight in (0, 1) else (Path(folder) / "model.safetensors").stat().st_size
            model = load_base(folder, dtype=torch.float32)
            found[f"{weight:g}"] = embed_tokens(model, tokens, RepresentSettings(), bos=tokenizer.bos_token_id)
    return found, {"written_mb": round(written / 1e6)}


CONTESTANTS: dict[str, Callable[[Job], Found]] = {
    "audit": audit,
    "padded": padded,
    "other": other,
    "spectrum_streamed": spectrum_streamed,
    "spectrum_in_place": spectrum_in_place,
    "spectrum_files": spectrum_files,
}


def peak_mb(status: str) -> float:
    """Return the peak resident memory in MB (1e6 bytes) that the text of ``/proc/self/status`` states."""
    # a process started by another inherits the other's peak in `getrusage`; this one is its own
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


def _import_libraries(job: Job) -> None:
    """Import what the contestant would import at its first load."""
    from transformers import AutoConfig, AutoModelForCausalLM

    load_tokenizer(Path(job["model"]))
    with torch.device("meta"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job["model"]))
    for name in {"other": ["sentence_transformers"], "spectrum_files": ["mergekit.merge"]}.get(job["contestant"], []):
        importlib.import_module(name)


def main(text: str) -> None:
    """Run one job."""
    job = json.loads(text)
    torch.set_num_threads(job["threads"])
    keep_freed_memory()
    _import_libraries(job)
    status = Path("/proc/self/status")
    before = peak_mb(status.read_text())
    start = time.perf_counter()
    found, notes = CONTESTANTS[job["contestant"]](job)
    seconds = time.perf_counter() - start
    peak = peak_mb(status.read_text())
    save_file({name: np.ascontiguousarray(matrix, np.float32) for name, matrix in found.items()}, job["keep"])
    answer = {"seconds": seconds, "peak_mb": peak, "before_mb": before, "notes": notes}
    Path(job["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
