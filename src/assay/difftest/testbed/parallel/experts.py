"""Mixture of experts over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.difftest.collect import mark
from assay.difftest.shards import ShardSpec
from assay.difftest.testbed.groups import copy_to, exchange, gather_from, scatter_sum_to, sum_over
from assay.difftest.testbed.parallel.job import Job, LocalMicro


class _Extra(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, auxiliary: Tensor) -> Tensor:
        ctx.shape = auxiliary.shape
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        return g[0], torch.ones(ctx.shape, device=g[0].device)


class ParallelRouter(nn.Module):
    """Routes this rank's tokens; the balancing loss uses the load of all ranks."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        c = job.config
        self.job = job
        self.weight = nn.Parameter(torch.empty(c.experts, c.width, dtype=c.torch_dtype))
        self.idle: Tensor
        self.register_buffer("idle", torch.arange(c.experts) == c.experts - 1)

    def forward(self, x: Tensor, micro: LocalMicro, path: str) -> tuple[Tensor, Tensor]:
        job, c, groups = self.job, self.job.config, self.job.groups
        logits = x.float() @ self.weight.float().t()
        token_spec = f"b[dp] {job.sequence_axis}"
        mark("logits", logits, f"{token_spec} e")
        probs = logits.softmax(-1)
        chosen = logits.detach().masked_fill(self.idle, -1e9).topk(c.top_k, -1).indices
        replay = micro.routing.get(f"{path}/{micro.step}/{micro.index}")
        if replay is not None:
            chosen = ShardSpec.parse(f"{token_spec} k").cut(replay, job.coords)
        mark("chosen", chosen, f"{token_spec} k", exact=True)
        valid = micro.valid(job, sequence_parallel=job.sp).to(x.device)
        mark("valid", valid, token_spec)
        weights = probs.gather(-1, chosen) * valid.unsqueeze(-1)
        over = "tensors" if job.sp else "data"
        counts = torch.zeros(c.experts, device=x.device)
        counts.index_add_(0, chosen[valid].flatten(), torch.ones(int(valid.sum()) * c.top_k, device=x.device))
        load = groups.sum(counts, over) / (c.top_k * micro.padding_count)
        tokens = micro.padding_count * micro.microbatches
        balance = c.experts * (load * (probs * valid.unsqueeze(-1)).sum((0, 1))).sum() / tokens
        z = (logits.logsumexp(-1) ** 2 * valid).sum() / tokens
        partial = "{dp:sum,cp:sum,tp:sum}" if job.sp else "{dp:sum,cp:sum}"
        mark("auxiliary", balance, partial)
        size = float(job.tp) if job.bugs.on(18) else 1.0
        return _Extra.apply(weights, size * (c.aux * balance + c.z * z)).to(x.dtype), chosen


class ParallelMoE(nn.Module):
    """Experts over the data ranks (all-to-all), hidden units of each over the tensor-parallel ranks."""

    def __init__(self, job: Job, layer: int) -> None:
        super().__init__()
        c = job.config
        self.job, self.path = job, f"layers.{layer}.mlp"
        self.router = ParallelRouter(job)
        held, hidden = c.experts // job.layout.ep, c.ffn // job.tp
        self.w1 = nn.Parameter(torch.empty(held, 2 * hidden, c.width, dtype=c.torch_dtype))
        self.w2 = nn.Parameter(torch.empty(held, c.width, hidden, dtype=c.torch_dtype))

    def forward(self, x: Tensor, micro: LocalMicro) -> Tensor:
        job, groups, c = self.job, self.job.groups, self.job.config
        weights, chosen = self.router(x, micro, self.path)
        if job.sp:
            x = gather_from(x, groups, "tp", 1)
            weights = gather_from(weights, groups, "tp", 1)
            chosen = groups.gather(chosen, "tp", 1)
        else:
            x, weights = copy_to(x, groups, "tp"), copy_to(weights, groups, "tp")
        tokens = x.reshape(-1, x.shape[-1])
        expert = chosen.reshape(-1)
        order = torch.argsort(expert, stable=True)
        source = order // c.top_k
        held = c.experts // job.layout.ep
        sent = torch.bincount(expert // held, minlength=job.layout.ep)
        received = self._counts(sent)
        rows = exchange(tokens[source], sent.tolist(), received, groups, "ep")
        ids = self._ids(expert[order], sent.tolist(), received)
        out = torch.zeros_like(rows)
        for e in range(held):
            mine = torch.nonzero(ids == e + held * groups.axis("ep")[0])[:, 0]
            gate, up = (rows[mine] @ self.w1[e].t()).chunk(2, -1)
            out = out.index_copy(0, mine, (F.silu(gate) * up) @ self.w2[e].t())
        back = exchange(out, received, sent.tolist(), groups, "ep")
        share = weights.reshape(-1)[order].unsqueeze(-1)
        y = torch.zeros_like(tokens).index_add(0, source, back * share).view_as(x)
        return scatter_sum_to(y, groups, "tp", 1) if job.sp else sum_over(y, groups, "tp")

    def _counts(self, sent: Tensor) -> list[int]:
        if self.job.layout.ep == 1:
            return sent.tolist()
        return self.job.groups.gather(sent[None], "ep", 0)[:, self.job.groups.axis("ep")[0]].tolist()

    def _ids(self, ids: Tensor, sent: list[int], received: list[int]) -> Tensor:
        from assay.difftest.testbed.groups import exchange_rows

        return exchange_rows(ids, sent, received, self.job.groups, "ep")
