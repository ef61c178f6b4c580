"""The multidimensional two-parameter model, an ability a skill or free dimensions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit, logit

from assay.diagnosis.errors import DiagnosisError, NotConverged
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.responses import ResponseData

Array = NDArray[Any]


class MIRT(DiagnosisModel):
    """P = sig(a_j . theta_i - d_j), a >= 0, abilities standard normal, correlated with ``correlation``; joint mode by
    L-BFGS.

    Parameters
    ----------
    dims : int, optional
        None (confirmatory): a dimension a skill, slopes only where the Q-matrix has a 1, and sig(theta_k) is the
        mastery of skill k.
        A number (exploratory): that many free dimensions; no mastery is claimed.
    correlation : float
        Prior correlation between the abilities (confirmatory). Skills of one person go together; 0 makes them
        independent.
    tol : float
        Largest element of the gradient at the end.
    max_iter : int
    seed : int
        Starting values of free dimensions.

    Raises
    ------
    DiagnosisError
        If a parameter is out of range, or the mastery of free dimensions is asked for.

    Examples
    --------
    >>> from assay.diagnosis import MIRT, simulate_platform
    >>> made = simulate_platform(400, 30, 3, density=1.0, model="mirt", guess=0.0, seed=0)
    >>> model = MIRT().fit(made.data)
    >>> [round(float(np.corrcoef(model.mastery_[:, k], made.alpha[:, k])[0, 1]), 2) for k in range(3)]
    [0.87, 0.85, 0.85]
    """

    def __init__(
        self, dims: int | None = None, correlation: float = 0.5, tol: float = 1e-3, max_iter: int = 1000, seed: int = 0
    ) -> None:
        self.dims = dims
        self.correlation = correlation
        self.tol = tol
        self.max_iter = max_iter
        self.seed = seed

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.dims is not None and self.dims < 1:
            raise DiagnosisError(f"dims={self.dims} must be at least 1")
        if not 0 <= self.correlation < 1:
            raise DiagnosisError(f"correlation={self.correlation} must be in [0, 1)")
        s, j = data.n_students, data.n_items
        d = self.dims or data.n_kcs
        mask = np.ones((j, d), dtype=bool) if self.dims else self.q_
        self.precision_ = self._precision(d)
        student, item = data.student.astype(np.int64), data.item.astype(np.int64)
        y = data.correct.astype(np.float64)
        where_item, where_dim = np.nonzero(mask)
        n_free = len(where_item)
        # answers in csr order of (student, item): sums over items of a student, and the other way, are sparse products
        pattern = sparse.csr_array((np.arange(1, len(y) + 1, dtype=np.float64), (student, item)), shape=(s, j))
        order = pattern.data.astype(np.int64) - 1
        student, item, y = student[order], item[order], y[order]
        by_item = pattern.tocsc()
        order_t = np.argsort(item, kind="stable")

        def objective(x: Array) -> tuple[float, Array]:
            theta = x[: s * d].reshape(s, d)
            raw, b = x[s * d : s * d + n_free], x[s * d + n_free :]
            a = np.zeros((j, d))
            soft = np.logaddexp(0, raw)
            a[where_item, where_dim] = soft
            z = np.einsum("md,md->m", theta[student], a[item]) - b[item]
            e = np.exp(-np.abs(z))
            prior = theta @ self.precision_
            value = np.sum(np.maximum(z, 0) + np.log1p(e)) - y @ z + 0.5 * np.sum(prior * theta)
            value += 2 * np.sum((soft - 1) ** 2) + b @ b / 18
            r = np.where(z >= 0, 1, e) / (1 + e) - y
            pattern.data = r
            by_item.data = r[order_t]
            g_theta = pattern @ a + prior
            g_a = (by_item.T @ theta)[where_item, where_dim] + 4 * (soft - 1)
            return float(value), np.concatenate([g_theta.ravel(), g_a * expit(raw), b / 9 - np.bincount(item, r, j)])

        rng = np.random.default_rng(self.seed)
        x0 = np.zeros(s * d + n_free + j)
        n = np.bincount(student, minlength=s)
        start = logit((np.bincount(student, y, s) + 2.5) / (n + 5))
        x0[: s * d] = np.repeat(start - start.mean(), d)
        if self.dims:
            x0[: s * d] += 0.3 * rng.normal(size=s * d)
        x0[s * d : s * d + n_free] = np.log(np.expm1(1 / np.sqrt(mask.sum(1)[where_item]))) + (
            0.1 * rng.normal(size=n_free) if self.dims else 0
        )
        x0[s * d + n_free :] = -logit((np.bincount(item, y, j) + 0.5) / (np.bincount(item, minlength=j) + 1))
        options = {"maxiter": self.max_iter, "gtol": self.tol, "ftol": 0, "maxcor": 20, "maxfun": 2 * self.max_iter}
        found = minimize(objective, x0, jac=True, method="L-BFGS-B", options=options)
        norm = float(np.abs(found.jac).max())
        if norm > 10 * self.tol:
            warnings.warn(
                f"MIRT stopped after {found.nit} steps with max |gradient| {norm:.2g} (tol {self.tol:g}); raise "
                "max_iter",
                NotConverged,
                stacklevel=3,
            )
        self.n_iter_ = int(found.nit)
        self.slope_ = np.zeros((j, d))
        self.slope_[where_item, where_dim] = np.logaddexp(0, found.x[s * d : s * d + n_free])
        self.intercept_ = found.x[s * d + n_free :].copy()
        theta = found.x[: s * d].reshape(s, d)
        self.states_ = np.hstack([theta, self._se(theta, data)])
        self.n_params_ = n_free + j + s * d
        p = np.clip(self._predict(self.states_, data.student, data.item), 1e-12, 1 - 1e-12)
        self.loglik_ = float(np.sum(np.where(data.correct == 1, np.log(p), np.log1p(-p))))

    def _precision(self, d: int) -> Array:
        rho = 0.0 if self.dims else self.correlation
        matrix: Array = np.linalg.inv((1 - rho) * np.eye(d) + rho * np.ones((d, d)))
        return matrix

    def _information(self, theta: Array, data: ResponseData) -> tuple[Array, Array]:
        """Gradient ``[S, D]`` and negative Hessian ``[S, D, D]`` of the log-posterior of each student."""
        s, d = theta.shape
        p = expit(np.einsum("md,md->m", theta[data.student], self.slope_[data.item]) - self.intercept_[data.item])
        shape = (s, len(self.slope_))
        residual = sparse.csr_array((data.correct - p, (data.student, data.item)), shape=shape)
        weight = sparse.csr_array((p * (1 - p), (data.student, data.item)), shape=shape)
        outer = (self.slope_[:, :, None] * self.slope_[:, None, :]).reshape(-1, d * d)
        return residual @ self.slope_ - theta @ self.precision_, (weight @ outer).reshape(s, d, d) + self.precision_

    def _se(self, theta: Array, data: ResponseData) -> Array:
        covariance = np.linalg.inv(self._information(theta, data)[1])
        se: Array = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        return se

    def _estimate(self, data: ResponseData) -> Array:
        theta = np.zeros((data.n_students, self.slope_.shape[1]))
        for _ in range(50):
            gradient, hessian = self._information(theta, data)
            step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
            size = np.minimum(1, 2 / np.maximum(np.abs(step).max(1), 1e-12))
            theta += size[:, None] * step
            if np.abs(step).max(initial=0) < 1e-7:
                break
        return np.hstack([theta, self._se(theta, data)])

    def _predict(self, states: Array, student: NDArray[Any], item: NDArray[Any]) -> Array:
        d = self.slope_.shape[1]
        p: Array = expit(np.einsum("md,md->m", states[student, :d], self.slope_[item]) - self.intercept_[item])
        return p

    def _mastery(self, states: Array) -> Array:
        if self.dims:
            raise DiagnosisError(
                "free dimensions are no skills, so this model claims no mastery; use dims=None, or calibrated_mastery"
            )
        p: Array = expit(states[:, : self.slope_.shape[1]])
        return p

    def predict_from_mastery(self, mastery: Array, item: NDArray[Any]) -> Array:
        """Probability of a right answer for given mastery: theta_k is its logit."""
        theta = logit(np.clip(mastery, 1e-6, 1 - 1e-6))
        p: Array = expit(np.einsum("md,md->m", theta, self.slope_[item]) - self.intercept_[item])
        return p

    def _mastery_se(self, states: Array) -> Array:
        m = self._mastery(states)
        return m * (1 - m) * states[:, self.slope_.shape[1] :]

    def extend_items(self, data: ResponseData) -> MIRT:
        """The model with more items, see `IRT.extend_items`."""
        from assay.diagnosis.extend import extended, new_item_rows

        rows, first = new_item_rows(self, data)
        j, d = data.n_items - first, self.slope_.shape[1]
        mask = np.ones((j, d), dtype=bool) if self.dims else data.dense_q()[first:]
        where = np.nonzero(mask)
        item, y, theta = (
            rows.item.astype(np.int64) - first,
            rows.correct.astype(np.float64),
            self.states_[rows.student, :d],
        )

        def objective(x: Array) -> tuple[float, Array]:
            a = np.zeros((j, d))
            soft = np.logaddexp(0, x[: len(where[0])])
            a[where] = soft
            b = x[len(where[0]) :]
            z = np.einsum("md,md->m", theta, a[item]) - b[item]
            r = expit(z) - y
            g = np.zeros((j, d))
            np.add.at(g, item, r[:, None] * theta)
            value = np.sum(np.logaddexp(0, z)) - y @ z + 2 * np.sum((soft - 1) ** 2) + b @ b / 18
            return float(value), np.r_[
                (g[where] + 4 * (soft - 1)) * expit(x[: len(where[0])]), b / 9 - np.bincount(item, r, j)
            ]

        found = minimize(objective, np.full(len(where[0]) + j, 0.5), jac=True, method="L-BFGS-B").x
        model = extended(self, data)
        a = np.zeros((j, d))
        a[where] = np.logaddexp(0, found[: len(where[0])])
        model.slope_ = np.vstack([self.slope_, a])
        model.intercept_ = np.r_[self.intercept_, found[len(where[0]) :]]
        return model
