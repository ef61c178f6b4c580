"""Specifications: placements of a tensor on the axes of a mesh, and their one-line form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from assay.difftest.errors import ShardSpecError
from assay.difftest.shards.index import Index, index_of
from assay.difftest.shards.placements import (
    Coords,
    Experts,
    Flat,
    Grouped,
    Interleave,
    Partial,
    Placement,
    Replicate,
    Shard,
    ZigZag,
)


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
        return index_of(self, tuple(int(n) for n in shape), used)

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
