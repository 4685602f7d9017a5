"""How large an adapter's change of weights is beside the weights that it changes, module by module."""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from refbias.artifacts import read_json, write_json
from refbias.audit import store
from refbias.audit.identity import directory_hash
from refbias.audit.sources import Source
from refbias.config.audit_result import ModuleDrift
from refbias.errors import UserError
from refbias.models.adapter import Adapter, language_name, read_adapter
from refbias.models.files import open_tensors
from refbias.stats.vectors import FloatArray

if TYPE_CHECKING:
    import torch

# what families call their list of blocks; the first is the decoder's, whatever comes inside of a block
_BLOCK = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


def adapter_drift(source: Source) -> list[ModuleDrift] | None:
    """Return the relative size of an adapter's change of every module.

    Parameters
    ----------
    source
        A model that is a base with adapters' changes alone.

    Returns
    -------
    list of ModuleDrift or None
        ``|dW| / |W|`` in Frobenius norms; None for any other model. `layer` counts blocks from 1, as
        everywhere in the result.
    """
    shares = [(part.weight, part.adapter) for part in source.parts if part.adapter is not None]
    if not shares or len({part.directory for part in source.parts}) > 1:
        return None
    adapters = [(weight, read_adapter(folder)) for weight, folder in shares]
    changed = sorted({module for _, adapter in adapters for module in adapter.pairs})
    norms = _weight_norms(source.directory, changed)
    return [
        ModuleDrift(module=module, layer=_layer(module), relative_norm=_change(adapters, module) / norms[module])
        for module in changed
        if norms.get(module)
    ]


def _layer(module: str) -> int | None:
    match = _BLOCK.search(module)
    return int(match[1]) + 1 if match else None


def _change(adapters: Sequence[tuple[float, Adapter]], module: str) -> float:
    """Return the Frobenius norm of a weighted sum of low-rank changes, without making the matrix.

    ``|sum_i c_i B_i A_i|^2 = sum_ij c_i c_j <B_i' B_j, A_i A_j'>``.
    """
    terms: list[tuple[float, FloatArray, FloatArray]] = []
    for weight, adapter in adapters:
        if module in adapter.pairs:
            a, b = (tensor.double().numpy() for tensor in adapter.pairs[module])
            terms.append((weight * adapter.scales[module], a, b))
    square = sum(float(ci * cj * ((bi.T @ bj) * (ai @ aj.T)).sum()) for ci, ai, bi in terms for cj, aj, bj in terms)
    return float(max(square, 0.0) ** 0.5)


def _weight_norms(directory: Path, modules: Sequence[str]) -> Mapping[str, float]:
    """Return the norms of a base's matrices, remembered by the hash of its weights: reading them takes a whole pass."""
    memo = store.folder("hashes", f"norms-{directory_hash(directory)[:26]}") / store.FACTS
    known: dict[str, float] = {}
    with contextlib.suppress(UserError, OSError, TypeError, ValueError, KeyError, AttributeError):
        known = {str(name): float(value) for name, value in read_json(memo)["norms"].items()}
    wanted = [module for module in modules if module not in known]
    if not wanted:
        return known
    with open_tensors(directory) as where:
        names = {language_name(name): name for name in where}
        for module in wanted:
            if (name := names.get(f"{module}.weight")) is not None:
                known[module] = _norm(where[name].get_tensor(name))
    with contextlib.suppress(OSError):
        write_json(memo, {"name": f"norms of {directory.name}", "norms": known})
    return known


def _norm(tensor: "torch.Tensor") -> float:
    # by rows: a copy in fp32 of the whole matrix would double the memory
    squares = [float(tensor[start : start + 1024].double().square().sum()) for start in range(0, len(tensor), 1024)]
    return math.sqrt(sum(squares))
