"""Layers read ahead: a thread fills one buffer while the other one's layer computes."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch

from refbias.stream.shards import Weights

_ALIGNED = 64  # bytes of a cache line; multiples of it lie side by side, so that products can be joined

Held = Mapping[Path, Mapping[str, torch.Tensor]]
"""Directory -> name -> tensor as stored."""


class Slot:
    """A buffer that is used again for every layer."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def cut(self, sizes: Sequence[int], device: torch.device | str = "cpu") -> list[torch.Tensor]:
        """Return views (uint8) of the given numbers of bytes; earlier ones lose their content."""
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNED) * _ALIGNED)
        if self._buffer.numel() < starts[-1]:
            # the old one goes before the new one comes
            self._buffer = torch.empty(0, dtype=torch.uint8)
            self._buffer = torch.empty(starts[-1], dtype=torch.uint8, device=device)
        return [self._buffer[start : start + size] for start, size in zip(starts, sizes, strict=False)]


class LayerReader:
    """Reads each layer's tensors of all directories once, in order, one layer ahead or just as they are wanted.

    Parameters
    ----------
    weights
        Directory -> its open files.
    layers
        Names of each layer's tensors.
    device
        Where the tensors are wanted.
    read_ahead
        Whether the next layer is read while one is computed, which takes the memory of both.
    """

    def __init__(
        self,
        weights: Mapping[Path, Weights],
        layers: Sequence[Sequence[str]],
        device: torch.device,
        read_ahead: bool = True,
    ) -> None:
        self._weights, self._layers, self._device, self._read_ahead = weights, layers, device, read_ahead
        self._slots = {directory: [Slot() for _ in range(2 if read_ahead else 1)] for directory in weights}
        self._thread = ThreadPoolExecutor(1, "refbias-read")
        self._waiting: Future[dict[Path, dict[str, torch.Tensor]]] | None = None
        self._next = 0
        self.seconds = self.waited = 0.0
        if read_ahead:
            self._submit()

    def _submit(self) -> None:
        if self._next < len(self._layers):
            self._waiting = self._thread.submit(self._read, self._next)
            self._next += 1

    def _read(self, number: int) -> dict[Path, dict[str, torch.Tensor]]:
        start = time.perf_counter()
        found = {}
        # a thread has an inference mode of its own
        with torch.inference_mode():
            for directory, weights in self._weights.items():
                names = self._layers[number]
                slots = self._slots[directory]
                views = slots[number % len(slots)].cut([weights.nbytes(name) for name in names])
                found[directory] = {name: weights.read(name, view) for name, view in zip(names, views, strict=True)}
        self.seconds += time.perf_counter() - start
        return found

    def take(self) -> Held:
        """Return the next layer's tensors; what was taken before is lost."""
        start = time.perf_counter()
        if not self._read_ahead:
            self._submit()
        if self._waiting is None:
            raise IndexError("no layer is left")
        held, self._waiting = self._waiting.result(), None
        self.waited += time.perf_counter() - start
        if self._read_ahead:
            self._submit()
        if self._device.type == "cpu":
            return held
        return {place: {name: part.to(self._device) for name, part in parts.items()} for place, parts in held.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
