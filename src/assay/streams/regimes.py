"""When each feature is there: masks over the rows and columns of a table.

A regime makes its mask block by block, in constant memory, and the mask does not depend on how the blocks are cut. In
every regime a value that is NaN in the source stays absent.

Block c of C consecutive blocks holds the rows ``floor(c n / C) .. floor((c + 1) n / C) - 1``, so that every row lies
in one. (haphazard 1.2.8 uses blocks of ``n // C`` rows: its last ``n mod C`` rows lie in none.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import RegimeError
from assay.streams.jit import njit

BLOCK = 1024
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Regime:
    """Base of the regimes. A subclass gives ``_blocks``: the raw mask, before NaN and empty rows are seen to."""

    needs_rows: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name on the command line."""
        return type(self).__name__.lower()

    def blocks(self, n: int | None, d: int, seed: int = 0, size: int = BLOCK) -> Iterator[Mask]:
        """Masks of consecutive blocks of rows.

        Parameters
        ----------
        n : int or None
            Rows of the stream; None for an endless one, where the regime allows that.
        d : int
            Columns.
        seed : int
        size : int
            Rows of a block; the last may be shorter.

        Yields
        ------
        bool[rows, d]

        Raises
        ------
        RegimeError
            If the regime needs the number of rows and there is none, or there are too few columns.
        """
        if n is None and self.needs_rows:
            raise RegimeError(
                f"the regime {self.name} cuts the stream into blocks and must know its length; pass n_rows"
            )
        if d < 1:
            raise RegimeError(f"a regime needs at least one column, not {d}")
        return self._blocks(n, d, np.random.default_rng([seed, 1]), size)

    def mask(self, n: int, d: int, seed: int = 0, *, present: Mask | None = None, empty: str = "keep") -> Mask:
        """The whole mask as ``bool[n, d]``; see `masked_blocks` for ``present`` and ``empty``."""
        parts = list(
            masked_blocks(self, n, d, seed, None if present is None else [present], empty=empty, size=max(1, n))
        )
        return np.concatenate(parts) if parts else np.empty((0, d), dtype=bool)

    def change_points(self, n: int) -> list[int]:
        """First rows of the blocks in which the set of features changes for all rows at once; empty if there are
        none."""
        return []

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        raise NotImplementedError


def masked_blocks(
    regime: Regime,
    n: int | None,
    d: int,
    seed: int,
    present: Any = None,
    *,
    empty: str = "keep",
    size: int = BLOCK,
) -> Iterator[Mask]:
    """Masks of a regime with absent values taken out and empty rows seen to.

    Parameters
    ----------
    present : iterable of bool[rows, d], optional
        Where the source has a value, in blocks of ``size`` rows.
    empty : {"keep", "one"}
        Leave rows without any feature as they are, or switch one random present column on (the rule of the haphazard
        library, and of its published results).
    """
    if empty not in ("keep", "one"):
        raise RegimeError(f"empty is 'keep' or 'one', not {empty!r}")
    filler = np.random.default_rng([seed, 2])
    sources = iter(present) if present is not None else None
    for block in regime.blocks(n, d, seed, size):
        there = np.ones_like(block) if sources is None else next(sources, None)
        if there is None:
            return
        block = block[: len(there)] & there
        if empty == "one":
            for t in np.flatnonzero(~block.any(axis=1)):
                choice = filler.random()
                columns = np.flatnonzero(there[t])
                if len(columns):
                    block[t, columns[int(choice * len(columns))]] = True
        yield block


def _row_blocks(n: int | None, size: int) -> Iterator[tuple[int, int]]:
    start = 0
    while n is None or start < n:
        stop = start + size if n is None else min(n, start + size)
        yield start, stop
        start = stop


@dataclass(frozen=True)
class Intrinsic(Regime):
    """As the data are: a feature is there where it has a value."""

    needs_rows: ClassVar[bool] = False

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        for start, stop in _row_blocks(n, size):
            yield np.ones((stop - start, d), dtype=bool)


@dataclass(frozen=True)
class Probabilistic(Regime):
    """Each cell is kept with probability p, independently."""

    p: float = 0.5
    needs_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_unit("p", self.p)

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        for start, stop in _row_blocks(n, size):
            yield rng.random((stop - start, d)) < self.p


@dataclass(frozen=True)
class _Chunked(Regime):
    C: int = 5

    def __post_init__(self) -> None:
        if self.C < 1:
            raise RegimeError(f"C (number of blocks) must be at least 1, not {self.C}")

    def change_points(self, n: int) -> list[int]:
        return sorted({math.floor(c * n / self.C) for c in range(1, self.C)} - {0})

    def _columns(self, c: int, d: int) -> tuple[int, int]:
        raise NotImplementedError

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        assert n is not None
        bounds = np.array([c * n // self.C for c in range(1, self.C)])
        for start, stop in _row_blocks(n, size):
            chunk = np.searchsorted(bounds, np.arange(start, stop), side="right")
            block = np.zeros((stop - start, d), dtype=bool)
            for c in np.unique(chunk):
                low, high = self._columns(int(c), d)
                block[chunk == c, low:high] = True
            yield block


@dataclass(frozen=True)
class Sudden(_Chunked):
    """Features arrive in groups: block c sees columns ``0 .. floor(d (c + 1) / C) - 1``.

    Examples
    --------
    >>> counts = Sudden(C=5).mask(569, 30).sum(axis=1)
    >>> dict(zip(*[a.tolist() for a in np.unique(counts, return_counts=True)]))
    {6: 113, 12: 114, 18: 114, 24: 114, 30: 114}
    """

    def _columns(self, c: int, d: int) -> tuple[int, int]:
        return 0, d * (c + 1) // self.C


@dataclass(frozen=True)
class Obsolete(_Chunked):
    """Features die in groups: block c sees columns ``0 .. floor(d (C - c) / C) - 1``."""

    def _columns(self, c: int, d: int) -> tuple[int, int]:
        return 0, d * (self.C - c) // self.C


@dataclass(frozen=True)
class Reappearing(_Chunked):
    """Two halves take turns: even blocks see columns ``0 .. floor(d / 2) - 1``, odd blocks the rest."""

    def _columns(self, c: int, d: int) -> tuple[int, int]:
        return (0, d // 2) if c % 2 == 0 else (d // 2, d)


@dataclass(frozen=True)
class Trapezoidal(Regime):
    """Features only ever appear: column j is there from its birth row on, which is uniform over the stream.

    One random column is there from the first row.
    """

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        assert n is not None
        births = rng.integers(0, max(1, n), size=d)
        births[rng.integers(d)] = 0
        for start, stop in _row_blocks(n, size):
            yield np.arange(start, stop)[:, None] >= births


@dataclass(frozen=True)
class Capricious(Regime):
    """Each feature has an availability of its own, ``p_j ~ Uniform(lo, hi)``, and is there with that probability."""

    lo: float = 0.1
    hi: float = 0.9
    needs_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _in_unit("lo", self.lo)
        _in_unit("hi", self.hi)
        if self.lo > self.hi:
            raise RegimeError(f"lo must not be above hi: {self.lo} > {self.hi}")

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        p = rng.uniform(self.lo, self.hi, size=d)
        for start, stop in _row_blocks(n, size):
            yield rng.random((stop - start, d)) < p


@dataclass(frozen=True)
class Evolvable(Regime):
    """The feature space is replaced, segment by segment, with a window in which old and new are both there.

    The columns are dealt at random into ``segments`` disjoint sets of (almost) equal size. The first ``overlap`` share
    of the rows of each later segment still has the features of the segment before, as in feature evolvable streams
    (Hou, Zhang and Zhou, NeurIPS 2017).
    """

    segments: int = 2
    overlap: float = 0.1

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise RegimeError(f"segments must be at least 1, not {self.segments}")
        _in_unit("overlap", self.overlap)

    def change_points(self, n: int) -> list[int]:
        return sorted({c * n // self.segments for c in range(1, self.segments)} - {0})

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        assert n is not None
        if d < self.segments:
            raise RegimeError(f"evolvable needs a column for each of its {self.segments} segments; the table has {d}")
        group = np.empty(d, dtype=np.int64)
        group[rng.permutation(d)] = np.arange(d) * self.segments // d
        bounds = np.array([c * n // self.segments for c in range(self.segments + 1)])
        for start, stop in _row_blocks(n, size):
            rows = np.arange(start, stop)
            segment = np.searchsorted(bounds[1:-1], rows, side="right")
            length = bounds[segment + 1] - bounds[segment]
            overlapping = (rows - bounds[segment] < self.overlap * length) & (segment > 0)
            yield (group == segment[:, None]) | (overlapping[:, None] & (group == segment[:, None] - 1))


@dataclass(frozen=True)
class Bursts(Regime):
    """Each feature is a two-state Markov chain: there for ``up`` rows on average, then away for ``down`` rows.

    The chain starts in its stationary distribution, so the availability is ``up / (up + down)`` from the first row on.
    """

    up: float = 50.0
    down: float = 50.0
    needs_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            if getattr(self, name) < 1:
                raise RegimeError(f"{name} (mean length in rows) must be at least 1, not {getattr(self, name)}")

    def _blocks(self, n: int | None, d: int, rng: np.random.Generator, size: int) -> Iterator[Mask]:
        state = rng.random(d) < self.up / (self.up + self.down)
        first = True
        for start, stop in _row_blocks(n, size):
            block = np.empty((stop - start, d), dtype=np.bool_)
            _walk(rng.random((stop - start, d)), state, 1.0 / self.up, 1.0 / self.down, first, block)
            first = False
            yield block


@njit
def _walk(draws, state, leave, enter, first, block):
    for t in range(draws.shape[0]):
        for j in range(draws.shape[1]):
            if not (first and t == 0):
                if state[j]:
                    state[j] = draws[t, j] >= leave
                else:
                    state[j] = draws[t, j] < enter
            block[t, j] = state[j]


REGIMES: dict[str, type[Regime]] = {
    kind.__name__.lower(): kind
    for kind in (
        Probabilistic, Sudden, Obsolete, Reappearing, Intrinsic, Trapezoidal, Capricious, Evolvable, Bursts,
    )
}  # fmt: skip


def regime(name: str | Regime, **params: Any) -> Regime:
    """A regime by name: ``regime("sudden", C=4)``; ``"obstruct-50"`` means ``probabilistic`` with p = 0.5.

    Raises
    ------
    RegimeError
        If there is no such regime or parameter; the nearest names are suggested.
    """
    if isinstance(name, Regime):
        if params:
            raise RegimeError(f"{name!r} is a regime already; parameters go into its constructor")
        return name
    if name.startswith("obstruct-") and name[9:].isdigit() and not params:
        return Probabilistic(p=int(name[9:]) / 100)
    if name not in REGIMES:
        near = get_close_matches(name, list(REGIMES), n=3, cutoff=0.4) or list(REGIMES)
        raise RegimeError(f"there is no regime {name!r}; did you mean {', '.join(near)}?")
    try:
        return REGIMES[name](**params)
    except TypeError:
        takes = ", ".join(f.name for f in fields(REGIMES[name])) or "none"
        raise RegimeError(f"the regime {name} does not take {', '.join(params)}; its parameters are: {takes}") from None


def _in_unit(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise RegimeError(f"{name} is a share and must lie in [0, 1], not {value}")
