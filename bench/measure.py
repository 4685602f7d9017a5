"""Timing that survives a busy machine: contestants take turns, piece by piece of the work.

A virtual machine's speed drifts by a tenth within seconds. So the work may be cut into pieces,
contestants take turns at each piece, and a contestant's time is the sum over pieces of its median
over turns.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

PieceT = TypeVar("PieceT")


def take_turns(
    contestants: Mapping[str, Callable[[PieceT], object]], pieces: Sequence[PieceT], repeats: int
) -> dict[str, float]:
    """Return each contestant's seconds for all pieces.

    Parameters
    ----------
    contestants
        Name -> function of a piece. Each runs once unmeasured.
    pieces
        Parts of the work.
    repeats
        Turns.
    """
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in pieces] for name in contestants}
    for run in contestants.values():
        run(pieces[0])
    for turn in range(repeats):
        # every other turn in reverse: nobody always follows the same one
        order = list(contestants) if turn % 2 == 0 else list(reversed(contestants))
        for number, piece in enumerate(pieces):
            for name in order:
                start = time.perf_counter()
                contestants[name](piece)
                seconds[name][number].append(time.perf_counter() - start)
    return {name: sum(map(statistics.median, pieces)) for name, pieces in seconds.items()}


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
