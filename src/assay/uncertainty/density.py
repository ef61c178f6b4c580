"""Densities of features: one normal distribution a class, and the Mahalanobis distance to the nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.base import BaseEstimator

from assay.uncertainty.errors import ClassMissingInCalibration, NotFitted, UncertaintyError
from assay.uncertainty.representations import WithDensity
from assay.uncertainty.representations.base import row_names

Array = NDArray[np.float64]


class ClassGaussians:
    """A normal distribution a class, its covariance its own or shared by all.

    Parameters
    ----------
    shared : bool
    shrink : bool
        Shrink each covariance towards a multiple of the identity by the oracle-approximating share (Chen, Wiesel, Eldar
        and Hero, 2010), which tends to 0 as rows come in. Without it a class with fewer rows than features has a
        singular covariance, and every new row is infinitely far. (Our addition; DDU and Mahalanobis add a small jitter
        only.)
    """

    def __init__(self, *, shared: bool = False, shrink: bool = True) -> None:
        self.shared, self.shrink = shared, shrink

    def fit(self, features: ArrayLike, target: ArrayLike) -> ClassGaussians:
        """Means, covariances and shares of the classes from features ``(n, D)`` and labels as distributions ``(n, K)``.

        Raises
        ------
        ClassMissingInCalibration
            If a class has no row.
        """
        h, t = np.asarray(features, dtype=np.float64), np.asarray(target, dtype=np.float64)
        weight = t.sum(0)
        if (weight <= 0).any():
            raise ClassMissingInCalibration(f"class {int(weight.argmin())} has no row to fit a density to")
        self.log_share_ = np.log(weight / weight.sum())
        self.means_ = (t.T @ h) / weight[:, None]
        covariances = []
        for k in range(t.shape[1]):
            centered = h - self.means_[k]
            covariances.append((centered * t[:, k, None]).T @ centered / weight[k])
        if self.shared:
            covariances = [np.tensordot(weight / weight.sum(), np.array(covariances), axes=1)] * t.shape[1]
        if self.shrink:
            rows = [float(weight.sum())] * t.shape[1] if self.shared else weight
            covariances = [_shrunk(c, n) for c, n in zip(covariances, rows, strict=True)]
        self.factors_ = [_factor(c) for c in covariances]
        return self

    def squared_distances(self, features: ArrayLike) -> Array:
        """Squared Mahalanobis distance to each class, ``(n, K)``."""
        if not hasattr(self, "means_"):
            raise NotFitted("call fit(features, target) first")
        h = np.asarray(features, dtype=np.float64)
        out = [
            (solve_triangular(f, (h - m).T, lower=True) ** 2).sum(0)
            for f, m in zip(self.factors_, self.means_, strict=True)
        ]
        return np.stack(out, axis=1)

    def class_log_densities(self, features: ArrayLike) -> Array:
        """``log share_k + log N(features; mean_k, covariance_k)``, ``(n, K)``."""
        d2 = self.squared_distances(features)
        log_det = np.array([2 * np.log(np.diag(f)).sum() for f in self.factors_])
        return np.asarray(self.log_share_ - 0.5 * (d2 + log_det + self.means_.shape[1] * np.log(2 * np.pi)))

    def log_density(self, features: ArrayLike) -> Array:
        """Log density of the mixture, ``(n)``."""
        return np.asarray(logsumexp(self.class_log_densities(features), axis=1))


def _shrunk(covariance: Array, n: float) -> Array:
    d = len(covariance)
    mean = float(np.trace(covariance)) / d
    square = float((covariance**2).mean())
    below = (n + 1) * (square - mean**2 / d)
    share = 1.0 if below <= 0 else min(1.0, (square + mean**2) / below)
    return np.asarray((1 - share) * covariance + share * mean * np.eye(d))


def _factor(covariance: Array) -> Array:
    # Jitter grows until the factorisation succeeds, from a tiny share of the mean variance.
    scale = max(float(np.trace(covariance)) / len(covariance), 1e-12)
    for power in range(-8, 2):
        try:
            return np.asarray(np.linalg.cholesky(covariance + 10.0**power * scale * np.eye(len(covariance))))
        except np.linalg.LinAlgError:
            continue
    raise UncertaintyError("a covariance of features is not finite")


class Mahalanobis(BaseEstimator):
    """Distance to the nearest class mean under a shared covariance, beside any classifier (Lee et al., NeurIPS 2018).

    Parameters
    ----------
    base : estimator with ``fit`` and ``predict_proba``, optional
        Default: scikit-learn's logistic regression.
    features : callable, optional
        ``X -> (n, D)``, what distances are measured on; default: X itself.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from assay.uncertainty import quantify
    >>> X, y = load_wine(return_X_y=True)
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> method = Mahalanobis().fit(X, y)
    >>> near, far = (quantify(method.predict(Z)).epistemic.mean() for Z in (X, X + 5))
    >>> bool(far > near)
    True
    """

    def __init__(self, base: Any = None, features: Any = None) -> None:
        self.base, self.features = base, features

    def fit(self, X: ArrayLike, y: ArrayLike) -> Mahalanobis:
        """Fit the classifier and the means."""
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression

        self.model_ = (clone(self.base) if self.base is not None else LogisticRegression(max_iter=1000)).fit(X, y)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        self.density_ = ClassGaussians(shared=True).fit(self._features(X), np.eye(len(self.classes_))[codes])
        return self

    def predict(self, X: ArrayLike) -> WithDensity:
        """Probabilities of the classifier and minus half the least squared distance."""
        if not hasattr(self, "density_"):
            raise NotFitted("call fit(X, y) first")
        distance = self.density_.squared_distances(self._features(X)).min(1)
        return WithDensity(self.model_.predict_proba(X), -distance / 2).named(self.classes_.tolist(), row_names(X))

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities of the classifier."""
        return np.asarray(self.predict(X).probs)

    def _features(self, X: ArrayLike) -> Array:
        return np.asarray(self.features(X) if self.features is not None else X, dtype=np.float64)
