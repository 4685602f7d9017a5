"""The observations that a calibration and a two-stage audit rest on, as arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refbias.config.calibration import Predictor
from refbias.stats import above
from refbias.stats.vectors import BoolArray, FloatArray

StrArray = npt.NDArray[np.str_]


@dataclass(frozen=True)
class ShiftObservations:
    """Units of audited checkpoints with their dB, the control's dB and the change of score; all of shape (n,).

    Attributes
    ----------
    delta_b
        dB of the unit (no unit; below 0 = towards the negative attributes).
    control
        dB of the group-free control of the same checkpoint.
    delta_score
        Change of the benchmark's score, audited minus reference (share of outputs).
    model, regime, checkpoint, unit
        Names. A checkpoint is the triple of the first three.
    n_outputs
        Outputs behind the score, for sharing out costs.

    Raises
    ------
    ValueError
        If it is empty, lengths differ or a number is not finite.
    """

    delta_b: FloatArray
    control: FloatArray
    delta_score: FloatArray
    model: StrArray
    regime: StrArray
    checkpoint: StrArray
    unit: StrArray
    n_outputs: FloatArray

    def __post_init__(self) -> None:
        n = self.delta_b.size
        if n == 0:
            raise ValueError("delta_b: empty")
        for name in self.__dataclass_fields__:
            values = getattr(self, name)
            if values.shape != (n,):
                raise ValueError(f"{name}: shape {values.shape} differs from delta_b's ({n},)")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ValueError(f"{name}: NaN or infinite value at {int(np.argmin(np.isfinite(values)))}")

    @property
    def net_of_control(self) -> FloatArray:
        """The dB minus the control's dB, shape (n,)."""
        return self.delta_b - self.control

    @property
    def spectrum(self) -> StrArray:
        """Model and regime, shape (n,)."""
        return joined(self.model, self.regime)

    @property
    def cluster(self) -> StrArray:
        """Model, regime and checkpoint, shape (n,): the observations that share one set of weights."""
        return joined(self.model, self.regime, self.checkpoint)

    def increased(self, threshold: float) -> BoolArray:
        """Tell whose score rose by more than `threshold`, shape (n,)."""
        return above(self.delta_score, threshold)

    def columns(self, predictors: "tuple[Predictor, ...]") -> FloatArray:
        """Return predictors as columns, shape (n, p)."""
        return np.column_stack([getattr(self, name) for name in predictors])


def joined(*names: StrArray) -> StrArray:
    """Join names position by position with a slash."""
    return np.array(["/".join(row) for row in zip(*names, strict=True)], dtype=np.str_)
