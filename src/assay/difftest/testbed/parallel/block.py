"""A transformer block in parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.difftest.tensors import dropout_mask
from assay.difftest.testbed.parallel.experts import ParallelMoE
from assay.difftest.testbed.parallel.job import Job, LocalMicro
from assay.difftest.testbed.parallel.linear import ColumnLinear, ParallelNorm, RowLinear
from assay.difftest.testbed.ring import RingAttention, gathered_attention


class ParallelRotary(nn.Module):
    """Rotary positions of this rank's tokens."""

    def forward(self, q: Tensor, k: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return self._turned(q, position), self._turned(k, position)

    @staticmethod
    def _turned(x: Tensor, position: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequency = torch.exp(torch.arange(half, device=x.device) * (-torch.log(torch.tensor(10_000.0)) / half))
        angle = position.to(x.device).unsqueeze(-1) * frequency
        turn = torch.polar(torch.ones_like(angle), angle).unsqueeze(2)
        pair = torch.complex(x[..., :half].float(), x[..., half:].float()) * turn
        return torch.cat([pair.real, pair.imag], -1).to(x.dtype)


class ParallelCore(nn.Module):
    """Attention of this rank's heads and tokens."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        c = job.config
        self.sink = nn.Parameter(torch.empty(c.heads // job.tp, dtype=c.torch_dtype)) if c.sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, micro: LocalMicro) -> Tensor:
        job = self.job
        if job.layout.cp_kind == "gather" and job.layout.cp > 1:
            out = gathered_attention(q, k, v, self.sink, micro.document, job.groups)
        else:
            out = RingAttention.apply(q, k, v, self.sink, micro.document, job.groups, job.bugs)
        return out.flatten(2)


class ParallelAttention(nn.Module):
    """This rank's heads."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        c = job.config
        self.job = job
        self.sizes = [c.width // job.tp, c.kv_heads * c.head_dim // job.tp, c.kv_heads * c.head_dim // job.tp]
        self.qkv = ColumnLinear(job, c.width, sum(self.sizes))
        self.rotary = ParallelRotary()
        self.core = ParallelCore(job)
        self.proj = RowLinear(job, c.width // job.tp, c.width)

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        q, k, v = self.qkv(x, micro).split(self.sizes, -1)
        q, k, v = (t.unflatten(-1, (-1, self.job.config.head_dim)) for t in (q, k, v))
        q, k = self.rotary(q, k, micro.position)
        return self.proj(self.core(q, k, v, micro), micro)


class ParallelDrop(nn.Module):
    """Dropout of this rank's part of the hidden units; the mask belongs to the global element."""

    def __init__(self, job: Job, layer: int) -> None:
        super().__init__()
        self.job, self.path = job, f"layers.{layer}.mlp"

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        c, job = self.job.config, self.job
        if c.dropout == 0.0:
            return x
        name = f"{self.path}/{micro.step}/{micro.index}"
        coords = dict(job.coords)
        if job.bugs.on(23):
            coords["tp"] = (0, job.tp)
        shape = (c.batch, c.seq, c.ffn)
        spec = f"b[dp] {job.plain_axis} f[tp]"
        keep = dropout_mask(name, shape, c.dropout, seed=c.seed, spec=spec, coords=coords)
        return x * keep.to(x.device) / (1.0 - c.dropout)


class ParallelMLP(nn.Module):
    """SwiGLU on this rank's hidden units."""

    def __init__(self, job: Job, layer: int) -> None:
        super().__init__()
        c = job.config
        self.fc1 = ColumnLinear(job, c.width, 2 * c.ffn // job.tp)
        self.drop = ParallelDrop(job, layer)
        self.fc2 = RowLinear(job, c.ffn // job.tp, c.width)

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        gate, up = self.fc1(x, micro).chunk(2, -1)
        return self.fc2(self.drop(F.silu(gate) * up, micro), micro)


class ParallelBlock(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, job: Job, layer: int) -> None:
        super().__init__()
        c = job.config
        self.norm1 = ParallelNorm(c.width, dtype=c.torch_dtype)
        self.attention = ParallelAttention(job)
        self.norm2 = ParallelNorm(c.width, dtype=c.torch_dtype)
        self.mlp = ParallelMoE(job, layer) if c.experts else ParallelMLP(job, layer)

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        x = x + self.attention(self.norm1(x), micro)
        return x + self.mlp(self.norm2(x), micro)
