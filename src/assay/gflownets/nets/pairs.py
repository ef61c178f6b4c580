"""A network for forests: slots attend to each other, an action is scored from the two slots that it joins."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from assay.gflownets.envs.base import ObsSpec
from assay.gflownets.nets.layers import Block, Linear, layer_norm


class PairHidden(NamedTuple):
    """Activations of slots and of the whole forest."""

    slots: Float[Array, "rows slots dim"]
    pooled: Float[Array, "rows dim"]
    cost: Float[Array, "rows slots slots"]


class PairNet(eqx.Module):
    """Scores of pairs i < j as ``w . relu(a(e_i) + a(e_j)) - gain * cost_ij``: they do not depend on the order of the
    two.

    The first ``slots`` features of a slot are what joining it with each slot costs, in log reward, and ``gain`` starts
    at 1: an untrained policy prefers cheap joins, as a greedy search with temperature does. The last feature says
    whether something is there; empty slots are not attended to.
    """

    first: Linear
    blocks: tuple[Block, ...]
    pair: Linear
    pair_out: Linear
    backward_head: Linear
    flow_hidden: Linear
    flow_head: Linear
    condition_head: Linear | None
    gain: Float[Array, ""]
    slots: int = eqx.field(static=True)

    def __init__(
        self,
        spec: ObsSpec,
        n_actions: int,
        n_bactions: int,
        *,
        key: Array,
        dim: int = 32,
        layers: int = 2,
        heads: int = 4,
        condition: int = 0,
    ) -> None:
        keys = jax.random.split(key, layers + 7)
        self.first = Linear(spec.levels, dim, keys[0])
        self.blocks = tuple(Block(dim, heads, k) for k in keys[1 : 1 + layers])
        self.pair, self.pair_out = Linear(dim, 2 * dim, keys[layers + 1]), Linear(2 * dim, 1, keys[layers + 2])
        self.backward_head = Linear(dim, n_bactions, keys[layers + 3])
        self.flow_hidden, self.flow_head = Linear(dim, dim, keys[layers + 4]), Linear(dim, 1, keys[layers + 5])
        self.condition_head = Linear(condition, dim, keys[layers + 6]) if condition else None
        self.gain = jnp.ones(())
        self.slots = spec.slots

    def embed(self, obs: Float[Array, "rows slots features"], condition: Array | None = None) -> PairHidden:
        """Hidden activations of forests."""
        there = obs[..., -1] > 0
        cost = obs[..., : self.slots]
        mean = cost.sum((1, 2), keepdims=True) / jnp.maximum((cost > 0).sum((1, 2), keepdims=True), 1)
        x = self.first(jnp.concatenate([cost / jnp.maximum(mean, 1e-6) - 1, obs[..., self.slots :]], axis=-1))
        if self.condition_head is not None and condition is not None:
            x = x + self.condition_head(condition)[:, None]
        for block in self.blocks:
            x = block(x, there[:, None, None, :])
        x = layer_norm(x)
        pooled = (x * there[..., None]).sum(1) / jnp.maximum(there.sum(1), 1)[:, None]
        return PairHidden(x, pooled, cost)

    def forward(self, h: PairHidden) -> Float[Array, "rows actions"]:
        """Scores of all pairs i < j, in the order of `itertools.combinations`."""
        left, right = np.triu_indices(self.slots, 1)
        e = self.pair(h.slots)
        scores = self.pair_out(jax.nn.relu(e[:, left] + e[:, right]))[..., 0]
        return scores - self.gain * h.cost[:, left, right]

    def backward(self, h: PairHidden) -> Float[Array, "rows bactions"]:
        """Scores of the splits."""
        return self.backward_head(h.pooled)

    def flow(self, h: PairHidden) -> Float[Array, " rows"]:
        """Log flow."""
        return self.flow_head(jax.nn.relu(self.flow_hidden(h.pooled)))[..., 0]
