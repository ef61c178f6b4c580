"""Transformations of scikit-learn estimators, and of any object with ``fit`` and ``predict_proba``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import has_fit_parameter

from assay.uncertainty.conformal.classification import SplitConformal
from assay.uncertainty.errors import NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import Categorical, GaussianSample, LabelSet, Sample
from assay.uncertainty.representations.base import row_names

Array = NDArray[np.float64]


class Single(BaseEstimator):
    """An estimator as it is: one distribution a row.

    Parameters
    ----------
    base : estimator with ``fit`` and ``predict_proba``
    """

    def __init__(self, base: Any) -> None:
        self.base = base

    def fit(self, X: ArrayLike, y: ArrayLike) -> Single:
        """Fit the estimator; first-order targets count as weighted labels."""
        self.model_, self.classes_ = _fit(clone(self.base), X, y, None)
        return self

    def predict(self, X: ArrayLike) -> Categorical:
        """Its probabilities."""
        if not hasattr(self, "model_"):
            raise NotFitted("call fit(X, y) first")
        return Categorical(_full(self.model_, X, self.classes_)).named(self.classes_.tolist(), row_names(X))


class Ensemble(BaseEstimator):
    """Members trained on resampled rows, or with different seeds.

    Parameters
    ----------
    base : estimator
        With ``fit`` and ``predict_proba`` (classification) or ``predict`` (regression).
    n : int
    resample : {"bootstrap", "none"}
        ``none`` trains on all rows; members then differ by their ``random_state`` alone, which the base must have.
    seed : int

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from assay.uncertainty import quantify
    >>> X, y = load_digits(return_X_y=True)
    >>> rep = Ensemble(DecisionTreeClassifier(), n=20).fit(X[:900], y[:900]).predict(X[900:])
    >>> rep, round(float((rep.predict() == y[900:]).mean()), 3)
    (Sample(batch [897], 20 members, 10 classes), 0.87)
    """

    def __init__(self, base: Any, n: int = 10, *, resample: str = "bootstrap", seed: int = 0) -> None:
        self.base, self.n, self.resample, self.seed = base, n, resample, seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> Ensemble:
        """Train the members.

        Raises
        ------
        UncertaintyError
            If members could not differ: no resampling and a base without ``random_state``.
        """
        if self.resample not in ("bootstrap", "none") or self.n < 1:
            raise UncertaintyError(
                f"resample is 'bootstrap' or 'none' and n at least 1, not {self.resample!r} and {self.n}"
            )
        seeded = "random_state" in self.base.get_params()
        if self.resample == "none" and not seeded:
            raise UncertaintyError(
                f"{type(self.base).__name__} has no random_state, so members trained on all rows would be alike"
            )
        self.regression_ = not hasattr(self.base, "predict_proba")
        n = len(np.asarray(y))
        self.models_ = []
        for child in np.random.SeedSequence(self.seed).spawn(self.n):
            rng = np.random.default_rng(child)
            model = clone(self.base)
            if seeded:
                model.set_params(random_state=int(rng.integers(2**31)))
            counts = np.bincount(rng.integers(0, n, n), minlength=n) if self.resample == "bootstrap" else None
            if self.regression_:
                rows = np.repeat(np.arange(n), counts) if counts is not None else np.arange(n)
                self.models_.append(model.fit(_rows(X, rows), np.asarray(y)[rows]))
            else:
                model, self.classes_ = _fit(model, X, y, counts)
                self.models_.append(model)
        return self

    def predict(self, X: ArrayLike) -> Sample | GaussianSample:
        """A `Sample`, or a `GaussianSample` without noise for regression."""
        if not hasattr(self, "models_"):
            raise NotFitted("call fit(X, y) first")
        if self.regression_:
            return GaussianSample(np.stack([m.predict(X) for m in self.models_], axis=-1)).named(index=row_names(X))
        members = np.stack([_full(m, X, self.classes_) for m in self.models_], axis=-2)
        return Sample(members).named(self.classes_.tolist(), row_names(X))

    def predict_proba(self, X: ArrayLike) -> Array:
        """Mean of the members."""
        return np.asarray(self.predict(X).mean())


class ForestEnsemble(BaseEstimator):
    """The trees of a scikit-learn forest (or the members of a bagging classifier) as a sample.

    Parameters
    ----------
    forest : estimator with ``estimators_`` once fitted
    """

    def __init__(self, forest: Any) -> None:
        self.forest = forest

    def fit(self, X: ArrayLike, y: ArrayLike) -> ForestEnsemble:
        """Fit the forest."""
        self.model_, self.classes_ = _fit(clone(self.forest), X, y, None)
        return self

    def predict(self, X: ArrayLike) -> Sample:
        """A member a tree."""
        if not hasattr(self, "model_"):
            raise NotFitted("call fit(X, y) first")
        # Trees inside a forest are fitted on class codes and bare arrays.
        table = np.asarray(X)
        members = np.stack(
            [_full(tree, table, np.arange(len(self.classes_))) for tree in self.model_.estimators_], axis=-2
        )
        return Sample(members, renormalize=True).named(self.classes_.tolist(), row_names(X))


class ConformalClassifier(BaseEstimator):
    """A classifier with split-conformal sets: some rows are set aside for calibration.

    Parameters
    ----------
    base : estimator
    alpha : float
    score : {"lac", "aps", "raps", "saps"}
    calibration : float
        Share of the rows that is set aside.
    seed : int

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_digits(return_X_y=True)
    >>> order = np.random.default_rng(0).permutation(len(y))
    >>> X, y = X[order], y[order]
    >>> sets = ConformalClassifier(GaussianNB(), alpha=0.1).fit(X[:900], y[:900]).predict(X[900:])
    >>> round(float(sets.covers(y[900:]).mean()), 2)
    0.88
    """

    def __init__(
        self, base: Any, *, alpha: float = 0.1, score: str = "aps", calibration: float = 0.5, seed: int = 0
    ) -> None:
        self.base, self.alpha, self.score, self.calibration, self.seed = base, alpha, score, calibration, seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> ConformalClassifier:
        """Train on one part, calibrate on the other."""
        if not 0 < self.calibration < 1:
            raise UncertaintyError(f"calibration is a share between 0 and 1, not {self.calibration}")
        labels = np.asarray(y)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        split = round(self.calibration * len(labels))
        held, kept = order[:split], order[split:]
        self.classes_ = np.unique(labels)
        self.model_ = clone(self.base).fit(_rows(X, kept), labels[kept])
        if len(self.model_.classes_) != len(self.classes_):
            raise TargetShape("the rows left for training lack a class; set aside fewer")
        self.conformal_ = SplitConformal(self.score, self.alpha, random_state=self.seed, classes=self.classes_.tolist())
        self.conformal_.fit(self.model_.predict_proba(_rows(X, held)), labels[held])
        return self

    def predict(self, X: ArrayLike) -> LabelSet:
        """Sets of class names."""
        if not hasattr(self, "conformal_"):
            raise NotFitted("call fit(X, y) first")
        return self.conformal_.predict(self.model_.predict_proba(X)).named(index=row_names(X))


def _rows(X: Any, rows: NDArray[np.int64]) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]


def _fit(model: Any, X: Any, y: ArrayLike, counts: NDArray[np.int64] | None) -> tuple[Any, NDArray[Any]]:
    """Fit on labels, or on distributions as weighted labels; ``counts`` are the resampled rows'."""
    target = np.asarray(y)
    n = len(target)
    if len(X) != n:
        raise TargetShape(f"{len(X)} rows and {n} targets")
    if target.ndim == 1 and counts is not None and has_fit_parameter(model, "sample_weight"):
        return model.fit(X, target, sample_weight=counts.astype(np.float64)), np.unique(target)
    rows = np.arange(n) if counts is None else np.repeat(np.arange(n), counts)
    if target.ndim == 1:
        return model.fit(_rows(X, rows), target[rows]), np.unique(target)
    if target.ndim != 2:
        raise TargetShape(f"targets are labels (n) or distributions (n, K), not shape {target.shape}")
    row, label = np.nonzero(target[rows] > 0)
    model.fit(_rows(X, rows[row]), label, sample_weight=target[rows][row, label])
    return model, np.arange(target.shape[1])


def _full(model: Any, X: Any, classes: NDArray[Any]) -> Array:
    """Probabilities of all classes, also of those that a member has not seen."""
    p = np.asarray(model.predict_proba(X), dtype=np.float64)
    if p.shape[1] == len(classes):
        return p
    out = np.zeros((len(p), len(classes)))
    out[:, np.searchsorted(classes, np.asarray(model.classes_).astype(classes.dtype))] = p
    return out
