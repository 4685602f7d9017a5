"""Where and in which number type an audit computes."""

import torch

from refbias.models.load import resolve_device


def cpu_has_bfloat16() -> bool:
    """Tell whether the processor multiplies bfloat16 matrices by instructions of its own."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported", "_is_arm_bf16_supported")
    # torch knows x86's; ARM's it asks the kernel for, under a name of its own in newer versions
    return any(bool(getattr(torch.cpu, name)()) for name in probes if hasattr(torch.cpu, name))


def choose_device(device: str) -> str:
    """Return the device that is used; see `resolve_device`."""
    return resolve_device(device)


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
