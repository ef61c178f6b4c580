"""NB3: naive Bayes on the presence of the best features (Katakis, Tsoumakas and Vlahavas, 2005)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.odds import class_scores
from assay.streams.models.ranges import check_range
from assay.streams.models.top_k import kth_largest

_FRACTIONS = {"wpbc": 1.0, "ionosphere": 0.2, "wdbc": 0.6, "australian": 0.8, "wbc": 0.2, "diabetes_f": 1.0}
_FRACTIONS |= {"german": 1.0, "ipd": 0.6, "svmguide3": 0.2, "krvskp": 1.0, "spambase": 1.0, "magic04": 0.6}
_FRACTIONS |= {"a8a": 0.2, "imdb": 0.4}

#: Constructor arguments that the review of haphazard inputs (arXiv 2404.04903) found best, by data set.
BEST_SETTINGS: dict[str, dict[str, float]] = {name: {"fraction": value} for name, value in _FRACTIONS.items()}


class NB3(StreamModel):
    """Naive Bayes that sees which features are present, and of those only the ones that tell classes apart best.

    With N rows, N_c of class c and n1[w, c] of them with feature w, a feature is ranked by the largest chi-square
    statistic over classes of its two-by-two table (`chi2`), and the ``fraction`` of the features seen with the
    largest rank is kept, with all that are tied at the cut. The log joint of class c is ``log(N_c / N)`` plus
    ``log((n1[w, c] + 1) / (N_c + 2))`` over the kept features that the row has with a value other than 0; absence
    says nothing. After Katakis, Tsoumakas and Vlahavas, "On the utility of incremental feature selection for the
    classification of textual data streams" (PCI 2005).

    The score of a class is ``log(1 + odds)`` (see `assay.streams.models.odds`): in two-class problems `score_one` is
    the log-odds of the second. The magnitude of a value multiplies all classes alike and is left out.

    Parameters
    ----------
    fraction : float
        Share of the features seen that is kept, above 0 and at most 1; rounded down, at least one.
    classes : sequence of labels, optional
        Default: grown on first sight.

    Raises
    ------
    StreamError
        If ``fraction`` is out of its range.

    Examples
    --------
    Digits as the set of pixels that have ink, ten classes:

    >>> from sklearn.datasets import load_digits
    >>> from assay.streams import from_arrays, run
    >>> X, y = load_digits(return_X_y=True)
    >>> result = run(NB3(), from_arrays(np.where(X == 0, np.nan, X), y), normalizer="none")
    >>> round(result.metrics["accuracy"], 3), round(result.metrics["auroc"], 3)
    (0.67, 0.952)
    """

    native_multiclass = True

    def __init__(self, fraction: float = 0.6, classes: Sequence[Hashable] | None = None) -> None:
        self.fraction = fraction
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("fraction", self.fraction, 0, 1, above=True)
        k = len(self._labels.classes)
        self._n1 = np.zeros((8, k))
        self._n = np.zeros(8)  # rows with the feature, all classes
        self._counts = np.zeros(k)
        self._used = np.zeros(1)  # features learned

    def _grow(self, n: int) -> None:
        self._n1 = grown(self._n1, n)
        self._n = grown(self._n, n)

    def _grow_classes(self, k: int) -> None:
        self._n1 = widened(self._n1, k)
        self._counts = widened(self._counts, k)

    def _state(self) -> tuple[Any, Any, Any, Any]:
        return self._n1, self._n, self._counts, self._used

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.zeros(len(self._counts))
        cut = _cut(*self._state(), self.fraction)
        _score(slots, values, self._n1, self._n, self._counts, cut, np.empty_like(scores), scores)
        return scores

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        count_row(slots, target, *self._state())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        return _run(indptr, slots, values, targets, *self._state(), self._seen, self.fraction)

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        best, other = duel(self._score(slots, values))
        parts = np.zeros(len(slots))
        if best != other and self._counts[best] > 0 and self._counts[other] > 0:
            cut = _cut(*self._state(), self.fraction)
            for k, (s, x) in enumerate(zip(slots, values, strict=True)):
                if x != 0.0 and _rank(self._n1, self._n, self._counts, s) >= cut:
                    log_p = np.log((self._n1[s] + 1.0) / (self._counts + 2.0))
                    parts[k] = log_p[best] - log_p[other]
        return parts


def duel(scores: NDArray[np.float64]) -> tuple[int, int]:
    """Which two classes an explanation compares: the second with the first, among more the best with the runner-up."""
    if len(scores) < 2:
        return 0, 0
    if len(scores) == 2:
        return 1, 0
    order = np.argsort(-scores, kind="stable")
    return int(order[0]), int(order[1])


def widened(array: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The array with its last axis at least k long, zeros in the new places."""
    missing = k - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)]) if missing > 0 else array


@njit
def chi2(A, B, C, D):
    """Chi-square statistic of a two-by-two table, 0 where a margin is empty.

    Parameters
    ----------
    A, B, C, D : float
        Rows with feature and class, with the feature only, with the class only, with neither.

    Examples
    --------
    >>> round(chi2(10.0, 5.0, 2.0, 13.0), 4)
    8.8889
    """
    margins = (A + C) * (B + D) * (A + B) * (C + D)
    return (A + B + C + D) * (A * D - B * C) ** 2 / margins if margins > 0.0 else 0.0


@njit
def _rank(n1, n, counts, s):
    """Largest chi-square over the classes of feature s. With two classes both have the same."""
    rows = 0.0
    for c in range(len(counts)):
        rows += counts[c]
    largest = 0.0
    for c in range(1 if len(counts) == 2 else len(counts)):
        A = n1[s, c]
        largest = max(largest, chi2(A, n[s] - A, counts[c] - A, rows - n[s] - counts[c] + A))
    return largest


@njit
def ranks(n1, n, counts):
    """Rank of every feature (slot); one that was never learned has 0, the least there is."""
    out = np.empty(len(n))
    for s in range(len(n)):
        out[s] = _rank(n1, n, counts, s)
    return out


@njit
def count_row(slots, code, n1, n, counts, used):
    """Count the features of a row of this class."""
    counts[code] += 1.0
    for s in slots:
        if n[s] == 0.0:
            used[0] += 1.0
        n[s] += 1.0
        n1[s, code] += 1.0


@njit
def _cut(n1, n, counts, used, fraction):
    """The least rank that is kept."""
    if fraction == 1.0 or used[0] == 0.0:
        return 0.0
    return kth_largest(ranks(n1, n, counts), max(1, int(fraction * used[0])))


@njit
def _score(slots, values, n1, n, counts, cut, joint, out):
    rows = 0.0
    for c in range(len(counts)):
        rows += counts[c]
    for c in range(len(counts)):
        joint[c] = math.log(counts[c] / rows) if counts[c] > 0.0 else -np.inf
    for k in range(len(slots)):
        s = slots[k]
        if n[s] > 0.0 and values[k] != 0.0 and (cut == 0.0 or _rank(n1, n, counts, s) >= cut):
            for c in range(len(counts)):
                joint[c] += math.log((n1[s, c] + 1.0) / (counts[c] + 2.0))
    class_scores(joint, counts, out)


@njit
def _run(indptr, slots, values, targets, n1, n, counts, used, seen, fraction):
    rows = len(targets)
    scores = np.zeros((rows, max(1, len(counts))))
    joint = np.empty(len(counts))
    for t in range(rows):
        s = slots[indptr[t] : indptr[t + 1]]
        x = values[indptr[t] : indptr[t + 1]]
        cut = _cut(n1, n, counts, used, fraction)
        _score(s, x, n1, n, counts, cut, joint, scores[t, : len(counts)])
        if targets[t] >= 0:
            count_row(s, targets[t], n1, n, counts, used)
            for k in range(len(s)):
                seen[s[k]] += 1
    return scores
