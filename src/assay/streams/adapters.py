"""The models in other libraries' clothes: scikit-learn's ``partial_fit``, river's ``learn_one``, and river's models
here."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from assay.streams.models.registry import make_model
from assay.streams.normalize import normalizer as make_normalizer
from assay.streams.rows import Row, RowBlock


class _StreamEstimator(BaseEstimator):
    def __init__(self, model: Any = "masked_logistic", normalizer: Any = "zscore") -> None:
        self.model = model
        self.normalizer = normalizer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __setstate__(self, state: dict[str, Any]) -> None:
        # joblib may map the arrays of a pickled estimator read-only; a model learns in place and needs its own
        super().__setstate__(state)
        for name in ("model_", "normalizer_"):
            part = getattr(self, name, None)
            if part is not None and hasattr(part, "clone"):
                setattr(self, name, part.clone().load_state_dict(part.state_dict()))

    def _learn(self, X: ArrayLike, y: Any, *, reset: bool) -> None:
        table = validate_data(self, X, reset=reset, ensure_all_finite="allow-nan", dtype=np.float64)
        block = RowBlock.from_array(table, list(getattr(self, "feature_names_in_", range(table.shape[1]))))
        self.model_.run_block(self.normalizer_.transform_block(block), y)

    def _scores(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self, "model_")
        table = validate_data(self, X, reset=False, ensure_all_finite="allow-nan", dtype=np.float64)
        block = RowBlock.from_array(table, list(getattr(self, "feature_names_in_", range(table.shape[1]))))
        ready = self.normalizer_.transform_block(block, learn=False)
        scores = np.array([np.atleast_1d(self.model_.score_one(ready.row(t))) for t in range(len(ready))])
        return scores[:, 0] if scores.shape[1] == 1 else scores


class StreamClassifier(ClassifierMixin, _StreamEstimator):
    """A model of this field as a scikit-learn classifier: NaN is absence.

    `partial_fit` updates the normaliser and the model, `predict` neither.

    Parameters
    ----------
    model : str or StreamModel
    normalizer : str, Normalizer or None

    Examples
    --------
    >>> X = np.array([[1.0, np.nan], [np.nan, -1.0], [2.0, 1.0], [np.nan, -2.0]])
    >>> model = StreamClassifier("masked_pa").partial_fit(X, [1, 0, 1, 0], classes=[0, 1])
    >>> model.predict([[3.0, np.nan], [np.nan, -3.0]])
    array([1, 0])
    """

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: Sequence[Hashable] | None = None) -> Self:
        """Learn rows; ``classes`` must be given at the first call if not all of them are in ``y``."""
        first = not hasattr(self, "model_")
        labels = np.asarray(y)
        if first:
            self.classes_ = np.unique(labels if classes is None else np.asarray(classes))
            self.model_ = make_model(self.model, classes=tuple(range(len(self.classes_))))
            self.normalizer_ = make_normalizer(self.normalizer)
        codes = np.searchsorted(self.classes_, labels)
        codes = np.clip(codes, 0, len(self.classes_) - 1)
        if (self.classes_[codes] != labels).any():
            raise ValueError(f"y holds labels that are not among the classes {self.classes_.tolist()}")
        self._learn(X, codes, reset=first)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything and learn these rows once, in order."""
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_X_y

        check_X_y(X, y, ensure_all_finite="allow-nan", dtype=np.float64)
        check_classification_targets(y)
        for name in ("model_", "normalizer_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, np.asarray(y).ravel())

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores: ``[n]`` for two classes, else ``[n, K]``."""
        return self._scores(X)

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Logistic (softmax) function of the scores: ``[n, K]``."""
        scores = self._scores(X)
        if scores.ndim == 1:
            p = expit(scores)
            return np.column_stack([1 - p, p])[:, : len(self.classes_)]
        return softmax(scores, axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predicted labels."""
        scores = self._scores(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[np.minimum(codes, len(self.classes_) - 1)]


class StreamRegressor(RegressorMixin, _StreamEstimator):
    """A regression model of this field as a scikit-learn regressor: NaN is absence."""

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn rows."""
        first = not hasattr(self, "model_")
        if first:
            self.model_ = make_model(self.model, task="regression")
            self.normalizer_ = make_normalizer(self.normalizer)
        self._learn(X, np.asarray(y, dtype=np.float64), reset=first)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Forget everything and learn these rows once, in order."""
        from sklearn.utils.validation import check_X_y

        check_X_y(X, y, ensure_all_finite="allow-nan", dtype=np.float64, y_numeric=True)
        for name in ("model_", "normalizer_"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, np.asarray(y, dtype=np.float64).ravel())

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predicted values."""
        return self._scores(X)


class ToRiver:
    """A model of this field with river's methods: dictionaries in, ``learn_one``, ``predict_one``,
    ``predict_proba_one``.

    `learn_one` updates the normaliser and the model; predictions update neither.

    Examples
    --------
    >>> model = ToRiver("masked_logistic")
    >>> for x, y in [({"a": 1.0}, True), ({"b": 2.0}, False), ({"a": 3.0}, True), ({"b": 1.0}, False)]:
    ...     model.learn_one(x, y)
    >>> model.predict_one({"a": 4.0}), sorted(model.predict_proba_one({"a": 4.0}))
    (True, [False, True])
    """

    def __init__(self, model: Any = "masked_logistic", normalizer: Any = "zscore") -> None:
        self.model = make_model(model)
        self.normalizer = make_normalizer(normalizer)

    def learn_one(self, x: Mapping[Hashable, float], y: Any) -> None:
        """Learn one row."""
        self.model.learn_one(self.normalizer.transform_one(Row.from_dict(x)), y)

    def score_one(self, x: Mapping[Hashable, float]) -> Any:
        """Score of one row."""
        return self.model.score_one(self.normalizer.transform_one(Row.from_dict(x), learn=False))

    def predict_one(self, x: Mapping[Hashable, float]) -> Any:
        """Predicted label, None before anything was learned."""
        label = self.model.predict_one(self.normalizer.transform_one(Row.from_dict(x), learn=False))
        return bool(label) if self._boolean else label

    def predict_proba_one(self, x: Mapping[Hashable, float]) -> dict[Any, float]:
        """Probability of each class (logistic or softmax function of the scores)."""
        score = self.score_one(x)
        classes = self.model.classes_
        p = (
            softmax(score)
            if isinstance(score, np.ndarray)
            else np.array([1 - expit(score), expit(score)])[: len(classes)]
        )
        return {bool(c) if self._boolean else c: float(v) for c, v in zip(classes, p, strict=True)}

    @property
    def _boolean(self) -> bool:
        return bool(self.model.classes_ and all(isinstance(c, bool) or c in (0, 1) for c in self.model.classes_))


class FromRiver:
    """A river estimator as a model of this field: dictionaries of the observed features, no schema.

    Parameters
    ----------
    model : river classifier, regressor or pipeline
        Copied; may hold a scaler of its own, so run it with ``normalizer="none"`` then.
    positive : label
        Class whose log-odds are the score.
    """

    def __init__(self, model: Any, positive: Any = 1) -> None:
        self.model = copy.deepcopy(model)
        self.positive = positive

    def __repr__(self) -> str:
        return f"FromRiver({type(self.model).__name__})"

    def score_one(self, row: Row) -> float:
        """Log-odds of the positive class (regression: the prediction)."""
        x = row.to_dict()
        if not hasattr(self.model, "predict_proba_one"):
            return float(self.model.predict_one(x) or 0.0)
        probabilities = self.model.predict_proba_one(x)
        if not probabilities:
            return 0.0
        p = min(max(probabilities.get(self.positive, probabilities.get(bool(self.positive), 0.0)), 1e-15), 1 - 1e-15)
        return float(np.log(p / (1 - p)))

    def learn_one(self, row: Row, y: Any) -> None:
        """Learn one row; a missing label is passed over."""
        if y is not None and y == y:
            self.model.learn_one(row.to_dict(), y)
