"""Conformal intervals for regression: residuals, quantile regression, and cross-validation+."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.conformal.quantile import check_alpha, conformal_quantile, conformal_rank
from assay.uncertainty.errors import ClassMissingInCalibration, NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import IntervalSet
from assay.uncertainty.representations.base import row_names

Array = NDArray[np.float64]


class ConformalRegressor:
    """Split-conformal intervals around a prediction.

    Parameters
    ----------
    score : {"absolute", "normalized", "gamma"}
        ``|y - f|``; ``|y - f| / sigma`` (Papadopoulos et al., 2008); ``|y - f| / f`` for positive targets.
    alpha : float
    groups : bool
        One threshold a group (Mondrian).

    Examples
    --------
    >>> y = np.arange(1.0, 20.0)
    >>> intervals = ConformalRegressor(alpha=0.1).fit(np.zeros(19), y).predict([100.0])
    >>> intervals.lower.tolist(), intervals.upper.tolist()
    ([82.0], [118.0])
    """

    def __init__(self, score: str = "absolute", alpha: float = 0.1, *, groups: bool = False) -> None:
        check_alpha(alpha)
        if score not in ("absolute", "normalized", "gamma"):
            raise UncertaintyError(f"score is 'absolute', 'normalized' or 'gamma', not {score!r}")
        self.score, self.alpha, self.groups = score, alpha, groups

    def fit(
        self, predicted: ArrayLike, y: ArrayLike, sigma: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> ConformalRegressor:
        """Set the threshold(s) from calibration rows."""
        f, values = _pair(predicted, y)
        scores = np.abs(values - f) / self._scale(f, sigma)
        if self.groups:
            if groups is None:
                raise UncertaintyError("groups=True needs the group of each row")
            names = np.asarray(groups)
            self.threshold_: Any = {
                g: conformal_quantile(scores[names == g], self.alpha, where=f" of group {g}")
                for g in np.unique(names).tolist()
            }
        else:
            self.threshold_ = conformal_quantile(scores, self.alpha)
        return self

    def predict(
        self, predicted: ArrayLike, sigma: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> IntervalSet:
        """Intervals ``f -+ threshold * scale``."""
        if not hasattr(self, "threshold_"):
            raise NotFitted("call fit(predicted, y) with calibration rows first")
        f = np.asarray(predicted, dtype=np.float64)
        q: Any = self.threshold_
        if self.groups:
            given = np.asarray(groups).tolist() if groups is not None else []
            missing = sorted({str(g) for g in given if g not in q})
            if missing or len(given) != len(f):
                raise ClassMissingInCalibration(
                    f"groups without calibration rows: {', '.join(missing) or 'none were given'}"
                )
            q = np.array([q[g] for g in given])
        reach = q * self._scale(f, sigma)
        return IntervalSet(f - reach, f + reach).named(index=row_names(predicted))

    def _scale(self, f: Array, sigma: ArrayLike | None) -> Array:
        if self.score == "absolute":
            return np.ones_like(f)
        scale = f if self.score == "gamma" else np.asarray(sigma, dtype=np.float64) if sigma is not None else None
        if scale is None or scale.shape != f.shape or not (scale > 0).all():
            what = "predictions above 0" if self.score == "gamma" else "a positive sigma a row"
            raise UncertaintyError(f"the score {self.score!r} needs {what}")
        return scale


class QuantileConformal:
    """Conformalised quantile regression.

    Parameters
    ----------
    score : {"cqr", "cqr_r", "uacqr"}
        ``max(lo - y, y - hi)`` (Romano, Patterson and Candes, 2019); the same over the width (Sesia and Candes, 2020);
        over the spread of the ensemble at that end (UACQR-S, Rossellini, Barber and Willett, 2024).
    alpha : float

    Examples
    --------
    >>> y = np.arange(1.0, 20.0)
    >>> found = QuantileConformal(alpha=0.1).fit(np.zeros(19), np.full(19, 10.0), y).predict([0.0], [10.0])
    >>> found.lower.tolist(), found.upper.tolist()
    ([-8.0], [18.0])
    """

    def __init__(self, score: str = "cqr", alpha: float = 0.1) -> None:
        check_alpha(alpha)
        if score not in ("cqr", "cqr_r", "uacqr"):
            raise UncertaintyError(f"score is 'cqr', 'cqr_r' or 'uacqr', not {score!r}")
        self.score, self.alpha = score, alpha

    def fit(
        self, lower: ArrayLike, upper: ArrayLike, y: ArrayLike, spread: tuple[ArrayLike, ArrayLike] | None = None
    ) -> QuantileConformal:
        """Set the threshold from predicted quantiles of calibration rows; ``spread`` is the ensemble's at both ends
        (UACQR)."""
        lo, values = _pair(lower, y)
        hi, _ = _pair(upper, y)
        low_scale, high_scale = self._scales(lo, hi, spread)
        self.threshold_ = conformal_quantile(
            np.maximum((lo - values) / low_scale, (values - hi) / high_scale), self.alpha
        )
        return self

    def predict(
        self, lower: ArrayLike, upper: ArrayLike, spread: tuple[ArrayLike, ArrayLike] | None = None
    ) -> IntervalSet:
        """Intervals around the predicted quantiles."""
        if not hasattr(self, "threshold_"):
            raise NotFitted("call fit(lower, upper, y) with calibration rows first")
        lo, hi = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
        low_scale, high_scale = self._scales(lo, hi, spread)
        return IntervalSet(lo - self.threshold_ * low_scale, hi + self.threshold_ * high_scale)

    def _scales(self, lo: Array, hi: Array, spread: tuple[ArrayLike, ArrayLike] | None) -> tuple[Array, Array]:
        if self.score == "cqr":
            return np.ones_like(lo), np.ones_like(hi)
        if self.score == "cqr_r":
            width = np.maximum(hi - lo, 1e-12)
            return width, width
        if spread is None:
            raise UncertaintyError(
                "the score 'uacqr' needs spread=(at the lower end, at the upper end) of the ensemble"
            )
        low, high = (np.maximum(np.asarray(s, dtype=np.float64), 1e-12) for s in spread)
        return low, high


class CVPlus:
    """Cross-validation+ and jackknife+ intervals (Barber et al., Annals of Statistics 2021): coverage at least 1 - 2
    alpha.

    Parameters
    ----------
    make : callable
        Gives a fresh regressor with ``fit`` and ``predict``.
    folds : int or None
        None is one fold a row: jackknife+.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> found = CVPlus(LinearRegression, alpha=0.1, folds=10).fit(X[:300], y[:300]).predict(X[300:])
    >>> round(float(found.covers(y[300:]).mean()), 3)
    0.908
    """

    def __init__(
        self, make: Callable[[], Any], alpha: float = 0.1, *, folds: int | None = 10, random_state: int = 0
    ) -> None:
        check_alpha(alpha)
        if folds is not None and folds < 2:
            raise UncertaintyError(f"folds is at least 2, or None for one a row, not {folds}")
        self.make, self.alpha, self.folds, self.random_state = make, alpha, folds, random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> CVPlus:
        """Train one model a fold and keep the residuals of the rows it has not seen."""
        X, values = np.asarray(X), np.asarray(y, dtype=np.float64)
        n = len(values)
        if len(X) != n or n < 2:
            raise TargetShape(f"{len(X)} rows and {n} targets; as many of both are needed, at least 2")
        order = np.random.default_rng(self.random_state).permutation(n)
        self.models_, self.residuals_ = [], []
        for test in np.array_split(order, min(self.folds or n, n)):
            train = np.setdiff1d(order, test, assume_unique=True)
            model = self.make().fit(X[train], values[train])
            self.models_.append(model)
            self.residuals_.append(np.abs(values[test] - model.predict(X[test])))
        return self

    def predict(self, X: ArrayLike) -> IntervalSet:
        """From the ``floor(alpha (n+1))``-th smallest of ``f_i - R_i`` to the ``ceil((1 - alpha)(n+1))``-th smallest
        of ``f_i + R_i``."""
        if not hasattr(self, "models_"):
            raise NotFitted("call fit(X, y) first")
        X = np.asarray(X)
        low, high = [], []
        for model, residuals in zip(self.models_, self.residuals_, strict=True):
            f = np.asarray(model.predict(X), dtype=np.float64)[:, None]
            low.append(f - residuals)
            high.append(f + residuals)
        lows, highs = np.concatenate(low, 1), np.concatenate(high, 1)
        n = lows.shape[1]
        k = conformal_rank(n, self.alpha)
        if k > n:
            conformal_quantile(np.zeros(n), self.alpha)  # warns
            return IntervalSet(np.full(len(X), -np.inf), np.full(len(X), np.inf))
        return IntervalSet(np.partition(lows, n - k, axis=1)[:, n - k], np.partition(highs, k - 1, axis=1)[:, k - 1])


def _pair(predicted: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    f, values = np.asarray(predicted, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if f.shape != values.shape or f.ndim != 1:
        raise TargetShape(
            f"predictions of shape {f.shape} and targets of shape {values.shape}; one of both a row is needed"
        )
    return f, values
