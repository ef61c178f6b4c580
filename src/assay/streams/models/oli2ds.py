"""OLI2DS: learning from incomplete and imbalanced data streams (You et al., IEEE TKDE 2023)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.inlined import inlined
from assay.streams.models.margin import margin_loss, optional_weights, row_weight, signed_targets
from assay.streams.models.olifl import count_in
from assay.streams.models.passive_aggressive import dot
from assay.streams.models.ranges import check_range
from assay.streams.models.top_k import kth_largest


class OLI2DS(StreamModel):
    """A cost-sensitive passive-aggressive learner that weighs shared against new features by their variance.

    With ``ps`` and ``pn`` the shares of variance in the row's shared and new features the score is ``ps w_S.x_S``. (A
    new feature has weight 0, and `score_one` does not look at it, so there ps is 1.) The step is ``w_S += tau y ps a
    x_S`` and ``w_N += tau y pn a x_N`` with ``tau = min(C, l / (ps^2 |x_S|^2 + pn^2 |x_N|^2))``, l the hinge loss and
    a the cost ``theta / (1 + P/Q)`` of a positive, ``theta / (1 + Q/P)`` of a negative row, where P and Q count the
    two classes so far from 1. Then w is shrunk to ``sum of k_i |w_i| <= reg`` (k_i the feature's share of the
    variance of all features seen) and cut to its ``B |U|`` largest entries. Running variances include the row's own
    values. After You et al., IEEE TKDE 35 (2023), 10650-10665. In regression the loss is
    epsilon-insensitive and a is 1.

    Parameters
    ----------
    C : float
        Largest tau, above 0.
    theta : float
        Scale of the costs, above 0; the paper searches 1 to 10.
    B : float
        Share of the features seen that keep a weight, above 0 and at most 1; at least one is kept.
    reg : float
        Bound (lambda) on the weighted 1-norm of w, above 0.
    epsilon : float
        Regression: residuals up to this size are no loss.
    class_weight : dict or "balanced", optional
        Multiplies the step by the weight of the row's class, on top of a.
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
    >>> result = run(OLI2DS(), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.983
    """

    regression = True
    unit_target = True

    def __init__(
        self,
        C: float = 0.01,
        theta: float = 8.0,
        B: float = 1.0,
        reg: float = 30.0,
        epsilon: float = 0.1,
        class_weight: Mapping[Hashable, float] | str | None = None,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.C = C
        self.theta = theta
        self.B = B
        self.reg = reg
        self.epsilon = epsilon
        self.class_weight = class_weight
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("C", self.C, 0, above=True)
        check_range("theta", self.theta, 0, above=True)
        check_range("B", self.B, 0, 1, above=True)
        check_range("reg", self.reg, 0, above=True)
        check_range("epsilon", self.epsilon, 0)
        self._w = np.zeros(8)
        self._stats = np.zeros((8, 3))  # count, mean and variance of each feature
        # Slots in the order in which they were first learned: what runs over all features runs in this order, so that
        # a feature first met in an unlabelled row changes no sum.
        self._order = np.zeros(8, dtype=np.int64)
        self._counts = np.zeros(4)  # rows learned of class 0 and 1: for class_weight, then for P and Q
        self._sums = np.zeros(3)  # sum of var, sum of var |w|, features learned

    def _grow(self, n: int) -> None:
        self._w = grown(self._w, n)
        self._stats = grown(self._stats, n)
        self._order = grown(self._order, n)

    def _hyper(self) -> tuple[Any, ...]:
        numbers = float(self.C), float(self.theta), float(self.B), float(self.reg)
        return *numbers, self.task == "regression", float(self.epsilon)

    def _state(self) -> tuple[Any, Any, Any, Any, Any]:
        return self._w, self._stats, self._order, self._counts, self._sums

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
        return _run(indptr, slots, values, y, fixed, *self._state(), self._seen, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._w[slots] * values


@inlined
def _update(slots, values, a, b, y, fixed, w, stats, order, counts, sums, C, theta, B, reg, regression, epsilon):
    """One step; returns the score before it."""
    P = counts[3] + 1.0
    Q = counts[2] + 1.0
    weight = row_weight(fixed, counts, 0, y, regression)
    if not regression:
        counts[3 if y > 0.0 else 2] += 1.0
        weight *= theta / (1.0 + (P / Q if y > 0.0 else Q / P))
    product = 0.0
    shared, new = 0.0, 0.0  # variance
    norm_shared, norm_new = 0.0, 0.0
    for k in range(a, b):
        s = slots[k]
        x = values[k]
        sums[0] -= stats[s, 2]
        sums[1] -= stats[s, 2] * abs(w[s])
        variance = count_in(stats, s, x)
        sums[0] += variance
        if stats[s, 0] == 1.0:
            order[int(sums[2])] = s
            sums[2] += 1.0
            new += variance
            norm_new += x * x
        else:
            shared += variance
            norm_shared += x * x
            product += w[s] * x
    tau, step, ps, pn = 0.0, 0.0, 0.0, 0.0
    if norm_shared + norm_new > 0.0:
        ps = shared / (shared + new)
        pn = new / (shared + new)
        loss, direction = margin_loss(ps * product, y, regression, epsilon)
        tau = min(C, loss / (ps * ps * norm_shared + pn * pn * norm_new))
        step = tau * weight * direction
    for k in range(a, b):
        s = slots[k]
        if tau > 0.0:
            w[s] += step * (pn if stats[s, 0] == 1.0 else ps) * values[k]
        sums[1] += stats[s, 2] * abs(w[s])
    if sums[1] > reg * sums[0]:
        factor = reg * sums[0] / sums[1]
        for i in range(len(w)):
            w[i] *= factor
        sums[1] = reg * sums[0]
    if B < 1.0 and sums[2] > 0.0:
        # Weights not in use are 0 and the least, so the cut over all slots is the cut over the features seen.
        cut = kth_largest(np.abs(w), max(1, int(B * sums[2])))
        for s in order[: int(sums[2])]:
            if abs(w[s]) < cut:
                sums[1] -= stats[s, 2] * abs(w[s])
                w[s] = 0.0
    return product


@njit
def _run(indptr, slots, values, y, fixed, w, stats, order, counts, sums, seen, C, theta, B, reg, regression, epsilon):
    rows = len(indptr) - 1
    scores = np.empty(rows)
    for t in range(rows):
        a, b = indptr[t], indptr[t + 1]
        if y[t] == y[t]:
            scores[t] = _update(
                slots, values, a, b, y[t], fixed, w, stats, order, counts, sums, C, theta, B, reg, regression, epsilon
            )
            for k in range(a, b):
                seen[slots[k]] += 1
        else:
            scores[t] = dot(slots, values, a, b, w)
    return scores
