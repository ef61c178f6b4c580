"""Putting ranks' parts together, with a coverage count; copies must agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards.index import Index, runs_of
from assay.difftest.shards.placements import Coords
from assay.difftest.shards.spec import ShardSpec


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
    return ",".join(f"{g}..{g + n - 1}" if n > 1 else f"{g}" for g, _, n in runs_of(held))
