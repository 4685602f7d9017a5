"""Callbacks for transformers and trl trainers: the shift dB of a model while it is being trained."""

from refbias.callbacks.bias_shift import BiasShiftCallback
from refbias.callbacks.curve import StopRule

__all__ = ["BiasShiftCallback", "StopRule"]
