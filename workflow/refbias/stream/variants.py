"""Checkpoints as weighted sums: what each variant's tensor is, given what the files hold.

The arithmetic is that of `refbias.spectrum`: sums in fp32, rounded once to the number type in which
the merged checkpoint would be stored; an adapter's change of weights is added in fp32.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from refbias.errors import UserError
from refbias.models.adapter import Adapter, read_adapter
from refbias.models.load import Checkpoint, torch_dtype
from refbias.spectrum.lora import weighted_adapter
from refbias.stream.shards import Weights, open_weights

_PIECE = 1 << 20  # elements summed together: their fp32 copies stay in cache


@dataclass(frozen=True)
class Part:
    """A share of a checkpoint: a weight, the directory of weights, an adapter on it."""

    weight: float
    directory: Path
    adapter: Path | None = None


@dataclass(frozen=True)
class Variant:
    """A checkpoint as weighted sum of parts: one part of weight 1 is the checkpoint itself."""

    name: str
    parts: tuple[Part, ...]


def single(name: str, checkpoint: Checkpoint) -> Variant:
    """Return the variant that is a checkpoint itself."""
    return Variant(name, (Part(1.0, checkpoint.weights, checkpoint.adapter),))


def between(name: str, unharmful: Checkpoint, harmful: Checkpoint, weight: float) -> Variant:
    """Return the point of harmful weight `weight` between two endpoints."""
    first = Part(1 - weight, unharmful.weights, unharmful.adapter)
    return Variant(name, (first, Part(weight, harmful.weights, harmful.adapter)))


@dataclass(frozen=True)
class _Plan:
    """How a variant's tensors are made: the parts that count, and the change of weights on a common base."""

    parts: tuple[Part, ...]
    change: Adapter | None

    def touches(self, module: str) -> bool:
        """Whether the module's weight is anything but what one file holds."""
        one = len(self.parts) == 1 and self.parts[0].weight == 1
        return (self.change is None and not one) or (self.change is not None and module in self.change.pairs)


class Sources:
    """The open directories of some variants, and the sums over what they hold.

    Raises
    ------
    UserError
        If a directory or an adapter cannot be read, or the parts of a variant do not fit together.
    """

    def __init__(self, variants: Sequence[Variant], merge_dtype: str) -> None:
        if len({variant.name for variant in variants}) != len(variants) or not variants:
            raise UserError("checkpoints: none given, or two of one name: give each its own")
        self.variants = tuple(variants)
        self._merged = None if merge_dtype == "endpoint" else torch_dtype(merge_dtype)
        self._stack = ExitStack()
        self.weights: dict[Path, Weights] = {}
        self._adapters: dict[Path, Adapter] = {}
        try:
            self._plans = {variant.name: self._plan(variant) for variant in variants}
        except BaseException:
            self.close()
            raise

    def _plan(self, variant: Variant) -> _Plan:
        parts = tuple(part for part in variant.parts if part.weight)
        if not parts:
            raise UserError(f"{variant.name}: no part of a weight other than 0: name at least one checkpoint")
        for part in parts:
            if part.directory not in self.weights:
                self.weights[part.directory] = self._stack.enter_context(open_weights(part.directory))
            if part.adapter is not None and part.adapter not in self._adapters:
                self._adapters[part.adapter] = read_adapter(part.adapter)
        alone = len({part.directory for part in parts}) == 1 and abs(sum(part.weight for part in parts) - 1) < 1e-9
        if not alone:
            return _Plan(parts, None)
        base = Part(1.0, parts[0].directory)
        changes = [(self._adapters[part.adapter], part.weight) for part in parts if part.adapter is not None]
        if len(changes) == 1 and changes[0][1] == 1:
            return _Plan((base,), changes[0][0])
        return _Plan((base,), weighted_adapter(changes) if changes else None)

    def bind(self, shapes: Mapping[str, tuple[int, ...]], prefix: str) -> None:
        """Call all tensors as the decoder does (whole models put `prefix` before) and refuse what does not fit it.

        That is directories that lack one of the tensors, or hold it in another shape or number type than the
        first, and adapters that change a module which is not there.

        Raises
        ------
        UserError
            Names the tensor and both sides.
        """
        first = next(iter(self.weights.values()))
        for directory, weights in self.weights.items():
            weights.without_prefix(prefix)
            for key, shape in shapes.items():
                if weights.shape(key) != shape:
                    raise UserError(
                        f"{directory}: tensor {key!r} is {weights.shape(key)}, the model needs {shape}: "
                        "use checkpoints of one model"
                    )
                if weights.dtype(key) != first.dtype(key):
                    raise UserError(
                        f"tensor {key!r}: {first.dtype(key)} in {first.directory}, {weights.dtype(key)} in "
                        f"{directory}: save both alike"
                    )
        self._prefix = prefix
        for path, adapter in self._adapters.items():
            self._check_adapter(path, adapter, {prefix + key: shape for key, shape in shapes.items()})

    @staticmethod
    def _check_adapter(path: Path, adapter: Adapter, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for module, (a, b) in adapter.pairs.items():
            shape = shapes.get(f"{module}.weight")
            # the output layer is beyond what an embedding sees
            if shape is None and module.endswith("lm_head"):
                continue
            if shape is None:
                raise UserError(f"{path}: adapts {module!r}, which the base model does not have: check the pair")
            if shape != (b.shape[0], a.shape[1]):
                raise UserError(
                    f"{path}: {module!r} changes a matrix of {(b.shape[0], a.shape[1])}, the base model's is "
                    f"{shape}: check the pair"
                )

    def plain(self, variant: Variant, key: str, dtype: torch.dtype) -> bool:
        """Whether a variant's tensor in `dtype` is, bit by bit, what its one file holds."""
        plan = self._plans[variant.name]
        types = {self.weights[plan.parts[0].directory].dtype(key), self._merged or dtype, dtype}
        return not plan.touches(self._module(key)) and types == {dtype}

    def _module(self, key: str) -> str:
        """Return the name that adapters give the module of a tensor."""
        return self._prefix + key.removesuffix(".weight")

    def stored(self, variant: Variant, found: Mapping[Path, Mapping[str, torch.Tensor]], key: str) -> torch.Tensor:
        """Return what the variant's first part holds."""
        return found[self._plans[variant.name].parts[0].directory][key]

    def blend(
        self, variant: Variant, found: Mapping[Path, Mapping[str, torch.Tensor]], key: str, out: torch.Tensor
    ) -> None:
        """Write a variant's tensor into `out`.

        Parameters
        ----------
        variant
            One of the variants.
        found
            Directory -> name -> tensor as stored.
        key
            Name of the tensor, as the decoder calls it.
        out
            Contiguous, of the tensor's shape, in the number type to compute with.
        """
        plan = self._plans[variant.name]
        module = self._module(key)
        tensors = [found[part.directory][key] for part in plan.parts]
        if plan.change is not None:
            if module in plan.change.pairs:
                for rows in _pieces(out):
                    out[rows].copy_(tensors[0][rows].float() + _change(plan.change, module, rows, out.device))
            else:
                out.copy_(tensors[0])
            return
        if len(plan.parts) == 1 and plan.parts[0].weight == 1:
            out.copy_(tensors[0] if self._merged is None else tensors[0].to(self._merged))
            return
        stored = tensors[0].dtype
        for rows in _pieces(out):
            total = torch.zeros_like(out[rows], dtype=torch.float32)
            for part, tensor in zip(plan.parts, tensors, strict=True):
                share = torch.tensor(part.weight, dtype=torch.float32, device=out.device)
                values = tensor[rows].float()
                if part.adapter is not None and module in self._adapters[part.adapter].pairs:
                    values = values + _change(self._adapters[part.adapter], module, rows, out.device)
                total.addcmul_(values, share.reshape((1,) * total.ndim))
            rounded = total.to(stored)
            out[rows].copy_(rounded if self._merged is None else rounded.to(self._merged))

    def bytes_read(self) -> dict[str, int]:
        """Return bytes read so far, per directory."""
        return {str(directory): weights.bytes_read for directory, weights in self.weights.items()}

    def close(self) -> None:
        """Close all files."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _pieces(out: torch.Tensor) -> Iterator[slice]:
    """Cut a tensor's first dimension into pieces of about `_PIECE` elements."""
    if not out.ndim or not out.numel():
        yield from (slice(None),) if out.ndim else ()
        return
    step = max(1, _PIECE * len(out) // out.numel())
    for start in range(0, len(out), step):
        yield slice(start, start + step)


def _change(adapter: Adapter, module: str, rows: slice, device: torch.device) -> torch.Tensor:
    """Return rows of an adapter's change of weights in fp32; see `Adapter.delta`."""
    a, b = (tensor.to(device, torch.float32) for tensor in adapter.pairs[module])
    return (b[rows] @ a) * adapter.scales[module]
