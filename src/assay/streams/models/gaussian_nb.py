"""Gaussian naive Bayes on the observed features, updated row by row."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.nb3 import duel
from assay.streams.models.odds import class_scores
from assay.streams.models.ranges import check_range


class MaskedGaussianNB(StreamModel):
    """Naive Bayes with a normal density a feature and class; what a row does not have says nothing.

    Count, mean and sum of squares are kept by Welford's update (Technometrics 4, 1962). The mean and variance of a
    feature in a class are shrunk towards those of the feature over all classes, as if ``prior_count`` more values had
    been seen there, so that a feature that a class has seldom or never had is judged from what is known of it
    elsewhere. With ``prior_count=0`` and no shared variance the densities are those of scikit-learn's
    ``GaussianNB(var_smoothing=0)``. A feature takes part in a score once it has a variance above 0 (with
    ``prior_count=0``: in every class).

    The score of a class is ``log(1 + odds)`` (see `assay.streams.models.odds`): in two-class problems `score_one` is
    the log-odds of the second.

    Parameters
    ----------
    prior_count : float
        Values that the feature's overall mean and variance stand for in each class, at least 0.
    classes : sequence of labels, optional
        Default: grown on first sight.

    Raises
    ------
    StreamError
        If ``prior_count`` is negative.

    Examples
    --------
    Half of the cells of WDBC are absent:

    >>> from assay.streams import load, run
    >>> result = run(MaskedGaussianNB(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.976
    """

    native_multiclass = True

    def __init__(self, prior_count: float = 1.0, classes: Sequence[Hashable] | None = None) -> None:
        self.prior_count = prior_count
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("prior_count", self.prior_count, 0)
        k = len(self._labels.classes)
        # Count, mean and sum of squared deviations of each feature: over all classes at 0, in class c at c + 1.
        self._stats = np.zeros((8, k + 1, 3))
        self._counts = np.zeros(k)

    def _grow(self, n: int) -> None:
        self._stats = grown(self._stats, n)

    def _grow_classes(self, k: int) -> None:
        missing = k - len(self._counts)
        if missing > 0:
            self._stats = np.pad(self._stats, [(0, 0), (0, missing), (0, 0)])
            self._counts = np.pad(self._counts, (0, missing))

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.zeros(len(self._counts))
        _score(slots, values, self._stats, self._counts, float(self.prior_count), np.empty_like(scores), scores)
        return scores

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        _update(slots, values, target, self._stats, self._counts)

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        state = self._stats, self._counts, self._seen
        return _run(indptr, slots, values, targets, *state, float(self.prior_count))

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = np.zeros(len(slots))
        best, other = duel(self._score(slots, values))
        if best != other and self._counts[best] > 0 and self._counts[other] > 0:
            logs = np.zeros(len(self._counts))
            for k, (s, x) in enumerate(zip(slots, values, strict=True)):
                logs[:] = 0.0
                _add_densities(s, x, self._stats, self._counts, float(self.prior_count), logs)
                parts[k] = logs[best] - logs[other]
        return parts


@njit
def _add_densities(s, x, stats, counts, prior, joint):
    """Add the log density of value x of feature s to each learned class, or to none."""
    n = stats[s, 0, 0]
    overall = stats[s, 0, 2] / n if n > 0.0 else 0.0
    if overall <= 0.0:
        return
    for c in range(len(counts)):
        if counts[c] > 0.0 and prior == 0.0 and stats[s, c + 1, 2] <= 0.0:
            return
    for c in range(len(counts)):
        if counts[c] > 0.0:
            own = stats[s, c + 1, 0]
            weight = own + prior
            mean = (own * stats[s, c + 1, 1] + prior * stats[s, 0, 1]) / weight
            variance = (stats[s, c + 1, 2] + prior * overall) / weight
            joint[c] -= 0.5 * (math.log(2.0 * math.pi * variance) + (x - mean) ** 2 / variance)


@njit
def _score(slots, values, stats, counts, prior, joint, out):
    rows = 0.0
    for c in range(len(counts)):
        rows += counts[c]
    for c in range(len(counts)):
        joint[c] = math.log(counts[c] / rows) if counts[c] > 0.0 else -np.inf
    for k in range(len(slots)):
        _add_densities(slots[k], values[k], stats, counts, prior, joint)
    class_scores(joint, counts, out)


@njit
def _update(slots, values, code, stats, counts):
    counts[code] += 1.0
    for k in range(len(slots)):
        for c in (0, code + 1):
            of = stats[slots[k], c]
            of[0] += 1.0
            from_mean = values[k] - of[1]
            of[1] += from_mean / of[0]
            of[2] += from_mean * (values[k] - of[1])


@njit
def _run(indptr, slots, values, targets, stats, counts, seen, prior):
    rows = len(targets)
    scores = np.zeros((rows, max(1, len(counts))))
    joint = np.empty(len(counts))
    for t in range(rows):
        s = slots[indptr[t] : indptr[t + 1]]
        x = values[indptr[t] : indptr[t + 1]]
        # a feature never learned has no variance, so it takes no part
        _score(s, x, stats, counts, prior, joint, scores[t, : len(counts)])
        if targets[t] >= 0:
            _update(s, x, targets[t], stats, counts)
            for k in range(len(s)):
                seen[s[k]] += 1
    return scores
