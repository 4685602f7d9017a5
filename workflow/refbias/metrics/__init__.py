"""Bias of target groups in a model's sentence embeddings, and its shift between two models.

Pure functions on arrays. A method is one module, one line of `METHODS` and one of `DIRECTIONS`: it takes the
reference's and the audited model's `Embeddings` and returns one `ShiftResult` a target group.
"""

from collections.abc import Iterable
from functools import partial
from typing import Literal

from refbias.metrics.cka import Kernel, cka, cka_shift
from refbias.metrics.procrustes import Fit, OrthogonalMap, orthogonal_map, procrustes_shift
from refbias.metrics.rr import relative_representation, rr_association, rr_shift
from refbias.metrics.seat import seat_association, seat_shift
from refbias.metrics.shift import DeltaB, Embeddings, Method, ShiftResult, bias, delta_b, shift_rows

METHODS: dict[str, Method] = {
    "rr": rr_shift,
    "seat": seat_shift,
    "procrustes_seat": procrustes_shift,
    "cka_drift": cka_shift,
}

Direction = Literal["signed", "undirected"]
# whether the sign of a method's value says where a group moved, or the value only how far
DIRECTIONS: dict[str, Direction] = {
    "rr": "signed",
    "seat": "signed",
    "procrustes_seat": "signed",
    "cka_drift": "undirected",
}


def is_undirected(method: str) -> bool:
    """Tell whether a method's value has no direction; KeyError for a method that is not known."""
    return DIRECTIONS[method] == "undirected"


def chosen_methods(
    names: Iterable[str], *, procrustes_fit: Fit = "anchors", cka_kernel: Kernel = "linear"
) -> dict[str, Method]:
    """Return methods with their options set.

    Parameters
    ----------
    names : iterable of str
        Keys of `METHODS`.
    procrustes_fit : str
        Sentences on which Procrustes-SEAT fits its map, see `procrustes_shift`.
    cka_kernel : str
        Kernel of the CKA drift, see `cka_shift`.

    Returns
    -------
    dict of str to Method
        In the order of the names.
    """
    options: dict[str, Method] = {
        "procrustes_seat": partial(procrustes_shift, fit=procrustes_fit),
        "cka_drift": partial(cka_shift, kernel=cka_kernel),
    }
    return {name: options.get(name, METHODS[name]) for name in names}


__all__ = [
    "DIRECTIONS",
    "METHODS",
    "DeltaB",
    "Direction",
    "Embeddings",
    "Fit",
    "Kernel",
    "Method",
    "OrthogonalMap",
    "ShiftResult",
    "bias",
    "chosen_methods",
    "cka",
    "cka_shift",
    "delta_b",
    "is_undirected",
    "orthogonal_map",
    "procrustes_shift",
    "relative_representation",
    "rr_association",
    "rr_shift",
    "seat_association",
    "seat_shift",
    "shift_rows",
]
