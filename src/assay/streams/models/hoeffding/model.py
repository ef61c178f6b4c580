"""The model: its parameters, its arrays, and how they grow."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.hoeffding.online import predict, run_rows, update
from assay.streams.models.hoeffding.state import ADAPTIVE, BAYES, LEAVES, SHARES, Scratch, Settings, Tree
from assay.streams.models.ranges import check_range, check_whole


class MaskedHoeffdingTree(StreamModel):
    """Hoeffding tree over any feature ids, with absent values routed down both branches or down the heavier one.

    A leaf splits when the best feature is better than the second best (and than no split) by more than the Hoeffding
    bound ``sqrt(R^2 ln(1 / delta) / (2 n))``, or when the bound is below ``tau``. Merit is information gain in
    classification (R = log2 of the classes in the leaf), the share of variance removed in regression (R = 1), on the
    rows that have the feature, times their share of the leaf.

    Scores are class shares; the leaves of a regression tree predict their mean.

    Parameters
    ----------
    grace_period : float
        Weight of rows between two attempts to split a leaf.
    delta : float
        In (0, 1): chance that a split is wrong.
    tau : float
        At least 0: a bound below it decides a tie.
    missing : {"branches", "majority"}
        A row without the split feature goes down both branches by weight (parts lighter than .01 of the row join the
        heavier branch), or down the branch that more rows took.
    leaf : {"adaptive", "bayes", "shares"}
        Classification: class shares, naive Bayes on the features present (normal densities or histograms), or whichever
        has been right more often in that leaf (Gama, Rocha and Medas, KDD 2003).
    observer : {"gaussian", "histogram"}, optional
        What a leaf keeps of a feature: a normal distribution a class (ten thresholds are tried), or a histogram whose
        range doubles when a value falls outside. Default: Gaussian in classification, histogram in regression (where a
        normal distribution of the feature says nothing of the target).
    bins : int
        Of a histogram: an even number, at least 4.
    max_leaves : int
        The tree stops growing there, which bounds the memory.
    task : {"classification", "regression"}
    classes : sequence of labels, optional
        Default: grown on first sight.

    Raises
    ------
    StreamError
        If a parameter is out of its range, or a Gaussian observer is asked for in regression.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> tree = MaskedHoeffdingTree()
    >>> result = run(tree, load("wdbc").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["auroc"], 3)
    0.975
    """

    native_multiclass = True
    regression = True

    def __init__(
        self,
        grace_period: float = 200,
        delta: float = 1e-7,
        tau: float = 0.05,
        missing: str = "branches",
        leaf: str = "adaptive",
        observer: str | None = None,
        bins: int = 32,
        max_leaves: int = 512,
        task: str = "classification",
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.grace_period = grace_period
        self.delta = delta
        self.tau = tau
        self.missing = missing
        self.leaf = leaf
        self.observer = observer
        self.bins = bins
        self.max_leaves = max_leaves
        self.task = task
        self.classes = classes
        self.reset()

    def _reset(self) -> None:
        check_range("grace_period", self.grace_period, 1)
        check_range("delta", self.delta, 0, 1, above=True)
        check_range("tau", self.tau, 0)
        check_whole("bins", self.bins, 4)
        check_whole("max_leaves", self.max_leaves, 1)
        if self.bins % 2:
            raise StreamError(f"bins is an even number, not {self.bins}")
        if self.missing not in ("branches", "majority"):
            raise StreamError(f"missing is 'branches' or 'majority', not {self.missing!r}")
        if self.leaf not in ("adaptive", "bayes", "shares"):
            raise StreamError(f"leaf is 'adaptive', 'bayes' or 'shares', not {self.leaf!r}")
        if self.observer not in (None, "gaussian", "histogram"):
            raise StreamError(f"observer is 'gaussian' or 'histogram', not {self.observer!r}")
        if self.task == "regression" and self.observer == "gaussian":
            raise StreamError("observer is 'histogram' in regression: a Gaussian observer says nothing of the target")
        leaves = min(8, self.max_leaves)
        self._clock = np.array([0, 1, 1], dtype=np.int64)  # features known, nodes, leaves
        self._shift = np.full(1, np.nan)  # regression: targets are kept relative to the first one
        self._order = np.zeros(8, dtype=np.int64)  # the known features, in order of first sight
        self._feature = np.full(2 * leaves, -1, dtype=np.int64)  # that a node splits on; -1: it is a leaf
        self._threshold = np.zeros(2 * leaves)
        self._children = np.zeros((2 * leaves, 2), dtype=np.int64)
        self._observed = np.zeros((2 * leaves, 2))  # weight of the rows that had the feature, by side
        self._leaf = np.zeros(2 * leaves, dtype=np.int64)  # a leaf's row in the arrays below
        self._stats = np.zeros((leaves, 1))  # weight of each class (regression: weight, sum, sum of squares)
        self._next = np.zeros(leaves)  # weight at which a split is tried next
        self._correct = np.zeros((leaves, 2))  # weight of rows that shares and naive Bayes had right
        self._cells = np.zeros((leaves, 8, 2))  # observers
        self._grow_classes(3 if self.task == "regression" else 1)
        self._next[0] = self.grace_period

    def _grow(self, n: int) -> None:
        self._order = grown(self._order, n)
        if n > self._cells.shape[1]:
            more = max(n, 2 * self._cells.shape[1]) - self._cells.shape[1]
            self._cells = np.pad(self._cells, ((0, 0), (0, more), (0, 0)))

    def _grow_classes(self, k: int) -> None:
        wider = k - self._stats.shape[1]
        if wider > 0:
            self._stats = np.pad(self._stats, ((0, 0), (0, wider)))
        more = 2 + (self.bins if self._histogram else 3) * self._stats.shape[1] - self._cells.shape[2]
        if more > 0:
            self._cells = np.pad(self._cells, ((0, 0), (0, 0), (0, more)))

    def _make_room(self) -> None:
        """Room for every leaf to split at the next row."""
        leaves = len(self._stats)
        if self._clock[LEAVES] * 2 > leaves and leaves < self.max_leaves:
            leaves = min(2 * leaves, self.max_leaves)
            more = leaves - len(self._stats)
            for name in ("_stats", "_next", "_correct", "_cells"):
                array = getattr(self, name)
                setattr(self, name, np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1)))
            for name in ("_threshold", "_children", "_observed", "_leaf"):
                array = getattr(self, name)
                setattr(self, name, np.pad(array, [(0, 2 * more)] + [(0, 0)] * (array.ndim - 1)))
            self._feature = np.pad(self._feature, (0, 2 * more), constant_values=-1)

    @property
    def _histogram(self) -> bool:
        return self.task == "regression" or self.observer == "histogram"

    @property
    def n_leaves(self) -> int:
        """Leaves of the tree."""
        return int(self._clock[LEAVES])

    def _tree(self) -> Tree:
        return Tree(
            self._clock, self._shift, self._order, self._feature, self._threshold, self._children, self._observed,
            self._leaf, self._stats, self._next, self._correct, self._cells,
        )  # fmt: skip

    def _settings(self) -> Settings:
        leaf = {"shares": SHARES, "bayes": BAYES, "adaptive": ADAPTIVE}[self.leaf]
        return Settings(
            self.task == "regression", self._histogram, self.missing == "branches", leaf, self.bins,
            float(self.grace_period), math.log(1 / self.delta), float(self.tau), self.max_leaves,
        )  # fmt: skip

    def _scratch(self) -> Scratch:
        n, k = len(self._feature), self._stats.shape[1]
        return Scratch(
            np.full(self._cells.shape[1], -1, np.int64), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64),
            np.zeros(n), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        scores = np.zeros(1 if self.task == "regression" else self._stats.shape[1])
        predict(slots, values, scores, self._tree(), self._settings(), self._scratch())
        return float(scores[0]) if self.task == "regression" else scores[: len(self._labels.classes)]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        self._make_room()
        update(slots, values, float(target), self._seen, self._tree(), self._settings(), self._scratch())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        y = targets if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        scores = np.zeros((len(y), 1 if self.task == "regression" else self._stats.shape[1]))
        start = 0
        while start < len(y):
            self._make_room()
            state = self._tree(), self._settings(), self._scratch()
            start = run_rows(start, indptr, slots, values, y, scores, self._seen, *state)
        return scores[:, 0] if self.task == "regression" else scores
