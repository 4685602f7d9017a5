"""A decoder without weights: modules from ``config.json`` on the meta device, filled block by block."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from refbias.errors import UserError
from refbias.models.sizes import check_total, quiet, read_config
from refbias.stream.blocks import Blocks, find_blocks, probe
from refbias.stream.shards import Weights

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def text_config(weights: Weights) -> "PretrainedConfig":
    """Return the configuration of a checkpoint's decoder; of a multimodal one that of its language tower.

    Raises
    ------
    UserError
        If transformers does not know the configuration, or the files hold fewer layers.
    """
    config = read_config(weights.directory, weights.config, weights.names())
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
        try:
            self.model = _on_meta(config, dtype)
        # whatever a foreign architecture raises: the whole model's loader says what it cannot read
        except Exception as error:
            text = " ".join(str(error).split())[:160]
            self.reason = f"{type(config).__name__}: the decoder cannot be made ({type(error).__name__}: {text})"
            return
        found = find_blocks(self.model)
        if found is None:
            self.reason = f"{type(config).__name__}: no list of decoder blocks"
            return
        self._note_tensors(*found)
        # nothing takes memory by what the configuration says before the files have said the same
        self.reason = self._names_reason()
        if self.reason is not None:
            return
        self._check_sizes()
        in_tuple, self.reason = _probed(config)
        self.blocks = Blocks(*found, in_tuple=in_tuple)
        self.reason = self.reason or _fill_buffers(self.model, self.device)

    def _note_tensors(self, path: str, modules: nn.ModuleList) -> None:
        """Note names and shapes of the decoder's tensors, and make the embedding take the rows that are in memory."""
        embedding = self.model.get_input_embeddings()
        # the rows that are in memory have numbers of their own
        self._rows = torch.empty(0, dtype=torch.long)
        embedding.padding_idx = None
        embedding.register_forward_pre_hook(lambda _, args: (self._rows[args[0]], *args[1:]))
        self.embedding_key = next(f"{n}.weight" for n, m in self.model.named_modules() if m is embedding)
        start = f"{path}."
        states = dict(_stored_names(self.model))
        self.outer = [key for key in states if not key.startswith(start) and key != self.embedding_key]
        self.layers = [[key for key in states if key.startswith(f"{start}{number}.")] for number in range(len(modules))]
        self.shapes = {key: tuple(tensor.shape) for key, tensor in states.items()}

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
        for what, keys in (("block 0", self.layers[0]), ("the decoder", [*self.outer, self.embedding_key])):
            for key in keys:
                if key not in self.weights:
                    name = type(self.model).__name__
                    return f"{name}: {what} needs {key!r}, the checkpoint stores it in another form"
        return None

    def _check_sizes(self) -> None:
        """Refuse a configuration that makes other shapes than the files hold, or tables far larger than they are."""
        for key, shape in self.shapes.items():
            if key in self.weights and (has := self.weights.shape(key)) != shape:
                raise UserError(
                    f"{self.weights.directory}: tensor {key!r} is {has}, the model needs {shape} by its config.json: "
                    "use the files of one checkpoint"
                )
        check_total(self.model, self.weights.n_elements(), self.weights.directory / "config.json")

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
