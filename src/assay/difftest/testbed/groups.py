"""Process groups of a layout, and collectives that autograd can go through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.difftest.testbed.config import Layout


class Groups:
    """The groups that this rank is in: ``tp, cp, dp, pp``, ``data`` (dp x cp), ``model`` (tp x pp), ``ep``, ``edp``
    (data ranks with the same experts), ``edges`` (first and last stage), ``tensors`` (tp x cp x dp).

    Every rank must make it at the same time.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.rank = dist.get_rank()
        self.coords = layout.coords(self.rank)
        self._groups: dict[str, Any] = {}
        self._members: dict[str, list[int]] = {}
        free = {
            "tp": ("tp",), "cp": ("cp",), "dp": ("dp", "ep", "edp"), "pp": ("pp",), "data": ("dp", "cp", "ep", "edp"),
            "model": ("tp", "pp"), "ep": ("dp", "ep"), "edp": ("dp", "edp", "cp"),
            "tensors": ("tp", "cp", "dp", "ep", "edp"),
        }  # fmt: skip
        made: dict[tuple[int, ...], Any] = {}
        for name, axes in free.items():
            buckets: dict[tuple[Any, ...], list[int]] = defaultdict(list)
            for rank in range(layout.world):
                buckets[tuple(v for a, v in layout.coords(rank).items() if a not in axes)].append(rank)
            self._make(name, list(buckets.values()), made)
        stages = layout.pp
        if stages > 1:
            per = layout.world // stages
            self._make("edges", [[r, r + (stages - 1) * per] for r in range(per)], made)

    def _make(self, name: str, parts: Sequence[list[int]], made: dict[tuple[int, ...], Any]) -> None:
        for members in parts:
            key = tuple(members)
            if key not in made:
                whole = len(members) == dist.get_world_size()
                made[key] = dist.group.WORLD if whole else (dist.new_group(members) if len(members) > 1 else None)
            if self.rank in members:
                self._groups[name] = made[key]
                self._members[name] = members

    def __getitem__(self, name: str) -> Any:
        return self._groups.get(name)

    def size(self, name: str) -> int:
        """Ranks in the group."""
        return len(self._members.get(name, [self.rank]))

    def position(self, name: str) -> int:
        """This rank's position in the group."""
        return self._members.get(name, [self.rank]).index(self.rank)

    def members(self, name: str) -> list[int]:
        """Global ranks."""
        return self._members.get(name, [self.rank])

    def axis(self, name: str) -> tuple[int, int]:
        """Position on and size of an axis."""
        return self.coords[name]

    def sum(self, tensor: Tensor, name: str) -> Tensor:
        """Sum over a group, in a tensor of its own."""
        return self._reduced(tensor, name, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor, name: str) -> Tensor:
        """Maximum over a group, in a tensor of its own."""
        return self._reduced(tensor, name, dist.ReduceOp.MAX)

    def _reduced(self, tensor: Tensor, name: str, op: Any) -> Tensor:
        if self.size(name) == 1:
            return tensor
        out = tensor.detach().clone().contiguous()
        dist.all_reduce(out, op=op, group=self[name])
        return out

    def gather(self, tensor: Tensor, name: str, dim: int) -> Tensor:
        """The group's tensors one after the other along a dimension. FP8 travels as bytes."""
        n = self.size(name)
        if n == 1:
            return tensor
        tensor = tensor.detach().contiguous()
        raw = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
        parts = [torch.empty_like(raw) for _ in range(n)]
        dist.all_gather(parts, raw, group=self[name])
        return torch.cat([p.view(tensor.dtype) for p in parts], dim)

    def scatter_sum(self, tensor: Tensor, name: str, dim: int) -> Tensor:
        """This rank's part along a dimension of the sum over the group."""
        n = self.size(name)
        if n == 1:
            return tensor
        parts = torch.cat([p.contiguous().reshape(-1) for p in tensor.detach().chunk(n, dim)])
        shape = list(tensor.shape)
        shape[dim] //= n
        out = torch.empty(parts.numel() // n, dtype=tensor.dtype, device=tensor.device)
        reduce_scatter(out, parts, self[name])
        return out.view(shape)


def reduce_scatter(out: Tensor, source: Tensor, group: Any) -> None:
    """Into one tensor; newer versions of torch have it under another name."""
    getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(out, source, group=group)


def all_gather(out: Tensor, source: Tensor, group: Any) -> None:
    """Into one tensor; newer versions of torch have it under another name."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(out, source, group=group)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, name: str) -> Tensor:
        ctx.groups, ctx.name = groups, name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return ctx.groups.sum(g[0], ctx.name), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, name: str) -> Tensor:
        return groups.sum(x, name)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0], None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, name: str, dim: int) -> Tensor:
        ctx.rest = (groups, name, dim)
        return groups.gather(x, name, dim)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        groups, name, dim = ctx.rest
        return groups.scatter_sum(g[0], name, dim), None, None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, name: str, dim: int) -> Tensor:
        ctx.rest = (groups, name, dim)
        return groups.scatter_sum(x, name, dim)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        groups, name, dim = ctx.rest
        return groups.gather(g[0], name, dim), None, None, None


class _Exchange(torch.autograd.Function):
    """All-to-all of rows with given counts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], groups: Groups, name: str) -> Tensor:
        ctx.rest = (sent, received, groups, name)
        return exchange_rows(x, sent, received, groups, name)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        sent, received, groups, name = ctx.rest
        return exchange_rows(g[0], received, sent, groups, name), None, None, None, None


def exchange_rows(x: Tensor, sent: list[int], received: list[int], groups: Groups, name: str) -> Tensor:
    """Rows to the other ranks of a group, and theirs in."""
    if groups.size(name) == 1:
        return x
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.detach().contiguous(), received, sent, group=groups[name])
    return out


def copy_to(x: Tensor, groups: Groups, name: str) -> Tensor:
    """Identity; the gradient is summed over the group."""
    return x if groups.size(name) == 1 else _Copy.apply(x, groups, name)


def sum_over(x: Tensor, groups: Groups, name: str) -> Tensor:
    """Sum over the group; the gradient passes."""
    return x if groups.size(name) == 1 else _Sum.apply(x, groups, name)


def gather_from(x: Tensor, groups: Groups, name: str, dim: int) -> Tensor:
    """Gather along a dimension; the gradient is reduce-scattered."""
    return x if groups.size(name) == 1 else _Gather.apply(x, groups, name, dim)


def scatter_sum_to(x: Tensor, groups: Groups, name: str, dim: int) -> Tensor:
    """Reduce-scatter along a dimension; the gradient is gathered."""
    return x if groups.size(name) == 1 else _ScatterSum.apply(x, groups, name, dim)


def exchange(x: Tensor, sent: list[int], received: list[int], groups: Groups, name: str) -> Tensor:
    """All-to-all that autograd can go through."""
    return _Exchange.apply(x, sent, received, groups, name)
