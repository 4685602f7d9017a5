"""A decoder without weights: modules from ``config.json`` on the meta device, filled block by block."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from refbias.errors import UserError
from refbias.models.load import quiet
from refbias.stream.blocks import Blocks, find_blocks, probe
from refbias.stream.shards import Weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def text_config(weights: Weights) -> "PretrainedConfig":
    """Return the configuration of a checkpoint's decoder; of a multimodal one that of its language tower.

    Raises
    ------
    UserError
        If transformers does not know the configuration.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(weights.directory), local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{weights.directory / 'config.json'}: not a configuration of transformers: {reason}") from None
    return config.get_text_config() if "text_config" in weights.config else config


class Skeleton:
    """A decoder whose parameters lie on the meta device until they are put in place.

    Parameters
    ----------
    weights
        The checkpoint whose shapes and names are taken.
    dtype
        Number type that the decoder computes in.
    device
        Where its buffers lie and its blocks compute.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, device: str) -> None:
        self.weights = weights
        self.device = torch.device(device)
        self.dtype = dtype
        self.reason: str | None = None
        config = text_config(weights)
        in_tuple, self.reason = _probed(config)
        if self.reason is not None:
            return
        self.model = _on_meta(config, dtype)
        found = find_blocks(self.model)
        if found is None:
            self.reason = f"{type(config).__name__}: no list of decoder blocks"
            return
        self.blocks = Blocks(*found, in_tuple=in_tuple)
        embedding = self.model.get_input_embeddings()
        # the rows that are in memory have numbers of their own
        self._rows = torch.empty(0, dtype=torch.long)
        embedding.padding_idx = None
        embedding.register_forward_pre_hook(lambda _, args: (self._rows[args[0]], *args[1:]))
        self.embedding_key = next(f"{n}.weight" for n, m in self.model.named_modules() if m is embedding)
        start = f"{self.blocks.path}."
        states = dict(_stored_names(self.model))
        self.outer = [key for key in states if not key.startswith(start) and key != self.embedding_key]
        self.layers = [
            [key for key in states if key.startswith(f"{start}{number}.")] for number in range(len(found[1]))
        ]
        self.shapes = {key: tuple(tensor.shape) for key, tensor in states.items()}
        self.reason = self.reason or self._names_reason() or _fill_buffers(self.model, self.device)

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return len(self.layers)

    @property
    def prefix(self) -> str:
        """What the whole model puts before the names of the decoder's tensors."""
        return f"{self.model.base_model_prefix}."

    def _names_reason(self) -> str | None:
        self.weights.without_prefix(self.prefix)
        for key in self.layers[0]:
            if key not in self.weights:
                return f"{type(self.model).__name__}: block 0 needs {key!r}, the checkpoint stores it in another form"
        return None

    def place(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put tensors where the decoder's parameters of these names are."""
        for key, tensor in tensors.items():
            path, _, leaf = key.rpartition(".")
            parent = self.model.get_submodule(path)
            if leaf in parent._parameters:
                parent._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
            else:
                parent._buffers[leaf] = tensor

    def remove(self, keys: Sequence[str]) -> None:
        """Take parameters out again, so that their memory is free."""
        self.place({key: torch.empty(self.shapes[key], dtype=self.dtype, device="meta") for key in keys})

    @contextlib.contextmanager
    def filled(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Hold `tensors` in place inside the context."""
        self.place(tensors)
        try:
            yield
        finally:
            self.remove(list(tensors))

    def set_rows(self, ids: Sequence[int]) -> None:
        """Say which rows (ascending token ids) the embedding will hold."""
        rows = torch.full((self.shapes[self.embedding_key][0],), -1, dtype=torch.long)
        rows[list(ids)] = torch.arange(len(ids))
        self._rows = rows.to(self.device)


def _on_meta(config: "PretrainedConfig", dtype: torch.dtype) -> "PreTrainedModel":
    from transformers import AutoModel

    with torch.device("meta"), quiet():
        model: PreTrainedModel = AutoModel.from_config(
            config, attn_implementation="sdpa", dtype=dtype, trust_remote_code=False
        )
    return model.eval().requires_grad_(False)


_PROBED: dict[tuple[type, str], tuple[bool, str | None]] = {}


def _probed(config: "PretrainedConfig") -> tuple[bool, str | None]:
    """Return what `probe` says of a configuration, tried once a process."""
    key = type(config), json.dumps(config.to_dict(), sort_keys=True, default=str)
    if key not in _PROBED:
        with quiet():
            _PROBED[key] = probe(config)
    return _PROBED[key]


def _stored_names(model: "PreTrainedModel") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a checkpoint stores of a decoder: its parameters and persistent buffers."""
    yield from model.state_dict(keep_vars=True).items()


def _fill_buffers(model: "PreTrainedModel", device: torch.device) -> str | None:
    """Compute the buffers that no checkpoint stores (rotary frequencies) as transformers does; say which one failed."""
    results: list[dict[str, torch.Tensor]] = []
    for filler in (0, 1):
        found: dict[str, torch.Tensor] = {}
        for path, module in model.named_modules():
            names = [name for name in module._non_persistent_buffers_set if module._buffers[name] is not None]
            for name in names:
                empty = module._buffers[name]
                module._buffers[name] = torch.full(empty.shape, filler, dtype=empty.dtype, device="cpu")
            if names:
                model._init_weights(module)
                found |= {f"{path}.{name}": module._buffers[name] for name in names}
        results.append(found)
    for name, first in results[0].items():
        # what keeps the filler was not computed
        if not torch.equal(first, results[1][name]):
            return f"{type(model).__name__}: buffer {name!r} is neither stored nor computed"
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            if module._buffers[name] is not None:
                module._buffers[name] = module._buffers[name].to(device)
    return None
