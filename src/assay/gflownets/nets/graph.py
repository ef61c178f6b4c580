"""A graph network for DAGs: nodes pass messages along the edges and against them; an edge is scored from its two
ends."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from assay.gflownets.nets.layers import Linear, layer_norm


class GraphHidden(NamedTuple):
    """Activations of nodes and of the whole graph."""

    nodes: Float[Array, "rows d dim"]
    pooled: Float[Array, "rows dim"]


class GraphNet(eqx.Module):
    """``layers`` rounds of messages, then edge scores ``q_i . k_j / sqrt(dim)`` and a score for stopping."""

    names: Float[Array, "d dim"]
    rounds: tuple[Linear, ...]
    query: Linear
    key: Linear
    pool: Linear
    stop: Linear
    backward_query: Linear
    backward_key: Linear
    flow_head: Linear
    condition_head: Linear | None
    d: int = eqx.field(static=True)

    def __init__(
        self,
        d: int,
        n_actions: int,
        n_bactions: int,
        *,
        key: Array,
        dim: int = 128,
        layers: int = 1,
        condition: int = 0,
    ) -> None:
        keys = jax.random.split(key, layers + 9)
        self.names = jax.random.normal(keys[0], (d, dim))
        self.rounds = tuple(Linear(4 * dim, dim, k) for k in keys[1 : 1 + layers])
        self.query, self.key = Linear(dim, dim, keys[layers + 1]), Linear(dim, dim, keys[layers + 2])
        self.pool, self.stop = Linear(dim, dim, keys[layers + 3]), Linear(dim, 1, keys[layers + 4])
        self.backward_query, self.backward_key = Linear(dim, dim, keys[layers + 5]), Linear(dim, dim, keys[layers + 6])
        self.flow_head = Linear(dim, 1, keys[layers + 7])
        self.condition_head = Linear(condition, dim, keys[layers + 8]) if condition else None
        self.d = d

    def embed(self, obs: Float[Array, "rows edges"], condition: Array | None = None) -> GraphHidden:
        """Hidden activations of graphs given as flat adjacency matrices."""
        edges = obs.reshape(-1, self.d, self.d)
        x = jnp.broadcast_to(self.names, (edges.shape[0], *self.names.shape))
        if self.condition_head is not None and condition is not None:
            x = x + self.condition_head(condition)[:, None]
        for layer in self.rounds:
            out, back = jnp.einsum("rij,rjc->ric", edges, x), jnp.einsum("rij,ric->rjc", edges, x)
            everyone = jnp.broadcast_to(x.mean(1, keepdims=True), x.shape)
            x = layer_norm(x + jax.nn.relu(layer(jnp.concatenate([x, out, back, everyone], -1))))
        return GraphHidden(x, jax.nn.relu(self.pool(x)).mean(1))

    def _edges(self, x: Array, query: Linear, key: Linear) -> Array:
        scores = jnp.einsum("ric,rjc->rij", query(x), key(x)) / x.shape[-1] ** 0.5
        return scores.reshape(x.shape[0], -1)

    def forward(self, h: GraphHidden) -> Float[Array, "rows actions"]:
        """Scores of edges and of stopping."""
        return jnp.concatenate([self._edges(h.nodes, self.query, self.key), self.stop(h.pooled)], axis=-1)

    def backward(self, h: GraphHidden) -> Float[Array, "rows bactions"]:
        """Scores of removals; the last one, of the stop, is the only one where it is legal."""
        scores = self._edges(h.nodes, self.backward_query, self.backward_key)
        return jnp.concatenate([scores, jnp.zeros((scores.shape[0], 1), scores.dtype)], axis=-1)

    def flow(self, h: GraphHidden) -> Float[Array, " rows"]:
        """Log flow."""
        return self.flow_head(h.pooled)[..., 0]
