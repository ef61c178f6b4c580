"""The one-, two- and three-parameter logistic models."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from assay.diagnosis.errors import DiagnosisError, NotConverged, UnknownName
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.irt.likelihood import (
    EPS,
    N_NODES,
    Collapsed,
    item_terms,
    nodes,
    normalise,
    score_students,
    three_parameter,
)  # fmt: skip
from assay.diagnosis.responses import ResponseData

LOWER_PRIOR = (-1.4, 0.5)  # normal prior on the logit of the lower asymptote of a 3PL: about .2
ALTERNATIONS = 40
Array = NDArray[np.float64]


class IRT(DiagnosisModel):
    """P = c + (1 - c) sig(D a (theta - b)), ability theta standard normal.

    Parameters
    ----------
    model : {"2pl", "1pl", "3pl"}
        1pl estimates one common slope; 3pl has a prior of about .2 on c.
    estimator : {"map", "em"}
        ``map``: joint mode of abilities and items, theta ~ N(0, 1), log slope ~ N(0, .5), intercept ~ N(0, 3), by
        L-BFGS until no element of the gradient exceeds ``tol``. ``em``: marginal maximum likelihood (Bock and Aitkin
        1981) on 41 nodes, until the log-likelihood grows by less than ``tol``.
    tol : float, optional
        Default 1e-3 (map), 1e-5 (em).
    max_iter : int
    score : {"eap", "map", "wle"}
        How students are scored after ``em``, and new ones always; ``map`` fits score by ``map`` unless told otherwise.
    D : float
        1, or 1.702; scales the reported slopes only.
    item_prior : bool
        Put the priors of ``map`` on the items of ``em`` as well.

    Attributes
    ----------
    slope_, intercept_, lower_ : float64[J]
        P = lower + (1 - lower) sig(slope theta - intercept).
    item_params_ : float64[J, 3]
        a, b, c.
    item_se_ : float64[J, 3]
        Standard errors of a, b, c from the outer products of the students' scores (``em``; NaN otherwise).
    theta_, theta_se_ : float64[S]
    history_ : float64[iterations]
        Log-likelihood of each step of ``em``.

    Warns
    -----
    NotConverged

    Examples
    --------
    The LSAT 6 data by marginal maximum likelihood; R's ltm and mirt give -2466.65.

    >>> from assay.diagnosis import IRT, load
    >>> model = IRT(estimator="em").fit(load("lsat6"))
    >>> round(model.loglik_, 2), model.item_params_[0].round(2).tolist()
    (-2466.65, [0.83, -3.36, 0.0])
    """

    diagnoses = False

    def __init__(
        self,
        model: str = "2pl",
        estimator: str = "map",
        tol: float | None = None,
        max_iter: int = 2000,
        score: str | None = None,
        D: float = 1.0,
        item_prior: bool = False,
    ) -> None:
        self.model = model
        self.estimator = estimator
        self.tol = tol
        self.max_iter = max_iter
        self.score = score
        self.D = D
        self.item_prior = item_prior

    def _fit(self, data: ResponseData, valid: ResponseData | None) -> None:
        if self.model not in ("1pl", "2pl", "3pl"):
            raise UnknownName.of("model", self.model, ("1pl", "2pl", "3pl"))
        if self.score not in (None, "eap", "map", "wle"):
            raise UnknownName.of("score", str(self.score), ("eap", "map", "wle"))
        if self.estimator not in ("map", "em"):
            raise UnknownName.of("estimator", self.estimator, ("map", "em"))
        if self.D <= 0 or self.max_iter < 1:
            raise DiagnosisError(f"D={self.D} and max_iter={self.max_iter} must be positive")
        self.history_ = np.empty(0)
        if self.estimator == "map":
            theta = self._fit_map(data)
        else:
            self._fit_em(data)
        self.n_params_ = {"1pl": data.n_items + 1, "2pl": 2 * data.n_items, "3pl": 3 * data.n_items}[self.model]
        if self.estimator == "map":
            self.n_params_ += data.n_students
            self.states_ = np.column_stack([theta, self._map_se(data, theta)])
            p = item_terms(theta[data.student], data.item, self.slope_, self.intercept_, self.lower_)[0]
            self.loglik_ = float(np.sum(np.where(data.correct == 1, np.log(p), np.log1p(-p))))
        else:
            self.states_ = self._estimate(data)
        self._describe()

    # -- joint mode ------------------------------------------------------------------------------------------------

    def _fit_map(self, data: ResponseData) -> Array:
        s, j = data.n_students, data.n_items
        order = np.argsort(data.student, kind="stable")
        student, item = data.student[order].astype(np.int64), data.item[order].astype(np.int64)
        y = data.correct[order].astype(np.float64)
        answered, start = np.unique(student, return_index=True)
        n_slopes = 1 if self.model == "1pl" else j
        three = self.model == "3pl"
        sign = 1 - 2 * y

        def objective(x: Array) -> tuple[float, Array]:
            theta, a, b = x[:s], x[s : s + n_slopes], x[s + n_slopes : s + n_slopes + j]
            slope = np.exp(a)[item] if n_slopes == j else np.exp(a[0])
            th = theta[student]
            z = slope * th - b[item]
            value = 0.5 * theta @ theta + 2 * a @ a + b @ b / 18
            gradient = np.empty_like(x)
            if three:
                g = x[s + n_slopes + j :]
                c = expit(g)[item]
                sig = expit(z)
                p = np.clip(c + (1 - c) * sig, EPS, 1 - EPS)
                value -= np.sum(np.where(y == 1, np.log(p), np.log1p(-p)))
                value += 0.5 * np.sum(((g - LOWER_PRIOR[0]) / LOWER_PRIOR[1]) ** 2)
                d = (p - y) / (p * (1 - p))
                r = d * (1 - c) * sig * (1 - sig)
                gradient[s + n_slopes + j :] = (
                    np.bincount(item, d * (1 - sig) * c * (1 - c), j) + (g - LOWER_PRIOR[0]) / LOWER_PRIOR[1] ** 2
                )
            else:
                # -log P = log(1 + exp(-z)) for a right answer, log(1 + exp(z)) for a wrong one
                e = z * sign
                np.exp(np.minimum(e, 500.0, out=e), out=e)
                r = e + 1
                value += np.log(r).sum()
                np.divide(e, r, out=r)
                r *= sign
            rs = r * slope
            by_student = np.zeros(s)
            by_student[answered] = np.add.reduceat(rs, start)
            gradient[:s] = by_student + theta
            rst = rs * th
            gradient[s : s + n_slopes] = (np.bincount(item, rst, j) if n_slopes == j else rst.sum()) + 4 * a
            gradient[s + n_slopes : s + n_slopes + j] = b / 9 - np.bincount(item, r, j)
            return float(value), gradient

        x0 = np.zeros(s + n_slopes + j + (j if three else 0))
        n = np.bincount(student, minlength=s)
        x0[:s] = logit((np.bincount(student, y, s) + 2.5) / (n + 5))
        x0[:s] -= x0[:s].mean()
        x0[s + n_slopes : s + n_slopes + j] = -logit(
            (np.bincount(item, y, j) + 0.5) / (np.bincount(item, minlength=j) + 1)
        )
        if three:
            x0[s + n_slopes + j :] = LOWER_PRIOR[0]
        if not three:
            self._alternate(x0, (s, n_slopes, j), student, item, y)
        tol = 1e-3 if self.tol is None else self.tol
        # An ability has tens of answers, an item thousands: in units of its own curvature each asks for steps of one
        # size, and the search needs a fraction of them (not with lower asymptotes, whose start is far from the mode).
        scale = np.ones(len(x0)) if three else 1 / np.sqrt(self._curvature(x0, (s, n_slopes, j), student, item))
        norm = np.inf

        def scaled(u: Array) -> tuple[float, Array]:
            nonlocal norm
            value, gradient = objective(u * scale)
            norm = float(np.abs(gradient).max())
            return value, gradient * scale

        def done(intermediate_result: Any) -> None:
            if norm <= tol:  # of the point that was evaluated last, which is the one that the search moved to
                raise StopIteration

        found = minimize(
            scaled,
            x0 / scale,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iter, "gtol": 0, "ftol": 0, "maxcor": 20, "maxfun": 2 * self.max_iter},
            callback=done,
        )
        norm = float(np.abs(found.jac / scale).max())
        self.n_iter_ = int(found.nit)
        if norm > max(10 * tol, tol):
            warnings.warn(
                f"IRT stopped after {found.nit} steps with max |gradient| {norm:.2g} (tol {tol:g}); raise max_iter",
                NotConverged,
                stacklevel=4,
            )
        x = found.x * scale
        self.slope_ = np.exp(x[s : s + n_slopes]) * np.ones(j)
        self.intercept_ = x[s + n_slopes : s + n_slopes + j].copy()
        self.lower_ = expit(x[s + n_slopes + j :]) if three else np.zeros(j)
        theta: Array = x[:s].copy()
        return theta

    def _alternate(
        self, x: Array, sizes: tuple[int, int, int], student: NDArray[Any], item: NDArray[Any], y: Array
    ) -> None:
        """Newton steps on abilities, then on items, with the others fixed, in place: a start near the mode."""
        s, n_slopes, j = sizes
        theta, a, b = x[:s], x[s : s + n_slopes], x[s + n_slopes : s + n_slopes + j]
        for _ in range(ALTERNATIONS):
            slope = np.exp(a)[item] if n_slopes == j else np.exp(a[0])
            p = expit(slope * theta[student] - b[item])
            r, w = p - y, p * (1 - p)
            down = np.bincount(student, slope * r, s) + theta
            theta -= np.clip(down / (np.bincount(student, slope**2 * w, s) + 1), -1, 1)
            t = theta[student]
            p = expit(slope * t - b[item])
            r, w = p - y, p * (1 - p)
            t = slope * t  # derivative by the log slope
            if n_slopes == j:
                ga, gb = np.bincount(item, r * t, j) + 4 * a, b / 9 - np.bincount(item, r, j)
                haa, hbb, hab = (
                    np.bincount(item, w * t * t, j) + 4,
                    np.bincount(item, w, j) + 1 / 9,
                    -np.bincount(item, w * t, j),
                )
                det = haa * hbb - hab**2
                a -= np.clip((hbb * ga - hab * gb) / det, -0.5, 0.5)
                b -= np.clip((haa * gb - hab * ga) / det, -1, 1)
            else:
                a -= np.clip((np.sum(r * t) + 4 * a) / (np.sum(w * t * t) + 4), -0.5, 0.5)
                b -= np.clip((b / 9 - np.bincount(item, r, j)) / (np.bincount(item, w, j) + 1 / 9), -1, 1)

    def _curvature(self, x: Array, sizes: tuple[int, int, int], student: NDArray[Any], item: NDArray[Any]) -> Array:
        """Diagonal of the expected second derivatives at ``x``, of a model without lower asymptotes."""
        s, n_slopes, j = sizes
        slope = (np.exp(x[s : s + n_slopes]) * np.ones(j))[item]
        t = slope * x[student]
        p = expit(t - x[s + n_slopes :][item])
        w = p * (1 - p)
        result = np.empty(len(x))
        result[:s] = np.bincount(student, slope**2 * w, s) + 1
        by_item = np.bincount(item, w * t * t, j)
        result[s : s + n_slopes] = (by_item if n_slopes == j else by_item.sum()) + 4
        result[s + n_slopes :] = np.bincount(item, w, j) + 1 / 9
        return result

    def _map_se(self, data: ResponseData, theta: Array) -> Array:
        p, first, _ = item_terms(theta[data.student], data.item, self.slope_, self.intercept_, self.lower_)
        se: Array = 1 / np.sqrt(np.bincount(data.student, first**2 / (p * (1 - p)), data.n_students) + 1)
        return se

    # -- marginal maximum likelihood -------------------------------------------------------------------------------

    def _fit_em(self, data: ResponseData) -> None:
        x, w = nodes(N_NODES)
        log_w = np.log(w)
        collapsed = Collapsed(data)
        n, right = (np.bincount(data.item, v, data.n_items) for v in (None, data.correct))
        slope = np.ones(data.n_items)
        intercept = -1.2 * logit((right + 0.5) / (n + 1))
        gamma = np.full(data.n_items, LOWER_PRIOR[0])
        tol = 1e-5 if self.tol is None else self.tol
        history: list[float] = []
        gain = np.inf
        for _ in range(self.max_iter):
            lower = expit(gamma) if self.model == "3pl" else np.zeros(data.n_items)
            p = three_parameter(x, slope, intercept, lower)
            posterior, log_rows = normalise(collapsed.log_likelihood(p) + log_w)
            penalised = float(collapsed.counts @ log_rows) - self._penalty(slope, intercept, gamma)
            if history:
                gain = penalised - history[-1]
            history.append(penalised)
            if abs(gain) < tol:
                break
            r, e = collapsed.expected(posterior)
            slope, intercept, gamma = self._m_step(x, r, e, slope, intercept, gamma)
        if abs(gain) >= tol:
            warnings.warn(
                f"EM stopped after {self.max_iter} steps with a gain of {gain:.2g} (tol {tol:g})",
                NotConverged,
                stacklevel=4,
            )
        self.slope_, self.intercept_ = slope, intercept
        self.lower_ = expit(gamma) if self.model == "3pl" else np.zeros(data.n_items)
        self.history_ = np.array(history)
        self.n_iter_ = len(history)
        self.loglik_ = history[-1] + self._penalty(slope, intercept, gamma)
        self._score_items(collapsed, x, posterior)

    def _penalty(self, slope: Array, intercept: Array, gamma: Array) -> float:
        value = 0.0
        if self.item_prior:
            value += float(2 * np.sum(np.log(np.maximum(slope, EPS)) ** 2) + np.sum(intercept**2) / 18)
        if self.model == "3pl":
            value += float(0.5 * np.sum(((gamma - LOWER_PRIOR[0]) / LOWER_PRIOR[1]) ** 2))
        return value

    def _m_step(
        self, x: Array, r: Array, e: Array, slope: Array, intercept: Array, gamma: Array
    ) -> tuple[Array, Array, Array]:
        """Newton (Fisher scoring) on each item's expected counts; a step that would not raise the objective is
        halved.
        """
        slope, intercept, gamma = slope.copy(), intercept.copy(), gamma.copy()
        three, common = self.model == "3pl", self.model == "1pl"

        def value(a: Array, b: Array, g: Array) -> Array:
            p = three_parameter(x, a, b, expit(g) if three else np.zeros(len(a)))
            v: Array = np.sum(r * np.log(p) + (e - r) * np.log1p(-p), axis=1)
            if self.item_prior:
                v = v - 2 * np.log(np.maximum(a, EPS)) ** 2 - b**2 / 18
            return v - 0.5 * ((g - LOWER_PRIOR[0]) / LOWER_PRIOR[1]) ** 2 if three else v

        for _ in range(4):
            c = expit(gamma) if three else np.zeros(len(slope))
            s = expit(np.multiply.outer(slope, x) - intercept[:, None])
            p = np.clip(c[:, None] + (1 - c[:, None]) * s, EPS, 1 - EPS)
            base = (1 - c[:, None]) * s * (1 - s)
            jac = [base * x, -base] + ([(1 - s) * (c * (1 - c))[:, None]] if three else [])
            score = (r - e * p) / (p * (1 - p))
            weight = e / (p * (1 - p))
            g = np.stack([np.sum(score * d, axis=1) for d in jac], axis=1)
            h = np.stack([np.stack([np.sum(weight * d * f, axis=1) for f in jac], axis=1) for d in jac], axis=1)
            if self.item_prior:
                g[:, 0] -= 4 * np.log(np.maximum(slope, EPS)) / slope
                g[:, 1] -= intercept / 9
                h[:, 0, 0] += 4 / slope**2
                h[:, 1, 1] += 1 / 9
            if three:
                g[:, 2] -= (gamma - LOWER_PRIOR[0]) / LOWER_PRIOR[1] ** 2
                h[:, 2, 2] += 1 / LOWER_PRIOR[1] ** 2
            if common:
                # one slope for all: the intercepts are eliminated from the joint system
                hb = np.maximum(h[:, 1, 1], EPS)
                down = np.sum(h[:, 0, 0] - h[:, 0, 1] ** 2 / hb)
                da = np.sum(g[:, 0] - h[:, 0, 1] * g[:, 1] / hb) / max(down, EPS)
                step = np.column_stack([np.full(len(slope), da), (g[:, 1] - h[:, 0, 1] * da) / hb])
            else:
                h += 1e-9 * np.eye(h.shape[1])
                step = np.linalg.solve(h, g[:, :, None])[:, :, 0]
            step = np.clip(step, -1, 1)
            before = value(slope, intercept, gamma)
            size = np.ones(len(slope))
            for _ in range(12):
                new_slope = (
                    np.maximum(slope + size * step[:, 0], 1e-3) if self.item_prior else slope + size * step[:, 0]
                )
                new = (new_slope, intercept + size * step[:, 1], gamma + size * step[:, 2] if three else gamma)
                after = value(*new)
                worse = after < before - 1e-12 * np.abs(before)
                if common:
                    worse[:] = after.sum() < before.sum()
                if not worse.any():
                    break
                size = np.where(worse, size / 2, size)
            moved = np.abs(size[:, None] * step).max()
            slope, intercept, gamma = new
            if moved < 1e-6:
                break
        if slope.mean() < 0 and not self.item_prior:  # the mirror image fits as well; ability grows with right answers
            slope, x = -slope, -x
        return slope, intercept, gamma

    def _score_items(self, collapsed: Collapsed, x: Array, posterior: Array) -> None:
        """Standard errors: inverse of the summed outer products of the students' scores."""
        p = three_parameter(x, self.slope_, self.intercept_, self.lower_)
        s = expit(np.multiply.outer(self.slope_, x) - self.intercept_[:, None])
        base = (1 - self.lower_[:, None]) * s * (1 - s)
        parts = [base * x, -base] + (
            [(1 - s) * (self.lower_ * (1 - self.lower_))[:, None]] if self.model == "3pl" else []
        )
        scores = []
        for d in parts:
            in_right, in_wrong = d / p, -d / (1 - p)
            of_right, of_all = posterior @ (in_right - in_wrong).T, posterior @ in_wrong.T
            scores.append(np.asarray(_times(collapsed.right, of_right) + _times(collapsed.answered, of_all)))
        if self.model == "1pl":
            scores[0] = scores[0].sum(1, keepdims=True)
        flat = np.hstack(scores)
        cov = np.linalg.pinv((flat * collapsed.counts[:, None]).T @ flat, hermitian=True)
        j = len(self.slope_)
        n_a = scores[0].shape[1]
        a_at = np.arange(j) if n_a == j else np.zeros(j, dtype=int)
        b_at = n_a + np.arange(j)
        var_a, var_d, both = cov[a_at, a_at], cov[b_at, b_at], cov[a_at, b_at]
        a, d = self.slope_, self.intercept_
        var_b = var_d / a**2 + d**2 * var_a / a**4 - 2 * d * both / a**3
        se = np.full((j, 3), np.nan)
        se[:, 0], se[:, 1] = np.sqrt(np.maximum(var_a, 0)) / self.D, np.sqrt(np.maximum(var_b, 0))
        if self.model == "3pl":
            c_at = n_a + j + np.arange(j)
            se[:, 2] = np.sqrt(np.maximum(cov[c_at, c_at], 0)) * self.lower_ * (1 - self.lower_)
        self.item_se_ = se

    # -- results ---------------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        self.item_params_ = np.column_stack([self.slope_ / self.D, self.intercept_ / self.slope_, self.lower_])
        if not hasattr(self, "item_se_") or self.estimator == "map":
            self.item_se_ = np.full((len(self.slope_), 3), np.nan)

    @property
    def theta_(self) -> Array:
        self._fitted()
        theta: Array = self.states_[:, 0]
        return theta

    @property
    def theta_se_(self) -> Array:
        self._fitted()
        se: Array = self.states_[:, 1]
        return se

    def _estimate(self, data: ResponseData) -> Array:
        how = self.score or ("map" if self.estimator == "map" else "eap")
        return np.column_stack(score_students(data, self.slope_, self.intercept_, self.lower_, how))

    def _predict(self, states: Array, student: NDArray[Any], item: NDArray[Any]) -> Array:
        return item_terms(states[student, 0], item, self.slope_, self.intercept_, self.lower_)[0]

    def _mastery(self, states: Array) -> Array:
        return np.repeat(expit(states[:, :1]), self.q_.shape[1], axis=1)

    def predict_from_mastery(self, mastery: Array, item: NDArray[Any]) -> Array:
        """Probability of a right answer for given mastery: the ability is the mean logit over the required skills."""
        z = logit(np.clip(mastery, 1e-6, 1 - 1e-6))
        q = self.q_[item]
        theta = (z * q).sum(1) / np.maximum(q.sum(1), 1)
        return item_terms(theta, item, self.slope_, self.intercept_, self.lower_)[0]

    def _mastery_se(self, states: Array) -> Array:
        m = expit(states[:, :1])
        return np.repeat(m * (1 - m) * np.minimum(states[:, 1:2], 1e6), self.q_.shape[1], axis=1)

    def information(self, theta: Array) -> Array:
        """Fisher information of each item at each ability, ``float64[J, n]``."""
        self._fitted()
        theta = np.atleast_1d(np.asarray(theta, dtype=np.float64))
        p = three_parameter(theta, self.slope_, self.intercept_, self.lower_)
        s = expit(np.multiply.outer(self.slope_, theta) - self.intercept_[:, None])
        slope = (1 - self.lower_[:, None]) * self.slope_[:, None] * s * (1 - s)
        info: Array = slope**2 / (p * (1 - p))
        return info

    def extend_items(self, data: ResponseData) -> IRT:
        """The model with more items: ``data`` has the same students and begins with the known items; abilities stay.

        Raises
        ------
        DiagnosisError
            If there are other students, or fewer items.
        """
        from assay.diagnosis.extend import new_item_rows

        rows, first = new_item_rows(self, data)
        j = data.n_items - first
        theta, item = self.states_[rows.student, 0], rows.item.astype(np.int64) - first
        y = rows.correct.astype(np.float64)

        def objective(x: Array) -> tuple[float, Array]:
            a, b = x[:j], x[j:]
            z = np.exp(a)[item] * theta - b[item]
            r = expit(z) - y
            value = np.sum(np.logaddexp(0, z)) - y @ z + 2 * a @ a + b @ b / 18
            return float(value), np.r_[
                np.bincount(item, r * theta * np.exp(a)[item], j) + 4 * a, b / 9 - np.bincount(item, r, j)
            ]

        found = minimize(objective, np.zeros(2 * j), jac=True, method="L-BFGS-B").x
        from assay.diagnosis.extend import extended

        model = extended(self, data)
        model.slope_ = np.r_[self.slope_, np.exp(found[:j])]
        model.intercept_ = np.r_[self.intercept_, found[j:]]
        model.lower_ = np.r_[self.lower_, np.zeros(j)]
        model.item_se_ = np.vstack([self.item_se_, np.full((j, 3), np.nan)])
        model.item_params_ = np.column_stack([model.slope_ / self.D, model.intercept_ / model.slope_, model.lower_])
        return model


def _times(pattern: Any, dense: Array) -> Any:
    return pattern.multiply(dense).toarray() if hasattr(pattern, "multiply") else pattern * dense
