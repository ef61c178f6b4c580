"""OLVF: learning from varying features (Beyazit, Alagurajah and Wu, AAAI 2019)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.inlined import inlined
from assay.streams.models.margin import margin_loss, optional_weights, row_weight, signed_targets
from assay.streams.models.passive_aggressive import dot
from assay.streams.models.ranges import check_range
from assay.streams.models.top_k import kth_largest

_ONES = {"C": 1.0, "C_bar": 1.0, "B": 1.0, "reg": 1.0}
_COMMON = {"C": 0.01, "C_bar": 1e-4, "B": 1.0, "reg": 1.0}

#: Constructor arguments that the review of haphazard inputs (arXiv 2404.04903) found best, by data set. Its lambda of
#: 1e-4 belongs to a projection with a signed inner product; with the 1-norm used here it is 1.
BEST_SETTINGS: dict[str, dict[str, float]] = {
    "wpbc": _ONES,
    "ionosphere": _ONES,
    "svmguide3": _ONES,
    "krvskp": _ONES,
    "wdbc": {"C": 1e-4, "C_bar": 1e-4, "B": 1.0, "reg": 1.0},
    "magic04": {"C": 1e-4, "C_bar": 1e-4, "B": 1.0, "reg": 1.0},
    "australian": _COMMON,
    "wbc": _COMMON,
    "spambase": _COMMON,
    "imdb": _COMMON,
    "diabetes_f": {"C": 0.01, "C_bar": 1e-4, "B": 0.3, "reg": 1.0},
    "german": {"C": 0.01, "C_bar": 1e-4, "B": 0.01, "reg": 1.0},
    "ipd": {"C": 1.0, "C_bar": 0.01, "B": 1.0, "reg": 1.0},
    "a8a": {"C": 1.0, "C_bar": 1e-4, "B": 1.0, "reg": 1.0},
}


class OLVF(StreamModel):
    """A passive-aggressive classifier beside a classifier of feature spaces that says how far each row is to be
    trusted.

    The instance weights w give the score ``w.x`` over the observed features. The feature weights v give two
    confidences, ``P_w = sig(sum of v over all features seen)`` and ``P_x = sig(sum of v over the row's features)``,
    which scale the step on shared and on new features. v itself takes a logistic step on whether the row was
    predicted rightly. Then w is shrunk to ``|v o w|_1 <= reg`` and cut to its ``B |U|`` largest entries.

    haphazard 1.2.8 has the sigmoid mirrored, returns ``|w.x|`` as the score, shrinks by a signed inner product and
    keeps the small weights instead of the large; here the formulas stand as published. A row without features teaches
    nothing.

    Parameters
    ----------
    C, C_bar : float
        Largest step of w and of v, above 0.
    B : float
        Share of the features seen that keep a weight, above 0 and at most 1; at least one is kept.
    reg : float
        Bound (lambda) on the 1-norm of ``v o w``, above 0.
    epsilon : float
        Regression: residuals up to this size are no loss and count as right.
    class_weight : dict or "balanced", optional
        Multiplies the step of w by the weight of the row's class.
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
    >>> result = run(OLVF(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.978
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        C: float = 0.01,
        C_bar: float = 1e-4,
        B: float = 1.0,
        reg: float = 1.0,
        epsilon: float = 0.1,
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.C = C
        self.C_bar = C_bar
        self.B = B
        self.reg = reg
        self.epsilon = epsilon
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("C", self.C, 0, above=True)
        check_range("C_bar", self.C_bar, 0, above=True)
        check_range("B", self.B, 0, 1, above=True)
        check_range("reg", self.reg, 0, above=True)
        check_range("epsilon", self.epsilon, 0)
        self._w = np.zeros(8)
        self._v = np.zeros(8)
        # Slots in the order in which they were first learned: what runs over all features runs in this order, so that
        # a feature first met in an unlabelled row changes no sum.
        self._order = np.zeros(8, dtype=np.int64)
        self._head = np.zeros(
            5
        )  # rows learned of class 0 and 1 (for class_weight), sum of v, sum of |v w|, features learned

    def _grow(self, n: int) -> None:
        self._w = grown(self._w, n)
        self._v = grown(self._v, n)
        self._order = grown(self._order, n)

    def _hyper(self) -> tuple[Any, ...]:
        numbers = float(self.C), float(self.C_bar), float(self.B), float(self.reg)
        return *numbers, self.task == "regression", float(self.epsilon)

    def _state(self) -> tuple[Any, Any, Any, Any, Any]:
        return self._w, self._v, self._order, self._head, self._seen

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        return float(dot(slots, values, 0, len(slots), self._w))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = float(target) if self.task == "regression" else 2.0 * target - 1.0
        _update(slots, values, 0, len(slots), y, fixed, *self._state(), *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = signed_targets(targets, self.task)
        return _run(indptr, slots, values, y, fixed, *self._state(), *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._w[slots] * values


@inlined
def _sigmoid(z):
    return 1.0 / (1.0 + math.exp(-z)) if z >= 0.0 else math.exp(z) / (1.0 + math.exp(z))


@inlined
def _update(slots, values, a, b, y, fixed, w, v, order, head, seen, C, C_bar, B, reg, regression, epsilon):
    """One step; returns the score before it."""
    weight = row_weight(fixed, head, 0, y, regression)
    observed = b - a
    if observed == 0:
        return 0.0
    score = dot(slots, values, a, b, w)
    loss, direction = margin_loss(score, y, regression, epsilon)
    right = loss == 0.0 if regression else (score > 0.0) == (y > 0.0)
    norm = 0.0
    here = 0.0
    for k in range(a, b):
        s = slots[k]
        norm += values[k] * values[k]
        here += v[s]
        head[3] -= abs(v[s] * w[s])
    confidence_shared = _sigmoid(head[2])
    confidence_new = _sigmoid(here)
    tau = min(C, loss / norm) if norm > 0.0 else 0.0

    # the feature step: log(1 + exp(-z)) with z = +-sum of v, its gradient -+sig(-z) on each observed feature
    sign = 1.0 if right else -1.0
    z = sign * here
    slope = _sigmoid(-z)
    cost = math.log1p(math.exp(-z)) if z >= 0.0 else -z + math.log1p(math.exp(z))
    up = sign * min(C_bar * slope, cost / (observed * slope)) if slope > 0.0 else 0.0

    for k in range(a, b):
        s = slots[k]
        if seen[s] == 0:
            order[int(head[4])] = s
            head[4] += 1.0
            confidence = confidence_new
        else:
            confidence = confidence_shared
        w[s] += confidence * tau * weight * direction * values[k]
        v[s] += up
        # The 1-norm of v o w and the sum of v are kept up to date cell by cell: a row costs what it observes.
        head[2] += up
        head[3] += abs(v[s] * w[s])
    if head[3] > reg:
        factor = reg / head[3]
        for i in range(len(w)):
            w[i] *= factor
        head[3] = reg
    if B < 1.0:
        # Weights not in use are 0 and the least, so the cut over all slots is the cut over the features seen.
        cut = kth_largest(np.abs(w), max(1, int(B * head[4])))
        for s in order[: int(head[4])]:
            if abs(w[s]) < cut:
                head[3] -= abs(v[s] * w[s])
                w[s] = 0.0
    return score


@njit
def _run(indptr, slots, values, y, fixed, w, v, order, head, seen, C, C_bar, B, reg, regression, epsilon):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    for t in range(rows):
        a, b = indptr[t], indptr[t + 1]
        # an unlearned feature has weight 0, so it needs no skipping here
        if y[t] == y[t]:
            scores[t] = _update(
                slots, values, a, b, y[t], fixed, w, v, order, head, seen, C, C_bar, B, reg, regression, epsilon
            )
            for k in range(a, b):
                seen[slots[k]] += 1
        else:
            scores[t] = dot(slots, values, a, b, w)
    return scores
