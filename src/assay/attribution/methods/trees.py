"""Attribution for forests and boosted trees of scikit-learn: rows that share leaves with the test row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from assay.attribution.errors import NotFitted, UnsupportedModel
from assay.attribution.methods.base import Attributor


class LeafKernel(Attributor):
    """What leaving a row out does to the leaves that a test row falls into, the trees' structure being kept.

    For a forest (random forest, extra trees, a single tree) the probability of the explained class in a leaf with n
    rows changes by ``(hit_i - p) / (n - 1)`` when row i leaves it; for a regressor ``(y_i - mean) / (n - 1)``.
    Bootstrap counts are those that each tree was grown with. For gradient boosting the leaf value is ``rate * sum r /
    sum h`` with the residuals r and curvatures h of the stage, later stages taking theirs as they were; the explained
    number is then the raw score of the class (minus that of the others' mean for more than two). A leaf with one row
    has no value without it; there the row's whole deviation from the tree's root stands in.

    Sharchilev et al. (2018) call the boosted form LeafInfluence with a single update point; the forest form is ours.

    Examples
    --------
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> forest = RandomForestClassifier(20, min_samples_leaf=5, random_state=0).fit(X, y)
    >>> A = LeafKernel().fit(forest, X, y).attribute(X[:1], y[:1])
    >>> bool(A[0, :50].min() >= 0 >= A[0, 50:].max())
    True
    """

    def _fit(self, model: Any, X: Any, y: Any) -> None:
        if not hasattr(model, "apply") or not (hasattr(model, "estimators_") or hasattr(model, "tree_")):
            raise UnsupportedModel(
                f"{type(model).__name__} does not say which leaf a row falls into (apply); fitted trees, forests and "
                f"GradientBoosting of scikit-learn do"
            )
        self.model_ = model
        self.X_, self.y_ = np.asarray(X, dtype=np.float32).reshape(len(X), -1), np.asarray(y)
        self.boosted_ = hasattr(model, "learning_rate") and hasattr(model, "estimators_")
        self.leaves_ = self._leaves(self.X_)
        if self.boosted_:
            self._fit_boosted()
        else:
            self._fit_forest()

    def _leaves(self, X: np.ndarray) -> np.ndarray:
        leaves = np.asarray(self.model_.apply(X)).reshape(len(X), -1)
        return leaves.astype(np.int64)

    def _fit_forest(self) -> None:
        trees = self.model_.estimators_ if hasattr(self.model_, "estimators_") else [self.model_]
        samples = getattr(self.model_, "estimators_samples_", None)
        n = self.n_train_
        self.counts_ = np.ones((len(trees), n))
        if samples is not None and getattr(self.model_, "bootstrap", False):
            self.counts_ = np.stack([np.bincount(s, minlength=n) for s in samples]).astype(float)

    def _fit_boosted(self) -> None:
        model = self.model_
        if type(model).__name__ not in ("GradientBoostingClassifier", "GradientBoostingRegressor"):
            raise UnsupportedModel(f"{type(model).__name__} is not supported; GradientBoosting of scikit-learn is")
        if model.subsample < 1:
            raise UnsupportedModel("stochastic boosting (subsample < 1) does not keep which rows a stage saw")
        n = self.n_train_
        classifier = hasattr(model, "classes_")
        outputs = model.estimators_.shape[1]
        raw = np.asarray(model._raw_predict_init(self.X_), dtype=float).reshape(n, -1)
        self.residuals_, self.curvatures_ = [], []
        for stage in range(model.estimators_.shape[0]):
            if not classifier:
                if model.loss != "squared_error":
                    raise UnsupportedModel(f"loss={model.loss!r} is not supported; squared_error is")
                r, h = self.y_.reshape(n, 1) - raw, np.ones((n, 1))
            elif outputs == 1:
                p = 1 / (1 + np.exp(-raw))
                r, h = (self.y_ == model.classes_[1])[:, None] - p, p * (1 - p)
            else:
                e = np.exp(raw - raw.max(1, keepdims=True))
                p = e / e.sum(1, keepdims=True)
                # scikit-learn scales a multi-class leaf by (K - 1) / K
                hit = self.y_[:, None] == model.classes_[None]
                r, h = (hit - p) * (outputs - 1) / outputs, p * (1 - p)
            self.residuals_.append(r)
            self.curvatures_.append(h)
            for c in range(outputs):
                raw[:, c] += model.learning_rate * model.estimators_[stage, c].predict(self.X_)

    def _parts(self, X: Any, targets: Any) -> Iterator[tuple[slice, Any]]:
        x = np.asarray(X, dtype=np.float32).reshape(len(X), -1)
        if targets is None:
            targets = self.model_.predict(x)
        targets = np.asarray(targets)
        yield slice(0, self.n_train_), (self._boosted if self.boosted_ else self._forest)(x, targets)

    def _forest(self, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
        leaves = self._leaves(x)
        out = np.zeros((len(x), self.n_train_))
        classifier = hasattr(self.model_, "classes_")
        value = None if classifier else self.y_.astype(float)
        for m in range(leaves.shape[1]):
            count = self.counts_[m]
            same = leaves[:, m][:, None] == self.leaves_[:, m][None]
            weight = same * count
            size = weight.sum(1, keepdims=True)
            gain = (
                (self.y_[None] == targets[:, None]).astype(float)
                if value is None
                else np.broadcast_to(value, same.shape)
            )
            mean = (weight * gain).sum(1, keepdims=True) / np.maximum(size, 1e-12)
            root = (count * gain).sum(1, keepdims=True) / count.sum()
            rest = size - weight
            change = np.where(rest > 0, weight * (gain - mean) / np.maximum(rest, 1e-12), mean - root)
            out += np.where(weight > 0, change, 0)
        return out / leaves.shape[1]

    def _boosted(self, x: np.ndarray, targets: np.ndarray) -> np.ndarray:
        model = self.model_
        outputs = model.estimators_.shape[1]
        leaves = self._leaves(x).reshape(len(x), -1, outputs)
        mine = self.leaves_.reshape(self.n_train_, -1, outputs)
        out = np.zeros((len(x), self.n_train_))
        for c in range(outputs):
            if not hasattr(model, "classes_"):
                sign = np.ones(len(x))
            elif outputs == 1:
                sign = np.where(targets == model.classes_[1], 1.0, -1.0)
            else:
                sign = np.where(targets == model.classes_[c], 1.0, -1.0 / (outputs - 1))
            total = np.zeros_like(out)
            for stage, (r, h) in enumerate(zip(self.residuals_, self.curvatures_, strict=True)):
                same = leaves[:, stage, c][:, None] == mine[:, stage, c][None]
                sum_r, sum_h = same @ r[:, c], same @ h[:, c]
                value = np.divide(sum_r, sum_h, out=np.zeros_like(sum_r), where=sum_h > 1e-150)
                rest = sum_h[:, None] - h[:, c][None]
                moved = r[:, c][None] - value[:, None] * h[:, c][None]
                alone = same.sum(1, keepdims=True) == 1
                total += np.where(same & ~alone, moved / np.maximum(rest, 1e-12), 0) + np.where(
                    same & alone, value[:, None], 0
                )
            out += sign[:, None] * total * model.learning_rate
        return out

    def self_influence(self, batch_size: int = 256) -> Float[np.ndarray, " n"]:
        """``A[i, i]`` for each row's own label."""
        if not hasattr(self, "leaves_"):
            raise NotFitted("LeafKernel: call fit first")
        out = np.empty(self.n_train_, dtype=np.float32)
        for low in range(0, self.n_train_, batch_size):
            rows = slice(low, min(low + batch_size, self.n_train_))
            for _, scores in self._parts(self.X_[rows], self.y_[rows]):
                out[rows] = scores[:, rows].diagonal()
        return out
