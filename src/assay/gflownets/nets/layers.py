"""Small parts that the networks share."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def uniform(key: Array, shape: tuple[int, ...], bound: float) -> Float[Array, ...]:
    """Uniform numbers in +-bound.

    They are drawn for the next power of two: a process then compiles a few generators, not one for each layer size.
    """
    n = math.prod(shape)
    u: Any = jax.random.uniform(key, (max(64, 1 << (n - 1).bit_length()),))
    if not isinstance(u, jax.core.Tracer):
        u = np.asarray(u)
    return jnp.asarray(((2 * u[:n] - 1) * u.dtype.type(bound)).reshape(shape))


class Linear(eqx.Module):
    """``x @ weight + bias`` over any leading axes, initialised uniformly in +-1/sqrt(inputs)."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, inputs: int, outputs: int, key: Array, scale: float = 1.0) -> None:
        bound = scale / max(inputs, 1) ** 0.5
        a, b = jax.random.split(key)
        self.weight = uniform(a, (inputs, outputs), bound)
        self.bias = uniform(b, (outputs,), bound)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        return x @ self.weight + self.bias


def layer_norm(x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
    """Normalise the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


class Block(eqx.Module):
    """Pre-norm attention and MLP."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    heads: int = eqx.field(static=True)

    def __init__(self, dim: int, heads: int, key: Array) -> None:
        a, b, c, d = jax.random.split(key, 4)
        self.qkv, self.out = Linear(dim, 3 * dim, a), Linear(dim, dim, b)
        self.up, self.down = Linear(dim, 4 * dim, c), Linear(4 * dim, dim, d)
        self.heads = heads

    def split(self, x: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values, ``[rows, tokens, heads, dim/heads]``."""
        q, k, v = jnp.split(self.qkv(layer_norm(x)), 3, axis=-1)
        shape = (*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        return q.reshape(shape), k.reshape(shape), v.reshape(shape)

    def attend(self, x: Array, q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        """Attention and MLP with residuals; ``mask`` (True = seen) broadcasts to ``[rows, heads, queries, keys]``."""
        scores = jnp.einsum("...qhc,...khc->...hqk", q, k) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
        mixed = jnp.einsum("...hqk,...khc->...qhc", jax.nn.softmax(scores, axis=-1), v)
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(layer_norm(x))))

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        return self.attend(x, *self.split(x), mask)
