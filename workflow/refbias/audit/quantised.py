"""Quantised checkpoints (bitsandbytes, GPTQ, AWQ, FP8 ...): loaded where transformers can, else refused by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import read_json
from refbias.errors import UserError
from refbias.models.files import check_directory, weight_files
from refbias.models.load import refuse_incomplete
from refbias.models.sizes import build_empty, check_total, read_config, stored_shapes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def quantisation(directory: Path) -> str | None:
    """Return the name of a checkpoint's quantisation, None for plain weights.

    Raises
    ------
    UserError
        If the configuration says that the weights are quantised, and not how.
    """
    config = read_json(directory / "config.json")
    text = config.get("text_config")
    found = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not found:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else None
    if not isinstance(method, str):
        raise UserError(f"{directory / 'config.json'}: quantization_config without quant_method: use plain weights")
    return method


def load_quantised(directory: Path, method: str, dtype: "torch.dtype", device: str) -> "PreTrainedModel":
    """Load the decoder of a quantised checkpoint; its products are computed in `dtype`.

    Parameters
    ----------
    directory
        Checkpoint directory.
    method
        What `quantisation` returned.
    dtype, device
        Number type of what is not quantised, and where the model lies.

    Raises
    ------
    UserError
        If this machine, or its libraries, cannot read that kind; names it and the reason. If a tensor is missing, or
        the configuration makes another model than the files hold.
    """
    from transformers import AutoModelForCausalLM

    config = read_config(directory, check_directory(directory, tokenizer=False), stored_shapes(directory))
    # a byte holds eight elements at most, and `check_total` allows twice what it is told
    stored = 4 * sum(path.stat().st_size for path in weight_files(directory))
    place = directory / "config.json"
    check_total(build_empty(place, config), stored, place)
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": "sdpa",
        "local_files_only": True,
        "use_safetensors": True,
        "output_loading_info": True,
        "device_map": {"": device},
    }
    model: PreTrainedModel
    try:
        model, info = AutoModelForCausalLM.from_pretrained(str(directory), trust_remote_code=False, **options)
    # each quantiser has a library of its own, which promises nothing of what it raises on foreign files; nothing of
    # ours runs in here, and the message keeps the error's type
    except (ImportError, RuntimeError, ValueError, KeyError, NotImplementedError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{directory}: its weights are quantised ({method}), which cannot be loaded here "
            f"({type(error).__name__}: {reason}): install what it needs, or use the plain weights"
        ) from None
    refuse_incomplete(directory, model, info)
    base: PreTrainedModel = model.eval().requires_grad_(False).base_model
    # of a multimodal model the language tower alone
    tower: PreTrainedModel = getattr(base, "language_model", base)
    return tower
