"""Give an audit's dB a probability, or refuse."""

from dataclasses import dataclass

import numpy as np

from refbias.calibration.curves import Curve, IsotonicCurve, LogisticCurve
from refbias.config.calibration import Calibration, Predictor
from refbias.errors import UserError

# dB is written with 10 significant digits; a net that disagrees by more was computed otherwise
NET_TOLERANCE = 1e-7


@dataclass(frozen=True)
class Probability:
    """A calibrated probability.

    Attributes
    ----------
    value
        That the score rose by more than the calibration's threshold.
    extrapolated
        Whether dB, its net or the control's dB lies outside what the calibration was fitted on.
    outside
        Which of them, as ``name value outside [low, high]``.
    """

    value: float
    extrapolated: bool
    outside: tuple[str, ...]


def check_measure(
    calibration: Calibration, *, n_anchors: int, stimuli_sha256: str, method: str, settings_sha256: str | None = None
) -> None:
    """Refuse an audit whose dB is another quantity than the one that was calibrated.

    Parameters
    ----------
    calibration : Calibration
        As loaded.
    n_anchors, stimuli_sha256, method : int, str, str
        Of the audit.
    settings_sha256 : str, optional
        `refbias.config.calibration.settings_hash` of the audit; None where the caller knows the settings to agree.

    Raises
    ------
    UserError
        Naming both sides of the first difference.
    """
    fitted = calibration.measure
    pairs: list[tuple[str, object, object]] = [
        ("method", fitted.method, method),
        ("anchors", fitted.n_anchors, n_anchors),
        ("stimuli sha256", fitted.stimuli_sha256, stimuli_sha256),
    ]
    if settings_sha256 is not None:
        pairs.append(("embedding settings sha256", fitted.settings_sha256, settings_sha256))
    for name, calibrated, audited in pairs:
        if calibrated != audited:
            raise UserError(
                f"calibration of study {calibration.provenance.run}: {name} {calibrated} in the calibration, {audited} "
                "in the audit: probabilities hold for one way of measuring only, audit with the study's or calibrate "
                "on a study with the audit's"
            )


def apply_calibration(
    calibration: Calibration,
    *,
    delta_b: float,
    net_of_control: float | None,
    control: float | None,
    n_anchors: int,
    stimuli_sha256: str,
    method: str,
    settings_sha256: str | None = None,
) -> Probability:
    """Return the probability that the score of a unit rose beyond the calibration's threshold.

    Parameters
    ----------
    calibration : Calibration
        As loaded.
    delta_b, net_of_control, control : float
        dB of the group, dB net of the control, and the control's dB; the last two None where there is no control.
    n_anchors, stimuli_sha256, method, settings_sha256
        How the audit measured, see `check_measure`.

    Returns
    -------
    Probability
        The value, and whether it is extrapolated: beyond the fitted range the curve is a guess.

    Raises
    ------
    UserError
        If the audit measured otherwise, or lacks the control that the curve needs.
    ValueError
        If a number is not finite, or the net is not dB minus the control.
    """
    check_measure(
        calibration,
        n_anchors=n_anchors,
        stimuli_sha256=stimuli_sha256,
        method=method,
        settings_sha256=settings_sha256,
    )
    given: dict[Predictor, float | None] = {"delta_b": delta_b, "net_of_control": net_of_control, "control": control}
    known = {name: value for name, value in given.items() if value is not None}
    for name, value in known.items():
        if not np.isfinite(value):
            raise ValueError(f"{name}: {value} is not finite")
    absent = [name for name in calibration.predictors if name not in known]
    if absent:
        raise UserError(
            f"calibration of study {calibration.provenance.run}: needs {', '.join(absent)}, but the audit has no "
            "group-free control: audit with control sentences"
        )
    if net_of_control is not None and control is not None and abs(delta_b - control - net_of_control) > NET_TOLERANCE:
        raise ValueError(f"net_of_control: {net_of_control} is not delta_b - control = {delta_b - control}")
    columns = np.array([[known[name] for name in calibration.predictors]], dtype=np.float64)
    limits = calibration.probability_range
    value = float(np.clip(curve_of(calibration).predict(columns)[0], limits.low, limits.high))
    outside = tuple(
        f"{name} {value:.4g} outside [{fitted.low:.4g}, {fitted.high:.4g}]"
        for name, value in known.items()
        if not (fitted := calibration.fitted_range[name]).low <= value <= fitted.high
    )
    return Probability(value, bool(outside), outside)


def curve_of(calibration: Calibration) -> Curve:
    """Return the stored curve; a calibration without one was not made by `load_calibration` or `fit_calibration`."""
    if calibration.kind == "logistic" and calibration.coefficients is not None:
        slopes = np.array([calibration.coefficients[name] for name in calibration.predictors])
        return LogisticCurve(calibration.coefficients["intercept"], slopes)
    if calibration.knots is not None:
        return IsotonicCurve(np.array(calibration.knots.x), np.array(calibration.knots.y))
    raise ValueError("calibration: neither coefficients nor knots")
