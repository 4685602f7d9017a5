"""Bias of target groups in a model's sentence embeddings, and its shift between two models.

Pure functions on arrays. A method is one module and one line of `METHODS`: it takes the reference's and the audited
model's `Embeddings` and returns one `ShiftResult` a target group.
"""

from refbias.metrics.rr import relative_representation, rr_association, rr_shift
from refbias.metrics.seat import seat_association, seat_shift
from refbias.metrics.shift import DeltaB, Embeddings, Method, ShiftResult, bias, delta_b, shift_rows

METHODS: dict[str, Method] = {
    "rr": rr_shift,
    "seat": seat_shift,
}

__all__ = [
    "METHODS",
    "DeltaB",
    "Embeddings",
    "Method",
    "ShiftResult",
    "bias",
    "delta_b",
    "relative_representation",
    "rr_association",
    "rr_shift",
    "seat_association",
    "seat_shift",
    "shift_rows",
]
