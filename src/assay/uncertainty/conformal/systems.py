"""Conformal predictive systems: a whole calibrated distribution a row (Vovk et al., 2017; split form)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.conformal.quantile import check_alpha, conformal_rank
from assay.uncertainty.errors import NotFitted, UncertaintyError
from assay.uncertainty.representations import IntervalSet
from assay.uncertainty.simplex import row_uniform


class PredictiveSystem:
    """Distribution functions from signed residuals: ``F(y) = (#{C_i < y} + tau (1 + #{C_i = y})) / (n + 1)``.

    ``C_i = f + sigma (y_i - f_i) / sigma_i`` over calibration rows i.

    Examples
    --------
    >>> system = PredictiveSystem().fit(np.zeros(9), np.arange(1.0, 10.0))
    >>> system.quantile([0.0], 0.5).tolist(), system.cdf([0.0], [4.5], tau=0.5).tolist()
    ([5.0], [0.45])
    """

    def fit(self, predicted: ArrayLike, y: ArrayLike, sigma: ArrayLike | None = None) -> PredictiveSystem:
        """Keep the sorted residuals of calibration rows."""
        f, values = np.asarray(predicted, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if f.shape != values.shape or f.ndim != 1 or not len(f):
            raise UncertaintyError(
                f"predictions {f.shape} and targets {values.shape}: one of both a row is needed, at least one row"
            )
        self.residuals_ = np.sort((values - f) / self._sigma(f, sigma))
        return self

    def interval(self, predicted: ArrayLike, alpha: float = 0.1, sigma: ArrayLike | None = None) -> IntervalSet:
        """Central intervals with coverage at least 1 - alpha; infinite where there are too few calibration rows."""
        check_alpha(alpha)
        k = conformal_rank(self._n(), alpha / 2)
        f = np.asarray(predicted, dtype=np.float64)
        scale = self._sigma(f, sigma)
        return IntervalSet(f + scale * self._order(self._n() + 1 - k), f + scale * self._order(k))

    def quantile(self, predicted: ArrayLike, level: float, sigma: ArrayLike | None = None) -> NDArray[np.float64]:
        """The ``ceil(level (n + 1))``-th smallest of C; infinite outside 1 ... n."""
        check_alpha(level)
        f = np.asarray(predicted, dtype=np.float64)
        return np.asarray(f + self._sigma(f, sigma) * self._order(conformal_rank(self._n(), 1 - level)))

    def cdf(
        self,
        predicted: ArrayLike,
        y: ArrayLike,
        sigma: ArrayLike | None = None,
        *,
        tau: float | None = None,
        seed: int = 0,
    ) -> NDArray[np.float64]:
        """F at y: uniform on (0, 1) for exchangeable rows where tau is drawn (one a row, from the seed), the PIT."""
        f = np.asarray(predicted, dtype=np.float64)
        z = (np.asarray(y, dtype=np.float64) - f) / self._sigma(f, sigma)
        below, upto = (np.searchsorted(self._fitted(), z, side=s) for s in ("left", "right"))
        t = row_uniform(seed, 0, len(z), 3) if tau is None else tau
        return np.asarray((below + t * (1 + upto - below)) / (self._n() + 1))

    def crps(self, predicted: ArrayLike, y: ArrayLike, sigma: ArrayLike | None = None) -> NDArray[np.float64]:
        """CRPS of the equally weighted values C: ``mean |C - y| - 1/2 mean |C - C'|``."""
        r = self._fitted()
        f = np.asarray(predicted, dtype=np.float64)
        scale = self._sigma(f, sigma)
        z = (np.asarray(y, dtype=np.float64) - f) / scale
        n = len(r)
        below = np.searchsorted(r, z, side="left")
        sums = np.concatenate([[0.0], np.cumsum(r)])
        absolute = (z * below - sums[below] + (sums[-1] - sums[below]) - z * (n - below)) / n
        half_spread = ((2 * np.arange(1, n + 1) - n - 1) @ r) / n**2
        return np.asarray(scale * (absolute - half_spread))

    def _fitted(self) -> NDArray[np.float64]:
        if not hasattr(self, "residuals_"):
            raise NotFitted("call fit(predicted, y) with calibration rows first")
        return self.residuals_

    def _n(self) -> int:
        return len(self._fitted())

    def _order(self, k: int) -> float:
        return -math.inf if k < 1 else math.inf if k > self._n() else float(self.residuals_[k - 1])

    def _sigma(self, f: NDArray[np.float64], sigma: ArrayLike | None) -> NDArray[np.float64]:
        scale = np.ones_like(f) if sigma is None else np.asarray(sigma, dtype=np.float64)
        if scale.shape != f.shape or not (scale > 0).all():
            raise UncertaintyError("sigma must be above 0, one a row")
        return scale
