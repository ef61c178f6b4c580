"""Methods that retrain: exact leave-one-out, Banzhaf values by maximum sample reuse, datamodels, Data-OOB.

They draw on a `RetrainingFarm`, whose models are trained at ``fit`` and then asked about any test rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import clone

from assay.attribution.errors import AttributionError, NotFitted, UnsupportedModel
from assay.attribution.farm import RetrainingFarm
from assay.attribution.methods.base import Attributor
from assay.attribution.subsets import bootstrap_subsets, coin_subsets, leave_out, random_subsets


def _labels_for(farm: RetrainingFarm, X: Any, targets: Any) -> Any:
    """Targets, or the class that most of the kept models predict."""
    if targets is not None:
        return targets
    if farm.fit_spec.task != "classification":
        return np.zeros(len(X), dtype=np.float32)
    _, guesses = farm.outputs_of(X, np.zeros(len(X), dtype=np.int64))
    return np.array([np.bincount(column).argmax() for column in guesses.T])


class _Retrained(Attributor):
    """Base: trains the farm's models on the subsets of the method."""

    farm: RetrainingFarm | None

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if not isinstance(self.farm, RetrainingFarm):
            raise AttributionError(f"{type(self).__name__} needs farm=RetrainingFarm(make_model, fit_spec, ...)")
        self.farm.keep_models = True
        self.X_, self.y_ = X, y
        self.subsets_ = self._subsets(len(X))
        truth = self.farm.run(X, y, X[:1], y[:1], subsets=self.subsets_)
        self.masks_, self.counts_ = truth.masks(), truth.counts()

    def _subsets(self, n: int) -> np.ndarray:
        raise NotImplementedError

    def _outputs(self, X: Any, targets: Any) -> np.ndarray:
        assert self.farm is not None
        values, _ = self.farm.outputs_of(X, _labels_for(self.farm, X, targets))
        seeds = self.farm.n_seeds
        return values.reshape(seeds, -1, values.shape[1]).mean(0).astype(np.float64)

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]`` for each training row's own label, a block of rows at a time."""
        if not hasattr(self, "masks_"):
            raise NotFitted(f"{type(self).__name__}: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            for part, scores in self._parts(self.X_[rows], self.y_[rows]):
                assert part == slice(0, self.n_train_)
                out[rows] = np.asarray(scores)[:, rows].diagonal()
        return out


class BanzhafMSR(_Retrained):
    """Banzhaf values by maximum sample reuse (Wang and Jia, 2023).

    ``A[t, i]`` is the mean output of test row t over models whose subset holds row i, minus the mean over the others;
    each row is in a subset with probability one half.

    Parameters
    ----------
    farm : RetrainingFarm
        ``farm.n_subsets`` models are trained. Take a seed other than that of an LDS ground truth that will judge it.
    """

    def __init__(self, farm: RetrainingFarm | None = None) -> None:
        self.farm = farm

    def _subsets(self, n: int) -> np.ndarray:
        assert self.farm is not None
        return coin_subsets(n, self.farm.n_subsets, self.farm.seed)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        outputs = self._outputs(X, targets)
        mask = self.masks_.astype(np.float64)
        inside, outside = mask.sum(0), (1 - mask).sum(0)
        total = outputs.sum(0)[:, None]
        held = outputs.T @ mask
        with np.errstate(invalid="ignore", divide="ignore"):
            scores = held / inside - (total - held) / outside
        # a row that is in all subsets, or in none, has no contrast
        yield slice(0, self.n_train_), np.where((inside > 0) & (outside > 0), scores, 0.0)


class Datamodel(_Retrained):
    """Datamodels (Ilyas et al., 2022): outputs regressed on which rows a model was trained on.

    Parameters
    ----------
    farm : RetrainingFarm
        ``n_subsets`` and ``alpha`` of it are used.
    kind : {"ridge", "lasso"}
    strength : float, optional
        Penalty; default: by generalised cross-validation (ridge), by 5-fold cross-validation (lasso), for each test
        row.
    """

    def __init__(self, farm: RetrainingFarm | None = None, kind: str = "ridge", strength: float | None = None) -> None:
        self.farm, self.kind, self.strength = farm, kind, strength

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.kind not in ("ridge", "lasso"):
            raise AttributionError(f"kind is ridge or lasso, not {self.kind!r}")
        super()._fit(model, X, y)

    def _subsets(self, n: int) -> np.ndarray:
        assert self.farm is not None
        return random_subsets(n, self.farm.n_subsets, self.farm.alpha, self.farm.seed)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        yield slice(0, self.n_train_), fit_datamodels(self.masks_, self._outputs(X, targets), self.kind, self.strength)


def fit_datamodels(masks: Any, outputs: Any, kind: str = "ridge", strength: float | None = None) -> np.ndarray:
    """Weights (T, N) of linear models from membership (m, N) to outputs (m, T)."""
    mask = np.asarray(masks, dtype=np.float64)
    mask = mask - mask.mean(0)
    target = np.asarray(outputs, dtype=np.float64)
    target = target - target.mean(0)
    if kind == "lasso":
        from sklearn.linear_model import Lasso, LassoCV

        found = []
        for column in target.T:
            model = LassoCV(cv=5, random_state=0, n_alphas=30) if strength is None else Lasso(alpha=strength)
            found.append(model.fit(mask, column).coef_)
        return np.stack(found)
    values, vectors = np.linalg.eigh(mask @ mask.T)  # (m, m): there are fewer models than rows
    values = np.maximum(values, 0)
    turned = vectors.T @ target
    m = len(mask)
    if strength is not None:
        chosen = np.full(target.shape[1], strength)
    else:
        grid = np.geomspace(1e-3, 1e3, 25) * values.mean()
        left = grid[:, None] / (values + grid[:, None])  # (grid, m): eigenvalues of I - hat
        # the centred columns take one degree of freedom, which has eigenvalue 0 here
        scores = ((left**2) @ (turned**2)) / np.maximum(left.sum(1) - 1, 1e-9)[:, None] ** 2 * m
        chosen = grid[scores.argmin(0)]
    return (mask.T @ (vectors @ (turned / (values[:, None] + chosen)))).T


class ExactLOO(Attributor):
    """``f(x_t) - f_{-i}(x_t)`` by leaving each row out and training again.

    Parameters
    ----------
    farm : RetrainingFarm, optional
        For networks: N models are trained. Without it the model given to ``fit`` is a ``LinearRegression`` or ``Ridge``
        (closed form) or a ``LogisticRegression`` (Newton's method to the optimum without the row).
    rows : sequence of int, optional
        Training rows that are left out; others score 0. Only with a farm.

    Notes
    -----
    A penalty of scikit-learn is on the sum of the losses, so it stays as it is when a row leaves.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 4.0])
    >>> ridge = Ridge(alpha=1.0, fit_intercept=False).fit(X, y)
    >>> A = ExactLOO().fit(ridge, X, y).attribute(X[:1], y[:1])
    >>> refit = Ridge(alpha=1.0, fit_intercept=False).fit(X[1:], y[1:])
    >>> bool(abs(A[0, 0] - (ridge.predict(X[:1]) - refit.predict(X[:1]))[0]) < 1e-6)
    True
    """

    def __init__(self, farm: RetrainingFarm | None = None, rows: Any = None) -> None:
        self.farm, self.rows = farm, rows

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        self.X_, self.y_ = X, y
        if self.farm is not None:
            self.left_ = np.arange(len(X)) if self.rows is None else np.asarray(self.rows)
            self.farm.keep_models = True
            subsets = leave_out(len(X), [[int(i)] for i in self.left_] + [[]])
            self.farm.run(X, y, X[:1], y[:1], subsets=subsets)
            return
        if not hasattr(model, "coef_"):
            raise UnsupportedModel(
                f"ExactLOO of {type(model).__name__} needs farm=RetrainingFarm(make_model, fit_spec); without it only "
                f"fitted linear and logistic regressions of scikit-learn"
            )
        self.model_ = model
        x = np.asarray(X, dtype=np.float64)
        self.bias_ = bool(model.fit_intercept)
        x = np.hstack([x, np.ones((len(x), 1))]) if self.bias_ else x
        if hasattr(model, "classes_"):
            if not np.array_equal(model.classes_, np.arange(len(model.classes_))):
                raise UnsupportedModel(f"encode the classes as 0 to {len(model.classes_) - 1} before fitting")
            self.full_, self.without_ = logistic_loo(
                x, np.asarray(y), 1 / model.C, self.bias_, start=self._start(model)
            )
        else:
            self.full_, self.without_ = ridge_loo(x, np.asarray(y, dtype=np.float64), _ridge(model), self.bias_)

    def _start(self, model: Any) -> np.ndarray:
        w = np.atleast_2d(model.coef_)
        return np.hstack([w, np.atleast_1d(model.intercept_)[:, None]]) if self.bias_ else w

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        out = np.zeros((len(X), self.n_train_))
        if self.farm is not None:
            values, _ = self.farm.outputs_of(X, _labels_for(self.farm, X, targets))
            values = values.reshape(self.farm.n_seeds, len(self.left_) + 1, -1).mean(0).astype(np.float64)
            out[:, self.left_] = (values[-1] - values[:-1]).T
            yield slice(0, self.n_train_), out
            return
        x = np.asarray(X, dtype=np.float64)
        x = np.hstack([x, np.ones((len(x), 1))]) if self.bias_ else x
        yield slice(0, self.n_train_), self.scores(x, targets)

    def scores(self, x: np.ndarray, targets: Any) -> np.ndarray:
        """64-bit scores for rows that hold the column of ones, where there is an intercept."""
        full, without = x @ self.full_.T, np.einsum("tp,ncp->tnc", x, self.without_)
        if not hasattr(self.model_, "classes_"):
            return (full[:, None] - without).sum(-1)
        if targets is None:
            targets = full.argmax(1) if full.shape[1] > 1 else (full[:, 0] > 0).astype(int)
        y = torch.as_tensor(np.asarray(targets)).long()
        from assay.attribution.outputs import margin

        a = margin(torch.as_tensor(full), y)
        b = margin(torch.as_tensor(without), y.unsqueeze(1).expand(-1, without.shape[1]))
        return (a.unsqueeze(1) - b).numpy()

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``f(z_i) - f_{-i}(z_i)``."""
        if not hasattr(self, "X_"):
            raise NotFitted("ExactLOO: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            for _, scores in self._parts(self.X_[rows], self.y_[rows]):
                out[rows] = scores[:, rows].diagonal()
        return out


def _ridge(model: Any) -> float:
    if type(model).__name__ not in ("LinearRegression", "Ridge"):
        raise UnsupportedModel(f"no closed form for {type(model).__name__}; LinearRegression and Ridge have one")
    return float(getattr(model, "alpha", 0.0))


def ridge_loo(x: np.ndarray, y: np.ndarray, alpha: float, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights (outputs, p) on all rows, and (N, outputs, p) without each row, by the rank-one update of the inverse."""
    penalty = np.full(x.shape[1], alpha)
    if bias:
        penalty[-1] = 0
    inverse = np.linalg.inv(x.T @ x + np.diag(penalty))
    y = y.reshape(len(y), -1)
    weight = inverse @ x.T @ y
    turned = x @ inverse
    leverage = (turned * x).sum(1)
    if (leverage > 1 - 1e-12).any():
        row = int(leverage.argmax())
        raise AttributionError(f"training row {row} has leverage 1: without it the weights are not determined")
    residual = y - x @ weight
    change = turned[:, None, :] * (residual / (1 - leverage)[:, None])[:, :, None]
    return weight.T, weight.T[None] - change


def logistic_loo(
    x: np.ndarray, y: np.ndarray, penalty: float, bias: bool, start: np.ndarray, steps: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Optima of ``sum_i loss + penalty/2 ||w||^2`` on all rows and without each row, by Newton's method."""
    ridge = np.full(start.shape, penalty)
    if bias:
        ridge[:, -1] = 1e-10  # keeps the common shift of all classes' intercepts determined
    full = _newton(x, y, np.ones(len(x)), ridge, start, steps)
    without = np.empty((len(x), *start.shape))
    for i in range(len(x)):
        weight = np.ones(len(x))
        weight[i] = 0
        without[i] = _newton(x, y, weight, ridge, full, steps)
    return full, without


def _newton(
    x: np.ndarray, y: np.ndarray, weight: np.ndarray, ridge: np.ndarray, w: np.ndarray, steps: int
) -> np.ndarray:
    w = w.copy()
    classes, size = w.shape

    def loss(v: np.ndarray) -> float:
        z = x @ v.T
        z = np.hstack([np.zeros_like(z), z]) if classes == 1 else z
        top = z.max(1)
        each = top + np.log(np.exp(z - top[:, None]).sum(1)) - z[np.arange(len(z)), y]
        return float((weight * each).sum() + 0.5 * (ridge * v**2).sum())

    for _ in range(steps):
        z = x @ w.T
        if classes == 1:
            p = 1 / (1 + np.exp(-z))
            blocks = (p * (1 - p))[:, :, None]
            residual = p - (y == 1)[:, None]
        else:
            e = np.exp(z - z.max(1, keepdims=True))
            p = e / e.sum(1, keepdims=True)
            blocks = p[:, :, None] * (np.eye(classes) - p[:, None, :])
            residual = p - np.eye(classes)[y]
        gradient = (residual * weight[:, None]).T @ x + ridge * w
        hessian = np.einsum("ncd,np,nq->cpdq", blocks * weight[:, None, None], x, x, optimize=True)
        hessian = hessian.reshape(classes * size, -1) + np.diag(ridge.ravel())
        step = np.linalg.solve(hessian, gradient.ravel()).reshape(w.shape)
        before, size_of_step = loss(w), 1.0
        while loss(w - size_of_step * step) > before + 1e-12 and size_of_step > 1e-6:
            size_of_step /= 2
        w = w - size_of_step * step
        if np.abs(step).max() < 1e-10:
            break
    return w


class DataOOB(Attributor):
    """Data-OOB (Kwon and Zou, 2023): how often models that did not see a row get it right.

    One value a training row, the same for every test row: right (1) or wrong (0) of the models whose bootstrap sample
    leaves the row out, on average; for regression minus the squared error.

    Parameters
    ----------
    n_models : int
    farm : RetrainingFarm, optional
        Trains networks; without it an estimator is cloned.
    estimator : scikit-learn estimator, optional
        Default: a decision tree.
    seed : int
    """

    one_value_a_row: ClassVar[bool] = True

    def __init__(self, n_models: int = 100, farm: RetrainingFarm | None = None, estimator: Any = None, seed: int = 0):
        self.n_models, self.farm, self.estimator, self.seed = n_models, farm, estimator, seed

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if self.n_models < 1:
            raise AttributionError(f"n_models is at least 1, not {self.n_models}")
        n = len(X)
        subsets = bootstrap_subsets(n, self.n_models, self.seed)
        labels = np.asarray(y)
        outside = np.ones((self.n_models, n), dtype=bool)
        for j, subset in enumerate(subsets):
            outside[j, subset] = False
        if self.farm is not None:
            truth = self.farm.run(X, y, X, y, subsets=subsets)
            predicted = truth.predictions[0]
        else:
            predicted = self._estimates(model, np.asarray(X).reshape(n, -1), labels, subsets)
        if labels.dtype.kind == "f":
            score = -((predicted - labels) ** 2)
        else:
            score = (predicted == labels).astype(float)
        counts = outside.sum(0)
        self.never_out_ = np.flatnonzero(counts == 0)
        mean = (score * outside).sum(0) / np.maximum(counts, 1)
        overall = float((score * outside).sum() / max(counts.sum(), 1))
        self.values_ = np.where(counts > 0, mean, overall).astype(np.float32)

    def _estimates(self, model: Any, X: np.ndarray, y: np.ndarray, subsets: np.ndarray) -> np.ndarray:
        estimator = self.estimator
        if estimator is None and hasattr(model, "predict") and hasattr(model, "get_params"):
            estimator = model
        if estimator is None:
            from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

            estimator = DecisionTreeRegressor() if y.dtype.kind == "f" else DecisionTreeClassifier()
        out = []
        for j, subset in enumerate(subsets):
            one = clone(estimator)
            if "random_state" in one.get_params():
                one.set_params(random_state=self.seed + j)
            out.append(one.fit(X[subset], y[subset]).predict(X))
        return np.stack(out)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        yield slice(0, self.n_train_), np.broadcast_to(self.values_, (len(X), self.n_train_)).copy()

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """The values."""
        if not hasattr(self, "values_"):
            raise NotFitted("DataOOB: call fit first")
        return self.values_

    def suspicion(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """Minus the values: a row that others' models get wrong is suspicious."""
        return -self.self_influence()
