"""The model: its parameters, its arrays, and how they grow."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.models.base import StreamModel, grown
from assay.streams.models.draws import draw_state
from assay.streams.models.dynfo.online import run_rows
from assay.streams.models.dynfo.state import Forest, Settings
from assay.streams.models.dynfo.voting import contributions, vote
from assay.streams.models.ranges import check_range, check_whole


class DynFo(StreamModel):
    """Dynamic forest: weighted stumps, relearned from a buffer of the last rows.

    A stump draws ``max(1, delta |U|)`` of the features known so far and keeps the best split of the buffer. Each row
    moves the weight of a stump by whether it was right, ``w <- (2 alpha [right] + w) / (1 + alpha)``, and takes
    ``epsilon`` from a stump whose feature is absent. Then a share ``1 - beta`` of the stumps with
    ``theta1 <= w < quantile(w, theta2)`` is relearned, those below ``theta1`` are dropped, and one is added while the
    error over the last N rows is above ``gamma``. Scores are shares of the weighted vote (a row on which no stump can
    vote: the class shares so far); ``task="regression"`` splits by variance and averages side means.

    What differs from haphazard 1.2.8, and why:

    1. A relearned stump takes the best split of its new features, not only one that beats its old Gini, which was
       measured on a buffer long gone.
    2. When the lowest weights are all tied at the quantile, so that none is below it, the tied stumps are relearned.
       On the first rows all stumps are the same and so are their weights; with a strict rule they stay so for good, or
       fall below ``theta1`` together and leave a forest of one.
    3. A forest whose stumps are all below ``theta1`` starts anew with M stumps, so it is never empty and no weight
       turns negative; and there are never more than ``2 M`` stumps, so the memory is bounded.
    4. Thresholds are midway between two values, not at one.
    5. The windows are kept sorted, and the best split of a feature is kept until its window changes.

    Parameters
    ----------
    M : int
        Stumps at the start.
    N : int
        Rows in the buffer, and in the window of the error.
    alpha, beta, delta, epsilon, gamma, theta1, theta2 : float
        As above. ``beta``, ``gamma``, ``theta1`` and ``theta2`` are in [0, 1], ``delta`` in (0, 1].
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.
    seed : int

    Raises
    ------
    StreamError
        If a parameter is out of its range.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> result = run(DynFo(M=20, N=200, delta=0.1), load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.942
    """

    native_multiclass = True
    regression = True
    deterministic = False

    def __init__(
        self,
        M: int = 1000,
        N: int = 1000,
        alpha: float = 0.5,
        beta: float = 0.3,
        delta: float = 0.01,
        epsilon: float = 0.001,
        gamma: float = 0.7,
        theta1: float = 0.05,
        theta2: float = 0.6,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
        seed: int = 0,
    ) -> None:
        self.M = M
        self.N = N
        self.alpha = alpha
        self.beta = beta
        self.delta = delta
        self.epsilon = epsilon
        self.gamma = gamma
        self.theta1 = theta1
        self.theta2 = theta2
        self.task = task
        self.classes = classes
        self.seed = seed
        self.reset()

    def _reset(self) -> None:
        check_whole("M", self.M, 1)
        check_whole("N", self.N, 1)
        check_range("alpha", self.alpha, 0, above=True)
        check_range("beta", self.beta, 0, 1)
        check_range("delta", self.delta, 0, 1, above=True)
        check_range("epsilon", self.epsilon, 0)
        check_range("gamma", self.gamma, 0, 1)
        check_range("theta1", self.theta1, 0, 1)
        check_range("theta2", self.theta2, 0, 1)
        self._draws = draw_state(self.seed)
        self._clock = np.zeros(4, dtype=np.int64)  # rows learned, features known, stumps, errors in the window
        self._totals = np.zeros(2)  # classification: rows of each class; regression: mean of the targets
        self._targets = np.zeros(self.N)  # of the rows in the buffer, at row % N
        self._wrong = np.zeros(self.N, dtype=np.int64)
        self._order = np.zeros(8, dtype=np.int64)  # the known features, in an order that draws have shuffled
        self._length = np.zeros(8, dtype=np.int64)
        self._values = np.zeros((8, min(self.N, 8)))  # a feature's observed values in the buffer, ascending
        self._rows = np.zeros((8, min(self.N, 8)), dtype=np.int64)  # and the rows that they are of
        self._until = np.zeros(8, dtype=np.int64)  # the split below holds before this row
        self._split = np.zeros((8, 2))  # impurity and threshold
        self._split_left = np.zeros((8, 1))
        self._split_right = np.zeros((8, 1))
        size = 2 * self.M
        self._feature = np.zeros(size, dtype=np.int64)
        self._threshold = np.zeros(size)
        self._weight = np.zeros(size)
        self._left = np.zeros((size, 1))  # class shares (regression: mean target) at or below the threshold
        self._right = np.zeros((size, 1))

    def _grow(self, n: int) -> None:
        for name in ("_order", "_length", "_values", "_rows", "_until", "_split", "_split_left", "_split_right"):
            setattr(self, name, grown(getattr(self, name), n))

    def _grow_classes(self, k: int) -> None:
        wider = k - self._left.shape[1]
        if wider > 0:
            for name in ("_split_left", "_split_right", "_left", "_right"):
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, wider))))
        self._totals = np.pad(self._totals, (0, max(0, k - len(self._totals))))

    def _widen(self) -> None:
        width = min(self.N, 2 * self._values.shape[1])
        more = ((0, 0), (0, width - self._values.shape[1]))
        self._values = np.pad(self._values, more)
        self._rows = np.pad(self._rows, more)

    def _forest(self) -> Forest:
        return Forest(
            self._clock, self._draws, self._totals, self._targets, self._wrong, self._order, self._length, self._values,
            self._rows, self._until, self._split, self._split_left, self._split_right, self._feature, self._threshold,
            self._weight, self._left, self._right,
        )  # fmt: skip

    def _settings(self) -> Settings:
        return Settings(
            self.task == "regression", self.M, float(self.alpha), float(self.beta), float(self.delta),
            float(self.epsilon), float(self.gamma), float(self.theta1), float(self.theta2),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        votes = np.zeros(self._left.shape[1])
        cell = np.full(len(self._length), -1, dtype=np.int64)
        vote(slots, values, cell, votes, self._forest(), self._settings())
        return float(votes[0]) if self.task == "regression" else votes[: len(self._labels.classes)]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        while len(slots) and self._length[slots].max() >= self._values.shape[1] < self.N:
            self._widen()
        # the vote on the row comes first, as in a run; the caller counts the features as seen
        indptr, y, scores = np.array([0, len(slots)]), np.array([float(target)]), np.zeros((1, self._left.shape[1]))
        run_rows(0, indptr, slots, values, y, scores, self._seen.copy(), self._forest(), self._settings())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        y = targets if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        scores = np.zeros((len(y), self._left.shape[1]))
        start = 0
        while start < len(y):
            start = run_rows(start, indptr, slots, values, y, scores, self._seen, self._forest(), self._settings())
            if start < len(y):
                self._widen()
        return scores[:, 0] if self.task == "regression" else scores

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of each feature's stumps in the score (more than two classes: in the score of the predicted class).

        In regression: in its difference to the mean of the targets, which is divided equally.
        """
        votes = np.zeros(self._left.shape[1])
        cell = np.full(len(self._length), -1, dtype=np.int64)
        total = vote(slots, values, cell, votes, self._forest(), self._settings())
        parts = np.zeros((len(slots), self._left.shape[1]))
        base = self._totals[0] if self.task == "regression" else 0.0
        contributions(slots, values, cell, parts, base, self._forest())
        parts /= total if total > 0 else 1.0
        if self.task == "regression":
            return parts[:, 0] + base / max(len(slots), 1)
        if parts.shape[1] == 1:
            return parts[:, 0]
        return parts[:, 1] - parts[:, 0] if parts.shape[1] == 2 else parts[:, np.argmax(votes)]
