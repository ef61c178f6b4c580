"""Two predictors that look at no feature: what any model has to beat."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel
from assay.streams.models.nb3 import widened


class Majority(StreamModel):
    """The most frequent class so far; in regression the mean so far.

    The score of a class is its share of the rows learned; in two-class problems `score_one` is the second's share less
    the first's.

    Parameters
    ----------
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(Majority(), load("wdbc"))
    >>> round(result.metrics["accuracy"], 3), result.metrics["balanced_accuracy"]
    (0.627, 0.5)
    """

    native_multiclass = True
    regression = True

    def __init__(self, task: str = "classification", classes: Sequence[Hashable] | None = None) -> None:
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        self._counts = np.zeros(len(self._labels.classes))
        self._mean = np.zeros(2)  # of the targets: their number, and their mean

    def _grow_classes(self, k: int) -> None:
        self._counts = widened(self._counts, k)

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        if self.task == "regression":
            return float(self._mean[1])
        return self._counts / max(1.0, self._counts.sum())

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        if self.task == "regression":
            _add_to_mean(target, self._mean)
        else:
            self._counts[target] += 1.0

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        _count_features(indptr, slots, targets, self._seen)
        if self.task == "regression":
            return _run_mean(targets, self._mean)
        return _run_shares(targets, self._counts)

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.zeros(len(slots))


class LastLabel(StreamModel):
    """The label of the last labelled row; in regression its value.

    The score of a class is 1 if it was the last, else 0; in two-class problems `score_one` is 1 or -1. Strong where
    labels come in runs, which is what Cohen's kappa against it (kappa-temporal) corrects for.

    Parameters
    ----------
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(LastLabel(), load("wdbc"))
    >>> round(result.metrics["accuracy"], 3), result.metrics["kappa_temporal"]
    (0.525, 0.0)
    """

    native_multiclass = True
    regression = True

    def __init__(self, task: str = "classification", classes: Sequence[Hashable] | None = None) -> None:
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        self._last = np.full(1, np.nan)

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        if self.task == "regression":
            return float(np.nan_to_num(self._last[0]))
        return (np.arange(len(self._labels.classes)) == self._last[0]).astype(np.float64)

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        self._last[0] = target

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        _count_features(indptr, slots, targets, self._seen)
        before = _run_last(np.where(targets < 0, np.nan, targets) if self.task != "regression" else targets, self._last)
        if self.task == "regression":
            return np.nan_to_num(before)
        return (before[:, None] == np.arange(max(1, len(self._labels.classes)))).astype(np.float64)

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.zeros(len(slots))


def _count_features(indptr: NDArray[np.int64], slots: NDArray[np.int64], targets: NDArray[Any], seen: Any) -> None:
    learned = targets == targets if targets.dtype.kind == "f" else targets >= 0
    seen += np.bincount(slots[np.repeat(learned, np.diff(indptr))], minlength=len(seen))


@njit
def _add_to_mean(y, mean):
    mean[0] += 1.0
    mean[1] += (y - mean[1]) / mean[0]


@njit
def _run_mean(targets, mean):
    scores = np.empty(len(targets))
    for t in range(len(targets)):
        scores[t] = mean[1]
        if targets[t] == targets[t]:
            _add_to_mean(targets[t], mean)
    return scores


@njit
def _run_shares(targets, counts):
    scores = np.zeros((len(targets), max(1, len(counts))))
    rows = counts.sum()
    for t in range(len(targets)):
        for c in range(len(counts)):
            scores[t, c] = counts[c] / max(1.0, rows)
        if targets[t] >= 0:
            counts[targets[t]] += 1.0
            rows += 1.0
    return scores


@njit
def _run_last(targets, last):
    before = np.empty(len(targets))
    for t in range(len(targets)):
        before[t] = last[0]
        if targets[t] == targets[t]:
            last[0] = targets[t]
    return before
