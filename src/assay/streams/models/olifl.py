"""OLIFL: learning from incomplete and varying features, weighted by how informative each is (You et al., 2023)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.inlined import inlined
from assay.streams.models.margin import margin_loss, optional_weights, row_weight, signed_targets
from assay.streams.models.ranges import check_range

FIRST_VARIANCE = 1e-6


class OLIFL(StreamModel):
    """A passive-aggressive learner that listens to each feature in proportion to its variance.

    A feature's informativeness is its share ``k_i = var_i / sum of var`` among the features of the row, with running
    variances that include the row's own values. The score is ``sum of k_i w_i x_i`` and the step ``w_i += tau y k_i
    x_i``, where tau is ``l / |x|^2`` (option 0) or ``min(C, 2 l / |x|^2)`` (option 1) and l the hinge loss (regression:
    epsilon-insensitive). After You et al., OLIFL (2023), and the code its authors published.

    haphazard 1.2.8 squashes the sign of the score with a falling sigmoid, so its scores are reversed and have two
    values.

    Parameters
    ----------
    C : float
        Largest tau of option 1, above 0.
    option : {1, 0}
    epsilon : float
        Regression: residuals up to this size are no loss.
    class_weight : dict or "balanced", optional
        Multiplies tau by the weight of the row's class.
    task : {"classification", "regression"}
    classes : sequence of two labels, optional
        The second is the positive class. Default: grown on first sight.

    Raises
    ------
    StreamError
        If an argument is out of its range.

    Examples
    --------
    Half of the cells of WDBC are absent:

    >>> from assay.streams import load, run
    >>> result = run(OLIFL(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.974
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        C: float = 0.1,
        option: int = 1,
        epsilon: float = 0.1,
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.C = C
        self.option = option
        self.epsilon = epsilon
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("C", self.C, 0, above=True)
        check_range("epsilon", self.epsilon, 0)
        if self.option not in (0, 1):
            raise StreamError(f"option is 0 or 1, not {self.option!r}")
        self._w = np.zeros(8)
        self._stats = np.zeros((8, 3))  # count, mean and variance of each feature
        self._counts = np.zeros(2)  # rows learned of class 0 and 1, for class_weight

    def _grow(self, n: int) -> None:
        self._w = grown(self._w, n)
        self._stats = grown(self._stats, n)

    def _hyper(self) -> tuple[Any, ...]:
        return float(self.C), int(self.option), self.task == "regression", float(self.epsilon)

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        return float(_dot(slots, values, 0, len(slots), self._w, self._stats))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = float(target) if self.task == "regression" else 2.0 * target - 1.0
        _update(slots, values, 0, len(slots), y, fixed, self._w, self._stats, self._counts, *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = signed_targets(targets, self.task)
        return _run(indptr, slots, values, y, fixed, self._w, self._stats, self._counts, self._seen, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        variances = np.array([variance_with(self._stats, s, x) for s, x in zip(slots, values, strict=True)])
        return self._w[slots] * values * variances / variances.sum()


@inlined
def variance_with(stats, slot, x):
    """Variance of a feature (divided by the count) once x is counted in; the first value gives 1e-6."""
    c = stats[slot, 0] + 1.0
    if c == 1.0:
        return FIRST_VARIANCE
    from_mean = x - stats[slot, 1]
    return (c - 1.0) / (c * c) * from_mean * from_mean + (c - 1.0) / c * stats[slot, 2]


@inlined
def count_in(stats, slot, x):
    """Add a value to the running mean and variance of a feature; returns the variance."""
    variance = variance_with(stats, slot, x)
    stats[slot, 0] += 1.0
    stats[slot, 1] += (x - stats[slot, 1]) / stats[slot, 0]
    stats[slot, 2] = variance
    return variance


@inlined
def _dot(slots, values, a, b, w, stats):
    weighted = 0.0
    total = 0.0
    for k in range(a, b):
        s = slots[k]
        # A feature not yet learned is no part of a score, neither in the sum nor in the shares.
        if stats[s, 0] > 0.0:
            variance = variance_with(stats, s, values[k])
            weighted += variance * w[s] * values[k]
            total += variance
    return weighted / total if total > 0.0 else 0.0


@inlined
def _update(slots, values, a, b, y, fixed, w, stats, counts, C, option, regression, epsilon):
    weight = row_weight(fixed, counts, 0, y, regression)
    weighted = 0.0
    total = 0.0
    norm = 0.0
    for k in range(a, b):
        s = slots[k]
        variance = count_in(stats, s, values[k])
        weighted += variance * w[s] * values[k]
        total += variance
        norm += values[k] * values[k]
    if norm == 0.0 or total == 0.0:
        return
    loss, direction = margin_loss(weighted / total, y, regression, epsilon)
    tau = loss / norm if option == 0 else min(C, 2.0 * loss / norm)
    step = tau * weight * direction / total
    for k in range(a, b):
        w[slots[k]] += step * stats[slots[k], 2] * values[k]


@njit
def _run(indptr, slots, values, y, fixed, w, stats, counts, seen, C, option, regression, epsilon):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    for t in range(rows):
        a, b = indptr[t], indptr[t + 1]
        scores[t] = _dot(slots, values, a, b, w, stats)
        if y[t] == y[t]:
            _update(slots, values, a, b, y[t], fixed, w, stats, counts, C, option, regression, epsilon)
            for k in range(a, b):
                seen[slots[k]] += 1
    return scores
