"""The distributed model: the same network in tensor, sequence, context and expert parallel parts, in chunks.

Written apart from the reference, so that the two share no code that could hide a fault in both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.difftest.collect import mark
from assay.difftest.names import Stage
from assay.difftest.shards import ShardSpec
from assay.difftest.tensors import Batch, dropout_mask, generate, parameter_kind
from assay.difftest.testbed.bugs import Switches
from assay.difftest.testbed.config import Config, Layout
from assay.difftest.testbed.fp8 import Scaling, fp8_linear
from assay.difftest.testbed.groups import Groups, copy_to, exchange, gather_from, scatter_sum_to, sum_over
from assay.difftest.testbed.ring import RingAttention, gathered_attention, local_positions


class Job:
    """What every part needs to know: configuration, layout, groups, bugs."""

    def __init__(self, config: Config, layout: Layout, groups: Groups, bugs: Switches) -> None:
        self.config, self.layout, self.groups, self.bugs = config, layout, groups, bugs
        self.tp = layout.tp
        self.sp = layout.sp and layout.tp > 1
        self.coords = groups.coords
        self.sequence_axis = "s" + _brackets(["cp:zigzag"] * (layout.cp > 1) + ["tp"] * self.sp)
        self.plain_axis = "s" + _brackets(["cp:zigzag"] * (layout.cp > 1))


def _brackets(cuts: list[str]) -> str:
    return f"[{','.join(cuts)}]" if cuts else ""


class LocalMicro:
    """A rank's part of a micro-batch: its sequences, its tokens in zigzag order; documents of the whole."""

    def __init__(
        self, job: Job, batch: Batch, index: int, *, step: int = 0, routing: dict[str, Tensor] | None = None
    ) -> None:
        self.index, self.step = index, step
        spec = ShardSpec.parse(f"b[dp] {job.plain_axis}")
        coords = job.coords
        self.tokens, self.labels, self.mask, self.position = (
            spec.cut(t[index], coords) for t in (batch.tokens, batch.labels, batch.mask, batch.position)
        )
        self.document = ShardSpec.parse("b[dp] s").cut(batch.document[index], coords)
        self.count = batch.count
        # tokens of the step on this rank, as a local normalisation would count them
        self.local_count = int(ShardSpec.parse(f"m b[dp] {job.plain_axis}").cut(batch.mask, coords).sum())
        self.microbatches = batch.tokens.shape[0]
        self.padding_count = int((batch.document[index] >= 0).sum())
        self.routing = routing or {}

    def valid(self, job: Job, *, sequence_parallel: bool) -> Tensor:
        """Tokens that are no padding, of this rank's (sequence-parallel) part."""
        at, size = job.groups.axis("cp")
        here = self.document[:, local_positions(self.document.shape[1], at, size)] >= 0
        if sequence_parallel:
            part = job.groups.axis("tp")[0]
            if job.bugs.on(19):
                part = job.groups.axis("dp")[0] % job.tp
            here = here.chunk(job.tp, 1)[part]
        return here


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


class Stages:
    """The chunks of this rank, their parameters filled, their names and the specifications of what is traced."""

    def __init__(self, config: Config, layout: Layout, groups: Groups, bugs: Switches) -> None:
        layout.check(config)
        self.job = Job(config, layout, groups, bugs)
        at, pp = groups.axis("pp")
        stage = Stage.even(config.layers, pp, layout.vpp, at)
        if bugs.on(8):
            each = config.layers // (pp * layout.vpp)
            stage = Stage(tuple(tuple(range(c * each, (c + 1) * each)) for c in range(at, pp * layout.vpp, pp)))
        self.stage = stage
        last = pp * layout.vpp - 1
        numbers = list(range(at, pp * layout.vpp, pp))
        self.numbers = numbers
        self.chunks = [Chunk(self.job, held, first=n == 0, last=n == last) for n, held in zip(numbers, stage.layers)]
        self.parameters: dict[str, nn.Parameter] = {}
        self.copies: dict[str, nn.Parameter] = {}  # the tied head of a last stage
        for v, chunk in enumerate(self.chunks):
            for name, parameter in chunk.named_parameters():
                path = self.canonical(v, name)
                if config.tied and path == "head.weight":
                    path = "embedding.weight"
                if path in self.parameters:
                    self.copies[path] = parameter
                else:
                    self.parameters[path] = parameter
        self.fill()

    def canonical(self, chunk: int, name: str) -> str:
        """The reference's name of a parameter of a chunk."""
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(self.chunks[chunk].held[int(parts[1])])
        return ".".join(parts)

    @property
    def rules(self) -> list[tuple[str, str | None]]:
        """Name rules of this rank."""
        rules: list[tuple[str, str | None]] = []
        for v, held in enumerate(self.stage.layers):
            rules += [
                (rf"chunk{v}\.layers\.{i}(?=\.|$)(?P<rest>.*)", f"layers.{layer}{{rest}}")
                for i, layer in enumerate(held)
            ]
            if self.job.config.tied and not self.chunks[v].first:
                rules.append((rf"chunk{v}\.head\.weight", "embedding.weight"))
            rules += [(rf"chunk{v}\.layers", None), (rf"chunk{v}\.unused", "unused"), (rf"chunk{v}", None)]
            rules.append((rf"chunk{v}\.(?P<rest>.*)", "{rest}"))
        return [*rules, ("model", None)]

    def shape(self, path: str) -> tuple[int, ...]:
        """Whole shape of a parameter."""
        c = self.job.config
        leaf = path.split(".")[-2:] if "." in path else [path]
        fused = (c.heads + 2 * c.kv_heads) * c.head_dim
        table: dict[tuple[str, ...], tuple[int, ...]] = {
            ("embedding", "weight"): (c.vocab, c.width), ("head", "weight"): (c.vocab, c.width),
            ("head", "bias"): (c.vocab,),
            ("qkv", "weight"): (fused, c.width), ("qkv", "bias"): (fused,), ("proj", "weight"): (c.width, c.width),
            ("fc1", "weight"): (2 * c.ffn, c.width), ("fc1", "bias"): (2 * c.ffn,), ("fc2", "weight"): (c.width, c.ffn),
            ("core", "sink"): (c.heads,), ("router", "weight"): (c.experts, c.width),
            ("mlp", "w1"): (c.experts, 2 * c.ffn, c.width), ("mlp", "w2"): (c.experts, c.width, c.ffn),
        }  # fmt: skip
        return table.get(tuple(leaf), (c.width,))

    def spec(self, path: str) -> str:
        """How a parameter is cut."""
        c = self.job.config
        leaf = ".".join(path.split(".")[-2:])
        d = c.head_dim
        qkv = f"tp:blocks={c.heads * d}/{c.kv_heads * d}/{c.kv_heads * d}"
        fc1 = f"tp:blocks={c.ffn}/{c.ffn}"
        return {
            "embedding.weight": "v[tp] h", "head.weight": "v[tp] h", "head.bias": "v[tp]", "qkv.weight": f"o[{qkv}] h",
            "qkv.bias": f"o[{qkv}]", "proj.weight": "o h[tp]", "fc1.weight": f"o[{fc1}] h", "fc1.bias": f"o[{fc1}]",
            "fc2.weight": "o h[tp]", "core.sink": "n[tp]", "router.weight": "e h", "mlp.w1": f"e[ep] o[{fc1}] h",
            "mlp.w2": "e[ep] o h[tp]",
        }.get(leaf, "h")  # fmt: skip

    def expert(self, path: str) -> bool:
        """Whether a parameter is of the experts (reduced over fewer ranks)."""
        return path.endswith(("mlp.w1", "mlp.w2"))

    def sequence_partial(self, path: str) -> bool:
        """Whether a parameter's gradient is partial over the tensor-parallel group."""
        job = self.job
        replicated = "[tp" not in self.spec(path) and not self.expert(path) and path != "unused"
        return job.sp and replicated

    def fill(self) -> None:
        """Values by name, the same as the reference's."""
        job = self.job
        with torch.no_grad():
            for path, parameter in [*self.parameters.items(), *self.copies.items()]:
                shape, spec = self.shape(path), ShardSpec.parse(self.spec(path))
                kind = parameter_kind(path, len(shape))
                if job.bugs.on(22) and path.endswith("fc1.weight"):
                    spec = ShardSpec.parse("o[tp] h")
                local = generate(
                    path, shape, seed=job.config.seed, kind=kind, spec=spec, coords=job.coords, dtype=parameter.dtype
                )
                parameter.copy_(local)

    def specs(self) -> list[tuple[str, str]]:
        """Specifications of all that is traced, for `assay.difftest.trace`."""
        job = self.job
        c = job.config
        sequence, plain = f"b[dp] {job.sequence_axis}", f"b[dp] {job.plain_axis}"
        act = r"^(in|out|gin|gout)/"
        rules: list[tuple[str, str]] = []
        for path in [*self.parameters, *self.copies]:
            module, _, leaf = path.rpartition(".")
            place = f"{module or 'model'}/{leaf}".replace(".", r"\.")
            spec = self.spec(path)
            over = ["edp:sum", "cp:sum"] if self.expert(path) else ["dp:sum", "cp:sum"]
            if self.sequence_partial(path):
                over.append("tp:sum")
            if c.tied and path == "embedding.weight" and job.layout.pp > 1:
                over.append("pp:sum")
            rules.append((rf"^grad/{place}$", f"{spec} {{{','.join(over)}}}"))
            rules.append((rf"^(param|main_grad|param_after|optim\.\w+)/{place}$", spec))
        d = c.head_dim
        blocks = f"tp:blocks={c.heads * d}/{c.kv_heads * d}/{c.kv_heads * d}"
        fc1 = f"tp:blocks={c.ffn}/{c.ffn}"
        rules += [
            (r"^in/embedding/0", plain), (r"^in/loss/1", plain), (r"^in/.*rotary/2", plain),
            (r"^(in|gin)/loss/0", f"{plain} v[tp]"), (r"^(out|gout)/head/", f"{plain} v[tp]"),
            (r"^(out|gout)/loss/", plain),
            (r"^(out|gout)/.*attention\.qkv/", f"{plain} o[{blocks}]"), (rf"{act}.*rotary/[01]", f"{plain} n[tp] d"),
            (r"^(in|gin)/.*attention\.core/", f"{plain} n[tp] d"),
            (r"^(out|gout)/.*attention\.core/", f"{plain} h[tp]"),
            (r"^(in|gin)/.*attention\.proj/", f"{plain} h[tp]"), (r"^(out|gout)/.*mlp\.fc1/", f"{plain} o[{fc1}]"),
            (rf"{act}.*mlp\.drop/", f"{plain} h[tp]"), (r"^(in|gin)/.*mlp\.fc2/", f"{plain} h[tp]"),
            (r"^(out|gout)/.*mlp\.router/0", f"{sequence} k"), (r"^(out|gout)/.*mlp\.router/1", f"{sequence} k"),
            (rf"{act}", f"{sequence} h"),
        ]  # fmt: skip
        return rules
