"""One FP8 linear layer whose input is cut along the sequence and gathered as payload, on its own.

The smallest setting of bug 9: every rank quantises its part with one scale and reads the gathered payload with one
scale. With the amax taken over the wrong group, these are not the same.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.difftest.collect import trace
from assay.difftest.tensors import generate
from assay.difftest.testbed.fp8 import Scaling, fp8_linear

TOKENS, INSIDE, OUTSIDE = 256, 512, 512


def sequence() -> Tensor:
    """Input [tokens, inside] in BF16 whose second half is 0.6 times as large as the first."""
    x = generate("x", (TOKENS, INSIDE))
    x[TOKENS // 2 :] *= 0.6
    return x.bfloat16()


def _gather(payload: Tensor) -> Tensor:
    parts = [torch.empty_like(payload.view(torch.uint8)) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, payload.view(torch.uint8))
    return torch.cat(parts).view(payload.dtype)


class _Gather:
    def __call__(self, payload: Tensor) -> Tensor:
        return _gather(payload)

    def backward(self, gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()] / dist.get_world_size()


def _largest(amax: Tensor) -> Tensor:
    dist.all_reduce(amax, dist.ReduceOp.MAX)
    return amax


class GatheredLinear(nn.Module):
    """The layer; ``own_scale`` leaves the amax of the input unreduced."""

    def __init__(self, own_scale: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter((generate("w", (OUTSIDE, INSIDE)) / INSIDE**0.5).bfloat16())
        self.own_scale = own_scale

    def forward(self, x: Tensor) -> Tensor:
        many = dist.is_initialized() and dist.get_world_size() > 1
        reduce: Any = _largest if many and not self.own_scale else None
        return fp8_linear(
            x, self.weight, Scaling(), 0, reduce_x=reduce, reduce_g=_largest if many else None,
            gather=_Gather() if many else None,
        )  # fmt: skip


class GatheredModel(nn.Module):
    """The layer under a name."""

    def __init__(self, own_scale: bool = False) -> None:
        super().__init__()
        self.linear = GatheredLinear(own_scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def step(model: nn.Module, x: Tensor) -> None:
    """Forward and backward."""
    model.zero_grad()
    model(x).float().square().mean().backward()


def run(out: str, own_scale: bool = False) -> None:
    """Trace a step on this rank (or on one process: the reference)."""
    x, mesh = sequence(), {}
    if dist.is_initialized():
        mesh = {"tp": (dist.get_rank(), dist.get_world_size())}
        x = x.chunk(dist.get_world_size())[dist.get_rank()]
    model = GatheredModel(own_scale)
    with trace(model, out, mesh=mesh, specs=[(r"^(in|gin)/", "t[tp] k")]):
        step(model, x)
