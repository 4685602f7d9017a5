"""Where and in which number type an audit computes."""

import torch


def cpu_has_bfloat16() -> bool:
    """Tell whether the processor multiplies bfloat16 matrices by instructions of its own."""
    known = torch.cpu.get_capabilities()
    return any(bool(known.get(name)) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))


def choose_dtype(dtype: str, device: str) -> str:
    """Return the number type that ``auto`` stands for on a device.

    Parameters
    ----------
    dtype
        ``auto``, ``float32`` or ``bfloat16``.
    device
        ``cpu``, ``cuda`` or ``mps``.

    Returns
    -------
    str
        bfloat16 where the processor multiplies it natively, else float32.
    """
    if dtype != "auto":
        return dtype
    if device == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = device == "cpu" and cpu_has_bfloat16()
    return "bfloat16" if native else "float32"
