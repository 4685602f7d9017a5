"""From dB to a probability, and the two-stage audit: numbers only, nothing here reads or writes a file."""

from refbias.calibration.apply import Probability, apply_calibration, check_measure
from refbias.calibration.data import ShiftObservations, joined
from refbias.calibration.fit import MODELS, Model, fit_calibration

__all__ = [
    "MODELS",
    "Model",
    "Probability",
    "ShiftObservations",
    "apply_calibration",
    "check_measure",
    "fit_calibration",
    "joined",
]
