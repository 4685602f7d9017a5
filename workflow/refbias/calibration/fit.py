"""Fit the probability that a score rose beyond a threshold, given dB and its control.

Four candidates compete: a logistic curve of dB alone, one of dB net of the control together with the control's own dB
(a fine-tuning can move every sentence, whether or not it is about a group), and monotone curves of dB and of dB net
of the control. The one with the smallest cross-validated Brier score is kept (log-loss breaks ties), and all are
reported. For a method with direction the monotone curves fall (below 0 = towards the negative attributes), for one
without they rise. The best of four is better on the folds that chose it than elsewhere, so a calibration is judged by a
nested cross-validation (`refbias.calibration.nested`), which makes the choice anew without the part that it predicts.
Beside them, never chosen, stands a curve of the control's dB alone: what it does as well is no news about groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from refbias.calibration.curves import Curve, IsotonicCurve, LogisticCurve, fit_isotonic, fit_logistic, is_separated
from refbias.calibration.data import ShiftObservations, StrArray
from refbias.calibration.nested import Choice, best_of, nested_predictions
from refbias.calibration.validation import (
    Fit,
    bounded,
    brier,
    expected_calibration_error,
    grouped_folds,
    log_loss,
    out_of_fold,
    reliability,
    skill_interval,
)
from refbias.calibration.words import warnings_of
from refbias.config.calibration import (
    Calibration,
    Candidate,
    FitSettings,
    Kind,
    Knots,
    Measure,
    Nested,
    Outcome,
    Predictor,
    Provenance,
    Range,
    Validation,
)
from refbias.errors import UserError
from refbias.metrics import is_undirected
from refbias.stats.vectors import BoolArray, FloatArray


@dataclass(frozen=True)
class Model:
    """A kind of curve and what it is a function of."""

    kind: Kind
    predictors: tuple[Predictor, ...]


MODELS = (
    Model("logistic", ("delta_b",)),
    Model("logistic", ("net_of_control", "control")),
    Model("isotonic", ("delta_b",)),
    Model("isotonic", ("net_of_control",)),
)
CONTROL_ONLY = Model("logistic", ("control",))


def fit_calibration(
    data: ShiftObservations,
    outcome: Outcome,
    measure: Measure,
    provenance: Provenance,
    settings: FitSettings | None = None,
    n_dropped: int = 0,
) -> Calibration:
    """Fit, choose and judge a calibration.

    Parameters
    ----------
    data : ShiftObservations
        Units of audited checkpoints.
    outcome, measure, provenance
        What is predicted, from what, and where it comes from; kept with the result.
    settings : FitSettings, optional
        Penalty, bins, folds, bootstrap.
    n_dropped : int
        Observations left out because a number was missing; kept with the result.

    Returns
    -------
    Calibration
        The chosen curve, fitted on all observations; its errors are those on the checkpoints left out, the choice
        included where there are three checkpoints or more.

    Raises
    ------
    UserError
        If every unit or none rose beyond the threshold, or there is one checkpoint only.
    """
    settings = settings or FitSettings()
    positive = data.increased(outcome.threshold)
    _check(data, positive, outcome)
    validation, predictions = _validate(data, positive, MODELS, data.cluster, "checkpoint", measure.method, settings)
    at = best_of([(row.brier, row.log_loss) for row in validation.candidates])
    model, chosen = MODELS[at], validation.candidates[at]
    judged = validation.nested or chosen
    transfer = None
    if np.unique(data.spectrum).size > 1:
        transfer, _ = _validate(data, positive, (model,), data.spectrum, "spectrum", measure.method, settings)
    columns = data.columns(model.predictors)
    curve = _fit(model, measure.method, settings)(columns, positive)
    edge = 0.5 / positive.size
    separated = model.kind == "logistic" and is_separated(columns, positive)
    bins = reliability(predictions[at] if validation.nested is None else predictions[-1], positive, settings.n_bins)
    return Calibration(
        kind=model.kind,
        predictors=list(model.predictors),
        coefficients=_coefficients(curve, model),
        knots=Knots(x=curve.x.tolist(), y=curve.y.tolist()) if isinstance(curve, IsotonicCurve) else None,
        probability_range=Range(low=edge, high=1 - edge),
        fitted_range={name: _range(data, name) for name in ("delta_b", "net_of_control", "control")},
        outcome=outcome,
        measure=measure,
        n=positive.size,
        n_positive=int(positive.sum()),
        n_dropped=n_dropped,
        n_checkpoints=int(np.unique(data.cluster).size),
        n_models=int(np.unique(data.model).size),
        base_rate=float(positive.mean()),
        separated=separated,
        brier=judged.brier,
        brier_skill=judged.brier_skill,
        ece=judged.ece,
        reliability=bins,
        validation=validation,
        transfer=transfer,
        warnings=warnings_of(data, positive, outcome, measure, curve, chosen, validation, transfer, separated),
        settings=settings,
        provenance=provenance,
    )


def _check(data: ShiftObservations, positive: BoolArray, outcome: Outcome) -> None:
    where = f"{outcome.benchmark}, threshold {outcome.threshold:g}"
    if positive.all() or not positive.any():
        raise UserError(
            f"observations of {where}: {'every one' if positive.all() else 'none'} of {positive.size} units rose by "
            "more than the threshold: one class teaches nothing, choose another threshold or add checkpoints"
        )
    if np.unique(data.cluster).size < 2:
        raise UserError(f"observations of {where}: one checkpoint only ({data.cluster[0]}): none can be left out")


def _fit(model: Model, method: str, settings: FitSettings) -> Fit:
    def fit(columns: FloatArray, positive: BoolArray) -> Curve:
        if model.kind == "logistic":
            return fit_logistic(columns, positive, settings.ridge)
        return fit_isotonic(columns[:, 0], positive, rising=is_undirected(method))

    return fit


def _validate(
    data: ShiftObservations,
    positive: BoolArray,
    models: Sequence[Model],
    groups: StrArray,
    left_out: str,
    method: str,
    settings: FitSettings,
) -> tuple[Validation, list[FloatArray]]:
    """Cross-validate models, the control alone and the choice: the account, and the probabilities.

    The probabilities are those of each model and, last, where the account has it, of the choice among all models.
    """
    folds = grouped_folds(groups, settings.max_folds, settings.seed)
    base = np.full(positive.size, float(positive.mean()))
    predictions, candidates, unfitted = [], [], 0
    for model in (*models, CONTROL_ONLY):
        raw, unfitted = out_of_fold(_fit(model, method, settings), data.columns(model.predictors), positive, folds)
        predictions.append(bounded(raw, positive.size))
        errors = _errors(predictions[-1], positive, groups, data.unit, settings)
        candidates.append(Candidate(kind=model.kind, predictors=list(model.predictors), **errors))
    predictions.pop()
    choices = [Choice(_fit(model, method, settings), data.columns(model.predictors)) for model in MODELS]
    chosen = nested_predictions(choices, positive, folds, data.cluster, settings.seed)
    nested = None
    if chosen is not None:
        predictions.append(bounded(chosen.predicted, positive.size))
        errors = _errors(predictions[-1], positive, groups, data.unit, settings)
        nested = Nested(n_chosen=list(chosen.n_chosen), **errors)
    account = Validation(
        left_out="checkpoint" if left_out == "checkpoint" else "spectrum",
        n_folds=int(folds.max()) + 1,
        n_one_class_folds=unfitted,
        base_brier=brier(base, positive),
        base_log_loss=log_loss(base, positive),
        candidates=candidates[:-1],
        control_only=candidates[-1],
        nested=nested,
    )
    return account, predictions


class _Errors(TypedDict):
    brier: float
    brier_skill: float
    skill_low: float | None
    skill_high: float | None
    log_loss: float
    ece: float


def _errors(
    predicted: FloatArray, positive: BoolArray, groups: StrArray, unit: StrArray, settings: FitSettings
) -> _Errors:
    rate, error = float(positive.mean()), brier(predicted, positive)
    interval = skill_interval(predicted, positive, groups, unit, settings.n_resamples, settings.seed)
    return {
        "brier": error,
        "brier_skill": 1 - error / brier(np.full(positive.size, rate), positive),
        "skill_low": _or_none(interval.low),
        "skill_high": _or_none(interval.high),
        "log_loss": log_loss(predicted, positive),
        "ece": expected_calibration_error(reliability(predicted, positive, settings.n_bins)),
    }


def _coefficients(curve: Curve, model: Model) -> dict[str, float] | None:
    if not isinstance(curve, LogisticCurve):
        return None
    return {"intercept": curve.intercept, **dict(zip(model.predictors, curve.slopes.tolist(), strict=True))}


def _range(data: ShiftObservations, name: Predictor) -> Range:
    values = getattr(data, name)
    return Range(low=float(values.min()), high=float(values.max()))


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
