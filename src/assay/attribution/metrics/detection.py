"""Metrics with known answers: classes and hidden subclasses, mislabelled rows, shortcuts, mixed data sets,
duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from assay.attribution.errors import AttributionError, LabelError, NonFiniteAttribution, ShapeMismatch
from assay.attribution.metrics.result import MetricResult, as_matrix, bootstrap, check_rows, from_rows


def share_of_top(matrix: np.ndarray, hits: np.ndarray, s: int) -> np.ndarray:
    """Share of hits among the s highest of each row; rows tied at the border count in expectation."""
    out = np.empty(len(matrix))
    for t, (row, hit) in enumerate(zip(matrix, hits, strict=True)):
        border = np.partition(row, len(row) - s)[len(row) - s]
        above = row > border
        tied = row == border
        out[t] = (hit[above].sum() + (s - above.sum()) * hit[tied].mean()) / s
    return out


def class_detection(
    attributions: Any, y_train: Any, y_test: Any, *, s: int = 5, predictions: Any = None, X_test: Any = None,
    name: str = "class_detection",
) -> MetricResult:  # fmt: skip
    """Share of the s highest-attributed training rows that have the test row's class (Hanawa et al., 2021, for s = 1).

    Parameters
    ----------
    attributions : array (T, N) or Attributor
    y_train, y_test : arrays (N,), (T,)
    predictions : array (T,), optional
        Of the model; then only test rows that it predicts right count.

    Raises
    ------
    NoEligibleSamples, ShapeMismatch

    Examples
    --------
    >>> class_detection(np.array([[0.9, 0.8, 0.1]]), [0, 1, 0], [0], s=2).score
    0.5
    """
    matrix = as_matrix(attributions, X_test, y_test, n_train=len(y_train))
    train, test = np.asarray(y_train), check_rows("y_test", y_test, len(matrix))
    if not 1 <= s <= matrix.shape[1]:
        raise AttributionError(f"s is at least 1 and at most {matrix.shape[1]} (training rows), not {s}")
    hits = train[None] == test[:, None]
    values = share_of_top(matrix, hits, s)
    eligible = np.ones(len(matrix), dtype=bool)
    if predictions is not None:
        eligible = check_rows("predictions", predictions, len(matrix)) == test
    shares = hits.mean(1)
    best = np.minimum(hits.sum(1), s) / s
    return from_rows(
        name, np.where(eligible, values, np.nan), shares[eligible].mean() if eligible.any() else 0.0,
        best[eligible].mean() if eligible.any() else 1.0, why_dropped="the model predicts no test row right",
    )  # fmt: skip


def subclass_detection(
    attributions: Any, subclass_train: Any, subclass_test: Any, *, s: int = 5, predictions: Any = None,
    superclass_test: Any = None, X_test: Any = None,
) -> MetricResult:  # fmt: skip
    """`class_detection` on hidden classes that were merged before training.

    ``predictions`` are of superclasses, and need ``superclass_test``; an attributor explains ``superclass_test``.
    """
    right = None
    if predictions is not None:
        if superclass_test is None:
            raise AttributionError("predictions of superclasses need superclass_test")
        fine = np.asarray(predictions) == np.asarray(superclass_test)
        right = np.where(fine, np.asarray(subclass_test), -1)
    if hasattr(attributions, "attribute"):
        attributions = attributions.attribute(X_test, superclass_test)
    return class_detection(
        attributions, subclass_train, subclass_test, s=s, predictions=right, name="subclass_detection"
    )


def mislabel_detection(suspicion: Any, mislabeled: Any, *, at: Sequence[float] = (0.05, 0.1, 0.2)) -> MetricResult:
    """How early mislabelled training rows come when rows are ranked by suspicion (self-influence).

    ``c_k`` is the share of bad rows among the first k; the score is ``trapezoid(c) / N``. A bad row of rank r adds
    ``N - r + 1/2 - [r = 1]/2``, so the score is a mean over bad rows and its interval a bootstrap over them. Equal
    suspicions count in expectation over their orders. Chance is ``(N^2 - 1) / (2 N^2)``, the ceiling with b bad rows
    ``1 - (b + 1/b) / (2 N)``.

    Parameters
    ----------
    suspicion : array (N,) or Attributor
        Larger is more suspicious.
    mislabeled : bool array (N,)
    at : sequence of float
        Shares of the rows for ``extras["precision_at"]``.

    Raises
    ------
    LabelError
        If no row, or every row, is marked.

    Examples
    --------
    >>> round(mislabel_detection(np.arange(10)[::-1], np.arange(10) < 2).score, 6)
    0.875
    """
    if hasattr(suspicion, "suspicion"):
        suspicion = suspicion.suspicion()
    values = np.asarray(suspicion, dtype=float)
    bad = check_rows("mislabeled", mislabeled, len(values)).astype(bool)
    if not np.isfinite(values).all():
        raise NonFiniteAttribution(f"suspicion of row {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite")
    n, b = len(values), int(bad.sum())
    if not 0 < b < n:
        raise LabelError(f"{b} of {n} rows are marked as mislabelled; the metric needs some, and not all")
    from scipy.stats import rankdata

    rank = rankdata(-values, method="average")
    top = values == values.max()
    each = (n - rank + 0.5 - np.where(top, 0.5 / top.sum(), 0.0)) / n
    contributions = np.where(bad, each, np.nan)
    order = np.argsort(-values, kind="stable")
    found = bad[order].cumsum() / b
    precision = {float(p): float(bad[order[: max(1, round(p * n))]].mean()) for p in at}
    return MetricResult(
        "mislabel_detection", float(each[bad].mean()), contributions, bootstrap(each[bad]), (n * n - 1) / (2 * n * n),
        1 - (b + 1 / b) / (2 * n), b, 0,
        extras={
            "average_precision": float(average_precision_score(bad, values)), "precision_at": precision,
            "prevalence": b / n, "curve": found,
        },
    )  # fmt: skip


def random_average_precision(positives: int, n: int) -> float:
    """Expected average precision of a random order: ``h + (P - 1) / (N - 1) (1 - h)``, ``h = (1 + 1/2 + .. + 1/N) /
    N``.

    >>> round(random_average_precision(85, 1000), 4)
    0.0909
    """
    h = float((1 / np.arange(1, n + 1)).sum() / n)
    return h + (positives - 1) / (n - 1) * (1 - h) if n > 1 else 1.0


def _precision_rows(matrix: np.ndarray, positive: np.ndarray, eligible: np.ndarray) -> np.ndarray:
    values = np.full(len(matrix), np.nan)
    for t in np.flatnonzero(eligible):
        values[t] = average_precision_score(positive, matrix[t])
    return values


def shortcut_detection(
    attributions: Any, artifact_train: Any, y_train: Any, cls: int, artifact_test: Any, y_test: Any, predictions: Any,
    *, only_predicted: bool = True, only_other_classes: bool = True, X_test: Any = None,
) -> MetricResult:  # fmt: skip
    """Average precision of attributions for the training rows that carry an artefact.

    The artefact sits on rows of class ``cls`` only. Test rows count that carry it, are not of that class
    (``only_other_classes``) and are predicted as it (``only_predicted``).

    Parameters
    ----------
    attributions : array (T, N) or Attributor
        An attributor explains ``cls``.
    artifact_train, artifact_test : bool arrays (N,), (T,)
    predictions : array (T,)

    Raises
    ------
    LabelError
        If a marked training row is not of class ``cls``, or none is marked.
    NoEligibleSamples
    """
    marked_test = np.asarray(artifact_test, dtype=bool)
    if hasattr(attributions, "attribute"):
        attributions = attributions.attribute(X_test, np.full(len(marked_test), cls))
    matrix = as_matrix(attributions, n_train=len(y_train))
    marked = check_rows("artifact_train", artifact_train, matrix.shape[1]).astype(bool)
    labels = np.asarray(y_train)
    wrong = np.flatnonzero(marked & (labels != cls))
    if len(wrong):
        raise LabelError(f"training row {wrong[0]} carries the artefact but has class {labels[wrong[0]]}, not {cls}")
    if not marked.any():
        raise LabelError("no training row carries the artefact")
    eligible = check_rows("artifact_test", marked_test, len(matrix)).copy()
    if only_other_classes:
        eligible &= check_rows("y_test", y_test, len(matrix)) != cls
    if only_predicted:
        eligible &= check_rows("predictions", predictions, len(matrix)) == cls
    values = _precision_rows(matrix, marked, eligible)
    return from_rows(
        "shortcut_detection", values, random_average_precision(int(marked.sum()), len(marked)), 1.0,
        why_dropped=f"no test row carries the artefact, is of another class and is predicted as {cls}",
    )  # fmt: skip


def mixed_datasets(
    attributions: Any, adversarial_train: Any, y_train: Any, adversarial_test: Any, *, predictions: Any = None,
    X_test: Any = None,
) -> MetricResult:  # fmt: skip
    """Average precision of attributions for the rows of another source, for test rows of that source.

    Parameters
    ----------
    adversarial_train, adversarial_test : bool arrays (N,), (T,)
        The marked training rows must share one label.
    predictions : array (T,), optional
        Then only test rows predicted as that label count.

    Raises
    ------
    LabelError, NoEligibleSamples
    """
    labels = np.asarray(y_train)
    marked = check_rows("adversarial_train", adversarial_train, len(labels)).astype(bool)
    found = np.unique(labels[marked])
    if len(found) != 1:
        raise LabelError(f"rows of the other source must share one label; they have {found.tolist()[:5] or 'none'}")
    label = found[0]
    eligible = np.asarray(adversarial_test, dtype=bool).copy()
    if hasattr(attributions, "attribute"):
        attributions = attributions.attribute(X_test, np.full(len(eligible), label))
    matrix = as_matrix(attributions, n_train=len(labels))
    check_rows("adversarial_test", eligible, len(matrix))
    if predictions is not None:
        eligible &= check_rows("predictions", predictions, len(matrix)) == label
    values = _precision_rows(matrix, marked, eligible)
    return from_rows(
        "mixed_datasets", values, random_average_precision(int(marked.sum()), len(marked)), 1.0,
        why_dropped=f"no test row is of the other source{'' if predictions is None else f' and predicted as {label}'}",
    )  # fmt: skip


def duplicate_detection(
    attributions: Any, duplicates: Any, *, tolerance: float = 1e-5, X_test: Any = None, targets: Any = None
) -> MetricResult:
    """Share of test rows one of whose duplicates in the training set attains the highest score (to ``tolerance`` of
    it).

    Parameters
    ----------
    duplicates : bool array (T, N)
        Test rows without a duplicate are dropped.
    """
    matrix = as_matrix(attributions, X_test, targets)
    same = np.asarray(duplicates, dtype=bool)
    if same.shape != matrix.shape:
        raise ShapeMismatch(f"duplicates have shape {same.shape}, attributions {matrix.shape}")
    best = matrix.max(1, keepdims=True)
    at_top = matrix >= best - tolerance * np.abs(best)
    has = same.any(1)
    values = np.where(has, (at_top & same).any(1).astype(float), np.nan)
    chance = float(same[has].mean()) if has.any() else 0.0
    return from_rows("duplicate_detection", values, chance, 1.0, why_dropped="no test row has a duplicate")
