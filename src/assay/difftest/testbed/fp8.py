"""FP8 emulated: values are rounded to E4M3 or E5M2 with one scale a tensor, products are taken in FP32 or BF16.

The scale is ``amax / largest finite value``; a tensor stands for ``payload * scale``. Scales are traced, for errors in
them are what FP8 hides best: E4M3 is a floating format, so that a scale wrong by a power of two changes nothing until
values saturate or underflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.difftest.collect import mark

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Reduce = Callable[[Tensor], Tensor]


def amax_of(tensor: Tensor, reduce: Reduce | None = None) -> Tensor:
    """Largest magnitude (FP32 scalar), over the ranks that ``reduce`` joins."""
    amax = tensor.detach().abs().amax().float()
    return reduce(amax) if reduce is not None else amax


def scale_of(amax: Tensor, kind: torch.dtype = E4M3) -> Tensor:
    """Scale that maps ``amax`` to the largest finite value of the type; 1 for an amax of 0."""
    return torch.where(amax > 0, amax / torch.finfo(kind).max, torch.ones_like(amax))


def quantize(tensor: Tensor, scale: Tensor, kind: torch.dtype = E4M3) -> Tensor:
    """The payload, saturated at the largest finite value.

    >>> quantize(torch.tensor([0.3, 1000.0]), torch.tensor(1.0)).float().tolist()
    [0.3125, 448.0]
    """
    top = torch.finfo(kind).max
    return (tensor.float() / scale).clamp(-top, top).to(kind)


def dequantize(payload: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """``payload * scale`` in a wider type."""
    return (payload.float() * scale).to(dtype)


class Scaling:
    """Delayed scaling of one linear layer's input: the scale comes from the largest amax of the last calls.

    The first call of all uses its own amax. With recompute, the second pass must use the scale of the first, so scales
    are kept by micro-batch until their backward pass.
    """

    def __init__(self, history: int = 4) -> None:
        self.length = history
        self.history: list[Tensor] = []
        self.used: dict[Any, Tensor] = {}

    def reset(self) -> None:
        """Forget all calls."""
        self.history.clear()
        self.used.clear()

    def scale(self, amax: Tensor, key: Any, *, again: bool, wrong: bool = False) -> Tensor:
        """Scale for this call; ``again`` is the second pass of a checkpointed part."""
        if again and not wrong:
            return self.used[key]
        past = self.history[-self.length :]
        chosen = torch.stack(past).amax() if past else amax
        scale = scale_of(chosen)
        if not again:
            self.history.append(amax)
            self.used[key] = scale
        return scale


class _Fp8Linear(torch.autograd.Function):
    """``y = dq(x) dq(w)^T``; gradients from the rounded tensors, the incoming one rounded to E5M2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, sx: Tensor, sw: Tensor, reduce: Any, gather: Any) -> Tensor:
        payload = quantize(x, sx)
        if gather is not None:
            payload = gather(payload)
        xq, wq = dequantize(payload, sx, x.dtype), dequantize(quantize(w, sw), sw, w.dtype)
        ctx.save_for_backward(xq, wq)
        ctx.reduce, ctx.gather = reduce, gather
        return torch.nn.functional.linear(xq, wq)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gy = gradients[0]
        xq, wq = ctx.saved_tensors
        scale = scale_of(amax_of(gy, ctx.reduce), E5M2)
        gq = dequantize(quantize(gy, scale, E5M2), scale, gy.dtype)
        gx = gq @ wq
        gw = gq.reshape(-1, gq.shape[-1]).t() @ xq.reshape(-1, xq.shape[-1])
        if ctx.gather is not None:
            gx = ctx.gather.backward(gx)
        return gx, gw, None, None, None, None


def fp8_linear(
    x: Tensor, w: Tensor, scaling: Scaling, key: Any, *, again: bool = False, reduce_x: Reduce | None = None,
    reduce_w: Reduce | None = None, reduce_g: Reduce | None = None, gather: Any = None, wrong_scale: bool = False,
) -> Tensor:  # fmt: skip
    """A linear map with emulated FP8 operands.

    Parameters
    ----------
    x, w : Tensor
    scaling : Scaling
    key : hashable
        Micro-batch, for recompute.
    again : bool
    reduce_x, reduce_w, reduce_g : callable, optional
        Maximum over the ranks that hold parts of input, weight, gradient.
    gather : callable, optional
        Gathers payloads over sequence shards (with ``backward``: the reduce-scatter of the gradient).
    wrong_scale : bool
        Recompute with a fresh scale (a bug of the test bed).
    """
    sx = scaling.scale(amax_of(x, reduce_x), key, again=again, wrong=wrong_scale)
    sw = scale_of(amax_of(w, reduce_w))
    mark("scale_x", sx, exact=True)
    mark("scale_w", sw, exact=True)
    return _Fp8Linear.apply(x, w, sx, sw, reduce_g, gather)


def experiment(kind: str, *, k: int = 512, n: int = 512, tokens: int = 256, seed: int = 0) -> float:
    """Error of a linear layer in BF16 eps for one of the situations that FP8 recipes get right or wrong.

    Parameters
    ----------
    kind : str
        ``exact``: FP8 against FP32 arithmetic. ``tp``: two tensor-parallel halves with a shared scale against one.
        ``perturbed``: input multiplied by 1 + eps u. ``rank scale``: a shard read with the other shard's scale.
        ``amax 4x too small``, ``amax 64x too large``, ``amax 50x too large``: wrong amax. ``shard amax``: each half has
        its own, and is read with it.
    k, n, tokens : int
        Inner size, outputs, rows.
    seed : int

    Returns
    -------
    float
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, k, generator=generator).bfloat16()
    w = (torch.randn(n, k, generator=generator) / k**0.5).bfloat16()

    def product(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> Tensor:
        a, b = dequantize(quantize(x, sx), sx, torch.float32), dequantize(quantize(w, sw), sw, torch.float32)
        return a @ b.t()

    sx, sw = scale_of(amax_of(x)), scale_of(amax_of(w))
    base = product(x, w, sx, sw).bfloat16()
    shrunk = x.clone()
    shrunk[tokens // 2 :] *= 0.1  # one shard of the sequence at a tenth of the other's size
    if kind == "exact":
        base, other = (x.float() @ w.float().t()).bfloat16(), base
    elif kind == "tp":
        halves = [product(x[:, h], w[:, h], sx, sw).bfloat16() for h in (slice(0, k // 2), slice(k // 2, k))]
        other = halves[0] + halves[1]
    elif kind == "perturbed":
        noise = torch.randn(x.shape, generator=generator)
        moved = (x.float() * (1 + 2.0**-7 * noise)).bfloat16()
        other = product(moved, w, scale_of(amax_of(moved)), sw).bfloat16()
    elif kind == "shard amax":
        base = product(shrunk, w, scale_of(amax_of(shrunk)), sw).bfloat16()
        parts = [shrunk[: tokens // 2], shrunk[tokens // 2 :]]
        other = torch.cat([product(p, w, scale_of(amax_of(p)), sw).bfloat16() for p in parts])
    elif kind == "rank scale":
        parts = [x[: tokens // 2], (x[tokens // 2 :].float() * 0.6).bfloat16()]
        whole = torch.cat(parts)
        base = product(whole, w, scale_of(amax_of(whole)), sw).bfloat16()
        scales = [scale_of(amax_of(p)) for p in parts]
        payload = torch.cat([quantize(p, s) for p, s in zip(parts, scales)])
        read = dequantize(payload, scales[0], torch.float32)
        wq = dequantize(quantize(w, sw), sw, torch.float32)
        other = (read @ wq.t()).bfloat16()
    else:
        factors = {"amax 4x too small": 0.25, "amax 64x too large": 64.0, "amax 50x too large": 50.0}
        other = product(x, w, sx * factors[kind], sw).bfloat16()
    gap = torch.linalg.vector_norm(other.double() - base.double()) / torch.linalg.vector_norm(base.double())
    return float(gap) * 2.0**7


EXPERIMENTS: Sequence[str] = (
    "tp", "perturbed", "exact", "rank scale", "amax 4x too small", "shard amax", "amax 64x too large",
    "amax 50x too large",
)  # fmt: skip
