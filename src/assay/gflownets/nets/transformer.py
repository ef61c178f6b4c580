"""Transformer encoder of token sequences; the causal one keeps keys and values while a sequence is appended to."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from assay.gflownets.envs.base import ObsSpec
from assay.gflownets.nets.layers import Block, Linear, layer_norm


class Cache(NamedTuple):
    """Keys and values of the tokens so far, ``[layers, rows, tokens, heads, dim/heads]``."""

    keys: Array
    values: Array


class Transformer(eqx.Module):
    """``layers`` pre-norm blocks over the tokens behind a start token.

    The causal form reads position t from tokens before t only: a rollout then costs one token a step (`decode`), and
    all prefixes of a finished sequence are read in one pass (`prefixes`).
    """

    tokens: Float[Array, "levels dim"]
    positions: Float[Array, "places dim"]
    blocks: tuple[Block, ...]
    forward_head: Linear
    backward_head: Linear
    flow_head: Linear
    condition_head: Linear | None
    spec: ObsSpec = eqx.field(static=True)
    causal: bool = eqx.field(static=True)

    def __init__(
        self,
        spec: ObsSpec,
        n_actions: int,
        n_bactions: int,
        *,
        key: Array,
        dim: int = 64,
        layers: int = 3,
        heads: int = 8,
        condition: int = 0,
        causal: bool = False,
    ) -> None:
        keys = jax.random.split(key, layers + 6)
        self.tokens = 0.1 * jax.random.normal(keys[0], (spec.levels + 1, dim))  # the last one is the start token
        self.positions = 0.1 * jax.random.normal(keys[1], (spec.slots + 1, dim))
        self.blocks = tuple(Block(dim, heads, k) for k in keys[2 : 2 + layers])
        self.forward_head = Linear(dim, n_actions, keys[layers + 2])
        self.backward_head = Linear(dim, n_bactions, keys[layers + 3])
        self.flow_head = Linear(dim, 1, keys[layers + 4])
        self.condition_head = Linear(condition, dim, keys[layers + 5]) if condition else None
        self.spec, self.causal = spec, causal

    def _with_start(self, tokens: Int[Array, "rows slots"], condition: Array | None) -> Array:
        start = jnp.full((tokens.shape[0], 1), self.spec.levels, tokens.dtype)
        x = self.tokens[jnp.concatenate([start, tokens], axis=1)] + self.positions
        if self.condition_head is not None and condition is not None:
            x = x + self.condition_head(condition)[:, None]
        return x

    def embed(self, obs: Int[Array, "rows slots"], condition: Array | None = None) -> Float[Array, "rows dim"]:
        """Hidden activations of states: of the start token, or (causal) of the last letter."""
        if self.causal:
            n = (obs < self.spec.levels - 1).sum(-1)
            return jnp.take_along_axis(self.prefixes(obs, condition), n[:, None, None], axis=1)[:, 0]
        x = self._with_start(obs, condition)
        for block in self.blocks:
            x = block(x)
        return layer_norm(x[:, 0])

    def prefixes(
        self, tokens: Int[Array, "rows slots"], condition: Array | None = None
    ) -> Float[Array, "rows places dim"]:
        """Hidden activations of all prefixes at once: place t has read t letters."""
        x = self._with_start(tokens, condition)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        for block in self.blocks:
            x = block(x, mask)
        return layer_norm(x)

    def start(self, rows: int) -> Cache:
        """An empty cache."""
        dim, heads = self.tokens.shape[1], self.blocks[0].heads
        shape = (len(self.blocks), rows, self.spec.slots + 1, heads, dim // heads)
        return Cache(jnp.zeros(shape), jnp.zeros(shape))

    def decode(
        self, cache: Cache, token: Int[Array, " rows"], t: Int[Array, ""], condition: Array | None = None
    ) -> tuple[Cache, Float[Array, "rows dim"]]:
        """Read one letter (the start token at t = 0), given the cache of those before."""
        x = self.tokens[token] + self.positions[t]
        if self.condition_head is not None and condition is not None:
            x = x + self.condition_head(condition)
        x = x[:, None]
        seen = jnp.arange(self.spec.slots + 1) <= t
        keys, values = cache
        for i, block in enumerate(self.blocks):
            q, k, v = block.split(x)
            keys = jax.lax.dynamic_update_slice(keys, k[None], (i, 0, t, 0, 0))
            values = jax.lax.dynamic_update_slice(values, v[None], (i, 0, t, 0, 0))
            x = block.attend(x, q, keys[i], values[i], seen)
        return Cache(keys, values), layer_norm(x[:, 0])

    def forward(self, h: Array) -> Float[Array, "rows actions"]:
        """Scores of actions."""
        return self.forward_head(h)

    def backward(self, h: Array) -> Float[Array, "rows bactions"]:
        """Scores of backward actions."""
        return self.backward_head(h)

    def flow(self, h: Array) -> Float[Array, " rows"]:
        """Log flow."""
        return self.flow_head(h)[..., 0]
