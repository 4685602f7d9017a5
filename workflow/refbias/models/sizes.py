"""A configuration held against the headers of its weights, before any memory or time is spent on what it says.

``config.json`` is input that nobody vouches for: five million layers, or heads as wide as a book, would be built
before anyone looked for their tensors. First its counts are bounded, then the layers are counted in the files, then
the model is made without memory (on the meta device) and its tensors compared with those of the files.
"""

import contextlib
import copy
import math
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.errors import UserError
from refbias.models.adapter import language_name
from refbias.models.files import open_tensors

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

Shapes = Mapping[str, tuple[int, ...]]

MAX_COUNT = 65_536
"""Largest number of layers, heads, experts or labels that a configuration may name: a loop is run for each."""
MAX_MODULES = 200_000
"""Largest number of experts in all layers together."""
_SPARE = 1 << 28  # elements that a model may have beyond twice those stored: tied layers, tables that are computed
_COUNT = re.compile(r"(?:^|_)(?:layers?|experts|heads?|labels|blocks|groups|attention_types)$")
_NUMBER = re.compile(r"(?:^|\.)(\d{1,9})\.")
_MEND = "copy the model's own config.json there"


def stored_shapes(directory: Path | str) -> dict[str, tuple[int, ...]]:
    """Return name in the text-only model -> shape of the tensors that a checkpoint's files announce."""
    with open_tensors(directory) as where:
        return {language_name(name): tuple(handle.get_slice(name).get_shape()) for name, handle in where.items()}


def stored_layers(names: Collection[str]) -> int:
    """Return how many blocks the longest list of blocks has, going by the tensors' names."""
    found: dict[str, set[int]] = {}
    for name in names:
        if (match := _NUMBER.search(name)) is not None:
            found.setdefault(name[: match.start()], set()).add(int(match[1]))
    return max(map(len, found.values()), default=0)


def read_config(directory: Path | str, raw: Mapping[str, Any], names: Collection[str]) -> "PretrainedConfig":
    """Return a checkpoint's configuration whose counts are held against its files.

    Parameters
    ----------
    directory
        The checkpoint.
    raw
        Its ``config.json``, as `refbias.models.files.check_directory` returns it.
    names
        The tensors of its files.

    Raises
    ------
    UserError
        If a count makes no sense, the files hold fewer layers, or transformers does not know the configuration.
    """
    from transformers import AutoConfig

    place = Path(directory) / "config.json"
    experts = _check_counts(raw, place)
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    # configurations check themselves, each in its own way; nothing of ours runs in here
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{place}: not a configuration of transformers: {reason or type(error).__name__}") from None
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise UserError(f"{place}: num_hidden_layers is {layers!r}: expected the number of decoder layers: {_MEND}")
    if layers > (stored := stored_layers(names)):
        raise UserError(f"{place}: num_hidden_layers is {layers}, the files hold {stored} layers: {_MEND}")
    if layers * experts > MAX_MODULES:
        raise UserError(f"{place}: {layers} layers of {experts} experts are more than {MAX_MODULES}: {_MEND}")
    return config


def _check_counts(raw: Mapping[str, Any], place: Path) -> int:
    """Refuse counts without measure; return the largest number of experts."""
    experts = 0
    waiting: list[tuple[str, Any]] = list(raw.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.items())
        elif isinstance(value, list):
            waiting.extend((key, part) for part in value)
        elif isinstance(value, int | float) and _COUNT.search(key):
            # written so that NaN is refused
            if not abs(value) <= MAX_COUNT:
                raise UserError(f"{place}: {key} {value:.12g}: at most {MAX_COUNT} are read: {_MEND}")
            if "experts" in key:
                experts = max(experts, int(value))
    return experts


def build_empty(place: Path, config: "PretrainedConfig") -> "PreTrainedModel":
    """Return the causal language model of a configuration without memory for its weights.

    Parameters
    ----------
    place
        The file that says the sizes, for an error.
    config
        Its content.

    Raises
    ------
    UserError
        If transformers cannot make it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    plain = copy.deepcopy(config)
    # the size is that of the weights once they are read
    if hasattr(plain, "quantization_config"):
        del plain.quantization_config
    try:
        with torch.device("meta"), quiet():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                plain, attn_implementation="sdpa", trust_remote_code=False
            )
            return model
    # a size of zero, a width that no head divides: whatever a model's code stumbles over
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{place}: transformers cannot make its model ({type(error).__name__}: {reason}): take it from a whole copy"
        ) from None


def check_built(model: "PreTrainedModel", shapes: Shapes, directory: Path | str) -> None:
    """Refuse an empty model whose tensors have other shapes than those of the files, or far more elements.

    A tensor that the files hold under another name, or not at all, is not looked at here.

    Parameters
    ----------
    model
        Made by `build_empty`.
    shapes
        Name, as in `model`, -> shape of the tensors of the files.
    directory
        The checkpoint.

    Raises
    ------
    UserError
        Names the tensor and both shapes, or both numbers of elements.
    """
    for name, tensor in model.state_dict(keep_vars=True).items():
        if (has := shapes.get(name)) is not None and has != tuple(tensor.shape):
            raise UserError(
                f"{directory}: tensor {name!r} is {has}, the model needs {tuple(tensor.shape)} by its config.json: "
                "use the files of one checkpoint"
            )
    check_total(model, sum(map(math.prod, shapes.values())), Path(directory) / "config.json")


def check_total(model: "PreTrainedModel", stored: int, place: Path) -> None:
    """Refuse an empty model of far more elements than the `stored` ones; `place` is the file that says the sizes."""
    needed = sum(tensor.numel() for tensor in _tensors(model))
    if needed > 2 * stored + _SPARE:
        raise UserError(
            f"{place}: makes a model of {needed:.3g} numbers, {stored:.3g} are stored: take it from a whole copy"
        )


def _tensors(model: "PreTrainedModel") -> "Iterator[torch.Tensor]":
    yield from model.parameters()
    yield from model.buffers()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let transformers report errors only."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
