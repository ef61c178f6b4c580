"""DynFo: a dynamic forest of decision stumps over whatever features come.

Schreckenberger, Bartelt and Stuckenschmidt, "Dynamic Forest for Learning from Data Streams with Varying Feature Spaces"
(CoopIS 2022).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.base import StreamModel, grown
from assay.streams.models.draws import draw_state, draw_to_front
from assay.streams.models.ranges import check_range, check_whole

ROWS, FEATURES, STUMPS, WRONG = 0, 1, 2, 3


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

    def _forest(self) -> _Forest:
        return _Forest(
            self._clock, self._draws, self._totals, self._targets, self._wrong, self._order, self._length, self._values,
            self._rows, self._until, self._split, self._split_left, self._split_right, self._feature, self._threshold,
            self._weight, self._left, self._right,
        )  # fmt: skip

    def _settings(self) -> _Settings:
        return _Settings(
            self.task == "regression", self.M, float(self.alpha), float(self.beta), float(self.delta),
            float(self.epsilon), float(self.gamma), float(self.theta1), float(self.theta2),
        )  # fmt: skip

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float | NDArray[np.float64]:
        votes = np.zeros(self._left.shape[1])
        cell = np.full(len(self._length), -1, dtype=np.int64)
        _vote(slots, values, cell, votes, self._forest(), self._settings())
        return float(votes[0]) if self.task == "regression" else votes[: len(self._labels.classes)]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: float) -> None:
        while len(slots) and self._length[slots].max() >= self._values.shape[1] < self.N:
            self._widen()
        # the vote on the row comes first, as in a run; the caller counts the features as seen
        indptr, y, scores = np.array([0, len(slots)]), np.array([float(target)]), np.zeros((1, self._left.shape[1]))
        _run(0, indptr, slots, values, y, scores, self._seen.copy(), self._forest(), self._settings())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        y = targets if self.task == "regression" else np.where(targets < 0, np.nan, targets)
        scores = np.zeros((len(y), self._left.shape[1]))
        start = 0
        while start < len(y):
            start = _run(start, indptr, slots, values, y, scores, self._seen, self._forest(), self._settings())
            if start < len(y):
                self._widen()
        return scores[:, 0] if self.task == "regression" else scores

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of each feature's stumps in the score (more than two classes: in the score of the predicted class).

        In regression: in its difference to the mean of the targets, which is divided equally.
        """
        votes = np.zeros(self._left.shape[1])
        cell = np.full(len(self._length), -1, dtype=np.int64)
        total = _vote(slots, values, cell, votes, self._forest(), self._settings())
        parts = np.zeros((len(slots), self._left.shape[1]))
        base = self._totals[0] if self.task == "regression" else 0.0
        _parts(slots, values, cell, parts, base, self._forest())
        parts /= total if total > 0 else 1.0
        if self.task == "regression":
            return parts[:, 0] + base / max(len(slots), 1)
        if parts.shape[1] == 1:
            return parts[:, 0]
        return parts[:, 1] - parts[:, 0] if parts.shape[1] == 2 else parts[:, np.argmax(votes)]


class _Forest(NamedTuple):
    clock: NDArray[np.int64]
    draws: NDArray[np.int64]
    totals: NDArray[np.float64]
    targets: NDArray[np.float64]
    wrong: NDArray[np.int64]
    order: NDArray[np.int64]
    length: NDArray[np.int64]
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    until: NDArray[np.int64]
    split: NDArray[np.float64]
    split_left: NDArray[np.float64]
    split_right: NDArray[np.float64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    weight: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]


class _Settings(NamedTuple):
    regression: bool
    M: int
    alpha: float
    beta: float
    delta: float
    epsilon: float
    gamma: float
    theta1: float
    theta2: float


@njit
def _vote(slots, values, cell, votes, forest, settings):
    """Vote of the forest on a row; returns the weight of the stumps that voted. ``cell`` is -1 all over on entry."""
    for c in range(len(votes)):
        votes[c] = 0.0
    for k in range(len(slots)):
        cell[slots[k]] = k
    total = 0.0
    for j in range(forest.clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k >= 0:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            weight = forest.weight[j]
            total += weight
            for c in range(len(votes)):
                votes[c] += weight * side[c]
    if total > 0.0:
        for c in range(len(votes)):
            votes[c] /= total
    elif settings.regression:
        votes[0] = forest.totals[0]
    elif forest.clock[ROWS] > 0:
        for c in range(len(votes)):
            votes[c] = forest.totals[c] / forest.clock[ROWS]
    return total


@njit
def _parts(slots, values, cell, parts, base, forest):
    for j in range(forest.clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k >= 0:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            for c in range(parts.shape[1]):
                parts[k, c] += forest.weight[j] * (side[c] - base)


@njit
def _right(side, target, baseline, regression):
    """Whether shares name the class; in regression, whether a mean is nearer to the target than the mean of all."""
    if regression:
        return abs(side[0] - target) < abs(baseline - target)
    return np.argmax(side) == int(target)


@njit
def _update(slots, values, target, seen, votes, cell, spare, forest, settings):
    clock = forest.clock
    t = clock[ROWS]
    N = len(forest.targets)
    baseline = forest.totals[0]

    # the error over the last N rows
    at = t % N
    wrong = 0 if _right(votes, target, baseline, settings.regression) else 1
    clock[WRONG] += wrong - forest.wrong[at]
    forest.wrong[at] = wrong

    # the row enters the buffer, the row N before it leaves
    forest.targets[at] = target
    for k in range(len(slots)):
        f = slots[k]
        if seen[f] == 0:
            forest.order[clock[FEATURES]] = f
            clock[FEATURES] += 1
        _insert(f, values[k], t, N, forest)
    clock[ROWS] = t + 1
    if settings.regression:
        forest.totals[0] += (target - forest.totals[0]) / (t + 1)
    else:
        forest.totals[int(target)] += 1.0
    if clock[FEATURES] == 0:
        return

    if clock[STUMPS] == 0:
        for _ in range(settings.M):
            _add(t, forest, settings)
    elif clock[WRONG] > settings.gamma * min(t + 1, N) and clock[STUMPS] < len(forest.weight):
        _add(t, forest, settings)

    # weights
    for k in range(len(slots)):
        cell[slots[k]] = k
    for j in range(clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k < 0:
            forest.weight[j] -= settings.epsilon
        else:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            bonus = 2.0 * settings.alpha if _right(side, target, baseline, settings.regression) else 0.0
            forest.weight[j] = (bonus + forest.weight[j]) / (1.0 + settings.alpha)
    for k in range(len(slots)):
        cell[slots[k]] = -1

    # relearn
    n = clock[STUMPS]
    bound = _quantile(forest.weight, n, settings.theta2, spare)
    weak = np.empty(n, np.int64)
    m = 0
    for j in range(n):
        if settings.theta1 <= forest.weight[j] < bound:
            weak[m] = j
            m += 1
    if m == 0:
        # the lowest weights are all tied at the quantile, so that none is below it: they are the weak ones
        for j in range(n):
            if settings.theta1 <= forest.weight[j] <= bound:
                weak[m] = j
                m += 1
    share = int((1.0 - settings.beta) * m + 1e-9)
    draw_to_front(forest.draws, weak, share, m)
    for i in range(share):
        _learn_stump(weak[i], t, forest, settings)

    # drop
    kept = 0
    for j in range(n):
        if forest.weight[j] >= settings.theta1:
            if kept != j:
                forest.feature[kept] = forest.feature[j]
                forest.threshold[kept] = forest.threshold[j]
                forest.weight[kept] = forest.weight[j]
                _copy(forest.left[kept], forest.left[j])
                _copy(forest.right[kept], forest.right[j])
            kept += 1
    clock[STUMPS] = kept
    if kept == 0:
        for _ in range(settings.M):
            _add(t, forest, settings)


@njit
def _add(t, forest, settings):
    j = forest.clock[STUMPS]
    if _learn_stump(j, t, forest, settings):
        forest.clock[STUMPS] = j + 1


@njit
def _learn_stump(j, t, forest, settings):
    """Fit stump j afresh; False (and nothing done) when none of the features it drew is in the buffer."""
    known = forest.clock[FEATURES]
    count = max(1, int(settings.delta * known + 1e-9))
    draw_to_front(forest.draws, forest.order, count, known)
    best = -1
    lowest = np.inf
    for k in range(count):
        f = forest.order[k]
        if forest.until[f] <= t:
            _find_split(f, t, forest, settings)
        if forest.split[f, 0] < lowest:
            lowest = forest.split[f, 0]
            best = f
    if best < 0:
        return False
    forest.feature[j] = best
    forest.threshold[j] = forest.split[best, 1]
    _copy(forest.left[j], forest.split_left[best])
    _copy(forest.right[j], forest.split_right[best])
    forest.weight[j] = 1.0
    return True


@njit
def _copy(to, source):
    for c in range(len(to)):
        to[c] = source[c]


@njit
def _expire(f, t, N, forest):
    """Take the values of rows that have left the buffer out of a feature's window; returns the oldest row in it."""
    values = forest.values[f]
    rows = forest.rows[f]
    n = 0
    oldest = t
    for k in range(forest.length[f]):
        if rows[k] > t - N:
            rows[n] = rows[k]
            values[n] = values[k]
            oldest = min(oldest, rows[k])
            n += 1
    forest.length[f] = n
    return oldest


@njit
def _insert(f, x, t, N, forest):
    _expire(f, t, N, forest)
    values = forest.values[f]
    rows = forest.rows[f]
    k = forest.length[f]
    while k > 0 and values[k - 1] > x:
        values[k] = values[k - 1]
        rows[k] = rows[k - 1]
        k -= 1
    values[k] = x
    rows[k] = t
    forest.length[f] += 1
    forest.until[f] = 0


@njit
def _find_split(f, t, forest, settings):
    """Best split of the feature's window: least weighted Gini impurity, or least variance within the sides."""
    N = len(forest.targets)
    forest.until[f] = _expire(f, t, N, forest) + N
    values = forest.values[f]
    rows = forest.rows[f]
    n = forest.length[f]
    forest.split[f, 0] = np.inf
    if n == 0:
        return
    left = forest.split_left[f]
    right = forest.split_right[f]
    left[:] = 0.0
    right[:] = 0.0
    mean = 0.0
    if settings.regression:
        for k in range(n):
            mean += forest.targets[rows[k] % N]
        mean /= n
    # with purity = sum over sides of (sum over classes of count^2) / size, Gini is 1 - purity / n;
    # with purity = sum over sides of (sum of centred targets)^2 / size, variance is (squares - purity) / n
    squares = 0.0
    for k in range(n):
        target = forest.targets[rows[k] % N]
        if settings.regression:
            squares += (target - mean) * (target - mean)
        else:
            right[int(target)] += 1.0
    left_square = 0.0
    right_square = 0.0
    if not settings.regression:
        for c in range(len(right)):
            right_square += right[c] * right[c]
    best = right_square / n
    best_at = -1
    total = 0.0
    for k in range(n - 1):
        target = forest.targets[rows[k] % N]
        if settings.regression:
            total += target - mean
            left_square = total * total
            right_square = left_square
        else:
            c = int(target)
            left_square += 2.0 * left[c] + 1.0
            right_square -= 2.0 * right[c] - 1.0
            left[c] += 1.0
            right[c] -= 1.0
        if values[k + 1] > values[k]:
            purity = left_square / (k + 1) + right_square / (n - 1 - k)
            if purity > best:
                best = purity
                best_at = k
    forest.split[f, 0] = (squares - best) / n if settings.regression else 1.0 - best / n

    # shares of the sides; where no split helps, both sides are the whole
    size = best_at + 1
    threshold = values[n - 1]
    if best_at >= 0:
        middle = values[best_at] + 0.5 * (values[best_at + 1] - values[best_at])
        threshold = middle if middle < values[best_at + 1] else values[best_at]
    else:
        size = n
    forest.split[f, 1] = threshold
    left[:] = 0.0
    right[:] = 0.0
    for k in range(n):
        target = forest.targets[rows[k] % N]
        side = left if k < size else right
        if settings.regression:
            side[0] += target
        else:
            side[int(target)] += 1.0
    for c in range(len(left)):
        left[c] /= size
        right[c] = right[c] / (n - size) if size < n else left[c]


@njit
def _quantile(values, n, q, spare):
    """Quantile of the first n values with linear interpolation, as numpy's default; ``spare`` is scratch."""
    for i in range(n):
        spare[i] = values[i]
    position = q * (n - 1)
    k = min(int(position), n - 1)
    # Hoare's selection: afterwards spare[k] is in its place, and nothing right of it is smaller
    first = 0
    last = n - 1
    while first < last:
        pivot = spare[k]
        i = first
        j = last
        while i <= j:
            while spare[i] < pivot:
                i += 1
            while spare[j] > pivot:
                j -= 1
            if i <= j:
                swap = spare[i]
                spare[i] = spare[j]
                spare[j] = swap
                i += 1
                j -= 1
        if j < k:
            first = i
        if k < i:
            last = j
    value = spare[k]
    if k == n - 1:
        return value
    above = spare[k + 1]
    for i in range(k + 2, n):
        above = min(above, spare[i])
    return value + (above - value) * (position - k)


@njit
def _run(start, indptr, slots, values, targets, scores, seen, forest, settings):
    """Score and learn from row ``start`` on; returns the row at which a window has to be widened first, or the end."""
    n = len(indptr) - 1
    width = forest.values.shape[1]
    N = len(forest.targets)
    cell = np.full(len(forest.length), -1, np.int64)
    spare = np.empty(len(forest.weight))
    old = np.empty(len(forest.length), np.int64)
    x = np.empty(len(forest.length))
    votes = np.zeros(forest.left.shape[1])
    for t in range(start, n):
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        if width < N:
            for k in range(len(s)):
                if forest.length[s[k]] >= width:
                    return t
        known = 0
        for k in range(len(s)):
            if seen[s[k]] > 0:
                old[known] = s[k]
                x[known] = v[k]
                known += 1
        _vote(old[:known], x[:known], cell, votes, forest, settings)
        for k in range(known):
            cell[old[k]] = -1
        _copy(scores[t], votes)
        if targets[t] == targets[t]:
            _update(s, v, targets[t], seen, votes, cell, spare, forest, settings)
            for k in range(len(s)):
                seen[s[k]] += 1
    return n
