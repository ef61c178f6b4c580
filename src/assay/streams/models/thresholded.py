"""A decision threshold tuned on the past, for rare classes and unequal costs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel
from assay.streams.models.ranges import check_range, check_whole

_METRICS = ("balanced_accuracy", "f1", "g_mean", "cost")


class Thresholded(StreamModel):
    """Moves the scores of a two-class model so that 0 is the threshold that served best on the last labelled rows.

    The wrapped model's score of each labelled row, taken before it learned the row, is kept for ``window`` rows. The
    threshold is the middle of the gap between two of these scores that gives the best ``metric`` over the window, of
    equals the one nearest to the present threshold; `score_one` is the model's score less the threshold, so
    `predict_one` uses it. The order of scores within a stretch of constant threshold, and with it AUROC there, does not
    change. `explain_one` splits the model's score before the threshold is taken off.

    Parameters
    ----------
    model : StreamModel
        A two-class model, or a multi-class one used on two classes; itself never trained.
    metric : {"balanced_accuracy", "f1", "g_mean", "cost"}
        What is best. "cost" is ``false_positive`` times the false positives plus ``false_negative`` times the false
        negatives.
    window : int
        Labelled rows looked back on, at least 2. A row costs O(window).
    least : int
        Labelled rows in the window, both classes among them, before the threshold leaves 0.
    false_positive, false_negative : float
        Costs, at least 0.
    classes : sequence of two labels, optional
        The second is the positive class. Default: grown on first sight.

    Raises
    ------
    StreamError
        If an argument is out of its range, or the model does regression.

    Examples -------- One row in twenty is a fault. Share of the faults, and of the others, told rightly with the
    threshold 0 and a tuned one:

    >>> from assay.streams.models.logistic import MaskedLogistic
    >>> rng = np.random.default_rng(0)
    >>> y = (rng.random(3000) < 0.05).astype(int)
    >>> X = rng.standard_normal((3000, 3)) + 2.0 * y[:, None] * [1, 0, 0]
    >>> for model in (MaskedLogistic(), Thresholded(MaskedLogistic())):
    ...     alarm = model.run_arrays(X, y) > 0
    ...     print(round(float(np.mean(alarm[y == 1])), 2), round(float(np.mean(~alarm[y == 0])), 2))
    0.21 0.99
    0.7 0.91
    """

    def __init__(
        self,
        model: StreamModel,
        metric: str = "balanced_accuracy",
        window: int = 1000,
        least: int = 30,
        false_positive: float = 1.0,
        false_negative: float = 1.0,
        classes: Sequence[Hashable] | None = None,
    ) -> None:
        self.model = model
        self.metric = metric
        self.window = window
        self.least = least
        self.false_positive = false_positive
        self.false_negative = false_negative
        self.classes = classes
        self.reset()

    @property
    def max_features(self) -> int | None:
        """Bound on the features of the wrapped model, if it has one."""
        return getattr(self.model, "max_features", None)

    @property
    def on_limit(self) -> str:
        """What the model does at the bound."""
        return getattr(self.model, "on_limit", "evict")

    @property
    def threshold_(self) -> float:
        """The present threshold, on the scale of the wrapped model's score."""
        return float(self._head[0])

    def _reset(self) -> None:
        if not isinstance(self.model, StreamModel):
            raise StreamError(f"model is a StreamModel, not {self.model!r}")
        if self.model.task != "classification":
            raise StreamError("Thresholded is for classification")
        if self.metric not in _METRICS:
            raise StreamError(f"metric is one of {', '.join(_METRICS)}, not {self.metric!r}")
        check_whole("window", self.window, 2)
        check_whole("least", self.least, 2)
        check_range("false_positive", self.false_positive, 0)
        check_range("false_negative", self.false_negative, 0)
        self.deterministic = self.model.deterministic  # type: ignore[misc]
        self._inner = self.model.clone(classes=self._labels.classes or None)
        self._head = np.zeros(3)  # threshold, labelled rows so far, positives in the window
        self._ring = np.zeros((self.window, 2))  # score and class of the last rows
        self._sorted = np.zeros((self.window, 2))  # the same by score

    def _grow(self, n: int) -> None:
        self._inner._reserve(n)

    def _grow_classes(self, k: int) -> None:
        self._inner._labels.restore(self._labels.classes)
        self._inner._grow_classes(k)

    def _evict(self, slots: NDArray[np.int64]) -> None:
        self._inner._evict(slots)
        kept = np.delete(self._inner._seen, slots)
        self._inner._seen[:] = 0
        self._inner._seen[: len(kept)] = kept

    def _hyper(self) -> tuple[Any, ...]:
        return _METRICS.index(self.metric), self.least, float(self.false_positive), float(self.false_negative)

    def _raw(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        known = self._inner._seen[slots] > 0
        score = self._inner._public_score(self._inner._score(slots[known], values[known]))
        assert isinstance(score, float)
        return score

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        return self._raw(slots, values) - float(self._head[0])

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        raw = self._raw(slots, values)
        self._inner._learn(slots, values, target)
        self._inner._seen[slots] += 1
        _remember(raw, target, self._head, self._ring, self._sorted, *self._hyper())

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        raw = self._inner.collapse(self._inner._run(indptr, slots, values, targets))
        self._seen += np.bincount(slots[np.repeat(targets >= 0, np.diff(indptr))], minlength=len(self._seen))
        return _run(raw, targets, self._head, self._ring, self._sorted, *self._hyper())

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._inner._explain(slots, values)

    def memory_bytes(self) -> int:
        """Bytes of learned state, the wrapped model's included."""
        return super().memory_bytes() + self._inner.memory_bytes()

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as a plain tree; the wrapped model's state is inside."""
        inner = self.__dict__.pop("_inner")
        try:
            state = super().state_dict()
        finally:
            self._inner = inner
        state["state"]["_inner"] = inner.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a `state_dict` of the same wrapper around the same model."""
        super().load_state_dict(state)
        inner: Any = self._inner
        self._inner = self.model.clone(classes=self._labels.classes or None).load_state_dict(inner)
        return self


@njit
def _find(table, n, score):
    """First index of the sorted table whose score is not below this one."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if table[middle, 0] < score:
            low = middle + 1
        else:
            high = middle
    return low


@njit
def _quality(metric, tp, fp, p, n, false_positive, false_negative):
    """The metric of tp true and fp false positives among p positive and n negative rows; larger is better."""
    if metric == 0:
        return tp / p + (n - fp) / n
    if metric == 1:
        return 2.0 * tp / (p + tp + fp)
    if metric == 2:
        return tp / p * (n - fp) / n
    return -(false_positive * fp + false_negative * (p - tp))


@njit
def _remember(score, code, head, ring, table, metric, least, false_positive, false_negative):
    """Take a scored and labelled row into the window and set the threshold anew."""
    window = len(ring)
    count = int(head[1])
    size = min(count, window)
    if count >= window:
        old_score, old_code = ring[count % window, 0], ring[count % window, 1]
        at = _find(table, size, old_score)
        while table[at, 1] != old_code:
            at += 1
        for i in range(at, size - 1):
            table[i, 0] = table[i + 1, 0]
            table[i, 1] = table[i + 1, 1]
        head[2] -= old_code
        size -= 1
    at = _find(table, size, score)
    for i in range(size, at, -1):
        table[i, 0] = table[i - 1, 0]
        table[i, 1] = table[i - 1, 1]
    table[at, 0] = score
    table[at, 1] = code
    ring[count % window, 0] = score
    ring[count % window, 1] = code
    head[1] += 1.0
    head[2] += code
    size += 1

    p = head[2]
    n = size - p
    if size < least or p == 0.0 or n == 0.0:
        return
    tp, fp = p, n
    # Beyond the ends: everything positive, everything negative.
    margin = 0.5 * (table[size - 1, 0] - table[0, 0]) / size
    best = _quality(metric, tp, fp, p, n, false_positive, false_negative)
    threshold = table[0, 0] - margin
    for i in range(size):
        tp -= table[i, 1]
        fp -= 1.0 - table[i, 1]
        if i + 1 < size and table[i + 1, 0] == table[i, 0]:
            continue
        cut = 0.5 * (table[i, 0] + table[i + 1, 0]) if i + 1 < size else table[i, 0] + margin
        quality = _quality(metric, tp, fp, p, n, false_positive, false_negative)
        if quality > best or (quality == best and math.fabs(cut - head[0]) < math.fabs(threshold - head[0])):
            best = quality
            threshold = cut
    head[0] = threshold


@njit
def _run(raw, targets, head, ring, table, metric, least, false_positive, false_negative):
    scores = np.empty(len(raw))
    for t in range(len(raw)):
        scores[t] = raw[t] - head[0]
        if targets[t] >= 0:
            _remember(raw[t], targets[t], head, ring, table, metric, least, false_positive, false_negative)
    return scores
