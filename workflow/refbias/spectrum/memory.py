"""A point of the spectrum put straight into a loaded model, for stages that walk a whole spectrum."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from refbias.errors import UserError
from refbias.models.adapter import Adapter, read_adapter
from refbias.models.load import Checkpoint, torch_dtype
from refbias.spectrum.full import check_endpoints, iter_merged
from refbias.spectrum.lora import combined_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_merged_into(
    model: "PreTrainedModel", unharmful: Checkpoint, harmful: Checkpoint, weight: float, dtype: str = "endpoint"
) -> None:
    """Overwrite the weights of a loaded model with those of a point of the spectrum.

    The numbers are those that loading the stored merge would give; only one tensor more than the
    model is in memory at a time.

    Parameters
    ----------
    model
        Made by `load_lm` or `load_base` from an endpoint or the reference.
    unharmful, harmful
        Both full checkpoints, or both adapters on the same reference weights.
    weight
        Harmful weight w in [0, 1].
    dtype
        Number type in which the merge would be stored (full checkpoints).

    Raises
    ------
    UserError
        If the endpoints do not match each other or the model; names the tensor.
    """
    if unharmful.adapter is not None and harmful.adapter is not None:
        adapter = combined_adapter(read_adapter(unharmful.adapter), read_adapter(harmful.adapter), weight)
        _fill(model, _adapted(unharmful.weights, adapter, str(unharmful.adapter)))
        return
    check_endpoints(unharmful.weights, harmful.weights)
    merged = iter_merged(unharmful.weights, harmful.weights, weight)
    stored = None if dtype == "endpoint" else torch_dtype(dtype)
    _fill(model, ((name, tensor if stored is None else tensor.to(stored)) for name, tensor in merged))


def _adapted(base: Path, adapter: Adapter, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the base's tensors, the adapted ones with their change of weights added in fp32."""
    waiting = {f"{module}.weight": module for module in adapter.pairs}
    for name, tensor in iter_merged(base, base, 0.0):
        module = waiting.pop(name, None)
        yield name, tensor if module is None else tensor.float() + adapter.delta(module, torch.float32)
    if waiting:
        raise UserError(f"{where}: adapts {sorted(waiting)[0]!r}, which the reference does not have: check the pair")


def _fill(model: "PreTrainedModel", tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    # the decoder alone calls its tensors without the prefix that the whole model gives them
    prefix = f"{model.base_model_prefix}." if model.base_model is model else ""
    waiting = {prefix + name: parameter for name, parameter in model.named_parameters()}
    for name, tensor in tensors:
        parameter = waiting.pop(name, None)
        if parameter is not None:
            if parameter.shape != tensor.shape:
                sizes = f"{tuple(tensor.shape)} stored, the model needs {tuple(parameter.shape)}"
                raise UserError(f"tensor {name!r}: {sizes}: use checkpoints of one model")
            parameter.data.copy_(tensor)
    if waiting:
        raise UserError(f"tensor {sorted(waiting)[0]!r} is missing in the endpoints: use checkpoints of one model")
