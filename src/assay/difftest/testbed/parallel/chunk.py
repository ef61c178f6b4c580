"""What a pipeline stage runs, and the loss over vocabulary shards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.difftest.collect import mark
from assay.difftest.shards import ShardSpec
from assay.difftest.testbed.parallel.block import ParallelBlock
from assay.difftest.testbed.parallel.job import Job, LocalMicro
from assay.difftest.testbed.parallel.linear import ColumnLinear, ParallelNorm, VocabParallelEmbedding


class _VocabParallelLoss(torch.autograd.Function):
    """Cross entropy over vocabulary shards: maximum, sum of exponentials and the label's logit are reduced."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, first: int, job: Job) -> Tensor:
        groups, c = job.groups, job.config
        x = logits.float()
        top = groups.max(x.amax(-1), "tp")
        e = torch.exp(x - top.unsqueeze(-1))
        total = groups.sum(e.sum(-1), "tp")
        lse = top + total.log()
        local = labels - first
        mine = (local >= 0) & (local < x.shape[-1])
        safe = local.clamp(0, x.shape[-1] - 1)
        picked = x.gather(-1, safe.unsqueeze(-1)).squeeze(-1) * mine
        losses = lse - groups.sum(picked, "tp")
        if c.smoothing:
            mean = x.mean(-1) if job.bugs.on(15) else groups.sum(x.sum(-1), "tp") / c.vocab
            losses = (1 - c.smoothing) * losses + c.smoothing * (lse - mean)
        ctx.save_for_backward(e / total.unsqueeze(-1), safe, mine)
        ctx.smoothing, ctx.vocab, ctx.dtype = c.smoothing, c.vocab, logits.dtype
        return losses

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        softmax, safe, mine = ctx.saved_tensors
        gradient = softmax - ctx.smoothing / ctx.vocab
        hit = (mine * (1.0 - ctx.smoothing)).to(gradient.dtype)
        gradient = gradient.scatter_add(-1, safe.unsqueeze(-1), -hit.unsqueeze(-1))
        return (gradient * g[0].unsqueeze(-1)).to(ctx.dtype), None, None, None


class ParallelLoss(nn.Module):
    """Cross entropy a token over vocabulary-parallel logits."""

    def __init__(self, job: Job, first: int) -> None:
        super().__init__()
        self.job, self.first = job, first

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return _VocabParallelLoss.apply(logits, labels.to(logits.device), self.first, self.job)


class Chunk(nn.Module):
    """What one pipeline stage holds of the model (one virtual chunk)."""

    def __init__(self, job: Job, layers: tuple[int, ...], *, first: bool, last: bool) -> None:
        super().__init__()
        self.job, self.held, self.first, self.last = job, layers, first, last
        c = job.config
        rows = ShardSpec.parse("v[tp] h").index((c.vocab, c.width), job.coords)
        begin, count = rows.runs[0][0][0], rows.local_shape[0]
        if first:
            self.embedding = VocabParallelEmbedding(job, count, begin)
        self.layers = nn.ModuleList(ParallelBlock(job, i) for i in layers)
        if last:
            self.final_norm = ParallelNorm(c.width, dtype=c.torch_dtype)
            self.head = ColumnLinear(job, c.width, count, fp8=False)
            self.loss = ParallelLoss(job, begin)
            if c.tied and first:
                self.head.weight = self.embedding.weight
            if c.unused:
                self.unused = nn.Parameter(torch.empty(c.width, dtype=c.torch_dtype))

    def forward(self, x: Tensor | None, micro: LocalMicro) -> Tensor:
        job, _c = self.job, self.job.config
        if self.first:
            x = self.embedding(micro.tokens)
        assert x is not None
        recompute = job.layout.recompute
        size = {"none": 0, "layer": 1, "chunk": 2}[recompute]
        blocks = list(self.layers)
        for block in blocks if not size else []:
            x = block(x, micro)
        for start in range(0, len(blocks) if size else 0, size or 1):

            def run(x: Tensor, part: list[nn.Module] = blocks[start : start + size]) -> Tensor:
                entering = x
                for block in part:
                    x = block(entering if job.bugs.on(2) else x, micro)
                return x

            x = checkpoint(run, x, use_reentrant=False)
        if not self.last:
            return x
        losses = self.loss(self.head(self.final_norm(x), micro), micro.labels)
        count: float = micro.count
        if job.bugs.on(17):
            count = micro.local_count * job.layout.cp * job.layout.dp
        loss = (losses * micro.mask.to(losses.device)).sum() / count
        mark("loss", loss, "{dp:sum,cp:sum}")
        return loss * job.layout.cp if job.bugs.on(3) else loss
