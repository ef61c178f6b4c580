"""Uncertainty along a stream: predict, quantify, then learn, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from assay.uncertainty import metrics as m
from assay.uncertainty.errors import UncertaintyError
from assay.uncertainty.measures import quantify
from assay.uncertainty.protocols import Result
from assay.uncertainty.representations import Sample

Array = NDArray[np.float64]


class OnlineEnsemble:
    """Online bagging of any scikit-learn estimator with ``partial_fit`` (Oza and Russell, 2001): each member learns a
    row Poisson(1) times.

    Parameters
    ----------
    base : estimator with ``partial_fit`` and ``predict_proba``
    classes : sequence of int
        All classes, as codes 0 ... K - 1.
    n : int
    window : int, optional
        Forget by starting a member anew after so many rows, one member at a time; None never forgets.
    warmup : int
        Rows that a member learns before it is asked; until then it is uniform.
    seed : int
    """

    def __init__(
        self,
        base: Any,
        classes: Iterable[int],
        n: int = 10,
        *,
        window: int | None = None,
        warmup: int = 10,
        seed: int = 0,
    ) -> None:
        self.base, self.classes, self.n, self.window = base, np.asarray(list(classes)), n, window
        self._rng = np.random.default_rng(seed)
        self._models = [clone(base) for _ in range(n)]
        self._learned = [0] * n
        self.warmup = warmup
        self._seen = 0

    def members(self, x: Any) -> Array:
        """Probabilities of the members at one row: ``(n, K)``; uniform before a member has learned."""
        k = len(self.classes)
        row = np.asarray(x, dtype=np.float64)[None]
        out = np.full((self.n, k), 1 / k)
        for j, (model, known) in enumerate(zip(self._models, self._learned, strict=True)):
            if known >= self.warmup:
                with np.errstate(
                    all="ignore"
                ):  # a class seen once has no variance yet; its NaN becomes "does not know"
                    p = np.nan_to_num(np.asarray(model.predict_proba(row)[0], dtype=np.float64), nan=1 / k)
                out[j] = p / p.sum() if p.sum() > 0 else 1 / k
        return out

    def learn(self, x: Any, y: int) -> None:
        """Let every member learn the row as often as its draw says."""
        row = np.asarray(x, dtype=np.float64)[None]
        if self.window is not None and self._seen and self._seen % max(1, self.window // self.n) == 0:
            oldest = (self._seen // max(1, self.window // self.n)) % self.n
            self._models[oldest], self._learned[oldest] = clone(self.base), 0
        for j, times in enumerate(self._rng.poisson(1.0, self.n)):
            if times:
                self._models[j].partial_fit(row, [y], classes=self.classes, sample_weight=[float(times)])
                self._learned[j] += 1
        self._seen += 1


class RiverForest:
    """A river ensemble (``forest.ARFClassifier``, ...) whose members are looked at one by one.

    Parameters
    ----------
    model : river ensemble
        Iterable over members with ``predict_proba_one``.
    classes : sequence
        All labels.
    """

    def __init__(self, model: Any, classes: Iterable[Any]) -> None:
        self.model, self.classes = model, np.asarray(list(classes))
        self._places = {c: i for i, c in enumerate(self.classes.tolist())}

    def members(self, x: Any) -> Array:
        """Probabilities of the members at one row; uniform where a member does not know."""
        k = len(self.classes)
        # A river forest makes its trees at the first row that it learns.
        trees = list(self.model) if len(self.model) else []
        out = np.full((max(len(trees), 1), k), 1 / k)
        for j, tree in enumerate(trees):
            p = np.zeros(k)
            for label, value in (tree.predict_proba_one(x) or {}).items():
                p[self._places[label]] = value
            if p.sum() > 0:
                out[j] = p / p.sum()
        return out

    def learn(self, x: Any, y: Any) -> None:
        """Learn the row; y is a code."""
        self.model.learn_one(x, self.classes[y].item())


@dataclass(frozen=True)
class Steps:
    """Row by row: correct or not, and the three uncertainties."""

    correct: NDArray[np.bool_]
    total: Array
    aleatoric: Array
    epistemic: Array


def prequential(
    model: Any,
    stream: Iterable[tuple[Any, int]],
    *,
    measure: str = "entropy",
    window: int = 200,
    change: int | None = None,
) -> tuple[Result, Steps]:
    """Test, then train, on every row in order.

    Parameters
    ----------
    model : object
        With ``members(x) -> (M, K)`` and ``learn(x, y)``: `OnlineEnsemble`, `RiverForest` or one's own.
    stream : iterable of (x, y)
        y is a class code.
    measure : str
        Of a `Sample`.
    window : int
        Rows of the moving averages in the curves.
    change : int, optional
        Row at which the stream is known to drift: epistemic uncertainty in the ``window`` rows before and after is
        compared.

    Returns
    -------
    result : Result
        Scores ``accuracy, aurc, epistemic_before, epistemic_after, accuracy_before, accuracy_after``; curves.
    steps : Steps

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from assay.uncertainty.generators import drifting_stream
    >>> X, y = drifting_stream(600, 300, seed=0)
    >>> result, steps = prequential(OnlineEnsemble(GaussianNB(), [0, 1], n=5), zip(X, y), change=300, window=100)
    >>> result.scores["accuracy_before"] > result.scores["accuracy_after"]
    True
    """
    correct: list[bool] = []
    by_size: dict[int, tuple[list[int], list[Array]]] = {}  # forests grow: rows are put together by number of members
    for i, (x, y) in enumerate(stream):
        p = np.asarray(model.members(x), dtype=np.float64)
        rows, members = by_size.setdefault(len(p), ([], []))
        rows.append(i)
        members.append(p)
        correct.append(int(p.mean(0).argmax()) == int(y))
        model.learn(x, int(y))
    if not correct:
        raise UncertaintyError("the stream has no rows")
    table, hit = np.empty((len(correct), 3)), np.array(correct)
    for rows, members in by_size.values():
        found = quantify(Sample(np.stack(members)), measure)
        table[rows] = np.stack([found.get(n) for n in ("total", "aleatoric", "epistemic")], axis=1)
    steps = Steps(hit, table[:, 0], table[:, 1], table[:, 2])
    scores = {"accuracy": float(hit.mean()), "aurc": m.aurc(steps.total, (~hit).astype(np.float64))}
    if change is not None:
        if not 0 < change < len(hit):
            raise UncertaintyError(f"change is a row between 1 and {len(hit) - 1}, not {change}")
        before, after = slice(max(0, change - window), change), slice(change, change + window)
        scores |= {
            "epistemic_before": float(steps.epistemic[before].mean()),
            "epistemic_after": float(steps.epistemic[after].mean()),
            "accuracy_before": float(hit[before].mean()),
            "accuracy_after": float(hit[after].mean()),
        }
    at = np.arange(1, len(hit) + 1, dtype=np.float64)
    curves = {
        name: (at, _moving(v, window))
        for name, v in (
            ("accuracy", hit.astype(np.float64)),
            ("total", steps.total),
            ("aleatoric", steps.aleatoric),
            ("epistemic", steps.epistemic),
        )
    }
    return Result(scores, curves, {}, len(hit)), steps


def _moving(values: Array, window: int) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
