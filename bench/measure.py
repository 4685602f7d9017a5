"""Timing that survives a busy machine: contestants take turns, ratios are taken within a turn."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of every contestant in every turn."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Return a contestant's median seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float:
        """Return how many times longer `slow` took than `fast`: the median over turns."""
        return statistics.median(a / b for a, b in zip(self.seconds[slow], self.seconds[fast], strict=True))


def take_turns(contestants: Mapping[str, Callable[[], object]], repeats: int) -> Timing:
    """Run every contestant once unmeasured, then `repeats` turns of all, every other turn in reverse."""
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats):
        order = list(contestants)
        for name in order if turn % 2 == 0 else reversed(order):
            start = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - start)
    return Timing({name: tuple(values) for name, values in seconds.items()})


@dataclass(frozen=True)
class Result:
    """A line of bench.csv: `ratio` above 1 means that refbias is faster than the baseline."""

    measure: str
    ours: float | None
    baseline: float | None
    unit: str
    ratio: float | None
    wanted: str
    note: str
