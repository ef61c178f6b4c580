"""Causal normalisers: the statistics of a feature are updated with its value first, then the value is transformed.

They know features by name, accept new ones at any row, and start every pass afresh unless told to go on. (In haphazard
1.2.8 the statistics survive from one pass to the next, so that two runs on one data set give different errors.)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import CheckpointMismatch, StreamError
from assay.streams.jit import njit
from assay.streams.models.tdigest import cdf, empty_bank, quantile, update
from assay.streams.rows import FeatureIndex, Row, RowBlock
from assay.streams.state import copy_tree, tree_bytes


class Normalizer:
    """Base of the normalisers: state is one array of floats, a row a feature.

    ``transform_one(row)`` and ``transform_block(block)`` update and transform; with ``learn=False`` they only
    transform.
    """

    width = 1

    def __init__(self) -> None:
        self.reset()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Constructor parameters."""
        names = [n for n in inspect.signature(type(self).__init__).parameters if n not in ("self", "args", "kwargs")]
        return {name: getattr(self, name) for name in names}

    def clone(self) -> Self:
        """A fresh normaliser with the same parameters."""
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"

    def reset(self) -> Self:
        """Forget all statistics."""
        self._index = FeatureIndex()
        self._state = self._empty(8)
        return self

    def transform_one(self, row: Row, *, learn: bool = True) -> Row:
        """Update with the row, then transform it; a feature that was never learned becomes 0 with ``learn=False``."""
        if learn:
            slots = self._index.register(row)
        else:
            slots = np.array([self._index.slot_of.get(i, -1) for i in row.ids], dtype=np.int64)
        return Row(row.ids, self._apply(_bounds(len(row.ids)), slots, row.values, learn))

    def transform_block(self, block: RowBlock, *, learn: bool = True) -> RowBlock:
        """As `transform_one`, row by row, for a block of rows."""
        if learn:
            slots = self._index.register_columns(block)
        else:
            known = np.array([self._index.slot_of.get(name, -1) for name in block.columns], dtype=np.int64)
            slots = known[block.codes]
        return block.with_values(self._apply(block.indptr, slots, block.values, learn))

    def state_dict(self) -> dict[str, Any]:
        """Names and statistics (a copy)."""
        return {
            "normalizer": type(self).__name__,
            "params": self.get_params(),
            "ids": list(self._index.ids),
            "state": copy_tree(self._state[: len(self._index)]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Go on from a `state_dict`.

        Raises
        ------
        CheckpointMismatch
            If it is of another normaliser or other parameters.
        """
        if state.get("normalizer") != type(self).__name__ or state.get("params") != self.get_params():
            raise CheckpointMismatch(
                f"this state is of {state.get('normalizer')}({state.get('params')}), not of {self!r}"
            )
        self._index = FeatureIndex(state["ids"])
        self._state = self._empty(max(8, len(state["ids"])))
        self._state[: len(state["ids"])] = state["state"]
        return self

    def memory_bytes(self) -> int:
        """Bytes of statistics and names."""
        return tree_bytes(self._index.ids) + int(self._state.nbytes)

    def _empty(self, n: int) -> NDArray[np.float64]:
        return np.zeros((n, self.width))

    def _apply(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], learn: bool
    ) -> NDArray[np.float64]:
        if len(self._index) > len(self._state):
            larger = self._empty(max(len(self._index), 2 * len(self._state)))
            larger[: len(self._state)] = self._state
            self._state = larger
        return self._transform(indptr, slots, values, learn)

    def _transform(
        self, indptr: NDArray[np.int64], slots: NDArray[np.int64], values: NDArray[np.float64], learn: bool
    ) -> NDArray[np.float64]:
        raise NotImplementedError


class NoNorm(Normalizer):
    """Values as they are."""

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return values.copy()


class ZScore(Normalizer):
    """``(x - mean) / sd`` with Welford's running mean and variance (divisor c - 1), clipped to [-3, 3].

    The first value of a feature becomes 0, and the standard deviation is at least 1e-6. (haphazard 1.2.8 returns the
    first value as it is, unclipped.)

    Examples
    --------
    >>> scale = ZScore()
    >>> [round(float(scale.transform_one(Row.from_dict({"t": v})).values[0]), 5) for v in (1001, 1003)]
    [0.0, 0.70711]
    """

    width = 3  # count, mean, sum of squared deviations

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _zscore(slots, values, self._state, learn)


class MinMax(Normalizer):
    """``(x - min) / (max - min)`` of the values so far, 0 while they are equal.

    With ``learn=False`` a value outside the range so far may leave [0, 1].
    """

    width = 2

    def _empty(self, n: int) -> NDArray[np.float64]:
        return np.tile([np.inf, -np.inf], (n, 1))

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _minmax(slots, values, self._state, learn)


class Mean(Normalizer):
    """``x - running mean``."""

    width = 2

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _mean(slots, values, self._state, learn)


class Decimal(Normalizer):
    """``x / 10^k``: decimal scaling.

    Parameters
    ----------
    k : int or "auto"
        3 by default, as in the haphazard library; "auto" takes the number of digits before the point of the largest
        ``|x|`` of that feature so far, so that values lie in (-1, 1).
    """

    def __init__(self, k: int | str = 3) -> None:
        if k != "auto" and not isinstance(k, int):
            raise StreamError(f"k is a whole number or 'auto', not {k!r}")
        self.k = k
        super().__init__()

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _decimal(slots, values, self._state, learn, -1 if self.k == "auto" else int(self.k))


class UnitVector(Normalizer):
    """Each row divided by its Euclidean norm over the observed features; keeps no statistics."""

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _unit(indptr, values)


class Robust(Normalizer):
    """``(x - median) / interquartile range`` from a t-digest a feature, clipped to [-3, 3]; 0 for the first value.

    Parameters
    ----------
    compression : int
        Of the digests: exact up to twice as many values, then accurate to about 1.5 / compression in rank.
    """

    def __init__(self, compression: int = 100) -> None:
        self.compression = compression
        super().__init__()

    def _empty(self, n: int) -> NDArray[np.float64]:
        return empty_bank(n, self.compression)

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _robust(slots, values, self._state, learn)


class Rank(Normalizer):
    """Mid-rank of x among the values so far (its own included), in (0, 1), from a t-digest a feature.

    Parameters
    ----------
    compression : int
        Of the digests: exact up to twice as many values, then accurate to about 1.5 / compression in rank.
    """

    def __init__(self, compression: int = 100) -> None:
        self.compression = compression
        super().__init__()

    def _empty(self, n: int) -> NDArray[np.float64]:
        return empty_bank(n, self.compression)

    def _transform(self, indptr: Any, slots: Any, values: NDArray[np.float64], learn: bool) -> NDArray[np.float64]:
        return _rank(slots, values, self._state, learn)


NORMALIZERS: dict[str, type[Normalizer]] = {
    "none": NoNorm,
    "zscore": ZScore,
    "minmax": MinMax,
    "mean": Mean,
    "decimal": Decimal,
    "unit": UnitVector,
    "robust": Robust,
    "rank": Rank,
}


def normalizer(name: str | Normalizer | None) -> Normalizer:
    """A fresh normaliser by name; an instance is copied without its statistics.

    Raises
    ------
    StreamError
        If there is none of that name; the nearest are suggested.
    """
    if name is None:
        return NoNorm()
    if isinstance(name, Normalizer):
        return name.clone()
    if name not in NORMALIZERS:
        near = get_close_matches(name, list(NORMALIZERS), n=3, cutoff=0.4) or list(NORMALIZERS)
        raise StreamError(f"there is no normaliser {name!r}; did you mean {', '.join(near)}?")
    return NORMALIZERS[name]()


@lru_cache(maxsize=1024)
def _bounds(n: int) -> NDArray[np.int64]:
    bounds = np.array([0, n], dtype=np.int64)
    return bounds


@njit
def _zscore(slots, values, state, learn):
    out = np.empty_like(values)
    for k in range(len(values)):
        s = slots[k]
        x = values[k]
        if s < 0:
            out[k] = 0.0
            continue
        if learn:
            state[s, 0] += 1.0
            delta = x - state[s, 1]
            state[s, 1] += delta / state[s, 0]
            state[s, 2] += delta * (x - state[s, 1])
        if state[s, 0] < 2.0:
            out[k] = 0.0
            continue
        # one over the standard deviation: a root and a division less than (x - mean) / sqrt(M2 / (c - 1))
        scale = min(np.sqrt((state[s, 0] - 1.0) / state[s, 2]), 1e6) if state[s, 2] > 0.0 else 1e6
        out[k] = min(3.0, max(-3.0, (x - state[s, 1]) * scale))
    return out


@njit
def _minmax(slots, values, state, learn):
    out = np.empty_like(values)
    for k in range(len(values)):
        s = slots[k]
        x = values[k]
        if s < 0:
            out[k] = 0.0
            continue
        if learn:
            state[s, 0] = min(state[s, 0], x)
            state[s, 1] = max(state[s, 1], x)
        span = state[s, 1] - state[s, 0]
        out[k] = (x - state[s, 0]) / span if span > 0.0 else 0.0
    return out


@njit
def _mean(slots, values, state, learn):
    out = np.empty_like(values)
    for k in range(len(values)):
        s = slots[k]
        if s < 0:
            out[k] = 0.0
            continue
        if learn:
            state[s, 0] += 1.0
            state[s, 1] += (values[k] - state[s, 1]) / state[s, 0]
        out[k] = values[k] - state[s, 1]
    return out


@njit
def _decimal(slots, values, state, learn, digits):
    out = np.empty_like(values)
    for k in range(len(values)):
        if digits >= 0:
            out[k] = values[k] / 10.0**digits
            continue
        s = slots[k]
        largest = abs(values[k])
        if s >= 0:
            if learn:
                state[s, 0] = max(state[s, 0], largest)
            largest = state[s, 0]
        scale = 1.0
        while scale <= largest:
            scale *= 10.0
        out[k] = values[k] / scale
    return out


@njit
def _unit(indptr, values):
    out = np.empty_like(values)
    for t in range(len(indptr) - 1):
        largest = 0.0  # squares are taken of ratios to it, so that none under- or overflows
        for k in range(indptr[t], indptr[t + 1]):
            largest = max(largest, abs(values[k]))
        total = 0.0
        for k in range(indptr[t], indptr[t + 1]):
            if largest > 0.0:
                total += (values[k] / largest) ** 2
        norm = np.sqrt(total)
        for k in range(indptr[t], indptr[t + 1]):
            out[k] = values[k] / largest / norm if largest > 0.0 else 0.0
    return out


@njit
def _robust(slots, values, state, learn):
    out = np.empty_like(values)
    for k in range(len(values)):
        s = slots[k]
        if s < 0:
            out[k] = 0.0
            continue
        if learn:
            update(state, s, values[k], 1.0)
        spread = max(quantile(state, s, 0.75) - quantile(state, s, 0.25), 1e-6)
        out[k] = min(3.0, max(-3.0, (values[k] - quantile(state, s, 0.5)) / spread))
    return out


@njit
def _rank(slots, values, state, learn):
    out = np.empty_like(values)
    for k in range(len(values)):
        s = slots[k]
        if s < 0:
            out[k] = 0.0
            continue
        if learn:
            update(state, s, values[k], 1.0)
        out[k] = cdf(state, s, values[k])
    return out
