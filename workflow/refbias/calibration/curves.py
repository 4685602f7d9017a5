"""The two curves from dB to a probability: a penalised logistic one and a monotone one.

The logistic slopes carry a ridge penalty, so that they stay finite where a predictor separates the classes (common
with a few dozen observations), and the intercept none, so that the mean prediction is the share of positives. The
isotonic curve is the least-squares monotone one (pool adjacent violators); it supposes a direction and nothing else.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from refbias.stats.vectors import BoolArray, FloatArray, constant_rows


class Curve(Protocol):
    """Anything that gives rows of predictors a probability."""

    def predict(self, columns: FloatArray) -> FloatArray:
        """Return probabilities, shape (n,), for predictors of shape (n, p)."""


@dataclass(frozen=True)
class LogisticCurve:
    """P = 1 / (1 + exp(-(intercept + columns @ slopes)))."""

    intercept: float
    slopes: FloatArray

    def predict(self, columns: FloatArray) -> FloatArray:
        """Return probabilities, shape (n,), for predictors of shape (n, p)."""
        values: FloatArray = expit(self.intercept + columns @ self.slopes)
        return values


@dataclass(frozen=True)
class IsotonicCurve:
    """Linear between knots, constant beyond them."""

    x: FloatArray
    y: FloatArray

    def predict(self, columns: FloatArray) -> FloatArray:
        """Return probabilities, shape (n,), for predictors of shape (n, 1)."""
        return np.interp(columns[:, 0], self.x, self.y)


def fit_logistic(columns: FloatArray, positive: BoolArray, ridge: float) -> LogisticCurve:
    """Fit a logistic curve by penalised maximum likelihood.

    Minimises the negative log-likelihood plus ``ridge / 2`` times the sum of squared slopes per standard deviation
    (population) of a predictor; a predictor that does not vary has slope 0.

    Parameters
    ----------
    columns : ndarray, shape (n, p)
        Predictors.
    positive : ndarray of bool, shape (n,)
        Outcomes, both classes present.
    ridge : float
        Penalty, above 0.

    Returns
    -------
    LogisticCurve
        Intercept and slopes in the predictors' own units.

    Raises
    ------
    ValueError
        With one class only.
    """
    _both_classes(positive)
    centre, scale = columns.mean(axis=0), columns.std(axis=0)
    scale = np.where(constant_rows(columns.T) | (scale == 0), np.inf, scale)
    model = LogisticRegression(C=1 / ridge, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    model.fit((columns - centre) / scale, positive)
    slopes: FloatArray = model.coef_[0] / scale
    return LogisticCurve(float(model.intercept_[0] - centre @ slopes), slopes)


def fit_isotonic(values: FloatArray, positive: BoolArray, *, rising: bool) -> IsotonicCurve:
    """Fit the monotone curve nearest to the outcomes in least squares.

    Parameters
    ----------
    values : ndarray, shape (n,)
        The predictor; equal values are pooled.
    positive : ndarray of bool, shape (n,)
        Outcomes.
    rising : bool
        Whether the probability rises with the predictor.

    Returns
    -------
    IsotonicCurve
        Its knots.
    """
    model = IsotonicRegression(y_min=0, y_max=1, increasing=rising, out_of_bounds="clip")
    model.fit(values, positive.astype(np.float64))
    return IsotonicCurve(np.asarray(model.X_thresholds_, np.float64), np.asarray(model.y_thresholds_, np.float64))


def is_separated(columns: FloatArray, positive: BoolArray) -> bool:
    """Tell whether a plane parts the classes (but for points on it), so that no unpenalised slopes exist.

    Looks, by linear programming, for a direction along which no observation lies on the wrong side and some lie on the
    right one (Albert and Anderson 1984).
    """
    scale = np.ptp(columns, axis=0)
    unit = (columns - columns.mean(axis=0)) / np.where(scale > 0, scale, 1)
    signed = np.column_stack([np.ones(positive.size), unit]) * np.where(positive, 1.0, -1.0)[:, np.newaxis]
    found = linprog(-signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(positive.size), bounds=(-1, 1))
    return found.status == 0 and found.fun is not None and bool(found.fun < -1e-7)


def _both_classes(positive: BoolArray) -> None:
    if positive.all() or not positive.any():
        raise ValueError("positive: one class only")
