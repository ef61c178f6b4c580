"""A row of a haphazard stream, blocks of rows, and the map from feature names to array slots."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import UnknownFeatureValue
from assay.streams.jit import njit

FeatureId = Hashable


class Row:
    """The features that are present at one step.

    Parameters
    ----------
    ids : tuple of hashable
        Names of the observed features, each once.
    values : float64[len(ids)]
        Their values, finite.

    Examples
    --------
    >>> row = Row.from_dict({"heart_rate": 71, "lactate": float("nan"), "ward=icu": 1})
    >>> row.ids, row.values.tolist()
    (('heart_rate', 'ward=icu'), [71.0, 1.0])
    """

    __slots__ = ("ids", "values")

    def __init__(self, ids: tuple[FeatureId, ...], values: NDArray[np.float64]) -> None:
        self.ids = ids
        self.values = values

    @classmethod
    def from_dict(cls, features: Mapping[FeatureId, float | None], *, row: int | None = None) -> Row:
        """Keep what is present: ``None`` and NaN are absence.

        Raises
        ------
        UnknownFeatureValue
            If a value is infinite or not a number; the message names the feature and, if given, the row.
        """
        ids, values = [], []
        for name, raw in features.items():
            if raw is None:
                continue
            try:
                value = float(raw)
            except (TypeError, ValueError):
                value = math.inf
            if math.isinf(value):
                where = "" if row is None else f" in row {row}"
                raise UnknownFeatureValue(
                    f"feature {name!r}{where} has the value {raw!r}, which is not a finite number; leave it out "
                    f"(or NaN) if it is absent, or turn a category into a feature named {name}={raw} with value 1"
                )
            if value == value:
                ids.append(name)
                values.append(value)
        return cls(tuple(ids), np.array(values, dtype=np.float64))

    def to_dict(self) -> dict[FeatureId, float]:
        """The row as ``{id: value}``."""
        return dict(zip(self.ids, self.values.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Row({self.to_dict()!r})"


@dataclass
class RowBlock:
    """Consecutive rows in compressed form: the observed cells of row t are ``indptr[t]:indptr[t+1]``.

    Attributes
    ----------
    columns : sequence of hashable
        The name behind each code.
    indptr : int64[n + 1]
    codes : int64[cells]
        Column code of each observed cell, in row order.
    values : float64[cells]
    """

    columns: Sequence[FeatureId]
    indptr: NDArray[np.int64]
    codes: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @classmethod
    def from_array(
        cls, X: NDArray[np.float64], columns: Sequence[FeatureId] | None = None, *, first_row: int = 0
    ) -> RowBlock:
        """Compress a dense ``float64[n, d]`` in which NaN is absence.

        Raises
        ------
        UnknownFeatureValue
            If a cell is infinite; the message names row and column.
        """
        X = np.ascontiguousarray(X, dtype=np.float64)
        names = range(X.shape[1]) if columns is None else columns
        indptr, codes, values = _compress(X)
        if np.isinf(values).any():
            t, j = (int(i) for i in np.argwhere(np.isinf(X))[0])
            raise UnknownFeatureValue(
                f"row {first_row + t}, column {names[j]!r} is {X[t, j]}; values must be finite, NaN is absence"
            )
        return cls(names, indptr, codes, values)

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> RowBlock:
        """Compress rows; codes are given in order of first sight."""
        code_of: dict[FeatureId, int] = {}
        indptr: list[int] = [0]
        codes: list[int] = []
        values: list[NDArray[np.float64]] = []
        for row in rows:
            codes.extend(code_of.setdefault(i, len(code_of)) for i in row.ids)
            values.append(row.values)
            indptr.append(len(codes))
        flat = np.concatenate(values) if values else np.empty(0)
        return cls(list(code_of), np.array(indptr, np.int64), np.array(codes, np.int64), flat.astype(np.float64))

    def row(self, t: int) -> Row:
        """Row t as a `Row`."""
        cells = slice(self.indptr[t], self.indptr[t + 1])
        return Row(tuple(self.columns[c] for c in self.codes[cells]), self.values[cells].copy())

    def with_values(self, values: NDArray[np.float64]) -> RowBlock:
        """The same cells with other values."""
        return RowBlock(self.columns, self.indptr, self.codes, values)

    def slice(self, start: int, stop: int) -> RowBlock:
        """Rows start to stop - 1."""
        a, b = self.indptr[start], self.indptr[stop]
        return RowBlock(self.columns, self.indptr[start : stop + 1] - a, self.codes[a:b], self.values[a:b])


class FeatureIndex:
    """Gives every feature id a slot, in order of first sight; slots index the state arrays of a model."""

    __slots__ = ("_row", "_slots", "ids", "slot_of")

    def __init__(self, ids: Iterable[FeatureId] = ()) -> None:
        self.ids: list[FeatureId] = list(ids)
        self.slot_of: dict[FeatureId, int] = {name: slot for slot, name in enumerate(self.ids)}
        self._row: Row | None = None  # the last row and its slots: most rows are scored and then learned
        self._slots = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def known(self, row: Row) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Slots and values of those features of the row that have a slot."""
        if row is self._row:
            return self._slots, row.values
        slots = list(map(self.slot_of.get, row.ids))
        if None in slots:
            keep = np.array([slot is not None for slot in slots], dtype=bool)
            return np.array([slot for slot in slots if slot is not None], dtype=np.int64), row.values[keep]
        self._slots = np.array(slots, dtype=np.int64)
        self._row = row
        return self._slots, row.values

    def register(self, row: Row) -> NDArray[np.int64]:
        """Slots of all features of the row; new ones get the next free slots."""
        if row is not self._row:
            slots = list(map(self.slot_of.get, row.ids))
            if None in slots:
                slots = [self._slot(i) for i in row.ids]
            self._slots = np.array(slots, dtype=np.int64)
            self._row = row
        return self._slots

    def register_columns(self, block: RowBlock) -> NDArray[np.int64]:
        """As `register_block`, but new features get slots in order of their columns, seen or not.

        Where the order means nothing, this spares the look at every cell: a table's codes are then its slots.
        """
        slot_of_code = np.array([self._slot(name) for name in block.columns], dtype=np.int64)
        if np.array_equal(slot_of_code, np.arange(len(slot_of_code))):
            return block.codes
        return slot_of_code[block.codes]

    def register_block(self, block: RowBlock) -> NDArray[np.int64]:
        """Slots of all cells of the block; new features get slots in order of first sight."""
        slot_of_code = np.full(len(block.columns), -1, dtype=np.int64)
        order = _first_sight(block.codes, len(block.columns))
        for code in order.tolist():
            slot_of_code[code] = self._slot(block.columns[code])
        return slot_of_code[block.codes]

    def _slot(self, name: FeatureId) -> int:
        slot = self.slot_of.get(name)
        if slot is None:
            slot = self.slot_of[name] = len(self.ids)
            self.ids.append(name)
        return slot


@njit
def _compress(X):
    # No branches: whether a cell is there cannot be predicted, so every cell is written and the place only moves on if
    # it is.
    n, d = X.shape
    indptr = np.zeros(n + 1, np.int64)
    cells = 0
    for t in range(n):
        for j in range(d):
            cells += X[t, j] == X[t, j]
        indptr[t + 1] = cells
    codes = np.empty(cells + 1, np.int64)
    values = np.empty(cells + 1, np.float64)
    k = 0
    for t in range(n):
        for j in range(d):
            x = X[t, j]
            codes[k] = j
            values[k] = x
            k += x == x
    return indptr, codes[:cells], values[:cells]


@njit
def _first_sight(codes, n_columns):
    seen = np.zeros(n_columns, np.bool_)
    order = np.empty(n_columns, np.int64)
    k = 0
    for c in codes:
        if not seen[c]:
            seen[c] = True
            order[k] = c
            k += 1
            if k == n_columns:
                break
    return order[:k]
