"""vLLM's side of the comparison, run by its own interpreter: a JSON line in, a JSON line out.

``python -m bench.engine FOLDER REPLIES`` starts the engine on a model and answers on the file
descriptor REPLIES; its standard output and error belong to vLLM.
"""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from refbias.benchmarks.base import Sampling
from refbias.config.generation import GenerationSettings
from refbias.config.models import Compute
from refbias.generation import BACKENDS, Request, Task
from refbias.models.load import Checkpoint


def answer(session: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Generate greedily, `batch` prompts at a time, and say how long it took."""
    requests = [Request(str(number), "", tuple(ids)) for number, ids in enumerate(asked["prompts"])]
    sampling = Sampling(samples=1, temperature=0.0, top_p=1.0, max_new_tokens=asked["new_tokens"])
    start = time.perf_counter()
    outputs = []
    for first in range(0, len(requests), asked["batch"]):
        part = requests[first : first + asked["batch"]]
        outputs += session.generate(part, sampling, 0, benchmark="bench")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "outputs": [dataclasses.asdict(output) for output in outputs]}


def main(folder: Path, replies: int) -> None:
    """Answer requests until the input ends."""
    first = json.loads(sys.stdin.readline())
    settings = GenerationSettings.model_validate({"backend": "vllm", **first["generation"]})
    task = Task(
        checkpoint=Checkpoint(folder),
        tokenizer=folder,
        name="bench",
        settings=settings,
        compute=Compute(device=first["device"], dtype="float32"),
        longest=first["longest"],
        work=folder,
    )
    with BACKENDS["vllm"](task) as session, os.fdopen(replies, "w") as out:
        out.write(json.dumps(session.facts()) + "\n")
        out.flush()
        for line in sys.stdin:
            out.write(json.dumps(answer(session, json.loads(line))) + "\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
