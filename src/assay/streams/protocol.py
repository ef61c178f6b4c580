"""Test-then-train: predict each row from the past alone, then learn it, once, in order."""

from __future__ import annotations

import itertools
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import assay
from assay.streams.errors import CheckpointMismatch, StreamError
from assay.streams.impute import Imputer
from assay.streams.metrics import StreamMetric, evaluate, faded, metrics_for, recovery_time, sliding
from assay.streams.models.base import StreamModel, is_missing
from assay.streams.models.registry import make_model
from assay.streams.normalize import Normalizer
from assay.streams.normalize import normalizer as make_normalizer
from assay.streams.regimes import BLOCK
from assay.streams.rows import Row, RowBlock
from assay.streams.state import load_tree, save_tree
from assay.streams.stream import HaphazardStream

TIMED_ROWS = 8
CHECKPOINT_VERSION = 1


@dataclass
class RunResult:
    """What one pass over a stream gave.

    Attributes
    ----------
    scores : float64[n] or float64[n, K]
        Raw scores (regression: predicted values), one a row, in order.
    labels : [n]
        Class codes with -1 where missing (regression: float64 with NaN).
    predictions : [n]
        Predicted codes (values).
    classes : list
        Label of each code.
    metrics : dict of str to float
        Over all labelled rows from ``score_from`` on.
    seconds : float
        Wall seconds of the pass, data preparation included.
    latency : dict
        Microseconds a row, ``predict_p50, predict_p99, learn_p50, learn_p99``, from a sample of rows.
    peak_state_bytes : int
        Largest size of the model's state (and of the normaliser's) seen at the ends of blocks.
    model : StreamModel
        The model as it is after the last row.
    """

    scores: NDArray[np.float64]
    labels: NDArray[Any]
    predictions: NDArray[Any]
    classes: list[Hashable]
    task: str
    metrics: dict[str, float]
    seconds: float
    latency: dict[str, float]
    peak_state_bytes: int
    change_points: list[int]
    config: dict[str, Any]
    window: int = 1000
    fading: float = 0.999
    score_from: int = 0
    model: Any = field(default=None, repr=False)
    normalizer: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v:.4g}" for k, v in list(self.metrics.items())[:6])
        return f"RunResult({len(self.scores)} rows; {shown})"

    def curve(
        self, metric: str, kind: str = "window", points: int = 100
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A metric over the rows: row counts and values.

        Parameters
        ----------
        kind : {"window", "fading", "cumulative"}
            Over the last ``window`` rows, weighted by ``fading ** age``, or over all rows so far.
        """
        (chosen,) = metrics_for(self.task, [metric])
        y, scores, predicted, rows = self._labelled()
        if not len(y):
            return np.empty(0, np.int64), np.empty(0)
        at = np.unique(np.linspace(1, len(y), min(points, len(y))).astype(int))
        if kind == "fading":
            values = faded(chosen, y, scores, predicted, self.fading, at.tolist())
        elif kind in ("window", "cumulative"):
            values = sliding(chosen, y, scores, predicted, self.window if kind == "window" else len(y), at.tolist())
        else:
            raise StreamError(f"kind is 'window', 'fading' or 'cumulative', not {kind!r}")
        return rows[at - 1] + 1, values

    def per_block(self, metric: str) -> list[float]:
        """The metric within each block between change points of the regime."""
        (chosen,) = metrics_for(self.task, [metric])
        y, scores, predicted, rows = self._labelled()
        bounds = [0, *self.change_points, len(self.scores)]
        values = []
        for low, high in itertools.pairwise(bounds):
            s = slice(*np.searchsorted(rows, [low, high]))
            values.append(_quiet(chosen, y[s], scores[s], predicted[s]) if s.stop > s.start else float("nan"))
        return values

    def recovery(self, window: int = 100) -> list[float]:
        """Rows until accuracy is back after each change point (`recovery_time`); classification only."""
        y, _, predicted, rows = self._labelled()
        return [recovery_time(y == predicted, int(np.searchsorted(rows, c)), window=window) for c in self.change_points]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``rows.parquet`` (scores, labels, predictions) and ``result.json`` into a folder, whole or not at
        all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        wide = self.scores.ndim == 2
        columns = (
            {f"score_{k}": self.scores[:, k] for k in range(self.scores.shape[1])} if wide else {"score": self.scores}
        )
        columns |= {"label": self.labels, "prediction": self.predictions}
        part = folder / ".rows.parquet.part"
        pq.write_table(pa.table(columns), part)
        part.replace(folder / "rows.parquet")
        kept = (
            "classes", "task", "metrics", "seconds", "latency", "peak_state_bytes", "change_points", "config", "window",
            "fading", "score_from",
        )  # fmt: skip
        text = json.dumps({name: getattr(self, name) for name in kept}, indent=2, default=str)
        part = folder / ".result.json.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / "result.json")
        return folder

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> RunResult:
        """Read what `save` wrote (without the model)."""
        import pyarrow.parquet as pq

        folder = Path(folder)
        table = pq.read_table(folder / "rows.parquet")
        names = [name for name in table.column_names if name.startswith("score")]
        columns = [table.column(name).to_numpy() for name in names]
        scores = columns[0] if names == ["score"] else np.stack(columns, axis=1)
        kept = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return cls(
            scores=scores,
            labels=table.column("label").to_numpy(),
            predictions=table.column("prediction").to_numpy(),
            **kept,
        )

    def _labelled(self) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[Any], NDArray[np.int64]]:
        known = self.labels == self.labels if self.task == "regression" else self.labels >= 0
        rows = np.flatnonzero(known)
        rows = rows[rows >= self.score_from]
        return self.labels[rows], self.scores[rows], self.predictions[rows], rows


def run(
    model: str | StreamModel | type | Any,
    stream: HaphazardStream,
    *,
    normalizer: str | Normalizer | None = "zscore",
    impute: str = "none",
    metrics: Sequence[str] | None = None,
    window: int = 1000,
    fading: float = 0.999,
    label_delay: int = 0,
    seed: int | None = None,
    warm_start: HaphazardStream | Iterable[tuple[Row, Any]] | None = None,
    score_from: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 10_000,
    report: Callable[[float, float, str], None] | None = None,
) -> RunResult:
    """One pass of test-then-train over a stream.

    Parameters
    ----------
    model : str, model, class or any object with ``score_one(row)`` and ``learn_one(row, y)``
        A name of `assay.streams.models`, or a model, which is copied unlearned unless ``warm_start`` is None and it has
        learned already: a model that comes with state goes on from it.
    stream : HaphazardStream
    normalizer : str, Normalizer or None
        ``none, zscore, minmax, mean, decimal, unit, robust, rank``; fresh statistics for every pass.
    impute : {"none", "zero", "mean", "last"}
        Fill absent features that were seen before, after normalisation.
    metrics : sequence of str, optional
        Default: all of the task.
    window, fading : int, float
        Of the curves.
    label_delay : int
        The update for row t runs after the prediction for row t + label_delay, with the row as normalised at t. Rows
        still waiting at the end are scored and never learned.
    seed : int, optional
        Given to models that take one.
    warm_start : stream or iterable of (row, label), optional
        A labelled history that is learned first, unscored; it warms the normaliser too.
    score_from : int
        Metrics count rows from this one on (to report on what was not tuned on).
    checkpoint : path, optional
        File to save the pass to, every ``every`` rows; if it is there, the pass goes on from it, and ends with the same
        numbers to the last bit. Removed at the end.
    report : callable, optional
        ``report(rows done, rows in all or 0, text)``.

    Returns
    -------
    RunResult

    Raises
    ------
    CheckpointMismatch
        If the checkpoint is of another model, stream, setting or version.
    StreamError
        If a model returns a score that is NaN or infinite.

    Examples
    --------
    >>> from assay.streams import load
    >>> result = run("olvf", load("wdbc").masked("probabilistic", p=0.5, seed=0, empty="one"))
    >>> result.metrics["balanced_accuracy"] > 0.9
    True
    """
    chosen = metrics_for(stream.task, metrics)
    pass_ = _Pass(model, stream, normalizer, impute, label_delay, seed)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and path.exists():
        pass_.resume(load_tree(path))
    elif warm_start is not None:
        pass_.warm(warm_start)
    began = time.perf_counter()
    saved = pass_.rows
    total = float(stream.n_rows or 0)
    for block, y in _from_row(stream, pass_.rows, min(BLOCK, max(1, every))):
        pass_.step(block, y)
        if path is not None and pass_.rows - saved >= every:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tree(path, pass_.state_dict())
            saved = pass_.rows
        if report is not None:
            report(pass_.rows, total, "rows")
    seconds = pass_.seconds + time.perf_counter() - began
    result = pass_.result(chosen, seconds, window, fading, score_from)
    if path is not None:
        path.unlink(missing_ok=True)
    return result


@dataclass
class TuneResult:
    """Best parameters of a grid on the first rows of a stream, and the whole table.

    Attributes
    ----------
    params : dict
    rows : int
        Rows that were used: report only on later ones (``run(..., score_from=rows)``).
    table : list of (params, value)
    """

    params: dict[str, Any]
    rows: int
    table: list[tuple[dict[str, Any], float]]


def tune(
    model: str | StreamModel | type,
    stream: HaphazardStream,
    grid: Mapping[str, Sequence[Any]],
    *,
    rows: int | float = 0.1,
    metric: str = "balanced_accuracy",
    **options: Any,
) -> TuneResult:
    """Grid search that sees a prefix of the stream only.

    Parameters
    ----------
    grid : dict of parameter to values
    rows : int or float
        Rows of the prefix, or its share of the stream.
    metric : str
    **options
        Of `run`.

    Examples
    --------
    >>> from assay.streams import load
    >>> stream = load("wdbc").masked("probabilistic", p=0.5)
    >>> best = tune("olvf", stream, {"C": [0.01, 1.0]}, rows=200)
    >>> result = run("olvf", stream, score_from=best.rows)
    >>> best.rows, sorted(best.params)
    (200, ['C'])
    """
    count = rows if isinstance(rows, int) else int(rows * len(stream))
    if not count > 0:
        raise StreamError(f"the prefix to tune on has {count} rows; give rows as a number of rows or a share")
    prefix = stream.head(count)
    (chosen,) = metrics_for(stream.task, [metric])
    base = make_model(model, stream.task, stream.classes)
    table = []
    for values in itertools.product(*grid.values()):
        params = dict(zip(grid, values, strict=True))
        outcome = run(base.clone(**params), prefix, metrics=[metric], **options)
        table.append((params, outcome.metrics[metric]))
    sign = 1 if chosen.higher_is_better else -1
    best = max(table, key=lambda row: -np.inf if np.isnan(row[1]) else sign * row[1])
    return TuneResult(best[0], count, table)


class _Pass:
    """The state of a pass: model, normaliser, waiting labels, scores so far."""

    def __init__(
        self,
        model: Any,
        stream: HaphazardStream,
        normalizer: str | Normalizer | None,
        impute: str,
        delay: int,
        seed: int | None,
    ) -> None:
        if delay < 0:
            raise StreamError(f"label_delay is a number of rows and cannot be {delay}")
        self.model = make_model(model, stream.task, stream.classes, seed)
        self.stream = stream
        self.normalizer = make_normalizer(normalizer)
        self.imputer = Imputer(impute)
        self.delay = delay
        self.waiting: deque[tuple[Row, Any]] = deque()
        self.rows = 0
        self.seconds = 0.0
        self.peak = 0
        self.scores: list[NDArray[np.float64]] = []
        self.labels: list[Any] = []
        self.timings: list[tuple[float, float]] = []
        self.config = {
            "version": assay.__version__,
            "checkpoint": CHECKPOINT_VERSION,
            "model": repr(self.model),
            "normalizer": repr(self.normalizer),
            "impute": impute,
            "label_delay": delay,
            "stream": stream.name,
            "regime": repr(stream.regime),
            "mask_seed": stream.mask_seed,
            "empty": stream.empty,
            "n_rows": stream.n_rows,
        }

    @property
    def by_row(self) -> bool:
        return self.delay > 0 or self.imputer.kind != "none"

    def warm(self, history: Iterable[tuple[Row, Any]]) -> None:
        for row, y in history:
            self.model.learn_one(self.imputer.transform_one(self.normalizer.transform_one(row)), y)

    def step(self, block: RowBlock, y: NDArray[Any] | list[Any]) -> None:
        ready = self.normalizer.transform_block(block)
        # A few rows of each block go one by one, which gives the same scores, to know what a row costs.
        timed = range(len(block)) if self.by_row else _timed(self.rows, len(block))
        start = timed.start if len(timed) else len(block)
        stop = timed.stop if len(timed) else len(block)
        parts = []
        if start:
            parts.append(self._checked(self.model.run_block(ready.slice(0, start), y[:start]), 0))
        for t in timed:
            parts.append(self._checked(self._one(ready.row(t), _plain(y[t]))[None], t))
        if stop < len(block):
            parts.append(self._checked(self.model.run_block(ready.slice(stop, len(block)), y[stop:]), stop))
        self.scores.extend(p if p.ndim == 2 else p[:, None] for p in parts)
        self.labels.extend(y.tolist() if isinstance(y, np.ndarray) else y)
        self.rows += len(block)
        if self.rows <= BLOCK or (self.rows // BLOCK) % 16 == 0:
            self.peak = max(self.peak, self._state_bytes())

    def _one(self, row: Row, y: Any) -> NDArray[np.float64]:
        row = self.imputer.transform_one(row)
        a = time.perf_counter()
        score = self.model.raw_score_one(row)
        b = time.perf_counter()
        self.waiting.append((row, y))
        if len(self.waiting) > self.delay:
            self.model.learn_one(*self.waiting.popleft())
        self.timings.append((b - a, time.perf_counter() - b))
        return score

    def _checked(self, scores: NDArray[np.float64], offset: int) -> NDArray[np.float64]:
        if not np.isfinite(scores).all():
            t = int(np.flatnonzero(~np.isfinite(scores).reshape(len(scores), -1).all(axis=1))[0])
            raise StreamError(
                f"{self.model!r} gave the score {scores[t]} at row {self.rows + offset + t} of {self.stream.name}; "
                f"a score must be a finite number"
            )
        return scores

    def _state_bytes(self) -> int:
        return int(self.model.memory_bytes()) + self.normalizer.memory_bytes()

    def state_dict(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "model": self.model.state_dict(),
            "normalizer": self.normalizer.state_dict(),
            "imputer": self.imputer.state_dict(),
            "waiting": [[list(row.ids), row.values, y] for row, y in self.waiting],
            "rows": self.rows,
            "peak": self.peak,
            "scores": _stacked(self.scores),
            "labels": list(self.labels),
            "timings": np.array(self.timings).reshape(-1, 2),
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        theirs = state.get("config", {})
        different = [name for name in self.config if theirs.get(name) != self.config[name]]
        if different:
            name = different[0]
            raise CheckpointMismatch(
                f"the checkpoint is of another run: {name} is {theirs.get(name)!r} there and {self.config[name]!r} "
                f"here; delete the file to start afresh"
            )
        self.model.load_state_dict(state["model"])
        self.normalizer.load_state_dict(state["normalizer"])
        self.imputer.load_state_dict(state["imputer"])
        self.waiting = deque((Row(tuple(ids), values), y) for ids, values, y in state["waiting"])
        self.rows, self.peak = state["rows"], state["peak"]
        self.scores = [state["scores"]]
        self.labels = list(state["labels"])
        self.timings = [tuple(pair) for pair in state["timings"].tolist()]

    def result(
        self, chosen: Sequence[StreamMetric], seconds: float, window: int, fading: float, score_from: int
    ) -> RunResult:
        scores = _stacked(self.scores)
        self.peak = max(self.peak, self._state_bytes())
        predictions: NDArray[Any]
        if self.stream.task == "regression":
            labels: NDArray[Any] = np.array([np.nan if is_missing(v) else float(v) for v in self.labels])
            scores = predictions = scores.ravel() if scores.size else np.empty(0)
            classes: list[Hashable] = []
        else:
            classes = list(self.model.classes_)
            labels, classes = _codes(self.labels, classes)
            predictions = _predict(scores, labels, self.delay)
            if scores.shape[1] == 2:
                scores = scores[:, 1] - scores[:, 0]
            elif scores.shape[1] == 1:
                scores = scores[:, 0]
        result = RunResult(
            scores, labels, predictions, classes, self.stream.task, {}, seconds, _latency(self.timings), self.peak,
            self.stream.change_points(), self.config, window, fading, score_from, self.model, self.normalizer,
        )  # fmt: skip
        y, s, p, _ = result._labelled()
        result.metrics = {metric.name: evaluate(metric, y, s, p) if len(y) else float("nan") for metric in chosen}
        return result


def _from_row(stream: HaphazardStream, start: int, size: int) -> Iterator[tuple[RowBlock, Any]]:
    row = 0
    for block, y in stream.blocks(size):
        if row + len(block) > start:
            cut = max(0, start - row)
            yield (block, y) if cut == 0 else (block.slice(cut, len(block)), y[cut:])
        row += len(block)


def _timed(rows: int, size: int) -> range:
    first = 64 if rows == 0 else 0  # the first rows pay for compilation
    return range(min(first, size), min(first + TIMED_ROWS, size))


def _plain(y: Any) -> Any:
    return y.item() if isinstance(y, np.generic) else y


def _stacked(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    if not parts:
        return np.empty((0, 1))
    width = max(p.shape[1] for p in parts)
    return np.concatenate([np.pad(p, ((0, 0), (0, width - p.shape[1]))) for p in parts])


def _codes(labels: Sequence[Any], classes: list[Hashable]) -> tuple[NDArray[np.int64], list[Hashable]]:
    """Codes of the labels; labels that the model never learned (a frozen one) are added to the classes."""
    code_of = {label: code for code, label in enumerate(classes)}
    if not classes and set(labels) <= {0, 1, None}:
        code_of = {0: 0, 1: 1}
    codes = [-1 if is_missing(y) else code_of.setdefault(_plain(y), len(code_of)) for y in labels]
    return np.array(codes, dtype=np.int64), list(code_of)


def _predict(scores: NDArray[np.float64], labels: NDArray[np.int64], delay: int) -> NDArray[np.int64]:
    """Predicted codes: the better of two, or the largest among the classes learned by then."""
    n, k = scores.shape
    if k <= 2:
        margin = scores[:, 1] - scores[:, 0] if k == 2 else scores[:, 0]
        return (margin > 0).astype(np.int64)
    learned_from = np.full(k, n + delay + 1)
    for code in range(k):
        rows = np.flatnonzero(labels == code)
        if len(rows):
            learned_from[code] = rows[0] + delay + 1
    known = np.arange(n)[:, None] >= learned_from
    return np.where(known.any(axis=1), np.argmax(np.where(known, scores, -np.inf), axis=1), 0)


def _latency(timings: Sequence[tuple[float, float]]) -> dict[str, float]:
    if not timings:
        return {}
    table = np.array(timings) * 1e6
    return {
        f"{what}_p{q}": float(np.percentile(table[:, column], q))
        for column, what in enumerate(("predict", "learn"))
        for q in (50, 99)
    }


def _quiet(metric: StreamMetric, y: Any, scores: Any, predicted: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return evaluate(metric, y, scores, predicted)
