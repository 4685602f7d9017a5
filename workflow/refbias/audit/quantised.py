"""Quantised checkpoints (bitsandbytes, GPTQ, AWQ, FP8 ...): loaded where transformers can, else refused by name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from refbias.artifacts import read_json
from refbias.errors import UserError

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
    found = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
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
        If this machine, or its libraries, cannot read that kind; names it and the reason.
    """
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": "sdpa",
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
        "device_map": {"": device},
    }
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(directory), **options)
    except (ImportError, RuntimeError, ValueError, KeyError, NotImplementedError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{directory}: its weights are quantised ({method}), which cannot be loaded here "
            f"({type(error).__name__}: {reason}): install what it needs, or use the plain weights"
        ) from None
    base: PreTrainedModel = model.eval().requires_grad_(False).base_model
    return base
