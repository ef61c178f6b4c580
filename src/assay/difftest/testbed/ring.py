"""Attention over a sequence that is spread over ranks: keys and values travel around a ring.

The forward pass keeps a running maximum and sum (Milakov and Gimelshein, 2018; Liu et al., "Ring attention", 2023); the
backward pass sends gradients of keys and values along with them, so that each arrives at home after a full round. In
zigzag order rank r holds chunks r and 2c - 1 - r, which balances causal work.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.difftest.testbed.groups import Groups


def local_positions(seq: int, rank: int, size: int) -> Tensor:
    """Global positions that a rank holds in zigzag order.

    >>> [local_positions(8, r, 2).tolist() for r in range(2)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    if size == 1:
        return torch.arange(seq)
    chunks = torch.arange(seq).reshape(2 * size, -1)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def allowed_pairs(document: Tensor, rows: Tensor, columns: Tensor, *, shift: int = 0) -> Tensor:
    """Which query (global position) may look at which key: same document, not later. [batch, rows, columns]"""
    a, b = document[:, rows], document[:, columns]
    causal = rows[:, None] + shift >= columns[None, :]
    own = rows[:, None] == columns[None, :]
    return ((a[:, :, None] == b[:, None, :]) & (a[:, :, None] >= 0) & causal) | own


def _rotate(tensors: list[Tensor], groups: Groups) -> list[Tensor]:
    """Send to the next rank of the ring, take from the one before."""
    members, at = groups.members("cp"), groups.position("cp")
    after, before = members[(at + 1) % len(members)], members[at - 1]
    received = [torch.empty_like(t) for t in tensors]
    works = [dist.isend(t.contiguous(), after, group=groups["cp"], tag=i) for i, t in enumerate(tensors)]
    for i, t in enumerate(received):
        dist.recv(t, before, group=groups["cp"], tag=i)
    for work in works:
        if work is not None:
            work.wait()
    return received


class RingAttention(torch.autograd.Function):
    """Softmax attention of local queries over the keys and values of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, document: Tensor, groups: Groups, bugs: Any
    ) -> Tensor:
        size, at = groups.axis("cp")[1], groups.axis("cp")[0]
        seq = document.shape[1]
        rows = local_positions(seq, at, size)
        scale = 1.0 / math.sqrt(q.shape[-1])
        repeat = q.shape[2] // k.shape[2]
        qf = q.float()
        out = torch.zeros_like(qf)
        top = torch.full(q.shape[:3], float("-inf"), device=q.device).transpose(1, 2)
        total = torch.zeros_like(top)
        kk, vv = k, v
        partial_lse = []
        for hop in range(size):
            source = (at - hop) % size
            columns = local_positions(seq, source, size)
            shift = 1 if bugs.on(26) and source != at else 0
            mask = allowed_pairs(document, rows, columns, shift=shift)[:, None].to(q.device)
            keys, values = (t.repeat_interleave(repeat, 2) for t in (kk, vv))
            scores = torch.einsum("bqnd,bknd->bnqk", q, keys).float() * scale
            scores = scores.masked_fill(~mask, float("-inf"))
            new = torch.maximum(top, scores.amax(-1))
            safe = torch.where(torch.isinf(new), 0.0, new)
            weights = torch.exp(scores - safe[..., None])
            fade = torch.exp(top - safe)
            total = total * fade + weights.sum(-1)
            block = torch.einsum("bnqk,bknd->bqnd", weights.to(v.dtype), values).float()
            out = out * fade.transpose(1, 2)[..., None] + block
            top = new
            partial_lse.append(top + torch.log(total))
            if hop < size - 1:
                kk, vv = _rotate([kk, vv], groups)
        lse = top + torch.log(total)
        if sink is not None:
            lse = torch.logaddexp(lse, sink.float()[None, :, None])
            out = out * torch.exp(top - lse).transpose(1, 2)[..., None]
        else:
            out = out / total.transpose(1, 2)[..., None]
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, document, *([sink] if sink is not None else []))
        ctx.groups, ctx.bugs, ctx.scale, ctx.partial = groups, bugs, scale, partial_lse
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, out, lse, document, *rest = ctx.saved_tensors
        groups, bugs = ctx.groups, ctx.bugs
        at, size = groups.axis("cp")
        seq = document.shape[1]
        rows = local_positions(seq, at, size)
        repeat = q.shape[2] // k.shape[2]
        g = gradients[0]
        inner = (g.float() * out.float()).sum(-1).transpose(1, 2)
        dq = torch.zeros_like(q, dtype=torch.float32)
        kk, vv = k, v
        dk, dv = torch.zeros_like(k, dtype=torch.float32), torch.zeros_like(v, dtype=torch.float32)
        for hop in range(size):
            source = (at - hop) % size
            columns = local_positions(seq, source, size)
            shift = 1 if bugs.on(26) and source != at else 0
            mask = allowed_pairs(document, rows, columns, shift=shift)[:, None].to(q.device)
            keys, values = (t.repeat_interleave(repeat, 2) for t in (kk, vv))
            scores = torch.einsum("bqnd,bknd->bnqk", q, keys).float() * ctx.scale
            use = ctx.partial[hop - 1] if bugs.on(13) and hop > 0 else lse
            use = torch.where(torch.isinf(use), lse, use)
            weights = torch.exp(scores.masked_fill(~mask, float("-inf")) - use[..., None])
            low = weights.to(v.dtype)
            gv = torch.einsum("bnqk,bqnd->bknd", low, g).float()
            dv = dv + gv.unflatten(2, (-1, repeat)).sum(3)
            ds = weights * (torch.einsum("bqnd,bknd->bnqk", g, values).float() - inner[..., None]) * ctx.scale
            ds = ds.to(q.dtype)
            dq = dq + torch.einsum("bnqk,bknd->bqnd", ds, keys).float()
            gk = torch.einsum("bnqk,bqnd->bknd", ds, q).float()
            dk = dk + gk.unflatten(2, (-1, repeat)).sum(3)
            if size > 1:  # after the last hop the gradients go home
                if hop < size - 1:
                    kk, vv, dk, dv = _rotate([kk, vv, dk, dv], groups)
                else:
                    dk, dv = _rotate([dk, dv], groups)
        dsink = None
        if rest:
            share = torch.exp(rest[0].float()[None, :, None] - lse)
            dsink = (-share * inner).sum((0, 2)).to(rest[0].dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsink, None, None, None


class _GatherSequence(torch.autograd.Function):
    """All keys of a context-parallel group, in the order of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, seq: int) -> Tensor:
        ctx.rest = (groups, seq)
        parts = groups.gather(x, "cp", 1)
        return parts[:, torch.argsort(_order(groups, seq))]

    @staticmethod
    def backward(ctx: Any, *g: Any) -> Any:
        groups, seq = ctx.rest
        return groups.scatter_sum(g[0][:, _order(groups, seq)], "cp", 1), None, None


def _order(groups: Groups, seq: int) -> Tensor:
    size = groups.axis("cp")[1]
    return torch.cat([local_positions(seq, r, size) for r in range(size)])


def gathered_attention(
    q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, document: Tensor, groups: Groups
) -> Tensor:
    """The other way to do it: gather keys and values, attend locally (autograd does the rest)."""
    at, size = groups.axis("cp")
    seq = document.shape[1]
    k, v = (_GatherSequence.apply(t, groups, seq) for t in (k, v))
    repeat = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(repeat, 2) for t in (k, v))
    mask = allowed_pairs(document, local_positions(seq, at, size), torch.arange(seq))[:, None].to(q.device)
    scores = torch.einsum("bqnd,bknd->bnqk", q, k).float() / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, float("-inf"))
    if sink is not None:
        column = sink.float()[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    return torch.einsum("bnqk,bknd->bqnd", weights.to(v.dtype), v)
