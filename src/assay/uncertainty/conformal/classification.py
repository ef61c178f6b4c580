"""Conformal sets of labels from class probabilities: split, by group or class, and cross-validated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.uncertainty.conformal.quantile import check_alpha, conformal_quantile, conformal_rank, grouped_quantiles
from assay.uncertainty.conformal.scores import SCORES, label_scores
from assay.uncertainty.errors import ClassMissingInCalibration, NotFitted, TargetShape, UncertaintyError
from assay.uncertainty.representations import LabelSet
from assay.uncertainty.representations.base import row_names
from assay.uncertainty.simplex import as_probabilities, row_uniform


def label_codes(
    y: ArrayLike, n_rows: int, n_classes: int, classes: Sequence[Hashable] | None = None
) -> NDArray[np.int64]:
    """Labels as codes, checked.

    Raises
    ------
    TargetShape
    """
    values = np.asarray(y)
    if values.ndim != 1 or len(values) != n_rows:
        hint = "; these look like first-order targets (distributions)" if values.ndim == 2 else ""
        raise TargetShape(f"{n_rows} labels are needed, one a row, not an array of shape {values.shape}{hint}")
    if classes is not None:
        places = {name: k for k, name in enumerate(classes)}
        unknown = sorted({str(v) for v in values.tolist() if v not in places})
        if unknown:
            raise TargetShape(
                f"labels {', '.join(unknown[:5])} are no classes; the classes are {', '.join(map(str, classes))}"
            )
        return np.array([places[v] for v in values.tolist()], dtype=np.int64)
    if values.dtype.kind not in "iu":
        if values.dtype.kind != "f" or (values != np.floor(values)).any():
            raise TargetShape(
                f"labels must be class codes 0 ... {n_classes - 1} (or give classes=[...]), not {values.dtype}"
            )
        values = values.astype(np.int64)
    if len(values) and (values.min() < 0 or values.max() >= n_classes):
        raise TargetShape(
            f"label {int(values[(values < 0) | (values >= n_classes)][0])} is outside the codes 0 ... {n_classes - 1}"
        )
    return values.astype(np.int64)


class SplitConformal:
    """Split-conformal sets of labels, marginal or by group (Mondrian).

    Parameters
    ----------
    score : {"lac", "aps", "raps", "saps"}
    alpha : float
        Share of rows whose set may miss the label.
    randomized : bool
        Randomise APS, RAPS and SAPS, which makes their coverage exact; without it they cover more, with larger sets.
        One number a row, shared by its labels; it depends on ``(random_state, row number)`` alone, never on the size of
        a batch.
    random_state : int
    lam, k_reg : float, int
        Of RAPS and SAPS.
    groups : {"class", "given"} or None
        One threshold a class (class-conditional coverage), or a group of rows that `fit` and `predict` are told.
    empty : {"keep", "top1"}
        Whether an empty set stays empty; ``top1`` puts the most probable class in, which only adds coverage.
    classes : sequence, optional
        Class names: labels are then given, and sets shown, by name.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> model = LogisticRegression(C=0.01, max_iter=200).fit(X[:600], y[:600])
    >>> method = SplitConformal("lac", alpha=0.05).fit(model.predict_proba(X[600:1100]), y[600:1100])
    >>> sets = method.predict(model.predict_proba(X[1100:]))
    >>> round(float(sets.covers(y[1100:]).mean()), 3), round(float(sets.size.mean()), 3)
    (0.931, 1.052)
    """

    def __init__(
        self,
        score: str = "aps",
        alpha: float = 0.1,
        *,
        randomized: bool = True,
        random_state: int = 0,
        lam: float = 0.1,
        k_reg: int = 0,
        groups: str | None = None,
        empty: str = "keep",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        check_alpha(alpha)
        if score not in SCORES:
            raise UncertaintyError(f"score is one of {', '.join(SCORES)}, not {score!r}")
        if groups not in (None, "class", "given"):
            raise UncertaintyError(f"groups is 'class', 'given' or None, not {groups!r}")
        if empty not in ("keep", "top1"):
            raise UncertaintyError(f"empty is 'keep' or 'top1', not {empty!r}")
        self.score, self.alpha, self.randomized, self.random_state = score, alpha, randomized, random_state
        self.lam, self.k_reg, self.groups, self.empty, self.classes = lam, k_reg, groups, empty, classes

    def fit(self, probs: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> SplitConformal:
        """Set the threshold(s) from calibration rows that the model was not trained on.

        Raises
        ------
        NotADistribution, TargetShape
        ClassMissingInCalibration
            With ``groups="class"``, if a class has no row.
        """
        p = as_probabilities(_values(probs))
        codes = label_codes(y, len(p), p.shape[1], self.classes)
        scores = self._scores(p, 0, stream=1)[np.arange(len(p)), codes]
        self.n_classes_ = p.shape[1]
        if self.groups is None:
            self.threshold_: Any = conformal_quantile(scores, self.alpha)
        elif self.groups == "class":
            missing = sorted(set(range(p.shape[1])) - set(codes.tolist()))
            names = [f"class {k if self.classes is None else self.classes[k]}" for k in range(p.shape[1])]
            if missing:
                raise ClassMissingInCalibration(
                    f"{', '.join(names[k] for k in missing)}: no calibration row, so no threshold of its own"
                )
            self.threshold_ = grouped_quantiles(scores, codes, p.shape[1], self.alpha, names)
        else:
            if groups is None:
                raise UncertaintyError("groups='given' needs the group of each row: fit(probs, y, groups)")
            self.groups_, g = np.unique(np.asarray(groups), return_inverse=True)
            self.threshold_ = grouped_quantiles(
                scores, g, len(self.groups_), self.alpha, [f"group {v}" for v in self.groups_]
            )
        return self

    def predict(self, probs: ArrayLike, groups: ArrayLike | None = None, *, first_row: int = 0) -> LabelSet:
        """Sets of labels; ``first_row`` is the number of the first row where rows come in batches."""
        if not hasattr(self, "threshold_"):
            raise NotFitted("call fit(probs, y) with calibration rows first")
        p = as_probabilities(_values(probs))
        if p.shape[1] != self.n_classes_:
            raise TargetShape(f"{p.shape[1]} classes were given; the calibration had {self.n_classes_}")
        threshold = self.threshold_
        if self.groups == "given":
            if groups is None:
                raise UncertaintyError("groups='given' needs the group of each row: predict(probs, groups)")
            threshold = self.threshold_[self._group_codes(groups)][:, None]
        mask = self._scores(p, first_row, stream=2) <= threshold
        if self.empty == "top1":
            none = ~mask.any(1)
            mask[none, p[none].argmax(1)] = True
        return LabelSet(mask).named(self.classes, row_names(probs))

    def _group_codes(self, groups: ArrayLike) -> NDArray[np.int64]:
        g = np.asarray(groups)
        at = np.searchsorted(self.groups_, g)
        known = (at < len(self.groups_)) & (self.groups_[np.minimum(at, len(self.groups_) - 1)] == g)
        if not known.all():
            raise ClassMissingInCalibration(
                f"group {g[~known][0]} has no calibration row; the groups are {', '.join(map(str, self.groups_))}"
            )
        return at

    def _scores(self, p: NDArray[np.float64], first: int, stream: int) -> NDArray[np.float64]:
        u = row_uniform(self.random_state, first, len(p), stream) if self.randomized and self.score != "lac" else None
        return label_scores(p, self.score, u, lam=self.lam, k_reg=self.k_reg)


class CVPlusClassifier:
    """Cross-validation+ sets (Romano, Sesia and Candes, 2020, algorithm 2): no row is set aside; coverage at least 1 -
    2 alpha.

    A label is in the set while fewer than ``(1 - alpha)(n + 1)`` calibration scores are below its own score in the
    model of their fold.

    Parameters
    ----------
    make : callable
        Gives a fresh classifier with ``fit`` and ``predict_proba``.
    folds : int

    Other parameters are those of `SplitConformal`.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        score: str = "aps",
        alpha: float = 0.1,
        *,
        folds: int = 10,
        randomized: bool = True,
        random_state: int = 0,
        lam: float = 0.1,
        k_reg: int = 0,
    ) -> None:
        check_alpha(alpha)
        self.make, self.folds, self.alpha, self.random_state = make, folds, alpha, random_state
        self._split = SplitConformal(
            score, alpha, randomized=randomized, random_state=random_state, lam=lam, k_reg=k_reg
        )

    def fit(self, X: ArrayLike, y: ArrayLike) -> CVPlusClassifier:
        """Train one model a fold.

        Raises
        ------
        ClassMissingInCalibration
            If a class has fewer rows than there are folds, so that some model would not know it.
        """
        from sklearn.model_selection import StratifiedKFold

        X, y = np.asarray(X), np.asarray(y)
        self.classes_, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        if counts.min() < 2 or len(y) < self.folds:
            raise ClassMissingInCalibration(
                f"class {self.classes_[counts.argmin()]} has {counts.min()} row(s); every class needs 2"
            )
        self.models_, self.scores_ = [], []
        noise = row_uniform(self.random_state, 0, len(y), 1)
        splitter = StratifiedKFold(
            min(self.folds, int(counts.min())) if counts.min() < self.folds else self.folds,
            shuffle=True,
            random_state=self.random_state,
        )
        for train, test in splitter.split(X, codes):
            model = self.make().fit(X[train], codes[train])
            p = as_probabilities(model.predict_proba(X[test]))
            self.models_.append(model)
            self.scores_.append(self._label_scores(p, noise[test])[np.arange(len(test)), codes[test]])
        return self

    def predict(self, X: ArrayLike, *, first_row: int = 0) -> LabelSet:
        """Sets of labels."""
        if not hasattr(self, "models_"):
            raise NotFitted("call fit(X, y) first")
        X = np.asarray(X)
        u = row_uniform(self.random_state, first_row, len(X), 2)
        below: Any = 0
        for model, scores in zip(self.models_, self.scores_, strict=True):
            own = self._label_scores(as_probabilities(model.predict_proba(X)), u)
            below = below + np.searchsorted(np.sort(scores), own, side="left")
        n = sum(map(len, self.scores_))
        return LabelSet(np.asarray(below < conformal_rank(n, self.alpha))).named(self.classes_.tolist())

    def _label_scores(self, p: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.float64]:
        split = self._split
        return label_scores(p, split.score, u if split.randomized else None, lam=split.lam, k_reg=split.k_reg)


def _values(probs: Any) -> Any:
    return probs.to_numpy() if hasattr(probs, "to_numpy") else probs
