"""Laplace approximations around fitted linear (last) layers, in NumPy; no array of shape (rows, classes, classes) is
ever made."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax, softmax
from sklearn.base import BaseEstimator

from assay.uncertainty.errors import NotFitted, PriorRetuned, UncertaintyError
from assay.uncertainty.representations import GaussianLogits, GaussianSample
from assay.uncertainty.representations.base import row_names

Array = NDArray[np.float64]
GRID = np.logspace(-4, 4, 100)


@dataclass(frozen=True)
class KroneckerPosterior:
    """Posterior of a softmax layer's weights with precision ``A (x) G + delta I`` (Ritter, Botev and Barber, ICLR
    2018).

    ``A = sum phi phi^T`` over rows, ``G = mean (diag p - p p^T)``; kept by their eigenvectors.

    Attributes
    ----------
    delta : float
        Prior precision.
    evidence : float
        Laplace estimate of the log marginal likelihood, up to a constant.
    """

    a_values: Array
    a_vectors: Array
    g_values: Array
    g_vectors: Array
    delta: float
    evidence: float

    def logit_variance(self, features: Float[np.ndarray, "rows features"]) -> Float[np.ndarray, "rows classes"]:
        """Variance of every logit of every row."""
        along = (features @ self.a_vectors) ** 2
        return np.asarray(along @ (1 / (np.outer(self.a_values, self.g_values) + self.delta)) @ (self.g_vectors**2).T)


def kronecker_laplace(
    features: Float[np.ndarray, "rows features"],
    logits: Float[np.ndarray, "rows classes"],
    target: Float[np.ndarray, "rows classes"],
    weights: Float[np.ndarray, "classes features"],
    grid: ArrayLike = GRID,
) -> KroneckerPosterior:
    """Posterior of a softmax layer, its prior precision the one of largest evidence on the grid."""
    p = softmax(logits, axis=1)
    a, u = np.linalg.eigh(features.T @ features)
    g, v = np.linalg.eigh(np.diag(p.mean(0)) - p.T @ p / len(p))
    a, g = np.maximum(a, 0), np.maximum(g, 0)
    likelihood = float((target * log_softmax(logits, axis=1)).sum())
    products = np.outer(a, g)

    def evidence(d: float) -> float:
        return likelihood - d / 2 * float((weights**2).sum()) + 0.5 * float((np.log(d) - np.log(products + d)).sum())

    values = [(evidence(float(d)), float(d)) for d in np.asarray(grid)]
    best, delta = max(values)
    return KroneckerPosterior(a, u, g, v, delta, best)


class LaplaceLogistic(BaseEstimator):
    """Logistic regression with the normal posterior of its weights at the MAP estimate.

    Parameters
    ----------
    prior_precision : float
        Of all weights, the intercept included; the same number fits the weights and shapes the posterior.
    max_iter : int

    Attributes
    ----------
    coef_ : float64[D + 1] or float64[K, D + 1]
        Intercept last; one row for two classes.
    covariance_ : float64[P, P]
        Inverse of ``sum Lambda_n (x) phi phi^T + prior_precision I``.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(0)) / X.std(0)
    >>> rep = LaplaceLogistic().fit(X[::2], y[::2]).predict(X[1::2])
    >>> round(float((rep.predict() == y[1::2]).mean()), 3)
    0.961
    """

    def __init__(self, prior_precision: float = 1.0, max_iter: int = 100) -> None:
        self.prior_precision, self.max_iter = prior_precision, max_iter

    def fit(self, X: ArrayLike, y: ArrayLike) -> LaplaceLogistic:
        """Newton steps to the MAP, then the inverse Hessian there."""
        if not self.prior_precision > 0:
            raise UncertaintyError(f"prior_precision is above 0, not {self.prior_precision}")
        phi = _with_one(X)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        k = 1 if len(self.classes_) == 2 else len(self.classes_)
        target = codes[:, None].astype(np.float64) if k == 1 else np.eye(k)[codes]
        w = np.zeros((k, phi.shape[1]))
        for _ in range(self.max_iter):
            gradient, hessian = self._derivatives(phi, w, target)
            step = np.linalg.solve(hessian, gradient.ravel()).reshape(w.shape)
            size = 1.0
            start = self._objective(phi, w, target)
            while self._objective(phi, w - size * step, target) > start + 1e-12 and size > 1e-8:
                size /= 2
            w = w - size * step
            if np.abs(size * step).max() < 1e-12:
                break
        self.covariance_ = np.linalg.inv(self._derivatives(phi, w, target)[1])
        self.coef_ = w[0] if k == 1 else w
        return self

    def predict(self, X: ArrayLike) -> GaussianLogits:
        """Normal logits; for two classes ``(-f/2, f/2)`` with half the variance of the log-odds f each."""
        if not hasattr(self, "coef_"):
            raise NotFitted("call fit(X, y) first")
        phi = _with_one(X)
        w = np.atleast_2d(self.coef_)
        f = phi @ w.T
        d = phi.shape[1]
        blocks = [self.covariance_[i * d : (i + 1) * d, i * d : (i + 1) * d] for i in range(len(w))]
        var = np.stack([np.einsum("nd,de,ne->n", phi, block, phi) for block in blocks], axis=1)
        if len(w) == 1:
            f, var = np.concatenate([-f / 2, f / 2], axis=1), np.concatenate([var / 2, var / 2], axis=1)
        return GaussianLogits(f, var).named(self.classes_.tolist(), row_names(X))

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probit approximation of the predictive probabilities."""
        rep = self.predict(X)
        if rep.n_classes == 2:
            f, v = rep.mu[:, 1] * 2, rep.var[:, 1] * 2
            p = expit(f / np.sqrt(1 + np.pi / 8 * v))
            return np.stack([1 - p, p], axis=1)
        return rep.mean()

    def _probs(self, phi: Array, w: Array) -> Array:
        return np.asarray(expit(phi @ w.T) if len(w) == 1 else softmax(phi @ w.T, axis=1))

    def _objective(self, phi: Array, w: Array, target: Array) -> float:
        z = phi @ w.T
        if len(w) == 1:
            fit = float((np.logaddexp(0, z) - target * z).sum())
        else:
            fit = -float((target * log_softmax(z, axis=1)).sum())
        return fit + self.prior_precision / 2 * float((w**2).sum())

    def _derivatives(self, phi: Array, w: Array, target: Array) -> tuple[Array, Array]:
        p = self._probs(phi, w)
        gradient = (p - target).T @ phi + self.prior_precision * w
        k, d = w.shape
        hessian = np.zeros((k, d, k, d))
        for i in range(k):
            for j in range(i, k):
                weight = p[:, i] * ((i == j) - p[:, j])
                hessian[i, :, j] = hessian[j, :, i] = (phi * weight[:, None]).T @ phi
        return gradient, hessian.reshape(k * d, k * d) + self.prior_precision * np.eye(k * d)


class LaplaceRidge(BaseEstimator):
    """Ridge regression with its normal posterior, which is Bayesian linear regression exactly.

    Parameters
    ----------
    prior_precision : float, optional
        Of all weights, the intercept included; default: the one of largest evidence on a grid, on centred targets.
    noise : float, optional
        Variance of the noise; default: that of the least-squares residuals, by their degrees of freedom.
    center : bool
        Take the mean off the targets first, so that the intercept's prior is about that mean.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from assay.uncertainty import regression_quality
    >>> X, y = load_diabetes(return_X_y=True)
    >>> result = regression_quality(LaplaceRidge().fit(X[:300], y[:300]).predict(X[300:]), y[300:])
    >>> round(result.scores["rmse"], 1), round(result.scores["coverage"], 2)
    (53.0, 0.91)
    """

    def __init__(
        self, prior_precision: float | None = None, noise: float | None = None, *, center: bool = True
    ) -> None:
        self.prior_precision, self.noise, self.center = prior_precision, noise, center

    def fit(self, X: ArrayLike, y: ArrayLike) -> LaplaceRidge:
        """Posterior mean and covariance."""
        phi, t = _with_one(X), np.asarray(y, dtype=np.float64)
        self.offset_ = float(t.mean()) if self.center else 0.0
        t = t - self.offset_
        n, d = phi.shape
        gram, moment = phi.T @ phi, phi.T @ t
        if self.noise is None:
            w = np.linalg.lstsq(phi, t, rcond=None)[0]
            self.noise_ = float(((t - phi @ w) ** 2).sum() / max(n - d, 1))
        else:
            self.noise_ = float(self.noise)
        values, vectors = np.linalg.eigh(gram / self.noise_)
        along = vectors.T @ moment / self.noise_

        def evidence(precision: float) -> float:
            total = values + precision
            return float(d * np.log(precision) - np.log(np.maximum(total, 1e-300)).sum() + (along**2 / total).sum()) / 2

        chosen = self.prior_precision
        if chosen is None:
            chosen = float(max(np.logspace(-10, 4, 141), key=lambda p: evidence(float(p))))
        self.prior_precision_ = chosen
        self.covariance_ = np.linalg.inv(gram / self.noise_ + chosen * np.eye(d))
        self.coef_ = self.covariance_ @ moment / self.noise_
        return self

    def predict(self, X: ArrayLike) -> GaussianSample:
        """Two equal members at mean -+ the posterior's standard deviation, each with the noise: first two moments
        exact."""
        if not hasattr(self, "coef_"):
            raise NotFitted("call fit(X, y) first")
        phi = _with_one(X)
        mean = phi @ self.coef_ + self.offset_
        sd = np.sqrt(np.einsum("nd,de,ne->n", phi, self.covariance_, phi))
        return GaussianSample(np.stack([mean - sd, mean + sd], axis=-1), self.noise_).named(index=row_names(X))


def warn_if_retuned(fitted_with: float, chosen: float) -> None:
    """Say so where the prior of the posterior is far from the one the weights were fitted with."""
    if fitted_with > 0 and not 0.1 <= chosen / fitted_with <= 10:
        warnings.warn(
            f"the prior precision {chosen:.3g} of the posterior is not the {fitted_with:.3g} that the weights were "
            "fitted with; fit again with it for an exact MAP",
            PriorRetuned,
            stacklevel=3,
        )


def _with_one(X: Any) -> Array:
    x = np.asarray(X, dtype=np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise UncertaintyError(f"X is a finite table (rows, columns); this one has shape {x.shape}")
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)
