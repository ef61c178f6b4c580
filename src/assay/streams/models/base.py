"""What every model of the field is: learns and scores one row at a time, or many rows at once with the same result.

A subclass implements

- ``_reset()``: make the learned state. Every attribute that is not a constructor parameter is state, is saved in
  checkpoints, and must be a plain tree (`assay.streams.state`);
- ``_grow(n)``: make room for features ``0 .. n-1`` (slots; called before a slot is first used);
- ``_score(slots, values)``: the score of a row, from the state alone. Slots that were never learned are not passed;
- ``_learn(slots, values, target)``: update the state with one labelled row;
- ``_run(indptr, slots, values, targets)``: if there is a compiled loop, score-then-learn over many rows. It must
ignore,
  when it scores, slots not yet learned at that row (``self._seen[slot] == 0``), and must count ``self._seen`` as it
  learns; rows whose target is missing (-1, or NaN in regression) are scored and not learned.

Targets are class codes (int64; 0 and 1 in binary problems, 1 the positive class) or floats (regression).
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import CheckpointMismatch, LabelOutOfRange, StateLimitExceeded, StreamError
from assay.streams.jit import njit
from assay.streams.rows import FeatureIndex, Row, RowBlock
from assay.streams.state import copy_tree, tree_bytes

Score = float | NDArray[np.float64]


class StreamModel:
    """Base class of the models; see the module's docstring for what a subclass writes.

    Class attributes
    ----------------
    native_multiclass : bool
        False for models of two classes; `OneVsRest` makes them multi-class.
    regression : bool
        Whether ``task="regression"`` is a parameter of the model.
    deterministic : bool
        Whether two runs on the same rows give the same scores without a seed.
    unit_target : bool
        Whether regression needs targets around 0 of unit size; `ScaledTarget` gives them.
    """

    native_multiclass: ClassVar[bool] = False
    regression: ClassVar[bool] = False
    deterministic: ClassVar[bool] = True
    unit_target: ClassVar[bool] = False

    _names: ClassVar[list[str]]

    task: str = "classification"
    classes: Sequence[Hashable] | None = None

    # -- parameters ------------------------------------------------------------------------------------------------

    @classmethod
    def _parameter_names(cls) -> list[str]:
        names = cls.__dict__.get("_names")
        if names is None:
            names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
            cls._names = names  # reading a signature takes longer than making the model
        return list(names)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor parameters as they are set now (scikit-learn's convention)."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; what was learned is forgotten.

        Raises
        ------
        StreamError
            If a name is not a parameter; the nearest names are suggested.
        """
        names = self._parameter_names()
        for name, value in params.items():
            if name not in names:
                near = get_close_matches(name, names, n=3, cutoff=0.4) or names
                raise StreamError(f"{type(self).__name__} has no parameter {name!r}; did you mean {', '.join(near)}?")
            setattr(self, name, value)
        self.reset()
        return self

    def clone(self, **params: Any) -> Self:
        """A fresh model with the same parameters, those given changed."""
        names = self._parameter_names()
        for name in params:
            if name not in names:
                near = get_close_matches(name, names, n=3, cutoff=0.4) or names
                raise StreamError(f"{type(self).__name__} has no parameter {name!r}; did you mean {', '.join(near)}?")
        return type(self)(**{**self.get_params(), **params})

    def __repr__(self) -> str:
        defaults = {p.name: p.default for p in inspect.signature(type(self).__init__).parameters.values()}
        shown = [f"{k}={v!r}" for k, v in self.get_params().items() if not _same(v, defaults.get(k))]
        return f"{type(self).__name__}({', '.join(shown)})"

    # -- state -----------------------------------------------------------------------------------------------------

    def reset(self) -> Self:
        """Forget everything learned."""
        for name in [name for name in vars(self) if name not in self._parameter_names()]:
            delattr(self, name)
        if self.task not in (("classification", "regression") if self.regression else ("classification",)):
            raise StreamError(f"{type(self).__name__} does not do task={self.task!r}")
        self._index = FeatureIndex()
        self._seen = np.zeros(8, dtype=np.int64)
        self._labels = LabelCodes(self.classes, binary=not self.native_multiclass, model=type(self).__name__)
        self._unseen = False
        self._frozen = False
        self._reset()
        self._grow(0)
        return self

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, as a plain tree of arrays, numbers and names (a copy)."""
        own = {name: value for name, value in vars(self).items() if name not in self._parameter_names()}
        own["_index"] = list(self._index.ids)
        own["_labels"] = list(self._labels.classes)
        return {"model": type(self).__name__, "state": copy_tree(own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Continue from a `state_dict` of a model of the same class and parameters.

        Raises
        ------
        CheckpointMismatch
            If the state is of another model.
        """
        if state.get("model") != type(self).__name__:
            raise CheckpointMismatch(f"this state is of {state.get('model')!r}, not of {type(self).__name__!r}")
        self.reset()
        own = copy_tree(dict(state["state"]))
        ids, labels = own.pop("_index"), own.pop("_labels")
        for name, value in own.items():
            setattr(self, name, value)
        self._index = FeatureIndex(ids)
        self._labels.restore(labels)
        return self

    def memory_bytes(self) -> int:
        """Bytes of learned state."""
        own = {name: value for name, value in vars(self).items() if name not in self._parameter_names()}
        own["_index"], own["_labels"] = self._index.ids, self._labels.classes
        return tree_bytes(own)

    def freeze(self) -> Self:
        """From now on predict without learning (`unfreeze` undoes it)."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Learn again."""
        self._frozen = False
        return self

    # -- one row at a time -----------------------------------------------------------------------------------------

    @property
    def classes_(self) -> list[Hashable]:
        """Classes declared or seen so far; in binary problems the second is the positive one."""
        return list(self._labels.classes)

    @property
    def features_(self) -> list[Hashable]:
        """Features learned from so far, in order of first sight."""
        return [name for slot, name in enumerate(self._index.ids) if self._seen[slot] > 0]

    def score_one(self, row: Row) -> Score:
        """Score of a row: a float that grows with P(positive class), one float a class, or a predicted value.

        Before anything was learned every score is 0.
        """
        slots, values = self._known(row)
        return self._public_score(self._score(slots, values))

    def raw_score_one(self, row: Row) -> NDArray[np.float64]:
        """As `score_one`, but natively multi-class models give one score a class for two classes too (see
        `run_block`)."""
        return np.atleast_1d(np.asarray(self._score(*self._known(row)), dtype=np.float64))

    def predict_one(self, row: Row) -> Any:
        """Predicted label (regression: value). Binary: the positive class iff the score is above 0."""
        return self._decide(self.score_one(row))

    def learn_one(self, row: Row, y: Any) -> Self:
        """Update with one labelled row; a missing label (None or NaN) or a frozen model learns nothing."""
        if self._frozen or is_missing(y):
            return self
        target = float(y) if self.task == "regression" else self._labels.code(y)
        self._grow_classes(len(self._labels.classes))
        self._check_limit(row)
        known = len(self._index)
        slots = self._index.register(row)
        if len(self._index) > known:
            self._reserve(len(self._index))
        self._learn(slots, row.values, target)
        _count(self._seen, slots)
        return self

    def explain_one(self, row: Row) -> dict[Hashable, float]:
        """Contribution of each feature to the score of this row, largest magnitude first (where the model has one)."""
        slots, values = self._known(row)
        parts = self._explain(slots, values)
        named = {self._index.ids[s]: float(p) for s, p in zip(slots.tolist(), parts, strict=True)}
        return dict(sorted(named.items(), key=lambda item: -abs(item[1])))

    # -- many rows at once -----------------------------------------------------------------------------------------

    def run_arrays(
        self, X: NDArray[np.float64], y: Sequence[Any] | NDArray[Any], columns: Sequence[Hashable] | None = None
    ) -> NDArray[np.float64]:
        """Test-then-train over the rows of a table, continuing from the present state.

        Parameters
        ----------
        X : float64[n, d]
            NaN is absence.
        y : [n]
            Labels; None or NaN where missing.
        columns : d feature ids, optional
            Default ``0 .. d-1``.

        Returns
        -------
        float64[n] or float64[n, classes]
            The scores that `score_one` followed by `learn_one`, row by row, would have given.
        """
        return self.collapse(self.run_block(RowBlock.from_array(X, columns), y))

    def run_block(self, block: RowBlock, y: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
        """As `run_arrays`, on rows in compressed form.

        Models that are natively multi-class give ``[n, classes seen by the end]`` also for two classes, which
        `collapse` turns into one score a row; the caller that works in blocks collapses once, at the end.
        """
        if len(block) != len(y):
            raise StreamError(f"{len(block)} rows but {len(y)} labels")
        if self.task == "regression":
            return self._run_known(
                block, np.array([np.nan if is_missing(v) else float(v) for v in y], dtype=np.float64)
            )
        if self._frozen:
            return self._run_known(block, np.full(len(block), -1, dtype=np.int64))
        # A class seen first at row t must not be known before t: the block is cut there.
        labels: Any = y if isinstance(y, np.ndarray) and y.dtype.kind in "biuf" else list(y)
        codes = self._labels.codes(labels)
        if self._labels.first_new(labels, codes, 0) is None:
            return self._run_known(block, codes)
        parts: list[NDArray[np.float64]] = []
        start = 0
        while start < len(block) or not parts:
            codes = self._labels.codes(labels)
            new = self._labels.first_new(labels, codes, start)
            stop = len(block) if new is None else new
            parts.append(self._run_known(block.slice(start, stop), codes[start:stop]))
            if new is not None:
                row = block.row(new)
                parts.append(np.asarray(self._score(*self._known(row)), dtype=np.float64)[None])
                self.learn_one(row, _plain(labels[new]))
            start = stop + (new is not None)
        return _stack_scores(parts, len(self._labels.classes) if self.native_multiclass else 0)

    def _run_known(self, block: RowBlock, targets: NDArray[Any]) -> NDArray[np.float64]:
        self._grow_classes(len(self._labels.classes))
        if getattr(self, "max_features", None) is not None:
            return self._run_rowwise(block, targets)
        if self._frozen:
            # no slots for features that will not be learned
            rows = [np.asarray(self._score(*self._known(block.row(t))), dtype=np.float64) for t in range(len(block))]
            return _stack_scores([row[None] for row in rows], rows[0].ndim if rows else 0)
        slots = self._index.register_block(block)
        self._reserve(len(self._index))
        scores = self._run(block.indptr, slots, block.values, targets)
        self._unseen = bool((self._seen[: len(self._index)] == 0).any())
        return scores

    def collapse(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """One score a row where there are at most two classes."""
        if scores.ndim == 2 and scores.shape[1] <= 2 and self.task == "classification":
            return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else np.zeros(len(scores))
        return scores

    # -- for subclasses --------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        raise NotImplementedError

    def _grow(self, n: int) -> None:
        """Make room for n features."""

    def _grow_classes(self, k: int) -> None:
        """Make room for k classes."""

    def _score(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> Score:
        raise NotImplementedError

    def _learn(self, slots: NDArray[np.int64], values: NDArray[np.float64], target: Any) -> None:
        raise NotImplementedError

    def _explain(self, slots: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        raise StreamError(f"{type(self).__name__} cannot split its score into contributions of features")

    def _evict(self, slots: NDArray[np.int64]) -> None:
        """Forget these features (their slots are taken out; the later ones move down)."""
        raise NotImplementedError

    def _run(
        self,
        indptr: NDArray[np.int64],
        slots: NDArray[np.int64],
        values: NDArray[np.float64],
        targets: NDArray[Any],
    ) -> NDArray[np.float64]:
        """Row by row; models with a compiled loop override this."""
        wide = self.native_multiclass and self.task == "classification"
        scores = np.zeros((len(targets), max(1, len(self._labels.classes))) if wide else len(targets))
        for t, target in enumerate(targets.tolist()):
            s, x = slots[indptr[t] : indptr[t + 1]], values[indptr[t] : indptr[t + 1]]
            old = self._seen[s] > 0
            scores[t] = self._score(s[old], x[old])
            if target == target and (self.task == "regression" or target >= 0):
                self._learn(s, x, target)
                self._seen[s] += 1
        return scores

    def _run_rowwise(self, block: RowBlock, targets: NDArray[Any]) -> NDArray[np.float64]:
        # With a cap on features slots move while the block runs, so the slots cannot be looked up ahead.
        wide = self.native_multiclass and self.task == "classification"
        scores = np.zeros((len(targets), max(1, len(self._labels.classes))) if wide else len(targets))
        for t, target in enumerate(targets.tolist()):
            row = block.row(t)
            scores[t] = self._score(*self._known(row))
            if target == target and (self.task == "regression" or target >= 0):
                self._check_limit(row)
                slots = self._index.register(row)
                self._reserve(len(self._index))
                self._learn(slots, row.values, target)
                self._seen[slots] += 1
        return scores

    # -- inside ----------------------------------------------------------------------------------------------------

    def _known(self, row: Row) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        slots, values = self._index.known(row)
        if not self._unseen:  # every feature with a slot was learned
            return slots, values
        old = self._seen[slots] > 0
        return (slots, values) if old.all() else (slots[old], values[old])

    def _public_score(self, raw: Score) -> Score:
        if isinstance(raw, np.ndarray) and self.task == "classification" and len(raw) <= 2:
            return float(raw[1] - raw[0]) if len(raw) == 2 else 0.0
        return raw if isinstance(raw, np.ndarray) else float(raw)

    def _decide(self, score: Score) -> Any:
        if self.task == "regression":
            return score
        classes = self._labels.classes
        if isinstance(score, np.ndarray):
            return classes[int(np.argmax(score))]
        if not classes:
            return None
        return classes[1 if score > 0 else 0] if len(classes) > 1 else classes[0]

    def _reserve(self, n: int) -> None:
        if n > len(self._seen):
            self._seen = grown(self._seen, n)
        self._grow(n)

    def _check_limit(self, row: Row) -> None:
        limit: int | None = getattr(self, "max_features", None)
        if limit is None:
            return
        new = sum(i not in self._index.slot_of for i in row.ids)
        excess = len(self._index) + new - limit
        if excess <= 0:
            return
        if getattr(self, "on_limit", "evict") == "raise" or len(row) > limit:
            raise StateLimitExceeded(
                f"{type(self).__name__} would hold {len(self._index) + new} features, max_features is {limit}; raise "
                f"the limit, drop columns, or use on_limit='evict' (the least seen features are forgotten)"
            )
        here = {self._index.slot_of[i] for i in row.ids if i in self._index.slot_of}
        candidates = [s for s in range(len(self._index)) if s not in here]
        candidates.sort(key=lambda s: (self._seen[s], s))
        gone = np.array(sorted(candidates[:excess]), dtype=np.int64)
        n = len(self._index)
        self._evict(gone)
        kept = np.delete(np.arange(n), gone)
        self._index = FeatureIndex([self._index.ids[s] for s in kept.tolist()])
        seen = np.zeros_like(self._seen)
        seen[: len(kept)] = self._seen[kept]
        self._seen = seen


class LabelCodes:
    """Class labels as codes 0, 1, ...: declared, or grown in order of first sight.

    Labels 0/1, -1/1 and False/True keep their order whichever comes first, so 1 and True are always the positive class.
    """

    def __init__(self, classes: Sequence[Hashable] | None, *, binary: bool, model: str) -> None:
        self.declared = classes is not None
        self.binary = binary
        self.model = model
        self.classes: list[Hashable] = []
        self._code_of: dict[Hashable, int] = {}
        self.restore([_plain(c) for c in classes or ()])
        if binary and len(self.classes) > 2:
            raise LabelOutOfRange(f"{model} does two classes, {len(self.classes)} were declared; wrap it in OneVsRest")

    def restore(self, classes: Sequence[Hashable]) -> None:
        """Set the list of classes."""
        self.classes = list(classes)
        self._code_of = {label: code for code, label in enumerate(self.classes)}

    def code(self, y: Hashable) -> int:
        """Code of a label; a new label gets the next code unless the classes were declared.

        Raises
        ------
        LabelOutOfRange
        """
        code = self._code_of.get(y)
        if code is not None:
            return code
        y = _plain(y)
        if self.declared:
            raise LabelOutOfRange(f"label {y!r} is not one of the declared classes {self.classes!r}")
        if not self.classes and y in (0, 1, -1):
            # the partner of 1 is 0 until a -1 is seen
            self.restore([-1, 1] if y == -1 else [0, 1])
            return self._code_of[y]
        if self.classes == [0, 1] and y == -1:
            self.restore([-1, 1])
            return 0
        if self.binary and len(self.classes) == 2:
            raise LabelOutOfRange(
                f"{self.model} does two classes, has seen {self.classes!r} and now {y!r}; wrap it in OneVsRest"
            )
        self.classes.append(y)
        self._code_of[y] = len(self.classes) - 1
        return len(self.classes) - 1

    def first_new(self, labels: Sequence[Any] | NDArray[Any], codes: NDArray[np.int64], start: int) -> int | None:
        """Index of the first label from ``start`` on that has no code yet; None if there is none.

        Raises
        ------
        LabelOutOfRange
            If the classes were declared and a label is none of them.
        """
        for t in (start + np.flatnonzero(codes[start:] < 0)).tolist():
            y = _plain(labels[t])
            if not is_missing(y):
                if self.declared:
                    self.code(y)
                return int(t)
        return None

    def codes(self, labels: Sequence[Any] | NDArray[Any]) -> NDArray[np.int64]:
        """Codes of labels, -1 where there is none (yet)."""
        if isinstance(labels, np.ndarray):
            out = np.full(len(labels), -1, dtype=np.int64)
            for code, label in enumerate(self.classes):
                if isinstance(label, (int, float)):
                    out[labels == label] = code
            return out
        return np.array([self._code_of.get(y, -1) for y in labels], dtype=np.int64)


def _stack_scores(parts: Sequence[NDArray[np.float64]], width: int) -> NDArray[np.float64]:
    """Scores of consecutive pieces under each other; a class not yet seen in a piece has score 0 there."""
    if width == 0:
        return np.concatenate(parts) if parts else np.empty(0)
    width = max([width, *(part.shape[1] for part in parts)])
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])


@njit
def _count(seen, slots):
    for s in slots:
        seen[s] += 1


def is_missing(y: Any) -> bool:
    """Whether a label is absent: None or NaN."""
    return y is None or (isinstance(y, (float, np.floating)) and y != y)


def grown(array: NDArray[Any], n: int, fill: Any = 0) -> NDArray[Any]:
    """The array with its first axis at least n long, doubled so that growth costs O(1) a feature."""
    if len(array) >= n:
        return array
    size = max(n, 2 * len(array), 8)
    larger = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def learn_many(model: StreamModel, rows: Iterable[tuple[Row, Any]]) -> StreamModel:
    """Warm start: learn a labelled history without scoring it."""
    for row, y in rows:
        model.learn_one(row, y)
    return model


def _plain(y: Any) -> Any:
    return y.item() if isinstance(y, np.generic) else y


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError):
        return a is b
