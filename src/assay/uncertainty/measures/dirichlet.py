"""Measures of Dirichlet distributions in closed form, or by one-dimensional quadrature where there is none."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import betaincinv, digamma, gammainc, gammaincinv, gammaln

from assay.uncertainty.errors import NotSupported
from assay.uncertainty.measures.sample import (
    cumulative,
    gini,
    label_variance,
    labelwise,
    ordinal_entropy,
    ordinal_variance,
    shannon,
)

Alpha = Float[np.ndarray, "rows classes"]
Rows = Float[np.ndarray, " rows"]

DIRICHLET_MEASURES = (
    "entropy",
    "brier",
    "zero_one",
    "variance",
    "ordinal_entropy",
    "ordinal_variance",
    "labelwise",
    "tv",
    "vacuity",
    "differential",
)
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(200)


def dirichlet_three(alpha: Alpha, measure: str) -> tuple[Rows, Rows, Rows]:
    """Total, aleatoric and epistemic uncertainty; NaN where a measure has no such part.

    Raises
    ------
    NotSupported
    """
    a0 = alpha.sum(-1)
    mean = alpha / a0[:, None]
    nothing = np.full(len(alpha), np.nan)
    if measure == "entropy":
        total, aleatoric = shannon(mean), expected_entropy(alpha)
    elif measure == "brier":
        total, aleatoric = gini(mean), 1 - (alpha * (alpha + 1)).sum(-1) / (a0 * (a0 + 1))
    elif measure == "zero_one":
        total, aleatoric = 1 - mean.max(-1), 1 - expected_maximum(alpha)
    elif measure == "tv":
        return 1 - mean.max(-1), 1 - expected_maximum(alpha), expected_tv(alpha)
    elif measure == "variance":
        # E Var(label | theta) = a0 / (a0 + 1) * Var under the mean
        total = label_variance(mean)
        aleatoric = total * a0 / (a0 + 1)
    elif measure == "ordinal_variance":
        total = ordinal_variance(mean)
        aleatoric = total * a0 / (a0 + 1)
    elif measure == "ordinal_entropy":
        total = ordinal_entropy(mean)
        f = cumulative(mean) * a0[:, None]
        aleatoric = _expected_binary_entropy(f, a0[:, None] - f).sum(-1)
    elif measure == "labelwise":
        total = labelwise(mean)
        aleatoric = _expected_binary_entropy(alpha, a0[:, None] - alpha).sum(-1)
    elif measure == "vacuity":
        return nothing, nothing, alpha.shape[-1] / a0
    elif measure == "differential":
        return nothing, nothing, differential_entropy(alpha)
    else:
        raise NotSupported(measure, "a Dirichlet distribution", DIRICHLET_MEASURES)
    return total, aleatoric, np.maximum(total - aleatoric, 0.0)


def expected_entropy(alpha: Alpha) -> Rows:
    """``psi(a0 + 1) - sum a_k / a0 psi(a_k + 1)``.

    >>> expected_entropy(np.array([[1.0, 1.0], [1e6, 1e6]])).round(4).tolist()
    [0.5, 0.6931]
    """
    a0 = alpha.sum(-1)
    return np.asarray(digamma(a0 + 1) - (alpha / a0[:, None] * digamma(alpha + 1)).sum(-1))


def differential_entropy(alpha: Alpha) -> Rows:
    """Differential entropy of the density on the simplex (may be negative; higher is more spread)."""
    a0 = alpha.sum(-1)
    k = alpha.shape[-1]
    log_beta = gammaln(alpha).sum(-1) - gammaln(a0)
    return np.asarray(log_beta + (a0 - k) * digamma(a0) - ((alpha - 1) * digamma(alpha)).sum(-1))


def expected_maximum(alpha: Alpha) -> Rows:
    """``E max theta``: a Dirichlet row is independent gammas over their sum, so it is ``E max gamma / a0``.

    >>> expected_maximum(np.array([[1.0, 1.0]])).round(6).tolist()
    [0.75]
    """
    top = gammaincinv(alpha.max(-1), 1 - 1e-14) + 5
    x = (_NODES + 1) / 2 * top[:, None]
    below = np.ones_like(x)
    for k in range(alpha.shape[-1]):
        below *= gammainc(alpha[:, k, None], x)
    return np.asarray((1 - below) @ _NODE_WEIGHTS / 2 * top / alpha.sum(-1))


def expected_tv(alpha: Alpha) -> Rows:
    """``min_q E TV(theta, q) = integral of (1 - sum of quantiles at t)^+`` with the Beta quantiles of the classes.

    >>> expected_tv(np.array([[1.0, 1.0]])).round(6).tolist()
    [0.25]
    """
    a0 = alpha.sum(-1)[:, None]
    low, high = np.zeros(len(alpha)), np.ones(len(alpha))
    for _ in range(60):  # the level at which the quantiles sum to one
        middle = (low + high) / 2
        above = betaincinv(alpha, a0 - alpha, middle[:, None]).sum(-1) > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    t = (_NODES + 1) / 2 * low[:, None]
    inside = np.ones_like(t)
    for k in range(alpha.shape[-1]):
        inside -= betaincinv(alpha[:, k, None], a0 - alpha[:, k, None], t)
    return np.asarray(np.maximum(inside, 0.0) @ _NODE_WEIGHTS / 2 * low)


def _expected_binary_entropy(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    s = a + b
    return np.asarray(digamma(s + 1) - a / s * digamma(a + 1) - b / s * digamma(b + 1))
