"""Multi-class from any two-class model: one copy a class."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit
from assay.streams.models.base import StreamModel
from assay.streams.rows import Row


class OneVsRest(StreamModel):
    """A copy of a two-class model for each class, trained on this class against all others.

    A class that turns up in mid-stream gets a fresh copy, trained from then on. With s the copy's score the class
    scores ``log(1 + e^s)``, which keeps the order of s; a class not learned yet scores 0, less than any that has
    been, so that it is never predicted. All copies run their own compiled loop over the same compressed rows.

    Parameters
    ----------
    model : StreamModel
        What to copy; itself never trained. A ``class_weight`` dictionary of it has the keys 0 (the rest) and 1 (the
        class).
    classes : sequence of labels, optional
        Default: grown on first sight.

    Raises
    ------
    StreamError
        If the model is multi-class by itself, or does regression.

    Examples
    --------
    >>> from assay.streams import load, run
    >>> from assay.streams.models.passive_aggressive import MaskedPA
    >>> result = run(OneVsRest(MaskedPA()), load("digits").masked("probabilistic", p=0.5, seed=0))
    >>> round(result.metrics["accuracy"], 3)
    0.753
    """

    native_multiclass = True

    def __init__(self, model: StreamModel, classes: Sequence[Hashable] | None = None) -> None:
        self.model = model
        self.classes = classes
        self.reset()

    @property
    def max_features(self) -> int | None:
        """Bound on the features that each copy holds, if the model has one."""
        return getattr(self.model, "max_features", None)

    @property
    def on_limit(self) -> str:
        """What the model does at the bound."""
        return getattr(self.model, "on_limit", "evict")

    def _reset(self) -> None:
        if not isinstance(self.model, StreamModel):
            raise StreamError(f"model is a StreamModel, not {self.model!r}")
        if self.model.native_multiclass:
            raise StreamError(f"{type(self.model).__name__} is multi-class by itself; use it without OneVsRest")
        if self.model.task != "classification":
            raise StreamError("OneVsRest is for classification; use the model itself for regression")
        self.deterministic = self.model.deterministic  # type: ignore[misc]
        self._copies: list[StreamModel] = [self._fresh() for _ in self._labels.classes]
        self._counts = np.zeros(len(self._copies))  # rows learned of each class

    def _fresh(self) -> StreamModel:
        return self.model.clone(classes=(0, 1))

    def _grow(self, n: int) -> None:
        for copy in self._copies:
            copy._reserve(n)

    def _grow_classes(self, k: int) -> None:
        while len(self._copies) < k:
            copy = self._fresh()
            copy._reserve(len(self._seen))
            self._copies.append(copy)
            self._counts = np.append(self._counts, 0.0)

    def _evict(self, slots: NDArray[np.int64]) -> None:
        for copy in self._copies:
            copy._evict(slots)
            kept = np.delete(copy._seen, slots)
            copy._seen[:] = 0
            copy._seen[: len(kept)] = kept

    def _raw(self, copy: StreamModel, slots: NDArray[np.int64], values: NDArray[np.float64]) -> float:
        known = copy._seen[slots] > 0
        return float(copy._score(slots[known], values[known]))

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        scores = np.array([[self._raw(copy, slots, values) for copy in self._copies]]).reshape(1, -1)
        _soften(scores, np.full(1, -1), self._counts.copy())
        return scores[0]

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        self._counts[target] += 1.0
        for c, copy in enumerate(self._copies):
            copy._learn(slots, values, int(c == target))
            copy._seen[slots] += 1

    def _run(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], targets: NDArray[Any]
    ) -> NDArray[np.float64]:
        scores = np.zeros((len(targets), max(1, len(self._copies))))
        learned = targets >= 0
        for c, copy in enumerate(self._copies):
            codes = np.where(learned, targets == c, -1).astype(np.int64)
            scores[:, c] = copy._run(indptr, slots, values, codes)
        _soften(scores, targets, self._counts)
        self._seen += np.bincount(slots[np.repeat(learned, np.diff(indptr))], minlength=len(self._seen))
        return scores

    def explain_one(self, row: Row, label: Hashable | None = None) -> dict[Hashable, float]:
        """Contribution of each feature to the raw score s of one class, largest magnitude first.

        Parameters
        ----------
        row : Row
        label : hashable, optional
            The class; default the predicted one.

        Raises
        ------
        StreamError
            If no row of the class was learned.
        """
        if label is None:
            label = self.predict_one(row)
        if label not in self._labels.classes:
            raise StreamError(f"no row of class {label!r} was learned; the classes are {self._labels.classes!r}")
        copy = self._copies[self._labels.code(label)]
        slots, values = self._known(row)
        known = copy._seen[slots] > 0
        slots, values = slots[known], values[known]
        named = {self._index.ids[s]: float(p) for s, p in zip(slots, copy._explain(slots, values), strict=True)}
        return dict(sorted(named.items(), key=lambda item: -abs(item[1])))

    def memory_bytes(self) -> int:
        """Bytes of learned state, the copies' included."""
        return super().memory_bytes() + sum(copy.memory_bytes() for copy in self._copies)

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as a plain tree; the copies' states are inside."""
        copies, self._copies = self._copies, []
        try:
            state = super().state_dict()
        finally:
            self._copies = copies
        state["state"]["_copies"] = [copy.state_dict() for copy in copies]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a `state_dict` of the same wrapper around the same model."""
        super().load_state_dict(state)
        states: list[Any] = self._copies
        self._copies = [self._fresh().load_state_dict(one) for one in states]
        return self


@njit
def _soften(scores, targets, counts):
    """Raw scores to class scores in place, row by row; counts what was learned before each row on the way."""
    for t in range(len(targets)):
        for c in range(len(counts)):
            s = scores[t, c]
            scores[t, c] = max(s, 0.0) + np.log1p(np.exp(-abs(s))) if counts[c] > 0.0 else 0.0
        if targets[t] >= 0:
            counts[targets[t]] += 1.0
