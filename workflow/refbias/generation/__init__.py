"""Generation of responses: token ids in, text out, the same whatever the batch.

A backend is a module with a function ``open_session``, which loads a checkpoint once for all that
is asked of it, and one line in `BACKENDS`: `refbias.generation.hf` runs a transformers model in
this process, `refbias.generation.vllm` the vLLM engine.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from refbias.generation.base import Output, Request, Session, Task

Opener = Callable[[Task], AbstractContextManager[Session]]


def _hf(task: Task) -> AbstractContextManager[Session]:
    from refbias.generation import hf

    return hf.open_session(task)


def _vllm(task: Task) -> AbstractContextManager[Session]:
    from refbias.generation import vllm

    return vllm.open_session(task)


# a backend's libraries are imported when it is opened
BACKENDS: Mapping[str, Opener] = {"hf": _hf, "vllm": _vllm}

__all__ = ["BACKENDS", "Output", "Request", "Session", "Task"]
