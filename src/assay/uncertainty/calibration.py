"""Calibration of saved probabilities: temperature, vector, Dirichlet, Platt and isotonic maps, fitted on rows set
aside."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_softmax, softmax

from assay.uncertainty.conformal.classification import label_codes
from assay.uncertainty.errors import ClassMissingInCalibration, NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import Categorical
from assay.uncertainty.representations.base import row_names
from assay.uncertainty.simplex import as_probabilities

Array = NDArray[np.float64]


class Calibrator:
    """Base: `fit(probs, y)` on calibration rows, `predict(probs)` to a `Categorical`; ``y`` may be labels or
    distributions."""

    def fit(self, probs: ArrayLike, y: ArrayLike) -> Any:
        """Fit the map.

        Raises
        ------
        NotADistribution, TargetShape
        ClassMissingInCalibration
            Where each class has parameters of its own and one has no row.
        """
        p = as_probabilities(_values(probs))
        target = _targets(y, p)
        if self._own_parameters and (target.sum(0) <= 0).any():
            raise ClassMissingInCalibration(f"class {int(np.argmin(target.sum(0)))} has no calibration row")
        self.n_classes_ = p.shape[1]
        self._fit(_logits(p), target)
        return self

    def predict(self, probs: ArrayLike) -> Categorical:
        """Calibrated probabilities."""
        if not hasattr(self, "n_classes_"):
            raise NotFitted("call fit(probs, y) with calibration rows first")
        p = as_probabilities(_values(probs))
        if p.shape[-1] != self.n_classes_:
            raise TargetShape(f"{p.shape[-1]} classes were given; the calibration had {self.n_classes_}")
        return Categorical(self._map(_logits(p))).named(index=row_names(probs))

    _own_parameters = True

    def _fit(self, z: Array, target: Array) -> None:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover

    def _map(self, z: Array) -> Array:
        raise UncertaintyError(f"{type(self).__name__} is a base class")  # pragma: no cover


class TemperatureScaling(Calibrator):
    """``softmax(log p / T)`` with the T of least log loss (Guo et al., ICML 2017).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> y = (softmax(logits, 1).cumsum(1) < rng.random((2000, 1))).sum(1)
    >>> round(TemperatureScaling().fit(softmax(3 * logits, 1), y).temperature_, 1)          # three times too sure
    3.0
    """

    _own_parameters = False

    def _fit(self, z: Array, target: Array) -> None:
        def loss(log_t: float) -> float:
            return -float((target * log_softmax(z / np.exp(log_t), 1)).sum()) / len(z)

        self.temperature_ = float(
            np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8}).x)
        )

    def _map(self, z: Array) -> Array:
        return np.asarray(softmax(z / self.temperature_, axis=-1))


class VectorScaling(Calibrator):
    """``softmax(a * log p + b)``, a scale and an offset a class (Guo et al., 2017)."""

    def _fit(self, z: Array, target: Array) -> None:
        k = z.shape[1]

        def loss(theta: Array) -> tuple[float, Array]:
            logp = log_softmax(theta[:k] * z + theta[k:], 1)
            residual = (np.exp(logp) * target.sum(1, keepdims=True) - target) / len(z)
            return -float((target * logp).sum()) / len(z), np.concatenate([(residual * z).sum(0), residual.sum(0)])

        found = minimize(loss, np.concatenate([np.ones(k), np.zeros(k)]), jac=True, method="L-BFGS-B").x
        self.scale_, self.offset_ = found[:k], found[k:]

    def _map(self, z: Array) -> Array:
        return np.asarray(softmax(self.scale_ * z + self.offset_, axis=-1))


class DirichletCalibration(Calibrator):
    """``softmax(W log p + b)`` with penalties on the off-diagonal of W and on b (Kull et al., NeurIPS 2019).

    Parameters
    ----------
    off_diagonal, offset : float
        Weights of the two penalties (means of squares).
    """

    def __init__(self, off_diagonal: float = 1e-2, offset: float = 1e-2) -> None:
        self.off_diagonal, self.offset = off_diagonal, offset

    def _fit(self, z: Array, target: Array) -> None:
        k = z.shape[1]
        off = 1 - np.eye(k)
        share = max(k * (k - 1), 1)

        def loss(theta: Array) -> tuple[float, Array]:
            w, b = theta[: k * k].reshape(k, k), theta[k * k :]
            logp = log_softmax(z @ w.T + b, 1)
            residual = (np.exp(logp) * target.sum(1, keepdims=True) - target) / len(z)
            value = -float((target * logp).sum()) / len(z)
            value += self.off_diagonal * float((off * w**2).sum()) / share + self.offset * float(b @ b) / k
            grad_w = residual.T @ z + 2 * self.off_diagonal * off * w / share
            return value, np.concatenate([grad_w.ravel(), residual.sum(0) + 2 * self.offset * b / k])

        found = minimize(loss, np.concatenate([np.eye(k).ravel(), np.zeros(k)]), jac=True, method="L-BFGS-B").x
        self.weights_, self.offset_ = found[: k * k].reshape(k, k), found[k * k :]

    def _map(self, z: Array) -> Array:
        return np.asarray(softmax(z @ self.weights_.T + self.offset_, axis=-1))


class PlattScaling(Calibrator):
    """One class against the rest, ``sigmoid(a s + b)`` on its log-odds, with Platt's smoothed targets; then
    normalised."""

    def _fit(self, z: Array, target: Array) -> None:
        s = _log_odds(z)
        slopes, offsets = [], []
        for k in range(z.shape[1]):
            t = target[:, k]
            n1, n0 = t.sum(), (1 - t).sum()
            smooth = t * (n1 + 1) / (n1 + 2) + (1 - t) / (n0 + 2)

            def loss(theta: Array, column: Array = s[:, k], goal: Array = smooth) -> tuple[float, Array]:
                m = theta[0] * column + theta[1]
                residual = (expit(m) - goal) / len(m)
                return float((np.logaddexp(0, m) - goal * m).mean()), np.array([residual @ column, residual.sum()])

            a, b = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B").x
            slopes.append(a)
            offsets.append(b)
        self.slope_, self.offset_ = np.array(slopes), np.array(offsets)

    def _map(self, z: Array) -> Array:
        p = expit(self.slope_ * _log_odds(z) + self.offset_)
        return np.asarray(p / p.sum(-1, keepdims=True))


class IsotonicCalibration(Calibrator):
    """One class against the rest, an increasing step function of its probability (Zadrozny and Elkan, KDD 2002);
    then normalised."""

    def _fit(self, z: Array, target: Array) -> None:
        from sklearn.isotonic import IsotonicRegression

        p = softmax(z, axis=-1)
        self.maps_ = [
            IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p[:, k], target[:, k])
            for k in range(p.shape[1])
        ]

    def _map(self, z: Array) -> Array:
        p = softmax(z, axis=-1)
        mapped = np.stack([m.predict(p[:, k]) for k, m in enumerate(self.maps_)], axis=1)
        total = mapped.sum(1, keepdims=True)
        return np.asarray(np.where(total > 0, mapped / np.where(total > 0, total, 1), 1 / p.shape[1]))


def _logits(p: Array) -> Array:
    return np.asarray(np.log(np.maximum(p, 1e-30)))


def _log_odds(z: Array) -> Array:
    p = np.clip(softmax(z, axis=-1), 1e-15, 1 - 1e-15)
    return np.asarray(np.log(p) - np.log1p(-p))


def _values(probs: Any) -> Any:
    return probs.to_numpy() if hasattr(probs, "to_numpy") else probs


def _targets(y: ArrayLike, p: Array) -> Array:
    values = np.asarray(y)
    if values.ndim == 2:
        if values.shape != p.shape:
            raise TargetShape(f"targets of shape {values.shape} do not fit probabilities of shape {p.shape}")
        return as_probabilities(values, what="targets")
    return np.eye(p.shape[1])[label_codes(values, len(p), p.shape[1])]
