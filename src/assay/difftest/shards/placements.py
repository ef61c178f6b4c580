"""Ways in which an axis of a mesh may cut, copy or spread a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
