"""Logistic and linear regression on the observed features: one weight a feature name, SGD or FTRL-proximal.

Not in the published library, and stronger than most of what is in it: the comparison every other model has to win.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.inlined import inlined
from assay.streams.models.margin import optional_weights, row_weight
from assay.streams.models.passive_aggressive import dot
from assay.streams.models.ranges import check_range


class MaskedLogistic(StreamModel):
    """Logistic regression (``task="regression"``: least squares) over whatever features a row has.

    An absent feature takes no part in the score and its weight is not touched; a new feature starts at weight 0. In
    least squares the residual of an SGD step is divided by ``1 + rate |x|^2 + intercept_rate``, which is the implicit
    step (Toulis and Airoldi, Annals of Statistics 45, 2017): the explicit one diverges once ``rate |x|^2`` passes 2.

    Parameters
    ----------
    optimizer : {"sgd", "ftrl"}
        Plain stochastic gradient, or FTRL-proximal (McMahan et al., KDD 2013, algorithm 1).
    rate : float
        Step size of SGD; ``alpha`` of FTRL.
    intercept_rate : float
        Step size of the intercept (SGD in both cases).
    l1, l2 : float
        Penalties of FTRL; SGD takes ``l2`` only.
    beta : float
        ``beta`` of FTRL.
    class_weight : dict or "balanced", optional
        Weight of a row by its class; "balanced" uses N / (2 N_c) of the rows learned so far.
    classes : sequence of two labels, optional
        The second is the positive class. Default: grown on first sight.

    Raises
    ------
    StreamError
        If an argument is out of its range.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(MaskedLogistic(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.982
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        optimizer: str = "sgd",
        rate: float = 0.05,
        intercept_rate: float = 0.01,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 1.0,
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.rate = rate
        self.intercept_rate = intercept_rate
        self.l1 = l1
        self.l2 = l2
        self.beta = beta
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        if self.optimizer not in ("sgd", "ftrl"):
            raise StreamError(f"optimizer is 'sgd' or 'ftrl', not {self.optimizer!r}")
        check_range("rate", self.rate, 0, above=True)
        for name in ("intercept_rate", "l1", "l2", "beta"):
            check_range(name, getattr(self, name), 0)
        self._w = np.zeros(8)  # FTRL: z
        self._n = np.zeros(8)  # FTRL: sum of squared gradients
        self._head = np.zeros(3)  # intercept, rows learned of class 0 and 1 (for class_weight)

    def _grow(self, n: int) -> None:
        self._w = grown(self._w, n)
        self._n = grown(self._n, n)

    def _hyper(self) -> tuple[Any, ...]:
        numbers = float(self.rate), float(self.intercept_rate), float(self.l1), float(self.l2), float(self.beta)
        return self.task == "regression", *numbers

    def _state(self) -> tuple[Any, Any, Any]:
        return self._w, self._n if self.optimizer == "ftrl" else None, self._head

    @property
    def intercept_(self) -> float:
        """The part of every score that belongs to no feature."""
        return float(self._head[0])

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        return float(_dot(slots, values, 0, len(slots), *self._state(), *self._hyper()))

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        fixed = None if self.class_weight is None else optional_weights(self.class_weight, self.classes_)
        _update(slots, values, 0, len(slots), float(target), fixed, *self._state(), *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        fixed = optional_weights(self.class_weight, self.classes_)
        y = targets.astype(np.float64) if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        return _run(indptr, slots, values, y, fixed, *self._state(), self._seen, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        w, n, _ = self._state()
        parts = [_dot(slots, values, k, k + 1, w, n, np.zeros(3), *self._hyper()) for k in range(len(slots))]
        return np.array(parts, dtype=np.float64)


# n is None for SGD: the kernels are then compiled without what FTRL needs.


@inlined
def _weight(s, w, n, rate, l1, l2, beta):
    if n is None:
        return w[s]
    z = w[s]
    if abs(z) <= l1:
        return 0.0
    sign = 1.0 if z > 0 else -1.0
    return -(z - sign * l1) / ((beta + math.sqrt(n[s])) / rate + l2)


@inlined
def _dot(slots, values, a, b, w, n, head, regression, rate, intercept_rate, l1, l2, beta):
    if n is None:
        return head[0] + dot(slots, values, a, b, w)
    total = head[0]
    for k in range(a, b):
        total += _weight(slots[k], w, n, rate, l1, l2, beta) * values[k]
    return total


@inlined
def _update(slots, values, a, b, y, fixed, w, n, head, regression, rate, intercept_rate, l1, l2, beta):
    """One step; returns the score before it."""
    score = _dot(slots, values, a, b, w, n, head, regression, rate, intercept_rate, l1, l2, beta)
    if regression:
        g = score - y
        if n is None:
            norm = 0.0
            for k in range(a, b):
                norm += values[k] * values[k]
            g /= 1.0 + rate * norm + intercept_rate
    else:
        e = math.exp(-abs(score))  # no overflow
        g = (1.0 if score >= 0.0 else e) / (1.0 + e) - y
    g *= row_weight(fixed, head, 1, y, regression)
    if n is not None:
        for k in range(a, b):
            s = slots[k]
            gi = g * values[k]
            current = _weight(s, w, n, rate, l1, l2, beta)
            sigma = (math.sqrt(n[s] + gi * gi) - math.sqrt(n[s])) / rate
            w[s] += gi - sigma * current
            n[s] += gi * gi
    else:
        for k in range(a, b):
            s = slots[k]
            w[s] -= rate * (g * values[k] + l2 * w[s])
    head[0] -= intercept_rate * g
    return score


@njit
def _run(indptr, slots, values, y, fixed, w, n, head, seen, regression, rate, intercept_rate, l1, l2, beta):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    for t in range(rows):
        a, b = indptr[t], indptr[t + 1]
        # an unlearned feature has weight 0, so it needs no skipping here
        if y[t] == y[t]:
            scores[t] = _update(
                slots, values, a, b, y[t], fixed, w, n, head, regression, rate, intercept_rate, l1, l2, beta
            )
            for k in range(a, b):
                seen[slots[k]] += 1
        else:
            scores[t] = _dot(slots, values, a, b, w, n, head, regression, rate, intercept_rate, l1, l2, beta)
    return scores
