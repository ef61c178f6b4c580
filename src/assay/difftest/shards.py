"""How a rank's tensor lies in the whole one: specifications, cutting, and merging with a coverage count.

Every specification comes down to one index vector a dimension (or one flat range), so that one merge serves all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.difftest.errors import ShardSpecError

Coords = Mapping[str, tuple[int, int]]
"""Axis -> (rank's position on it, size of the axis)."""


@dataclass(frozen=True)
class Shard:
    """Cut along ``dim``, as `torch.chunk` does (the last ranks may hold less), or in a way of its own.

    Parameters
    ----------
    dim : int
    blocks : tuple of int
        Cut each block by itself, and put a rank's pieces one after the other (fused gate-up, fused Q-K-V).
    sizes : tuple of int
        Length for each rank, where they are uneven by design.
    pad : bool
        Local tensors all have the rounded-up length; what lies past the end of the whole tensor is padding.
    """

    dim: int
    blocks: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    pad: bool = False


@dataclass(frozen=True)
class Interleave:
    """Block-cyclic: units of ``unit`` elements are dealt out in turn (striped attention has unit 1)."""

    dim: int
    unit: int = 1


@dataclass(frozen=True)
class Grouped:
    """Fused Q-K-V, in the whole tensor as ``[Q; K; V]`` and in the rank's group by group as Megatron stores it."""

    dim: int
    heads: int
    groups: int


@dataclass(frozen=True)
class ZigZag:
    """Context parallelism with balanced causal work: of 2c chunks rank r holds chunk r and chunk 2c - 1 - r."""

    dim: int


@dataclass(frozen=True)
class Experts:
    """``ids[r]`` are the entries along ``dim`` (global expert ids) that rank r of the axis holds, in its order."""

    ids: tuple[tuple[int, ...], ...]
    dim: int = 0


@dataclass(frozen=True)
class Replicate:
    """Every rank of the axis holds the same. This is also what an axis that is not mentioned means."""


@dataclass(frozen=True)
class Partial:
    """Ranks of the axis hold contributions that must be reduced: ``sum``, ``mean`` or ``max``."""

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in ("sum", "mean", "max"):
            raise ShardSpecError(f"a partial tensor is reduced by sum, mean or max, not {self.op!r}")


@dataclass(frozen=True)
class Flat:
    """A stretch of the flattened tensor (ZeRO, FSDP1); of a rank's shard, where other axes cut dimensions before.

    Without ``numel``, the flat tensor is cut evenly over the axis, the last piece padded to the length of the others.
    With it, this rank holds elements ``offset`` to ``offset + numel``; each rank gives its own.
    """

    offset: int = -1
    numel: int = -1


Placement = Shard | Interleave | Grouped | ZigZag | Experts | Replicate | Partial | Flat


@dataclass(frozen=True)
class ShardSpec:
    """Placements of a tensor on the axes of a mesh, the outer ones first.

    Parameters
    ----------
    placements : tuple of (str, Placement)
    dims : tuple of str
        Names of the dimensions, for messages.
    scale : float
        What local values are multiplied by to be comparable (1/dp where a local loss is dp times too large by design).

    Examples
    --------
    >>> spec = ShardSpec.parse("b s[cp:zigzag,sp] h[tp] {dp:sum} *0.5")
    >>> spec.placements[0], spec.scale
    (('cp', ZigZag(dim=1)), 0.5)
    >>> str(spec)
    'b s[cp:zigzag,sp] h[tp] {dp:sum} *0.5'
    >>> index = ShardSpec.parse("s[cp:zigzag]").index((8,), {"cp": (0, 2)})
    >>> index.vectors[0].tolist()
    [0, 1, 6, 7]
    """

    placements: tuple[tuple[str, Placement], ...] = ()
    dims: tuple[str, ...] = ()
    scale: float = 1.0

    @classmethod
    def parse(cls, text: str) -> ShardSpec:
        """Read the one-line form.

        ``s[cp:zigzag,sp]`` cuts dimension ``s`` over ``cp`` and what remains over ``sp``. Ways to cut:
        ``zigzag``, ``stripe=UNIT``, ``blocks=64/32/32``, ``sizes=3/5``, ``pad``, ``qkv=HEADSxGROUPS``,
        ``ids=0.2/1.3`` (experts of rank 0, of rank 1). ``{tp:sum,dp}`` holds partial axes, ``flat[dp]`` or
        ``flat[128+64]`` flat ones, ``*0.5`` a scale, and ``...`` any number of further dimensions.

        Raises
        ------
        ShardSpecError
        """
        return _parsed(text)

    def __str__(self) -> str:
        return _text(self)

    def _written(self) -> str:
        flat = [(axis, p) for axis, p in self.placements if isinstance(p, Flat)]
        ndim = max([getattr(p, "dim", -1) for _, p in self.placements] + [len(self.dims) - 1]) + 1
        names = list(self.dims) or [f"d{i}" for i in range(ndim)]
        words: list[str] = []
        for i, name in enumerate(names):
            cuts = [_cut_text(axis, p) for axis, p in self.placements if getattr(p, "dim", -1) == i]
            words.append(f"{name}[{','.join(cuts)}]" if cuts else name)
        if not self.dims and words:
            words.append("...")  # further dimensions, without names
        words += [f"flat[{axis}]" if p.numel < 0 else f"flat[{p.offset}+{p.numel}]" for axis, p in flat]
        partial = [f"{axis}:{p.op}" for axis, p in self.placements if isinstance(p, Partial)]
        if partial:
            words.append("{" + ",".join(partial) + "}")
        if self.scale != 1.0:
            words.append(f"*{self.scale:g}")
        return " ".join(words)

    @property
    def partial_axes(self) -> dict[str, str]:
        """Axes with contributions, and how they are reduced."""
        return {axis: p.op for axis, p in self.placements if isinstance(p, Partial)}

    def index(self, shape: Sequence[int], coords: Coords) -> Index:
        """Where the local tensor of a rank lies in a whole tensor of ``shape``.

        Raises
        ------
        ShardSpecError
            If a placement does not fit; the message names the axis and the sizes.
        """
        used = tuple(sorted((a, coords[a]) for a, p in self.placements if a in coords and not isinstance(p, Partial)))
        return _index(self, tuple(int(n) for n in shape), used)

    def cut(self, full: Tensor, coords: Coords) -> Tensor:
        """The rank's part of a whole tensor. Partial axes: the first rank of the axis gets all, the others zeros."""
        local = self.index(tuple(full.shape), coords).take(full)
        for axis, op in self.partial_axes.items():
            if op == "sum" and coords.get(axis, (0, 1))[0] > 0:
                local = torch.zeros_like(local)
        return local if self.scale == 1.0 else local / self.scale

    def full_shape(self, local: Sequence[int], coords: Coords) -> tuple[int, ...]:
        """The whole shape for an evenly cut local one; for uneven cuts give the whole shape yourself.

        >>> ShardSpec.parse("b s[cp:zigzag,sp] h[tp]").full_shape((2, 4, 8), {"cp": (0, 2), "sp": (1, 2), "tp": (0, 4)})
        (2, 16, 32)
        """
        shape = list(local)
        for axis, placement in self.placements:
            if isinstance(placement, Flat):
                raise ShardSpecError("a flat shard does not tell the whole shape; give full_shape")
            if isinstance(placement, (Partial, Replicate)):
                continue
            size = coords.get(axis, (0, 1))[1]
            if isinstance(placement, Shard) and placement.blocks:
                shape[placement.dim] = sum(placement.blocks)
            elif isinstance(placement, Shard) and placement.sizes:
                shape[placement.dim] = sum(placement.sizes)
            elif isinstance(placement, Experts):
                shape[placement.dim] = sum(map(len, placement.ids))
            else:
                shape[placement.dim] *= size
        return tuple(shape)


@lru_cache(maxsize=4096)
def _text(spec: ShardSpec) -> str:
    return spec._written()


def _cut_text(axis: str, p: Any) -> str:
    if isinstance(p, ZigZag):
        return f"{axis}:zigzag"
    if isinstance(p, Interleave):
        return f"{axis}:stripe={p.unit}"
    if isinstance(p, Grouped):
        return f"{axis}:qkv={p.heads}x{p.groups}"
    if isinstance(p, Experts):
        return f"{axis}:ids=" + "/".join(".".join(map(str, held)) for held in p.ids)
    if isinstance(p, Shard) and p.blocks:
        return f"{axis}:blocks=" + "/".join(map(str, p.blocks))
    if isinstance(p, Shard) and p.sizes:
        return f"{axis}:sizes=" + "/".join(map(str, p.sizes))
    return f"{axis}:pad" if p.pad else axis


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ShardSpec:
    placements: list[tuple[str, Placement]] = []
    dims: list[str] = []
    scale = 1.0
    open_ended = False
    for word in re.findall(r"\.\.\.|\{[^}]*\}|\*\s*[^\s]+|[^\s\[\]{}*]+(?:\[[^\]]*\])?|\S", text):
        if word == "...":
            open_ended = True
        elif word.startswith("{") and word.endswith("}"):
            for item in filter(None, (w.strip() for w in word[1:-1].split(","))):
                axis, _, op = item.partition(":")
                placements.append((axis.strip(), Partial(op.strip() or "sum")))
        elif word.startswith("*"):
            try:
                scale = float(word[1:])
            except ValueError:
                raise ShardSpecError(f"cannot read the scale {word!r} in {text!r}") from None
        elif match := re.fullmatch(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?", word):
            name, inside = match.groups()
            cuts = [c.strip() for c in (inside or "").split(",") if c.strip()]
            if name == "flat":
                for cut in cuts:
                    at = re.fullmatch(r"(\d+)\+(\d+)", cut)
                    placements.append(("flat", Flat(int(at[1]), int(at[2]))) if at else (cut, Flat()))
                continue
            dims.append(name)
            placements.extend(_cut(cut, len(dims) - 1, text) for cut in cuts)
        else:
            raise ShardSpecError(
                f"cannot read {word!r} in the specification {text!r}; write it like 'b s[cp:zigzag] h[tp]'"
            )
    axes = [axis for axis, _ in placements]
    for axis in axes:
        if axes.count(axis) > 1:
            raise ShardSpecError(f"the axis {axis!r} stands twice in {text!r}; a mesh axis cuts one dimension")
    return ShardSpec(tuple(placements), () if open_ended else tuple(dims), scale)


def _cut(cut: str, dim: int, text: str) -> tuple[str, Placement]:
    axis, _, how = cut.partition(":")
    key, _, value = how.partition("=")
    try:
        if not how:
            return axis, Shard(dim)
        if how == "pad":
            return axis, Shard(dim, pad=True)
        if how == "zigzag":
            return axis, ZigZag(dim)
        if key == "stripe":
            return axis, Interleave(dim, int(value))
        if key == "blocks":
            return axis, Shard(dim, blocks=tuple(map(int, value.split("/"))))
        if key == "sizes":
            return axis, Shard(dim, sizes=tuple(map(int, value.split("/"))))
        if key == "qkv":
            heads, groups = value.split("x")
            return axis, Grouped(dim, int(heads), int(groups))
        if key == "ids":
            return axis, Experts(tuple(tuple(map(int, held.split("."))) for held in value.split("/")), dim)
    except ValueError:
        raise ShardSpecError(f"cannot read {cut!r} in the specification {text!r}") from None
    ways = "zigzag, stripe=, blocks=, sizes=, pad, qkv= or ids="
    raise ShardSpecError(f"cannot read {cut!r} in the specification {text!r}; after the colon stands {ways}")


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


def _runs(vector: np.ndarray) -> tuple[tuple[int, int, int], ...]:
    kept = np.flatnonzero(vector >= 0)
    if len(kept) == 0:
        return ()
    values = vector[kept]
    breaks = np.flatnonzero((np.diff(values) != 1) | (np.diff(kept) != 1)) + 1
    starts = np.concatenate([[0], breaks])
    ends = np.concatenate([breaks, [len(kept)]])
    return tuple((int(values[a]), int(kept[a]), int(b - a)) for a, b in zip(starts, ends))


@lru_cache(maxsize=65536)
def _index(spec: ShardSpec, shape: tuple[int, ...], used: tuple[tuple[str, tuple[int, int]], ...]) -> Index:
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
    runs = tuple(_runs(v) for v in vectors)
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


@dataclass(frozen=True)
class Piece:
    """One rank's tensor with the place that it has."""

    rank: int
    coords: Coords
    tensor: Tensor
    spec: ShardSpec


@dataclass(frozen=True)
class Problem:
    """What a merge found before any tolerance: ``missing region``, ``double cover``, ``replica conflict``,
    ``shape mismatch``."""

    kind: str
    message: str
    ranks: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    max_abs: float = 0.0
    relative: float = 0.0


@dataclass
class Merged:
    """A whole tensor (None where it could not be built) and the problems on the way."""

    tensor: Tensor | None
    problems: list[Problem] = field(default_factory=list)


def merge(pieces: Sequence[Piece], shape: Sequence[int], *, present_axes: Iterable[str] = ("pp", "vpp")) -> Merged:
    """Put the pieces of all ranks into one tensor.

    Copies of one region are compared bit by bit, contributions along partial axes are reduced (sums of 16-bit types
    in FP32), and the union of regions must be the whole, once.

    Parameters
    ----------
    pieces : sequence of Piece
    shape : sequence of int
        The whole shape.
    present_axes : iterable of str
        Axes on which not every rank holds every tensor (pipeline stages), so that absence is no gap.

    Returns
    -------
    Merged

    Examples
    --------
    >>> spec = ShardSpec.parse("s[tp]")
    >>> whole = torch.arange(6.0)
    >>> parts = [Piece(r, {"tp": (r, 3)}, spec.cut(whole, {"tp": (r, 3)}), spec) for r in range(3)]
    >>> torch.equal(merge(parts, (6,)).tensor, whole)
    True
    >>> merge([parts[0], parts[2]], (6,)).problems[0].message
    'no rank holds s 2..3'
    """
    shape = tuple(int(n) for n in shape)
    copies = _copies(pieces, present_axes)
    if len(copies) > 1:
        each = [merge(part, shape, present_axes=()) for part in copies]
        if all(m.tensor is not None and not any(p.kind == "missing region" for p in m.problems) for m in each):
            return _agreed(each, copies)
    problems: list[Problem] = []
    regions: dict[tuple[Any, ...], dict[tuple[int, ...], list[Piece]]] = {}
    indices: dict[tuple[Any, ...], Index] = {}
    for piece in pieces:
        index = piece.spec.index(shape, piece.coords)
        if tuple(piece.tensor.shape) != index.local_shape and piece.tensor.numel() != math.prod(index.local_shape):
            text = (
                f"rank {piece.rank} holds {list(piece.tensor.shape)}, {piece.spec} of {list(shape)} makes "
                f"{list(index.local_shape)}"
            )
            problems.append(Problem("shape mismatch", text, (piece.rank,)))
            continue
        indices[index.key] = index
        part = tuple(piece.coords.get(axis, (0, 1))[0] for axis in piece.spec.partial_axes)
        regions.setdefault(index.key, {}).setdefault(part, []).append(piece)
    if not regions:
        return Merged(None, problems or [Problem("missing region", "no rank holds the tensor")])
    whole: Tensor | None = None
    absent = set(present_axes)
    for key, parts in regions.items():
        local, found = _reduced(parts, absent)
        problems += found
        if local is None:
            continue
        scale = next(iter(parts.values()))[0].spec.scale
        if scale != 1.0:
            local = local * scale
        index = indices[key]
        local = local.reshape(index.local_shape)
        if len(regions) == 1 and index.whole:
            return Merged(local, problems)
        if whole is None:
            whole = torch.zeros(shape, dtype=local.dtype, device=local.device)
        index.put(whole, local)
    problems += _coverage(list(indices.values()), shape, pieces[0].spec)
    return Merged(whole, problems)


def _copies(pieces: Sequence[Piece], axes: Iterable[str]) -> list[list[Piece]]:
    """Pieces by stage, where stages hold copies (a tied weight) that may be cut in ways of their own."""
    axes = tuple(axes)
    if not pieces or any(a in p.spec.partial_axes or a in dict(p.spec.placements) for p in pieces for a in axes):
        return [list(pieces)]
    groups: dict[tuple[int, ...], list[Piece]] = {}
    for p in pieces:
        groups.setdefault(tuple(p.coords.get(a, (0, 1))[0] for a in axes), []).append(p)
    return list(groups.values())


def _agreed(each: Sequence[Merged], copies: Sequence[Sequence[Piece]]) -> Merged:
    problems = [p for m in each for p in m.problems]
    whole = [
        Piece(part[0].rank, part[0].coords, m.tensor, ShardSpec())
        for m, part in zip(each, copies) if m.tensor is not None
    ]  # fmt: skip
    conflict = _conflict(whole)
    if conflict is not None:
        ranks = tuple(sorted(p.rank for part in copies for p in part))
        problems.append(
            Problem(conflict.kind, conflict.message, ranks, conflict.axes, conflict.max_abs, conflict.relative)
        )
    return Merged(each[0].tensor, problems)


def _reduced(parts: dict[tuple[int, ...], list[Piece]], absent: set[str]) -> tuple[Tensor | None, list[Problem]]:
    problems: list[Problem] = []
    first = next(iter(parts.values()))[0]
    axes = first.spec.partial_axes
    chosen: list[Tensor] = []
    for copies in parts.values():
        conflict = _conflict(copies)
        if conflict is not None:
            problems.append(conflict)
        chosen.append(copies[0].tensor)
    wanted = [range(first.coords.get(axis, (0, 1))[1]) for axis in axes if axis not in absent]
    kept = [i for i, axis in enumerate(axes) if axis not in absent]
    have = {tuple(part[i] for i in kept) for part in parts}
    gaps = [c for c in product(*wanted) if c not in have]
    if gaps:
        names = [axis for axis in axes if axis not in absent]
        text = "; ".join(", ".join(f"{a}={i}" for a, i in zip(names, gap)) for gap in gaps[:4])
        problems.append(Problem("missing region", f"no contribution from {text}", axes=tuple(names)))
    if len(chosen) == 1:
        return chosen[0], problems
    ops = set(axes.values())
    if len(ops) > 1:
        raise ShardSpecError(f"{first.spec}: axes of one tensor are reduced in two ways")
    op = ops.pop()
    wide = torch.float32 if chosen[0].dtype in (torch.bfloat16, torch.float16) else chosen[0].dtype
    total = chosen[0].to(wide).clone()
    for other in chosen[1:]:
        total = torch.maximum(total, other.to(wide)) if op == "max" else total.add_(other.to(wide))
    return (total / len(chosen) if op == "mean" else total), problems


def _conflict(copies: Sequence[Piece]) -> Problem | None:
    base = copies[0].tensor
    odd = []
    largest = relative = 0.0
    for other in copies[1:]:
        if base.shape == other.tensor.shape and torch.equal(base, other.tensor):
            continue
        if base.shape != other.tensor.shape:
            return Problem("shape mismatch", f"ranks {copies[0].rank} and {other.rank} hold copies of unlike shape",
                           (copies[0].rank, other.rank))  # fmt: skip
        a, b = base.double(), other.tensor.double()
        if torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(a.nan_to_num(), b.nan_to_num()):
            continue
        odd.append(other.rank)
        gap = (a - b).nan_to_num(nan=math.inf)
        largest = max(largest, float(gap.abs().max()))
        norm = float(torch.linalg.vector_norm(a.nan_to_num()))
        relative = max(relative, float(torch.linalg.vector_norm(gap)) / norm if norm else math.inf)
    if not odd:
        return None
    group = tuple(p.rank for p in copies)
    axes = {a for p in copies if p.rank in odd for a, c in p.coords.items() if c != copies[0].coords.get(a)}
    # axes along which a copy differs from the first one while all else is equal
    telling = []
    for axis in sorted(axes):
        for p in copies:
            others = {a: c for a, c in p.coords.items() if a != axis}
            same = {a: c for a, c in copies[0].coords.items() if a != axis}
            if p.rank in odd and others == same:
                telling.append(axis)
                break
    text = f"copies on ranks {list(group)} must be equal; {odd} differ from {copies[0].rank} by up to {largest:.3g}"
    return Problem("replica conflict", text, group, tuple(telling or sorted(axes)), largest, relative)


def _coverage(indices: Sequence[Index], shape: tuple[int, ...], spec: ShardSpec) -> list[Problem]:
    if all(i.flat is None for i in indices):
        distinct = [{i.runs[d] for i in indices} for d in range(len(shape))]
        if len(indices) == math.prod(map(len, distinct)) and all(
            _partitions(runs, n) for runs, n in zip(distinct, shape)
        ):
            return []
    count = torch.zeros(shape, dtype=torch.uint8)
    for index in indices:
        index.add(count)
    problems = []
    flat = any(i.flat is not None for i in indices)
    if bool((count == 0).any()):
        problems.append(Problem("missing region", f"no rank holds {_where(count == 0, spec, flat)}"))
    if bool((count > 1).any()):
        problems.append(Problem("double cover", f"more than one rank holds {_where(count > 1, spec, flat)}"))
    return problems


def _partitions(distinct: set[tuple[tuple[int, int, int], ...]], n: int) -> bool:
    ranges = sorted((start, start + length) for runs in distinct for start, _, length in runs)
    position = 0
    for start, stop in ranges:
        if start != position:
            return False
        position = stop
    return position == n


def _where(mask: Tensor, spec: ShardSpec, flat: bool) -> str:
    """Index ranges that a mask covers, dimension by dimension (exact for products of ranges)."""
    if flat:
        return "flat " + _ranges(torch.nonzero(mask.reshape(-1))[:, 0].numpy())
    words = []
    at = torch.nonzero(mask)
    for d, n in enumerate(mask.shape):
        held = torch.unique(at[:, d]).numpy()
        if len(held) < n:
            name = spec.dims[d] if d < len(spec.dims) else f"dim {d}"
            words.append(f"{name} {_ranges(held)}")
    return ", ".join(words) or "all of it"


def _ranges(held: np.ndarray) -> str:
    return ",".join(f"{g}..{g + n - 1}" if n > 1 else f"{g}" for g, _, n in _runs(held))


def spec_of(tensor: Any, axes: Mapping[str, str] | None = None) -> ShardSpec | None:
    """The specification that a `torch.distributed.tensor.DTensor` carries; None for other tensors.

    Parameters
    ----------
    tensor : Tensor
    axes : mapping, optional
        Names of the mesh dimensions -> names of ours, where they differ.

    Notes
    -----
    FSDP2 over TP shows as a strided shard: the whole tensor is cut by the inner mesh dimension first, so the order of
    the two is turned here.
    """
    placements = getattr(tensor, "placements", None)
    mesh = getattr(tensor, "device_mesh", None)
    if placements is None or mesh is None:
        return None
    names = mesh.mesh_dim_names or tuple(f"mesh{i}" for i in range(len(placements)))
    found: list[tuple[str, Placement]] = []
    for name, placement in zip(names, placements):
        axis = (axes or {}).get(name, name)
        if placement.is_partial():
            op = {"sum": "sum", "avg": "mean", "max": "max"}.get(str(placement.reduce_op).lower())
            if op is None:
                raise ShardSpecError(f"a DTensor partial in {placement.reduce_op!r} is not known; reduce it first")
            found.append((axis, Partial(op)))
        elif type(placement).__name__ == "_StridedShard":
            found.append((axis, Shard(placement.dim)))
        elif placement.is_shard():
            at = next((i for i, (_, p) in enumerate(found) if getattr(p, "dim", -1) == placement.dim), len(found))
            strided = any(
                type(q).__name__ == "_StridedShard" and getattr(q, "dim", -1) == placement.dim for q in placements
            )
            found.insert(at if strided else len(found), (axis, Shard(placement.dim)))
    return ShardSpec(tuple(found))
