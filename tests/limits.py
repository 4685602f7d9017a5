"""Bounds on the time and the memory of what a test runs: a loader that believes a file fails, and does not hang."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType


class TooLongError(BaseException):
    """The time is up; no handler of errors in the code under test may take it for one of its own."""


def _address_space() -> int | None:
    """Return the bytes of this process's address space, None where the system does not tell."""
    status = Path("/proc/self/statm")
    if not status.is_file():
        return None
    import resource

    return int(status.read_text().split()[0]) * resource.getpagesize()


@contextlib.contextmanager
def bounded(seconds: float, memory_mb: int) -> Iterator[None]:
    """Raise `TooLongError` after `seconds` of computing, and let no allocation take more than `memory_mb` beyond now.

    Seconds are those of the processor: on a machine that does other things a test takes longer, and hangs no more than
    elsewhere. Where the system has no such alarm or does not tell its address space, that bound is left out.
    """
    with _bounded_time(seconds), _bounded_memory(memory_mb):
        yield


@contextlib.contextmanager
def _bounded_time(seconds: float) -> Iterator[None]:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_: int, frame: FrameType | None) -> None:
        raise TooLongError(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    # again and again: what is raised inside a collection of garbage, or a library's callback, is lost
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _bounded_memory(memory_mb: int) -> Iterator[None]:
    used = _address_space()
    if used is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + memory_mb * 1_000_000
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
