"""A Hoeffding tree whose rows may lack the feature that a node splits on.

Domingos and Hulten, "Mining high-speed data streams" (KDD 2000), for the tree; Quinlan, "C4.5: Programs for Machine
Learning" (1993), for absent values: the gain of a split counts by the share of rows that have the feature, and a row
without it goes down both branches, weighted by the shares of the rows that had it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.ranges import check_range, check_whole

FEATURES, NODES, LEAVES = 0, 1, 2
SHARES, BAYES, ADAPTIVE = 0, 1, 2
MIN, MAX = 0, 1  # of a Gaussian observer, before n, mean and sum of squares of each class
ORIGIN, WIDTH = 0, 1  # of a histogram, before the bins of each class
LIGHTEST = 0.01  # a row is not divided into parts lighter than this
CANDIDATES = 10  # thresholds that are tried on a Gaussian observer
LEAST_BRANCH = 0.01  # of the rows that have the feature


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

    def _tree(self) -> _Tree:
        return _Tree(
            self._clock, self._shift, self._order, self._feature, self._threshold, self._children, self._observed,
            self._leaf, self._stats, self._next, self._correct, self._cells,
        )  # fmt: skip

    def _settings(self) -> _Settings:
        leaf = {"shares": SHARES, "bayes": BAYES, "adaptive": ADAPTIVE}[self.leaf]
        return _Settings(
            self.task == "regression", self._histogram, self.missing == "branches", leaf, self.bins,
            float(self.grace_period), math.log(1 / self.delta), float(self.tau), self.max_leaves,
        )  # fmt: skip

    def _scratch(self) -> _Scratch:
        n, k = len(self._feature), self._stats.shape[1]
        return _Scratch(
            np.full(self._cells.shape[1], -1, np.int64), np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.int64),
            np.zeros(n), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        scores = np.zeros(1 if self.task == "regression" else self._stats.shape[1])
        _predict(slots, values, scores, self._tree(), self._settings(), self._scratch())
        return float(scores[0]) if self.task == "regression" else scores[: len(self._labels.classes)]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        self._make_room()
        _update(slots, values, float(target), self._seen, self._tree(), self._settings(), self._scratch())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        y = targets if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        scores = np.zeros((len(y), 1 if self.task == "regression" else self._stats.shape[1]))
        start = 0
        while start < len(y):
            self._make_room()
            state = self._tree(), self._settings(), self._scratch()
            start = _run(start, indptr, slots, values, y, scores, self._seen, *state)
        return scores[:, 0] if self.task == "regression" else scores


class _Tree(NamedTuple):
    clock: NDArray[np.int64]
    shift: NDArray[np.float64]
    order: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    children: NDArray[np.int64]
    observed: NDArray[np.float64]
    leaf: NDArray[np.int64]
    stats: NDArray[np.float64]
    next: NDArray[np.float64]
    correct: NDArray[np.float64]
    cells: NDArray[np.float64]


class _Settings(NamedTuple):
    regression: bool
    histogram: bool
    branches: bool
    leaf: int
    bins: int
    grace: float
    log_delta: float
    tau: float
    max_leaves: int


class _Scratch(NamedTuple):
    cell: NDArray[np.int64]  # where a feature is in the row, -1 if absent
    nodes: NDArray[np.int64]  # still to visit
    parts: NDArray[np.float64]
    leaves: NDArray[np.int64]  # nodes reached
    weights: NDArray[np.float64]
    shares: NDArray[np.float64]
    bayes: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    best: NDArray[np.float64]


@njit
def _route(slots, values, learn, tree, settings, room):
    """Leaves that the row reaches, with its weight in each; returns their number."""
    for k in range(len(slots)):
        room.cell[slots[k]] = k
    room.nodes[0] = 0
    room.parts[0] = 1.0
    waiting = 1
    reached = 0
    while waiting > 0:
        waiting -= 1
        node = room.nodes[waiting]
        weight = room.parts[waiting]
        f = tree.feature[node]
        if f < 0:
            room.leaves[reached] = node
            room.weights[reached] = weight
            reached += 1
            continue
        k = room.cell[f]
        if k >= 0:
            side = 0 if values[k] <= tree.threshold[node] else 1
            if learn:
                tree.observed[node, side] += weight
            room.nodes[waiting] = tree.children[node, side]
            room.parts[waiting] = weight
            waiting += 1
            continue
        share = tree.observed[node, 0] / (tree.observed[node, 0] + tree.observed[node, 1])
        if not settings.branches or weight * min(share, 1.0 - share) < LIGHTEST:
            share = 1.0 if share >= 0.5 else 0.0
        for side in range(1, -1, -1):
            part = weight * (share if side == 0 else 1.0 - share)
            if part > 0.0:
                room.nodes[waiting] = tree.children[node, side]
                room.parts[waiting] = part
                waiting += 1
    for k in range(len(slots)):
        room.cell[slots[k]] = -1
    return reached


@njit
def _class_shares(leaf, out, tree):
    total = 0.0
    for c in range(len(out)):
        total += tree.stats[leaf, c]
    for c in range(len(out)):
        out[c] = tree.stats[leaf, c] / total if total > 0.0 else 0.0


@njit
def _naive_bayes(slots, values, leaf, out, tree, settings):
    """Posterior of the classes met in the leaf, from the features of the row that the leaf has seen."""
    classes = len(out)
    total = 0.0
    for c in range(classes):
        total += tree.stats[leaf, c]
    for c in range(classes):
        weight = tree.stats[leaf, c]
        out[c] = math.log(weight / total) if weight > 0.0 else -np.inf
    for k in range(len(slots)):
        cells = tree.cells[leaf, slots[k]]
        if settings.histogram:
            _add_histogram(cells, values[k], out, settings.bins)
        else:
            _add_gaussian(cells, values[k], out)
    highest = -np.inf
    for c in range(classes):
        highest = max(highest, out[c])
    total = 0.0
    for c in range(classes):
        out[c] = math.exp(out[c] - highest) if highest > -np.inf else 0.0
        total += out[c]
    for c in range(classes):
        out[c] /= max(total, 1.0)


@njit
def _add_gaussian(cells, x, out):
    # the pooled distribution stands in for a class that has not met the feature, and adds its variance to the others
    # as one observation, so that a class with few rows is not certain of anything
    n = 0.0
    mean = 0.0
    squares = 0.0
    for c in range(len(out)):
        nc = cells[2 + 3 * c]
        if nc > 0.0:
            difference = cells[3 + 3 * c] - mean
            mean += difference * nc / (n + nc)
            squares += cells[4 + 3 * c] + difference * difference * n * nc / (n + nc)
            n += nc
    if n <= 1.0 or squares <= 1e-12 * n * (1.0 + mean * mean):
        return
    pooled = squares / n
    for c in range(len(out)):
        nc = cells[2 + 3 * c]
        center = cells[3 + 3 * c] if nc > 0.0 else mean
        variance = (cells[4 + 3 * c] + pooled) / max(nc, 1.0)
        out[c] -= 0.5 * (math.log(variance) + (x - center) * (x - center) / variance)


@njit
def _add_histogram(cells, x, out, bins):
    if cells[WIDTH] == 0.0:
        return
    b = int(min(max(math.floor((x - cells[ORIGIN]) / cells[WIDTH]), 0.0), bins - 1.0))
    for c in range(len(out)):
        n = 0.0
        for i in range(bins):
            n += cells[2 + c * bins + i]
        out[c] += math.log((cells[2 + c * bins + b] + 1.0 / bins) / (n + 1.0))


@njit
def _leaf_shares(slots, values, leaf, tree, settings, room):
    """What the leaf predicts, and fills ``room.shares`` and ``room.bayes``."""
    _class_shares(leaf, room.shares, tree)
    if settings.leaf == SHARES:
        return room.shares
    _naive_bayes(slots, values, leaf, room.bayes, tree, settings)
    if settings.leaf == BAYES or tree.correct[leaf, 1] >= tree.correct[leaf, 0]:
        return room.bayes
    return room.shares


@njit
def _predict(slots, values, scores, tree, settings, room):
    for c in range(len(scores)):
        scores[c] = 0.0
    reached = _route(slots, values, False, tree, settings, room)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        if settings.regression:
            if tree.stats[leaf, 0] > 0.0:
                scores[0] += room.weights[i] * (tree.shift[0] + tree.stats[leaf, 1] / tree.stats[leaf, 0])
        else:
            shares = _leaf_shares(slots, values, leaf, tree, settings, room)
            for c in range(len(scores)):
                scores[c] += room.weights[i] * shares[c]


@njit
def _update(slots, values, target, seen, tree, settings, room):
    for k in range(len(slots)):
        if seen[slots[k]] == 0:
            tree.order[tree.clock[FEATURES]] = slots[k]
            tree.clock[FEATURES] += 1
    if settings.regression:
        if np.isnan(tree.shift[0]):
            tree.shift[0] = target
        target = target - tree.shift[0]
    reached = _route(slots, values, True, tree, settings, room)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        weight = room.weights[i]
        if settings.regression:
            tree.stats[leaf, 0] += weight
            tree.stats[leaf, 1] += weight * target
            tree.stats[leaf, 2] += weight * target * target
        else:
            c = int(target)
            if settings.leaf == ADAPTIVE:
                _leaf_shares(slots, values, leaf, tree, settings, room)
                if np.argmax(room.shares) == c:
                    tree.correct[leaf, 0] += weight
                if np.argmax(room.bayes) == c:
                    tree.correct[leaf, 1] += weight
            tree.stats[leaf, c] += weight
        for k in range(len(slots)):
            cells = tree.cells[leaf, slots[k]]
            if settings.histogram:
                _observe_histogram(cells, values[k], target, weight, settings)
            else:
                _observe_gaussian(cells, values[k], int(target), weight)
    for i in range(reached):
        leaf = tree.leaf[room.leaves[i]]
        if _weight(leaf, tree, settings) >= tree.next[leaf] and tree.clock[LEAVES] < settings.max_leaves:
            _try_split(room.leaves[i], tree, settings, room)


@njit
def _weight(leaf, tree, settings):
    if settings.regression:
        return tree.stats[leaf, 0]
    total = 0.0
    for c in range(tree.stats.shape[1]):
        total += tree.stats[leaf, c]
    return total


@njit
def _observe_gaussian(cells, x, c, weight):
    any_seen = False
    for i in range(2, len(cells), 3):
        any_seen = any_seen or cells[i] > 0.0
    cells[MIN] = min(cells[MIN], x) if any_seen else x
    cells[MAX] = max(cells[MAX], x) if any_seen else x
    at = 2 + 3 * c
    cells[at] += weight
    step = (x - cells[at + 1]) * weight / cells[at]
    cells[at + 2] += weight * (x - cells[at + 1]) * (x - cells[at + 1] - step)
    cells[at + 1] += step


@njit
def _observe_histogram(cells, x, target, weight, settings):
    bins = settings.bins
    groups = (len(cells) - 2) // bins
    if cells[WIDTH] == 0.0:
        # one value so far, and all of it in the first bin
        empty = True
        for g in range(groups):
            empty = empty and cells[2 + g * bins] == 0.0
        if empty:
            cells[ORIGIN] = x
    if cells[WIDTH] == 0.0 and x != cells[ORIGIN]:
        # second value: both fall into the middle half, the first at the start of bin bins / 2
        first = cells[ORIGIN]
        cells[WIDTH] = 4.0 * abs(x - first) / bins
        cells[ORIGIN] = first - (bins // 2) * cells[WIDTH]
        for g in range(groups):
            cells[2 + g * bins + bins // 2] = cells[2 + g * bins]
            cells[2 + g * bins] = 0.0
    b = 0
    if cells[WIDTH] > 0.0:
        while x < cells[ORIGIN] or x >= cells[ORIGIN] + bins * cells[WIDTH]:
            _double_range(cells, x < cells[ORIGIN], groups, bins)
        b = min(int((x - cells[ORIGIN]) / cells[WIDTH]), bins - 1)
    if settings.regression:
        cells[2 + b] += weight
        cells[2 + bins + b] += weight * target
        cells[2 + 2 * bins + b] += weight * target * target
    else:
        cells[2 + int(target) * bins + b] += weight


@njit
def _double_range(cells, downwards, groups, bins):
    """Merge bins in pairs; the room that this makes is below or above."""
    half = bins // 2
    for g in range(groups):
        start = 2 + g * bins
        if downwards:
            for i in range(half - 1, -1, -1):
                cells[start + half + i] = cells[start + 2 * i] + cells[start + 2 * i + 1]
            for i in range(half):
                cells[start + i] = 0.0
        else:
            for i in range(half):
                cells[start + i] = cells[start + 2 * i] + cells[start + 2 * i + 1]
            for i in range(half, bins):
                cells[start + i] = 0.0
    if downwards:
        cells[ORIGIN] -= bins * cells[WIDTH]
    cells[WIDTH] *= 2.0


@njit
def _try_split(node, tree, settings, room):
    leaf = tree.leaf[node]
    stats = tree.stats[leaf]
    total = _weight(leaf, tree, settings)
    tree.next[leaf] = total + settings.grace
    spread = 1.0
    if not settings.regression:
        met = 0
        for c in range(len(stats)):
            if stats[c] > 0.0:
                met += 1
        if met < 2:
            return
        spread = math.log2(met)
    best_merit = 0.0
    second_merit = 0.0  # "no split" competes too
    best_feature = -1
    best_threshold = 0.0
    for i in range(tree.clock[FEATURES]):
        f = tree.order[i]
        merit, threshold = _best_threshold(tree.cells[leaf, f], total, settings, room)
        if merit > best_merit:
            second_merit = best_merit
            best_merit = merit
            best_feature = f
            best_threshold = threshold
            _copy(room.shares, room.best)
        elif merit > second_merit:
            second_merit = merit
    bound = spread * math.sqrt(settings.log_delta / (2.0 * total))
    if best_feature < 0 or (best_merit - second_merit <= bound and bound >= settings.tau):
        return

    # the leaf becomes a node; its left child takes over its row, the right child gets the next one
    _totals(tree.cells[leaf, best_feature], room.right, settings)
    left = room.best
    right = room.right
    for c in range(len(left)):
        right[c] -= left[c]
    left_weight = _side_weight(left, settings)
    right_weight = _side_weight(right, settings)
    share = left_weight / (left_weight + right_weight)
    tree.feature[node] = best_feature
    tree.threshold[node] = best_threshold
    tree.observed[node, 0] = left_weight
    tree.observed[node, 1] = right_weight
    other = tree.clock[LEAVES]
    first = tree.clock[NODES]
    tree.clock[LEAVES] += 1
    tree.clock[NODES] += 2
    tree.children[node, 0] = first
    tree.children[node, 1] = first + 1
    tree.leaf[first] = leaf
    tree.leaf[first + 1] = other
    for c in range(len(left)):
        absent = stats[c] - left[c] - right[c]
        tree.stats[other, c] = right[c] + (1.0 - share) * absent
        stats[c] = left[c] + share * absent
    for row in (leaf, other):
        for i in range(tree.clock[FEATURES]):
            cells = tree.cells[row, tree.order[i]]
            for k in range(len(cells)):
                cells[k] = 0.0
        tree.correct[row, 0] = 0.0
        tree.correct[row, 1] = 0.0
        tree.next[row] = _weight(row, tree, settings) + settings.grace


@njit
def _copy(source, to):
    for c in range(len(to)):
        to[c] = source[c]


@njit
def _best_threshold(cells, total, settings, room):
    """Highest merit of a feature and its threshold; ``room.shares`` is what is left of it."""
    merit = 0.0
    best = 0.0
    whole = room.right
    left = room.left
    _totals(cells, whole, settings)
    observed = _side_weight(whole, settings)
    if observed <= 0.0:
        return merit, best
    for c in range(len(left)):
        left[c] = 0.0
    candidates = settings.bins - 1 if settings.histogram else CANDIDATES
    if settings.histogram and cells[WIDTH] == 0.0:
        return merit, best
    for i in range(candidates):
        if settings.histogram:
            threshold = cells[ORIGIN] + (i + 1) * cells[WIDTH]
            for c in range(len(left)):
                left[c] += cells[2 + c * settings.bins + i]
        else:
            threshold = cells[MIN] + (cells[MAX] - cells[MIN]) * (i + 1) / (CANDIDATES + 1)
            for c in range(len(left)):
                left[c] = _gaussian_below(cells, c, threshold)
        below = _side_weight(left, settings)
        if min(below, observed - below) < LEAST_BRANCH * observed:
            continue
        gain = _gain(whole, left, observed, below, settings) * observed / total
        if gain > merit:
            merit = gain
            best = threshold
            _copy(left, room.shares)
    return merit, best


@njit
def _totals(cells, out, settings):
    """Weight of each class (regression: weight, sum, sum of squares) over the rows that have the feature."""
    for c in range(len(out)):
        if settings.histogram:
            out[c] = 0.0
            for i in range(settings.bins):
                out[c] += cells[2 + c * settings.bins + i]
        else:
            out[c] = cells[2 + 3 * c]


@njit
def _side_weight(side, settings):
    if settings.regression:
        return side[0]
    total = 0.0
    for c in range(len(side)):
        total += side[c]
    return total


@njit
def _gaussian_below(cells, c, threshold):
    """Weight of a class at or below a threshold, by its normal distribution."""
    n = cells[2 + 3 * c]
    if n <= 0.0:
        return 0.0
    deviation = math.sqrt(cells[4 + 3 * c] / n)
    if deviation == 0.0:
        return n if cells[3 + 3 * c] <= threshold else 0.0
    return n * 0.5 * math.erfc((cells[3 + 3 * c] - threshold) / (deviation * math.sqrt(2.0)))


@njit
def _gain(whole, left, observed, below, settings):
    """Information gain in bits, or share of the variance that the split removes."""
    above = observed - below
    if settings.regression:
        squares = whole[2] - whole[1] * whole[1] / observed
        if squares <= 0.0:
            return 0.0
        between = left[1] * left[1] / below + (whole[1] - left[1]) * (whole[1] - left[1]) / above
        return (between - whole[1] * whole[1] / observed) / squares
    gain = 0.0
    for c in range(len(whole)):
        gain -= _bits(whole[c] / observed)
        gain += below / observed * _bits(left[c] / below)
        gain += above / observed * _bits((whole[c] - left[c]) / above)
    return gain


@njit
def _bits(share):
    return share * math.log2(share) if share > 0.0 else 0.0


@njit
def _run(start, indptr, slots, values, targets, scores, seen, tree, settings, room):
    """Score and learn from row ``start`` on; returns the row before which the tree needs room, or the end."""
    n = len(indptr) - 1
    for t in range(start, n):
        if tree.clock[LEAVES] * 2 > len(tree.stats) and len(tree.stats) < settings.max_leaves:
            return t
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        # a slot not learned yet is empty in every leaf, so it needs no skipping
        _predict(s, v, scores[t], tree, settings, room)
        if targets[t] == targets[t]:
            _update(s, v, targets[t], seen, tree, settings, room)
            for k in range(len(s)):
                seen[s[k]] += 1
    return n
