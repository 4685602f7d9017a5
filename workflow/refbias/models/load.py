"""Load a checkpoint for reading: explicit number type, evaluation mode, language tower only.

An adapter is added to the weights in fp32 and only then rounded, so a base in bf16 does not lose
the small change that fine-tuning made.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.errors import UserError
from refbias.models.adapter import Adapter, language_name, read_adapter
from refbias.models.files import check_directory, open_tensors, refuse_code
from refbias.models.sizes import build_empty, check_built, quiet, read_config, stored_shapes

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: a weights directory and, under LoRA, an adapter directory beside it."""

    weights: Path
    adapter: Path | None = None


def torch_dtype(name: str) -> "torch.dtype":
    """Return the torch number type of a configuration's ``float32`` or ``bfloat16``."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def resolve_device(device: str) -> str:
    """Return the device that ``auto`` stands for: CUDA, else MPS, else CPU.

    Raises
    ------
    UserError
        If a device is asked for that this machine does not have.
    """
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return next(name for name, here in available.items() if here)
    if not available.get(device, False):
        raise UserError(f"key 'device': {device} is not available on this machine: use 'auto' or 'cpu'")
    return device


def load_tokenizer(directory: Path | str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a checkpoint directory; one without a pad token pads with EOS.

    Raises
    ------
    UserError
        If it asks for code of its own.
    """
    from transformers import AutoTokenizer

    refuse_code(directory)
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(directory), local_files_only=True, trust_remote_code=False
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def stored_dtype(directory: Path | str) -> "torch.dtype":
    """Return the widest floating type among the stored tensors (fp16 is read as fp32)."""
    import torch

    with open_tensors(directory) as where:
        types = {handle.get_slice(name).get_dtype() for name, handle in where.items()}
    return torch.bfloat16 if types & {"BF16"} and not types & {"F16", "F32", "F64"} else torch.float32


def load_lm(
    directory: Path | str,
    adapter: Path | str | None = None,
    *,
    dtype: "torch.dtype",
    device: str = "cpu",
) -> "PreTrainedModel":
    """Load a causal language model in evaluation mode.

    Parameters
    ----------
    directory
        Checkpoint directory. Of a multimodal checkpoint only the language tower is loaded, as the
        text-only model of its family.
    adapter
        Directory of a LoRA adapter that is added to the weights (in fp32, then rounded to `dtype`).
    dtype
        Number type of the weights.
    device
        ``auto``, ``cpu``, ``cuda`` or ``mps``.

    Returns
    -------
    PreTrainedModel
        The model, gradients off.

    Raises
    ------
    UserError
        If a tensor that the model needs is missing or has another shape; names it.
    """
    # with an adapter nothing is rounded before the sum
    model = _load(directory, dtype if adapter is None else stored_dtype(directory))
    if adapter is not None:
        add_adapter(model, read_adapter(adapter), str(adapter), dtype)
        cast_parameters(model, dtype)
    return model.to(resolve_device(device)).eval().requires_grad_(False)


def load_base(
    directory: Path | str,
    adapter: Path | str | None = None,
    *,
    dtype: "torch.dtype",
    device: str = "cpu",
) -> "PreTrainedModel":
    """Load the decoder without its output layer; parameters as in `load_lm`."""
    base: PreTrainedModel = load_lm(directory, adapter, dtype=dtype, device=device).base_model
    return base


def cast_parameters(model: "PreTrainedModel", dtype: "torch.dtype") -> None:
    """Cast the parameters, and not the rotary buffers, which lose their positions in bf16."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def add_adapter(model: "PreTrainedModel", adapter: Adapter, where: str, dtype: "torch.dtype") -> None:
    """Add an adapter's change of weights to a model in place: fp32 sum, rounded once to `dtype`.

    Raises
    ------
    UserError
        If the model lacks a module of the adapter, or the shapes differ; names both.
    """
    import torch

    modules = dict(model.named_modules())
    for name in adapter.pairs:
        module = modules.get(name)
        if not isinstance(module, torch.nn.Linear):
            raise UserError(f"{where}: adapts {name!r}, which the base model does not have: check the pair")
        delta = adapter.delta(name, torch.float32)
        if delta.shape != module.weight.shape:
            raise UserError(
                f"{where}: {name!r} changes a matrix of {tuple(delta.shape)}, the base model's is "
                f"{tuple(module.weight.shape)}: check the pair"
            )
        weight = module.weight.data
        module.weight.data = (weight.float() + delta.to(weight.device)).to(dtype)


def _load(directory: Path | str, dtype: "torch.dtype") -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    raw = check_directory(directory, tokenizer=False)
    shapes = stored_shapes(directory)
    config = read_config(directory, raw, shapes)
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": "sdpa",
        "local_files_only": True,
        "use_safetensors": True,
        "output_loading_info": True,
    }
    if "text_config" in raw and "vision_config" in raw:
        model, info = _load_language_tower(directory, config, shapes, options)
    else:
        check_built(build_empty(Path(directory) / "config.json", config), shapes, directory)
        model, info = AutoModelForCausalLM.from_pretrained(
            str(directory), config=config, trust_remote_code=False, **options
        )
    refuse_incomplete(directory, model, info)
    return model


def _load_language_tower(
    directory: Path | str,
    config: "PretrainedConfig",
    shapes: Mapping[str, tuple[int, ...]],
    options: dict[str, Any],
) -> "tuple[PreTrainedModel, dict[str, Any]]":
    from transformers import AutoModelForCausalLM

    names = _tower_names(directory)
    text = config.get_text_config()
    text.architectures = None
    check_built(build_empty(Path(directory) / "config.json", text), shapes, directory)
    # the tensors of the vision tower are left out on purpose: no report about them
    with quiet():
        model, info = AutoModelForCausalLM.from_pretrained(
            str(directory), config=text, key_mapping=names, trust_remote_code=False, **options
        )
    # the renaming belongs to the file that was read, not to what is saved from here on
    model._weight_conversions = None
    return model, info


def _tower_names(directory: Path | str) -> dict[str, str]:
    with open_tensors(directory) as where:
        renamed = any(language_name(name) != name for name in where)
    if not renamed:
        raise UserError(f"{directory}: multimodal, but no tensor of a language tower (language_model...) is stored")
    return {
        r"^language_model\.model\.": "model.",
        r"^model\.language_model\.": "model.",
        r"^language_model\.lm_head\.": "lm_head.",
    }


def refuse_incomplete(directory: Path | str, model: "PreTrainedModel", info: Mapping[str, Any]) -> None:
    """Refuse a model for which transformers found too little, and would have taken random numbers.

    Parameters
    ----------
    directory
        Where it was read from.
    model, info
        What ``from_pretrained`` returned with ``output_loading_info``.

    Raises
    ------
    UserError
        If a tensor is missing or has another shape; names it.
    """
    # a tied output layer is not stored, and transformers does not count it as missing
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"{directory}: tensor {missing[0]!r} is missing ({len(missing)} in all): copy it again")
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise UserError(f"{directory}: tensor {name!r} is {tuple(found)}, the model needs {tuple(wanted)}")
    if model.config.tie_word_embeddings:
        model.tie_weights()
