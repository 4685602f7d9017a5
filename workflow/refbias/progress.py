"""One progress bar for the slow stages: what is done, tokens a second, time left."""

import contextlib
import logging
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
        TextColumn("{task.fields[rate]:.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = Bar(progress, label, total)
        yield bar
    LOG.info("%s: %d tokens, %.0f tokens/s", label, bar.tokens, bar.rate)
