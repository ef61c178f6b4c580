"""Linear layers, embedding and norm in tensor and sequence parallel parts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.difftest.testbed.fp8 import Scaling, fp8_linear
from assay.difftest.testbed.groups import Groups, copy_to, gather_from, scatter_sum_to, sum_over
from assay.difftest.testbed.parallel.job import Job, LocalMicro


class _KeepForWeight(torch.autograd.Function):
    """Column-parallel product whose weight gradient reads a gathered input that may have been overwritten (bug 11)."""

    buffer: Tensor | None = None

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        ctx.x = _KeepForWeight.buffer = (
            x.detach().clone() if _KeepForWeight.buffer is None or _KeepForWeight.buffer.shape != x.shape
            else _KeepForWeight.buffer.copy_(x.detach())
        )  # fmt: skip
        return F.linear(x, w)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        (w,) = ctx.saved_tensors
        grad = g[0].reshape(-1, g[0].shape[-1])
        return g[0] @ w, grad.t() @ ctx.x.reshape(-1, ctx.x.shape[-1])


class _SequenceGather:
    """Payload gather for FP8, with the reduce-scatter of the gradient."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def __call__(self, payload: Tensor) -> Tensor:
        return self.groups.gather(payload, "tp", 1)

    def backward(self, gradient: Tensor) -> Tensor:
        return self.groups.scatter_sum(gradient, "tp", 1)


class ColumnLinear(nn.Module):
    """Output features over tensor-parallel ranks."""

    def __init__(self, job: Job, inside: int, outside: int, *, fp8: bool = True) -> None:
        super().__init__()
        self.job = job
        dtype = job.config.torch_dtype
        self.weight = nn.Parameter(torch.empty(outside, inside, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outside, dtype=dtype))
        self.scaling = Scaling() if fp8 and job.config.dtype == "fp8" else None

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        job, groups = self.job, self.job.groups
        if self.scaling is not None:
            everywhere = "dp" if job.bugs.on(9) else "tensors"
            gather = _SequenceGather(groups) if job.sp else None
            x = x if job.sp else copy_to(x, groups, "tp")
            y = fp8_linear(
                x, self.weight, self.scaling, micro.index, again=_again(), gather=gather,
                reduce_x=lambda a: groups.max(a, everywhere), reduce_w=lambda a: groups.max(a, "tp"),
                reduce_g=lambda a: groups.max(a, "tensors"), wrong_scale=job.bugs.on(10),
            )  # fmt: skip
            return y + self.bias
        x = gather_from(x, groups, "tp", 1) if job.sp else copy_to(x, groups, "tp")
        if job.bugs.on(11):
            return _KeepForWeight.apply(x, self.weight) + self.bias
        return F.linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """Input features over tensor-parallel ranks; partial sums are reduced, the bias is added once."""

    def __init__(self, job: Job, inside: int, outside: int) -> None:
        super().__init__()
        self.job = job
        dtype = job.config.torch_dtype
        self.weight = nn.Parameter(torch.empty(outside, inside, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outside, dtype=dtype))
        self.scaling = Scaling() if job.config.dtype == "fp8" else None
        self.skip = False  # leave the reduction out

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        job, groups = self.job, self.job.groups
        if self.scaling is not None:
            y = fp8_linear(
                x, self.weight, self.scaling, micro.index, again=_again(),
                reduce_x=lambda a: groups.max(a, "tensors"), reduce_w=lambda a: groups.max(a, "tp"),
                reduce_g=lambda a: groups.max(a, "tensors"), wrong_scale=job.bugs.on(10),
            )  # fmt: skip
        else:
            y = F.linear(x, self.weight)
        if not self.skip:
            y = scatter_sum_to(y, groups, "tp", 1) if job.sp else sum_over(y, groups, "tp")
        elif job.sp:
            y = y.chunk(job.tp, 1)[groups.axis("tp")[0]]
        return y + self.bias


def _again() -> bool:
    return torch._C._current_graph_task_id() != -1


class VocabParallelEmbedding(nn.Module):
    """A stretch of the vocabulary a rank; ids of others give zeros, and the sum over ranks is the embedding."""

    def __init__(self, job: Job, rows: int, first: int) -> None:
        super().__init__()
        self.job, self.first = job, first
        self.weight = nn.Parameter(torch.empty(rows, job.config.width, dtype=job.config.torch_dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        job = self.job
        local = tokens - self.first
        foreign = (local <= 0 if job.bugs.on(1) else local < 0) | (local >= self.weight.shape[0])
        x = F.embedding(local.masked_fill(foreign, 0), self.weight).masked_fill(foreign[..., None], 0.0)
        return scatter_sum_to(x, job.groups, "tp", 1) if job.sp else sum_over(x, job.groups, "tp")


class ParallelNorm(nn.LayerNorm):
    """Layer norm on a sequence part: its gradients are then partial over the tensor-parallel group."""
