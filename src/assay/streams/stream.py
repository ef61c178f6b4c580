"""Streams: rows in order, each with whatever features it has, from a table, a generator of chunks, or dictionaries."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import RegimeError, StreamError
from assay.streams.models.base import is_missing
from assay.streams.regimes import BLOCK, Intrinsic, Regime, masked_blocks, regime
from assay.streams.rows import Row, RowBlock

Chunk = tuple[NDArray[np.float64], NDArray[Any] | Sequence[Any]]
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class HaphazardStream:
    """Rows with labels, in order; every iteration starts a fresh pass and gives the same rows.

    Made by the loaders (`load`, `from_csv`, `from_frame`, `make_stream`, ...), or from arrays with `from_arrays` and
    from dictionaries with `from_dicts`.

    Attributes
    ----------
    name : str
    columns : tuple of hashable or None
        Names of the columns of the table; None for rows of dictionaries, whose features are not known ahead.
    task : {"classification", "regression"}
    classes : list or None
        Declared labels; for two, the second is the positive one. None: grown on first sight.
    n_rows : int or None
        None where the length is not known.
    """

    name: str
    columns: tuple[Hashable, ...] | None
    task: str = "classification"
    classes: tuple[Hashable, ...] | None = None
    n_rows: int | None = None
    regime: Regime = field(default_factory=Intrinsic)
    mask_seed: int = 0
    empty: str = "keep"
    chunks: Callable[[int], Iterator[Chunk]] | None = field(default=None, repr=False)
    dicts: Callable[[], Iterator[tuple[Mapping[Hashable, Any], Any]]] | None = field(default=None, repr=False)
    encode: Callable[[RowBlock], RowBlock] | None = field(default=None, repr=False)
    source_hash: str = ""

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise StreamError(f"task is one of {TASKS}, not {self.task!r}")
        if (self.chunks is None) == (self.dicts is None):
            raise StreamError("a stream is made of chunks of a table, or of dictionaries")

    def masked(
        self, kind: str | Regime = "probabilistic", *, seed: int = 0, empty: str = "keep", **params: Any
    ) -> Self:
        """The same rows under a regime.

        Parameters
        ----------
        kind : str or Regime
            A name of `assay.streams.regimes`, with its parameters as keywords.
        seed : int
            Seed of the mask.
        empty : {"keep", "one"}
            Whether a row may be left without any feature, or gets one random present one.

        Raises
        ------
        RegimeError
            If rows of dictionaries are masked by a regime that must know the columns.
        """
        chosen = regime(kind, **params)
        if self.columns is None and not isinstance(chosen, Intrinsic):
            raise RegimeError(
                f"the regime {chosen.name} needs a table with named columns; this stream is made of dictionaries. "
                f"Pass columns=... to from_dicts"
            )
        if chosen.needs_rows and self.n_rows is None:
            raise RegimeError(f"the regime {chosen.name} must know the number of rows; pass n_rows")
        return replace(self, regime=chosen, mask_seed=seed, empty=empty)

    def head(self, n: int) -> HaphazardStream:
        """The first n rows."""
        return _part(self, 0, n)

    def tail(self, start: int) -> HaphazardStream:
        """The rows from ``start`` on."""
        return _part(self, start, None)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[RowBlock, NDArray[Any] | Sequence[Any]]]:
        """Rows in compressed blocks, with their labels.

        Raises
        ------
        UnknownFeatureValue
            With the row and the column.
        """
        if self.dicts is not None:
            yield from self._dict_blocks(size)
            return
        assert self.chunks is not None and self.columns is not None
        masks: Iterator[NDArray[np.bool_]] | None = None
        pending: list[NDArray[np.bool_]] = []

        def present() -> Iterator[NDArray[np.bool_]]:
            while pending:
                yield pending.pop()

        intrinsic = isinstance(self.regime, Intrinsic)
        if not intrinsic:
            masks = masked_blocks(
                self.regime, self.n_rows, len(self.columns), self.mask_seed, present(), empty=self.empty, size=size
            )
        start = 0
        for X, y in self.chunks(size):
            if masks is not None:
                pending.append(~np.isnan(X))
                X = np.where(next(masks), X, np.nan)
            block = RowBlock.from_array(X, self.columns, first_row=start)
            start += len(X)
            yield (block if self.encode is None else self.encode(block)), y

    def __iter__(self) -> Iterator[tuple[Row, Any]]:
        for block, y in self.blocks():
            labels = y.tolist() if isinstance(y, np.ndarray) else y
            for t in range(len(block)):
                yield block.row(t), labels[t]

    def __len__(self) -> int:
        if self.n_rows is None:
            raise TypeError(f"the stream {self.name!r} has no known length")
        return self.n_rows

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """The whole stream as ``float64[n, d]`` (NaN = absent) and labels; for tables only."""
        if self.columns is None or self.encode is not None:
            raise StreamError("only streams of numeric tables can be turned into one array")
        X_parts, y_parts = [], []
        for block, y in self.blocks():
            X = np.full((len(block), len(self.columns)), np.nan)
            rows = np.repeat(np.arange(len(block)), np.diff(block.indptr))
            X[rows, block.codes] = block.values
            X_parts.append(X)
            y_parts.append(np.asarray(y))
        return np.concatenate(X_parts), np.concatenate(y_parts)

    def change_points(self) -> list[int]:
        """Rows at which the regime changes the features of all rows at once."""
        return self.regime.change_points(self.n_rows) if self.n_rows is not None else []

    def fingerprint(self) -> str:
        """Hash of the rows, labels and regime."""
        digest = hashlib.sha256(
            repr((self.task, self.classes, self.n_rows, self.regime, self.mask_seed, self.empty)).encode()
        )
        if self.source_hash:
            digest.update(self.source_hash.encode())
        else:
            for block, y in replace(self, regime=Intrinsic()).blocks():
                digest.update(repr(block.columns).encode())
                for array in (block.indptr, block.codes, block.values):
                    digest.update(array.tobytes())
                digest.update(
                    y.tobytes() if isinstance(y, np.ndarray) and y.dtype != object else repr(list(y)).encode()
                )
        return digest.hexdigest()[:16]

    def _dict_blocks(self, size: int) -> Iterator[tuple[RowBlock, list[Any]]]:
        assert self.dicts is not None
        rows: list[Row] = []
        labels: list[Any] = []
        for t, (features, y) in enumerate(self.dicts()):
            rows.append(Row.from_dict(_named(features), row=t))
            labels.append(y)
            if len(rows) == size:
                yield RowBlock.from_rows(rows), labels
                rows, labels = [], []
        if rows:
            yield RowBlock.from_rows(rows), labels


def from_arrays(
    X: NDArray[Any],
    y: NDArray[Any] | Sequence[Any],
    *,
    columns: Sequence[Hashable] | None = None,
    task: str | None = None,
    classes: Sequence[Hashable] | None = None,
    name: str = "arrays",
) -> HaphazardStream:
    """A stream from a table in memory.

    Parameters
    ----------
    X : float[n, d]
        NaN is absence.
    y : [n]
        Labels of any kind; None or NaN where the label is missing.
    columns : d ids, optional
        Default ``x0 .. x{d-1}``.
    task : {"classification", "regression"}, optional
        Default: regression if the labels are floats that are not whole, else classification.
    classes : sequence, optional
        Default: the labels in sorted order.

    Examples
    --------
    >>> stream = from_arrays(np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, 3.0]]), ["ok", "fault", "ok"])
    >>> [(row.to_dict(), y) for row, y in stream]
    [({'x0': 1.0}, 'ok'), ({}, 'fault'), ({'x0': 2.0, 'x1': 3.0}, 'ok')]
    """
    X = np.array(X, dtype=np.float64)
    if X.ndim != 2:
        raise StreamError(f"X is a table of rows and columns, not an array of shape {X.shape}")
    if len(X) != len(y):
        raise StreamError(f"{len(X)} rows but {len(y)} labels")
    names = tuple(columns) if columns is not None else tuple(f"x{j}" for j in range(X.shape[1]))
    if len(names) != X.shape[1]:
        raise StreamError(f"{X.shape[1]} columns but {len(names)} names")
    if len(set(names)) != len(names):
        raise StreamError(f"column names must differ; {_first_double(names)!r} stands twice")
    labels = np.asarray(y) if not isinstance(y, np.ndarray) else y
    if labels.dtype.kind not in "biufUS":
        labels = np.array([None if is_missing(v) else v for v in y], dtype=object)
    task = task or guess_task(labels)
    if task == "regression":
        labels = labels.astype(np.float64)
    elif classes is None:
        classes = sorted_classes(labels)

    def chunks(size: int) -> Iterator[Chunk]:
        for start in range(0, len(X), size):
            yield X[start : start + size], labels[start : start + size]

    return HaphazardStream(name, names, task, None if classes is None else tuple(classes), len(X), chunks=chunks)


def from_dicts(
    rows: Iterable[tuple[Mapping[Hashable, Any], Any]] | Callable[[], Iterable[tuple[Mapping[Hashable, Any], Any]]],
    *,
    task: str = "classification",
    classes: Sequence[Hashable] | None = None,
    n_rows: int | None = None,
    name: str = "dicts",
) -> HaphazardStream:
    """A stream of ``(features, label)`` pairs; text values become growing features ``name=value`` with value 1.

    Parameters
    ----------
    rows : iterable of (dict, label), or a function that gives one
        A function is called for every pass; a list can be passed over again; a one-shot iterator allows one pass.

    Examples
    --------
    >>> stream = from_dicts([({"temperature": 20, "valve": "open"}, 0), ({"valve": "shut", "pressure": None}, 1)])
    >>> [row.to_dict() for row, _ in stream]
    [{'temperature': 20.0, 'valve=open': 1.0}, {'valve=shut': 1.0}]
    """
    if not callable(rows) and isinstance(rows, Iterator):
        iterator = rows
        spent: list[bool] = []

        def once() -> Iterator[tuple[Mapping[Hashable, Any], Any]]:
            if spent:
                raise StreamError("this stream was made from an iterator that is used up; pass a list or a function")
            spent.append(True)
            return iter(iterator)

        source: Callable[[], Iterator[Any]] = once
    elif callable(rows):
        make = rows

        def source() -> Iterator[Any]:
            return iter(make())
    else:
        held = rows

        def source() -> Iterator[Any]:
            return iter(held)

        n_rows = len(held) if isinstance(held, Sized) else n_rows
    return HaphazardStream(name, None, task, None if classes is None else tuple(classes), n_rows, dicts=source)


def guess_task(labels: NDArray[Any]) -> str:
    """Regression if there are floats that are not whole, or more than 50 different numbers; else classification."""
    if labels.dtype.kind not in "fiu":
        return "classification"
    known = labels[~np.isnan(labels)] if labels.dtype.kind == "f" else labels
    if labels.dtype.kind == "f" and len(known) and (known != np.floor(known)).any():
        return "regression"
    return "regression" if len(np.unique(known)) > 50 else "classification"


def sorted_classes(labels: NDArray[Any]) -> list[Hashable]:
    """The different labels, sorted; whole floats as integers stay what they are."""
    known = [v for v in labels.tolist() if not is_missing(v)]
    try:
        return sorted(set(known))
    except TypeError:
        return sorted(set(known), key=repr)


def _named(features: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    return {
        (f"{name}={value}" if isinstance(value, str) else name): (1.0 if isinstance(value, str) else value)
        for name, value in features.items()
    }


def _first_double(names: Sequence[Hashable]) -> Hashable:
    seen: set[Hashable] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _part(stream: HaphazardStream, start: int, stop: int | None) -> HaphazardStream:
    """Rows of a stream after its mask was applied, so that a part sees the same cells as the whole."""

    def dicts() -> Iterator[tuple[Mapping[Hashable, Any], Any]]:
        for t, (row, y) in enumerate(stream):
            if stop is not None and t >= stop:
                return
            if t >= start:
                yield row.to_dict(), y

    n = stream.n_rows
    length = None if n is None else max(0, (n if stop is None else min(n, stop)) - start)
    return HaphazardStream(
        f"{stream.name}[{start}:{'' if stop is None else stop}]", None, stream.task, stream.classes, length, dicts=dicts
    )
