"""Passive-aggressive learning on the observed features (Crammer et al., JMLR 2006)."""

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

_VARIANTS = ("PA", "PA-I", "PA-II")


class MaskedPA(StreamModel):
    """The smallest change of the weights that gives this row the margin it lacks.

    With l the hinge loss ``max(0, 1 - y w.x)`` (``task="regression"``: ``max(0, |y - w.x| - epsilon)``) the weights
    of the observed features move by ``tau y x``, where tau is ``l / |x|^2`` (PA), ``min(C, l / |x|^2)`` (PA-I) or ``l
    / (|x|^2 + 1 / (2C))`` (PA-II): Crammer, Dekel, Keshet, Shalev-Shwartz and Singer, JMLR 7 (2006), figure 1 and,
    for regression, section 5. An absent feature takes no part, and a new one starts at weight 0. No intercept.

    Parameters
    ----------
    C : float
        Aggressiveness, above 0. PA does not use it.
    variant : {"PA-I", "PA-II", "PA"}
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
        If C is not above 0, epsilon is negative, or the variant is none of the three.

    Examples
    --------
    Half of the cells of WDBC are absent:

    >>> from assay.streams import load, run
    >>> result = run(MaskedPA(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.98
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        C: float = 0.01,
        variant: str = "PA-I",
        epsilon: float = 0.1,
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.C = C
        self.variant = variant
        self.epsilon = epsilon
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("C", self.C, 0, above=True)
        check_range("epsilon", self.epsilon, 0)
        if self.variant not in _VARIANTS:
            raise StreamError(f"variant is one of {', '.join(_VARIANTS)}, not {self.variant!r}")
        self._w = np.zeros(8)
        self._counts = np.zeros(2)  # rows learned of class 0 and 1, for class_weight

    def _grow(self, n: int) -> None:
        self._w = grown(self._w, n)

    def _hyper(self) -> tuple[Any, ...]:
        return _VARIANTS.index(self.variant), float(self.C), self.task == "regression", float(self.epsilon)

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        return float(dot(slots, values, 0, len(slots), self._w))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = float(target) if self.task == "regression" else 2.0 * target - 1.0
        _update(slots, values, 0, len(slots), y, fixed, self._w, self._counts, *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = signed_targets(targets, self.task)
        return _run(indptr, slots, values, y, fixed, self._w, self._counts, self._seen, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._w[slots] * values


@inlined
def dot(slots, values, a, b, w):
    """Weights times values over the cells ``a:b``, a row. (Bounds: making a slice would cost more than the sum.)

    One running sum, in order: features not learned yet then add exact zeros, and a score is the same to the last bit
    whether they are passed or not.
    """
    total = 0.0
    for k in range(a, b):
        total += w[slots[k]] * values[k]
    return total


@inlined
def _update(slots, values, a, b, y, fixed, w, counts, variant, C, regression, epsilon):
    """One step; returns the score before it."""
    weight = row_weight(fixed, counts, 0, y, regression)
    score = dot(slots, values, a, b, w)
    loss, direction = margin_loss(score, y, regression, epsilon)
    if loss == 0.0:
        return score
    norm = 0.0
    odd = 0.0
    for k in range(a, b - 1, 2):
        norm += values[k] * values[k]
        odd += values[k + 1] * values[k + 1]
    if (b - a) % 2 == 1:
        norm += values[b - 1] * values[b - 1]
    norm += odd
    if norm == 0.0:
        return score
    if variant == 2:
        tau = loss / (norm + 0.5 / C)
    else:
        tau = loss / norm
        if variant == 1:
            tau = min(C, tau)
    step = tau * weight * direction
    for k in range(a, b):
        w[slots[k]] += step * values[k]
    return score


@njit
def _run(indptr, slots, values, y, fixed, w, counts, seen, variant, C, regression, epsilon):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    for t in range(rows):
        a, b = indptr[t], indptr[t + 1]
        # an unlearned feature has weight 0, so it needs no skipping here
        if y[t] == y[t]:
            scores[t] = _update(slots, values, a, b, y[t], fixed, w, counts, variant, C, regression, epsilon)
            for k in range(a, b):
                seen[slots[k]] += 1
        else:
            scores[t] = dot(slots, values, a, b, w)
    return scores
