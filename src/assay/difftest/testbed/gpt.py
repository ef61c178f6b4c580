"""The trusted reference: a GPT on one device, as plain as it can be written."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.difftest.collect import mark
from assay.difftest.tensors import Batch, dropout_mask, fill_parameters
from assay.difftest.testbed.config import Config
from assay.difftest.testbed.fp8 import Scaling, fp8_linear


class Micro:
    """What goes along with a micro-batch and is no activation: positions, documents, its number, routing to follow."""

    def __init__(self, batch: Batch, index: int, *, routing: dict[str, Tensor] | None = None, step: int = 0) -> None:
        self.index, self.step = index, step
        self.tokens, self.labels = batch.tokens[index], batch.labels[index]
        self.mask = batch.mask[index]
        self.document, self.position = batch.document[index], batch.position[index]
        self.count = batch.count
        self.microbatches = batch.tokens.shape[0]
        self.routing = routing or {}


class Linear(nn.Module):
    """A linear map, in FP8 where the configuration says so."""

    def __init__(self, inside: int, outside: int, config: Config, *, fp8: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outside, inside, dtype=config.torch_dtype))
        self.bias = nn.Parameter(torch.empty(outside, dtype=config.torch_dtype))
        self.scaling = Scaling() if fp8 and config.dtype == "fp8" else None
        self.reduce: Any = None  # maximum over ranks that hold other sequences, where there are any

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        if self.scaling is not None:
            y = fp8_linear(
                x,
                self.weight,
                self.scaling,
                micro.index,
                again=recomputing(),
                reduce_x=self.reduce,
                reduce_g=self.reduce,
            )
            return y + self.bias
        return F.linear(x, self.weight, self.bias)


def recomputing() -> bool:
    """Whether this is the second pass of a checkpointed part."""
    return torch._C._current_graph_task_id() != -1


class VocabEmbedding(nn.Module):
    """Token embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab, config.width, dtype=config.torch_dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class Rotary(nn.Module):
    """Rotary positions, counted within documents. No parameters."""

    def forward(self, q: Tensor, k: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, position), rotate(k, position)


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotate pairs of a head [batch, sequence, heads, size] by angles that grow with the position."""
    half = x.shape[-1] // 2
    rate = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angle = position.to(x.device)[..., None, None].float() * rate
    a, b = x[..., :half].float(), x[..., half:].float()
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(x.dtype)


class CoreAttention(nn.Module):
    """Softmax attention within documents; with sinks, one more logit a head takes a share and gives nothing."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.sink = nn.Parameter(torch.empty(config.heads, dtype=config.torch_dtype)) if config.sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, micro: Micro) -> Tensor:
        b, s, n, d = q.shape
        k, v = (t.repeat_interleave(n // t.shape[2], dim=2) for t in (k, v))
        scores = torch.einsum("bqnd,bknd->bnqk", q, k).float() / math.sqrt(d)
        document = micro.document
        order = torch.arange(s)
        allowed = (document[:, :, None] == document[:, None, :]) & (order[:, None] >= order[None, :])
        allowed = allowed & (document[:, :, None] >= 0) | torch.eye(s, dtype=torch.bool)
        scores = scores.masked_fill(~allowed[:, None].to(q.device), float("-inf"))
        if self.sink is not None:
            sink = self.sink.float()[None, :, None, None].expand(b, n, s, 1)
            weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        else:
            weights = torch.softmax(scores, -1)
        return torch.einsum("bnqk,bknd->bqnd", weights.to(v.dtype), v).reshape(b, s, n * d)


class Attention(nn.Module):
    """Fused Q-K-V, rotary, core, projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.qkv = Linear(config.width, (config.heads + 2 * config.kv_heads) * config.head_dim, config)
        self.rotary = Rotary()
        self.core = CoreAttention(config)
        self.proj = Linear(config.width, config.width, config)

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        c = self.config
        q, k, v = self.qkv(x, micro).split([c.width, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim], -1)
        q, k, v = (t.unflatten(-1, (-1, c.head_dim)) for t in (q, k, v))
        q, k = self.rotary(q, k, micro.position)
        return self.proj(self.core(q, k, v, micro), micro)


class Drop(nn.Module):
    """Dropout with a mask that is a function of seed, place and global element."""

    def __init__(self, p: float, path: str, seed: int) -> None:
        super().__init__()
        self.p, self.path, self.seed = p, path, seed

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        if self.p == 0.0:
            return x
        keep = dropout_mask(f"{self.path}/{micro.step}/{micro.index}", tuple(x.shape), self.p, seed=self.seed)
        return x * keep.to(x.device) / (1.0 - self.p)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config, path: str) -> None:
        super().__init__()
        self.fc1 = Linear(config.width, 2 * config.ffn, config)
        self.drop = Drop(config.dropout, path, config.seed)
        self.fc2 = Linear(config.ffn, config.width, config)

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        gate, up = self.fc1(x, micro).chunk(2, -1)
        return self.fc2(self.drop(F.silu(gate) * up, micro), micro)


class _Attach(torch.autograd.Function):
    """Identity that gives an auxiliary loss its gradient, so that it needs no way to the head."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, auxiliary: Tensor) -> Tensor:
        ctx.save_for_backward(auxiliary)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], torch.ones_like(ctx.saved_tensors[0])


def attach(x: Tensor, auxiliary: Tensor) -> Tensor:
    """``x``, with ``auxiliary`` added to the loss behind the scenes."""
    return _Attach.apply(x, auxiliary)


class Router(nn.Module):
    """Top-k of a softmax in FP32, with a balancing loss and a z-loss. The last expert is never chosen."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.experts, config.width, dtype=config.torch_dtype))
        bias = torch.zeros(config.experts)
        bias[-1] = -1e9
        self.expert_bias: Tensor
        self.register_buffer("expert_bias", bias)

    def forward(self, x: Tensor, micro: Micro, path: str) -> tuple[Tensor, Tensor]:
        c = self.config
        logits = F.linear(x.float(), self.weight.float())
        mark("logits", logits)
        probs = torch.softmax(logits, -1)
        valid = (micro.document >= 0).to(x.device)
        mark("valid", valid)
        chosen = (logits.detach() + self.expert_bias).topk(c.top_k, -1).indices
        chosen = micro.routing.get(f"{path}/{micro.step}/{micro.index}", chosen)
        mark("chosen", chosen, exact=True)
        weights = probs.gather(-1, chosen) * valid[..., None]
        tokens = valid.sum() * micro.microbatches
        load = F.one_hot(chosen, c.experts).float().sum(2)[valid].sum(0) / (c.top_k * valid.sum())
        balance = c.experts * (load * (probs * valid[..., None]).sum((0, 1))).sum() / tokens
        z = (torch.logsumexp(logits, -1).square() * valid).sum() / tokens
        mark("auxiliary", balance)
        return attach(weights, c.aux * balance + c.z * z).to(x.dtype), chosen


class MoE(nn.Module):
    """Experts are SwiGLU without biases."""

    def __init__(self, config: Config, path: str) -> None:
        super().__init__()
        self.config, self.path = config, path
        self.router = Router(config)
        self.w1 = nn.Parameter(torch.empty(config.experts, 2 * config.ffn, config.width, dtype=config.torch_dtype))
        self.w2 = nn.Parameter(torch.empty(config.experts, config.width, config.ffn, dtype=config.torch_dtype))

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        weights, chosen = self.router(x, micro, self.path)
        flat, picks, shares = x.flatten(0, 1), chosen.flatten(0, 1), weights.flatten(0, 1)
        out = torch.zeros_like(flat)
        for e in range(self.config.experts):
            rows, slot = torch.nonzero(picks == e, as_tuple=True)
            gate, up = F.linear(flat[rows], self.w1[e]).chunk(2, -1)
            y = F.linear(F.silu(gate) * up, self.w2[e])
            out = out.index_add(0, rows, y * shares[rows, slot][:, None])
        return out.view_as(x)


class Block(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, config: Config, index: int) -> None:
        super().__init__()
        path = f"layers.{index}.mlp"
        self.norm1 = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.mlp = MoE(config, path) if config.experts else MLP(config, path)

    def forward(self, x: Tensor, micro: Micro) -> Tensor:
        x = x + self.attention(self.norm1(x), micro)
        return x + self.mlp(self.norm2(x), micro)


class Loss(nn.Module):
    """Cross entropy a token, in FP32, label smoothing spread over all classes.

    Not torch's: that takes ``exp(x - lse)`` in the backward pass, and where the logits are large (28 here, with a tied
    head) the rounding of ``lse`` alone makes the gradient wrong by several eps. A reference must be better than that,
    and no noise at inputs and outputs shows it. With the largest logit taken off first, the error is about 1 eps
    (``tests/difftest/test_tolerance.py``).
    """

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        x = logits.float()
        x = x - x.detach().amax(-1, keepdim=True)
        lse = x.exp().sum(-1).log()
        losses = lse - x.gather(-1, labels.to(x.device).unsqueeze(-1)).squeeze(-1)
        if self.smoothing:
            losses = (1 - self.smoothing) * losses + self.smoothing * (lse - x.mean(-1))
        return losses


class GPT(nn.Module):
    """The reference model.

    Examples
    --------
    >>> config = Config(width=32, layers=2, ffn=64, seq=16, batch=2)
    >>> model = GPT(config)
    >>> loss = model(Micro(config.data(), 0)).detach()
    >>> round(float(loss) * config.data().count / int(config.data().mask[0].sum()), 1)      # near log 512 = 6.2
    6.2
    """

    def __init__(self, config: Config, *, recompute: str = "none") -> None:
        super().__init__()
        self.config, self.recompute = config, recompute
        self.embedding = VocabEmbedding(config)
        self.layers = nn.ModuleList(Block(config, i) for i in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width, dtype=config.torch_dtype)
        self.head = Linear(config.width, config.vocab, config, fp8=False)
        self.loss = Loss(config.smoothing)
        if config.tied:
            self.head.weight = self.embedding.weight
        if config.unused:
            self.unused = nn.Parameter(torch.empty(config.width, dtype=config.torch_dtype))
        fill_parameters(self, seed=config.seed)

    def forward(self, micro: Micro) -> Tensor:
        """Share of this micro-batch in the step's loss (mean over all tokens that count, in all micro-batches)."""
        x = self.embedding(micro.tokens)
        size = {"none": 0, "layer": 1, "chunk": 2}[self.recompute]
        blocks = list(self.layers)
        if not size:
            for block in blocks:
                x = block(x, micro)
        for start in range(0, len(blocks) if size else 0, size or 1):

            def run(x: Tensor, part: list[nn.Module] = blocks[start : start + size]) -> Tensor:
                for block in part:
                    x = block(x, micro)
                return x

            x = checkpoint(run, x, use_reentrant=False)
        logits = self.head(self.final_norm(x), micro)
        losses = self.loss(logits, micro.labels)
        loss = (losses * micro.mask.to(losses.device)).sum() / micro.count
        mark("loss", loss)
        return loss
