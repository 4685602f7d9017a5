"""Two batches under way at once: threads that share the process's compute threads.

A decoder's norms and gates wait for memory while its matrix products wait for the arithmetic units: two batches under
way at once keep both busy, where one batch on all threads leaves either idle in turn. A batch's numbers do not depend
on the thread that computes it.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Self, TypeVar

import torch

_Result = TypeVar("_Result")
N_LANES = 2


def lanes_on(device: torch.device) -> int:
    """Return how many batches a device takes at once: an accelerator has queues of its own."""
    return N_LANES if device.type == "cpu" else 1


class Lanes:
    """Threads for the batches of a CPU's forward passes.

    Parameters
    ----------
    n_lanes
        Batches under way at once. With fewer than two, or fewer compute threads than lanes, the calling thread does
        all the work.
    """

    def __init__(self, n_lanes: int) -> None:
        self._threads = torch.get_num_threads()
        self.n_lanes = n_lanes if 2 <= n_lanes <= self._threads else 1
        self._failed = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        if self.n_lanes > 1:
            # the number of compute threads holds for the thread that sets it
            share = self._threads // self.n_lanes
            self._pool = ThreadPoolExecutor(self.n_lanes, "refbias-lane", torch.set_num_threads, (share,))

    def map(self, work: Callable[[int], _Result], sizes: Sequence[int]) -> list[_Result]:
        """Return what `work` gives for each batch, in order; the first failure is raised and ends the rest.

        Parameters
        ----------
        work
            Called with the number of a batch, in inference mode.
        sizes
            Tokens of each batch: the largest are begun first, so that the lanes end together.
        """
        if self._pool is None or len(sizes) < self.n_lanes:
            with torch.inference_mode():
                return [work(number) for number in range(len(sizes))]
        self._failed.clear()

        def attempt(number: int) -> _Result:
            if self._failed.is_set():
                raise CancelledError
            try:
                # a thread has an inference mode of its own
                with torch.inference_mode():
                    return work(number)
            except BaseException:
                self._failed.set()
                raise

        order = sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True)
        waiting = {number: self._pool.submit(attempt, number) for number in order}
        try:
            # in the order of their beginning: what failed first is what is raised
            found = {number: future.result() for number, future in waiting.items()}
        except BaseException:
            self._failed.set()
            # what is under way may use what the caller takes away
            wait(waiting.values())
            raise
        return [found[number] for number in range(len(sizes))]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(self._threads)
