"""Progress bars for what is slow: what is done, tokens a second where there are some, time left."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

LOG = logging.getLogger(__name__)


class Bar:
    """Counts what is done and the tokens that it took."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(label, total=total, rate=0.0)
        self._start = time.perf_counter()
        self.tokens = 0

    @property
    def rate(self) -> float:
        """Tokens a second so far."""
        return self.tokens / max(time.perf_counter() - self._start, 1e-9)

    def advance(self, done: int, tokens: int) -> None:
        """Count `done` more units and `tokens` more tokens."""
        self.tokens += tokens
        self._progress.update(self._task, advance=done, rate=self.rate)


@contextlib.contextmanager
def token_bar(label: str, total: int, unit: str) -> Iterator[Bar]:
    """Show a bar on stderr where that is a terminal, and log the rate at the end.

    Parameters
    ----------
    label
        What is going on, such as ``embed h030``.
    total
        Units in all.
    unit
        What is counted, in the plural.
    """
    with _progress(unit, TextColumn("{task.fields[rate]:.0f} tokens/s")) as progress:
        bar = Bar(progress, label, total)
        yield bar
    LOG.info("%s: %d tokens, %.0f tokens/s", label, bar.tokens, bar.rate)


@contextlib.contextmanager
def step_bar(label: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
    """Show a bar of what is counted without tokens, on stderr where that is a terminal.

    Parameters
    ----------
    label
        What is going on, such as ``statistics``.
    total
        Units in all.
    unit
        What is counted, in the plural.

    Yields
    ------
    callable
        Counts so many more units as done.
    """
    with _progress(unit) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def _progress(unit: str, *more: ProgressColumn) -> Progress:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
        *more,
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
