"""Where a local tensor lies in the whole one: an index vector a dimension, or a flat range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards.placements import Experts, Flat, Grouped, Interleave, Partial, Replicate, ZigZag

if TYPE_CHECKING:
    from assay.difftest.shards.spec import ShardSpec


@dataclass(frozen=True, eq=False)
class Index:
    """Where a local tensor lies: a vector of global indices a dimension (-1 is padding), or a flat range."""

    shape: tuple[int, ...]
    vectors: tuple[np.ndarray, ...] = ()
    flat: tuple[int, int, int] | None = None  # start, stop, padded length; within what the vectors hold
    key: tuple[Any, ...] = ()
    runs: tuple[tuple[tuple[int, int, int], ...], ...] = ()  # per dimension (global, local, length)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the local tensor, with padding."""
        if self.flat is not None:
            return (self.flat[2],)
        return tuple(len(v) for v in self.vectors)

    @property
    def uncut(self) -> bool:
        """Whether no dimension is cut."""
        return all(r == ((0, 0, n),) and len(v) == n for r, v, n in zip(self.runs, self.vectors, self.shape))

    @property
    def whole(self) -> bool:
        """Whether the local tensor is the whole one, in order."""
        return self.flat is None and self.uncut

    @property
    def region(self) -> Index:
        """What the dimensions alone cut out."""
        return Index(self.shape, self.vectors, None, (self.runs, None), self.runs)

    @property
    def count(self) -> int:
        """Elements of the whole tensor that are held."""
        if self.flat is not None:
            return self.flat[1] - self.flat[0]
        return math.prod(sum(length for _, _, length in runs) for runs in self.runs)

    def take(self, full: Tensor) -> Tensor:
        """Cut the local tensor out of the whole."""
        if self.whole:
            return full
        local = full.new_zeros(self.local_shape)
        if self.flat is not None:
            start, stop, _ = self.flat
            local[: stop - start] = self.region.take(full).reshape(-1)[start:stop]
            return local
        for part in product(*self.runs):
            local[_slices(part, 1)] = full[_slices(part, 0)]
        return local

    def put(self, full: Tensor, local: Tensor) -> None:
        """Write the local tensor to its place."""
        if self.flat is not None:
            start, stop, _ = self.flat
            if self.uncut:
                full.view(-1)[start:stop] = local.reshape(-1)[: stop - start]
                return
            inside = self.region.take(full).clone()
            inside.view(-1)[start:stop] = local.reshape(-1)[: stop - start]
            self.region.put(full, inside)
            return
        for part in product(*self.runs):
            full[_slices(part, 0)] = local[_slices(part, 1)]

    def add(self, count: Tensor) -> None:
        """Add one to the coverage count."""
        if self.flat is not None:
            inside = self.region.take(count).clone()
            inside.view(-1)[self.flat[0] : self.flat[1]] += 1
            self.region.put(count, inside)
            return
        for part in product(*self.runs):
            count[_slices(part, 0)] += 1

    def flat_indices(self) -> np.ndarray:
        """Global flat index of every local element, in the local order; -1 for padding."""
        if self.flat is not None:
            start, stop, padded = self.flat
            flat = np.full(padded, -1, np.int64)
            flat[: stop - start] = self.region.flat_indices()[start:stop]
            return flat
        out = np.zeros((1,) * len(self.vectors), np.int64)
        bad = np.zeros((1,) * len(self.vectors), bool)
        for i, (vector, size) in enumerate(zip(self.vectors, self.shape)):
            shape = [1] * len(self.vectors)
            shape[i] = -1
            out = out * size + vector.reshape(shape)
            bad = bad | (vector.reshape(shape) < 0)
        return np.where(bad, -1, out).reshape(-1)


def _slices(part: Iterable[tuple[int, int, int]], which: int) -> tuple[slice, ...]:
    return tuple(slice(p[which], p[which] + p[2]) for p in part)


def runs_of(vector: np.ndarray) -> tuple[tuple[int, int, int], ...]:
    kept = np.flatnonzero(vector >= 0)
    if len(kept) == 0:
        return ()
    values = vector[kept]
    breaks = np.flatnonzero((np.diff(values) != 1) | (np.diff(kept) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [len(kept)]])
    return tuple((int(values[a]), int(kept[a]), int(b - a)) for a, b in zip(starts, ends))


@lru_cache(maxsize=65536)
def index_of(spec: ShardSpec, shape: tuple[int, ...], used: tuple[tuple[str, tuple[int, int]], ...]) -> Index:
    coords = dict(used)
    vectors = [np.arange(n, dtype=np.int64) for n in shape]
    flats: list[tuple[Flat, int, int]] = []
    for axis, placement in spec.placements:
        if isinstance(placement, (Partial, Replicate)):
            continue
        rank, size = coords.get(axis, (0, 1))
        if not 0 <= rank < size:
            raise ShardSpecError(f"rank {rank} does not exist on the axis {axis!r} of size {size}")
        if isinstance(placement, Flat):
            flats.append((placement, rank, size))
            continue
        if placement.dim >= len(shape):
            raise ShardSpecError(
                f"{spec}: the axis {axis!r} cuts dimension {placement.dim}, the tensor has {list(shape)}"
            )
        vectors[placement.dim] = _placed(vectors[placement.dim], placement, axis, rank, size, spec)
    if spec.dims and len(spec.dims) != len(shape):
        raise ShardSpecError(f"{str(spec)!r} names {len(spec.dims)} dimensions, the tensor has shape {list(shape)}")
    runs = tuple(runs_of(v) for v in vectors)
    flat = _flat_range(flats[0], math.prod(map(len, vectors)), shape) if flats else None
    return Index(shape, tuple(vectors), flat, (runs, flat and flat[:2]), runs)


def _flat_range(of: tuple[Flat, int, int], total: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    placement, rank, size = of
    if placement.numel < 0:
        each = -(-total // size)
        return min(rank * each, total), min((rank + 1) * each, total), each
    start, stop = placement.offset, placement.offset + placement.numel
    if stop > total:
        raise ShardSpecError(
            f"the flat shard {start}..{stop} ends past the {total} elements of the shard of {list(shape)}"
        )
    return start, stop, placement.numel


def _placed(vector: np.ndarray, p: Any, axis: str, rank: int, size: int, spec: ShardSpec) -> np.ndarray:
    n = len(vector)
    if isinstance(p, ZigZag):
        if n % (2 * size):
            raise ShardSpecError(f"{spec}: {axis!r} of size {size} in zigzag needs a multiple of {2 * size}, not {n}")
        chunks = vector.reshape(2 * size, -1)
        return np.concatenate([chunks[rank], chunks[2 * size - 1 - rank]])
    if isinstance(p, Interleave):
        if n % (p.unit * size):
            raise ShardSpecError(
                f"{spec}: {axis!r} deals units of {p.unit} to {size} ranks, which {n} does not divide into"
            )
        return vector.reshape(-1, size, p.unit)[:, rank].reshape(-1)
    if isinstance(p, Experts):
        if len(p.ids) != size or sorted(e for held in p.ids for e in held) != sorted(range(n)):
            raise ShardSpecError(f"{spec}: the expert ids {p.ids} do not share out {n} experts over {size} ranks")
        return vector[list(p.ids[rank])]
    if isinstance(p, Grouped):
        per, unit = p.heads // p.groups, p.heads + 2 * p.groups
        if n % unit or p.heads % p.groups or p.groups % size:
            raise ShardSpecError(
                f"{spec}: {n} rows are no fused Q-K-V of {p.heads} heads in {p.groups} groups on {size} ranks"
            )
        d = n // unit
        q = vector[: p.heads * d].reshape(p.groups, per * d)
        k = vector[p.heads * d : (p.heads + p.groups) * d].reshape(p.groups, d)
        v = vector[(p.heads + p.groups) * d :].reshape(p.groups, d)
        fused = np.concatenate([q, k, v], axis=1)
        return fused.reshape(size, -1)[rank]
    if p.blocks:
        if sum(p.blocks) != n:
            raise ShardSpecError(f"{spec}: blocks {p.blocks} sum to {sum(p.blocks)}, the dimension holds {n}")
        bounds = np.cumsum((0, *p.blocks))
        return np.concatenate([_chunk(vector[a:b], rank, size) for a, b in pairwise(bounds)])
    if p.sizes:
        if len(p.sizes) != size or sum(p.sizes) != n:
            raise ShardSpecError(f"{spec}: sizes {p.sizes} on {axis!r} of size {size} do not fit a dimension of {n}")
        start = sum(p.sizes[:rank])
        return vector[start : start + p.sizes[rank]]
    if p.pad:
        each = -(-n // size)
        held = vector[rank * each : (rank + 1) * each]
        return np.concatenate([held, np.full(each - len(held), -1, np.int64)])
    return _chunk(vector, rank, size)


def _chunk(vector: np.ndarray, rank: int, size: int) -> np.ndarray:
    each = -(-len(vector) // size)
    return vector[rank * each : (rank + 1) * each]
