"""Directed acyclic graphs, one edge an action (Deleu et al. 2022, DAG-GFlowNet); every state may stop."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError


class DAGState(NamedTuple):
    """Adjacency (``[i, j]``: i -> j), the pairs that a path joins (each node reaches itself), whether it has
    stopped."""

    edges: Bool[Array, "d d"]
    reach: Bool[Array, "d d"]
    stopped: Bool[Array, ""]


class DAG(Environment):
    """All DAGs over d variables; action i * d + j adds i -> j, action d * d stops.

    The mask is O(d^2): an edge i -> j is legal where it is not there and j does not reach i; adding it joins
    everything that reaches i with everything that j reaches.

    Parameters
    ----------
    table : float[variables, sets]
        Local scores of `bge_table` and its like.
    max_parents : int, optional

    Examples
    --------
    >>> import numpy as np
    >>> from assay.gflownets import StateGraph
    >>> StateGraph(DAG(np.zeros((4, 16)))).n_terminal
    543
    """

    d: int = eqx.field(static=True)
    max_parents: int = eqx.field(static=True)
    table: Float[Array, "d sets"]

    def __init__(self, table: Any, max_parents: int | None = None) -> None:
        scores = np.asarray(table, np.float64)
        d = len(scores)
        if scores.ndim != 2 or scores.shape[1] != 1 << d:
            raise GFlowNetError(f"a table of local scores is d x 2**d, not {scores.shape}")
        own = (np.arange(1 << d)[None, :] >> np.arange(d)[:, None]) & 1 == 1
        if not np.isfinite(scores[~own]).all():
            raise GFlowNetError("a local score is not finite")
        self.d, self.max_parents = d, d - 1 if max_parents is None else max_parents
        # The empty graph's score is kept apart from the table, so that float32 holds the small differences.
        self.table = jnp.asarray(np.where(own, 0.0, scores), jnp.result_type(float))

    n_actions = property(lambda self: self.d * self.d + 1)
    n_bactions = property(lambda self: self.d * self.d + 1)
    max_steps = property(lambda self: self.d * (self.d - 1) // 2 + 1)
    stop_action = property(lambda self: self.d * self.d)
    obs_spec = property(lambda self: ObsSpec("features", self.d * self.d, 1))

    def reset(self) -> DAGState:
        return DAGState(jnp.zeros((self.d, self.d), bool), jnp.eye(self.d, dtype=bool), jnp.zeros((), bool))

    def _one(self, action: Array) -> Array:
        return (jnp.arange(self.d * self.d) == action).reshape(self.d, self.d)

    def step(self, state: DAGState, action: Array) -> DAGState:
        edge = self._one(action)
        stop = action == self.d * self.d
        source, target = jnp.minimum(action, self.d * self.d - 1) // self.d, action % self.d
        joined = state.reach[:, source][:, None] & state.reach[target][None, :] & ~stop
        return DAGState(state.edges | edge, state.reach | joined, state.stopped | stop)

    def undo(self, state: DAGState, baction: Array) -> DAGState:
        edges = state.edges & ~self._one(baction)
        stop = baction == self.d * self.d
        return DAGState(edges, jnp.where(stop, state.reach, closure(edges)), state.stopped & ~stop)

    def mask(self, state: DAGState) -> Array:
        free = ~state.edges & ~state.reach.T
        if self.max_parents < self.d - 1:
            free = free & (state.edges.sum(0) < self.max_parents)
        return jnp.append(free.reshape(-1), True) & ~state.stopped

    def bmask(self, state: DAGState) -> Array:
        return jnp.append(state.edges.reshape(-1) & ~state.stopped, state.stopped)

    def baction(self, state: DAGState, action: Array, child: DAGState) -> Array:
        return action

    def faction(self, state: DAGState, baction: Array, parent: DAGState) -> Array:
        return baction

    def done(self, state: DAGState) -> Array:
        return state.stopped

    def obs(self, state: DAGState) -> Array:
        return state.edges.reshape(-1).astype(jnp.float32)

    def view(self, state: DAGState) -> Array:
        return state.edges

    def parents(self, edges: Bool[Array, "d d"]) -> Array:
        """``int32[d]``: parent sets as bit masks."""
        return (edges * (1 << jnp.arange(self.d))[:, None]).sum(0)

    def score(self, state: DAGState) -> Array:
        """log R of the graph, stopped or not."""
        return self.table[jnp.arange(self.d), self.parents(state.edges)].sum()

    def delta_score(self, state: DAGState, child: DAGState) -> Array:
        """Gain in log R from a graph to its child: only the variable that got a parent counts."""
        before, after = self.parents(state.edges), self.parents(child.edges)
        rows = jnp.arange(self.d)
        return (self.table[rows, after] - self.table[rows, before]).sum()

    def log_reward(self, state: DAGState) -> Array:
        return self.score(state)

    def potential(self, state: DAGState) -> Array:
        return self.score(state)

    def log_paths(self, state: DAGState) -> Array:
        return gammaln(state.edges.sum() + 1.0)  # every order of the edges of a DAG stays acyclic

    def index(self, state: DAGState) -> Array:
        """Bit mask of the adjacency matrix (d <= 5)."""
        return (state.edges.reshape(-1) * jnp.asarray(2 ** np.arange(self.d * self.d))).sum(-1)

    def objects(self, states: DAGState) -> list[tuple[tuple[int, int], ...]]:
        return [tuple((int(i), int(j)) for i, j in np.argwhere(row)) for row in np.asarray(states.edges)]

    def states_of(self, objects: Any) -> DAGState:
        edges = np.zeros((len(objects), self.d, self.d), bool)
        for row, pairs in enumerate(objects):
            for i, j in pairs:
                edges[row, i, j] = True
        reach = _closures(edges)
        cyclic = (reach & reach.transpose(0, 2, 1) & ~np.eye(self.d, dtype=bool)).any((1, 2)) | edges[
            :, np.arange(self.d), np.arange(self.d)
        ].any(1)
        if cyclic.any():
            raise GFlowNetError(f"object {int(np.argmax(cyclic))} is not acyclic")
        return DAGState(jnp.asarray(edges), jnp.asarray(reach), jnp.ones(len(edges), bool))

    def keys(self, states: DAGState) -> np.ndarray:
        bits = np.asarray(states.edges).reshape(len(states.stopped), -1)
        if bits.shape[1] > 60:
            return super().keys(states)
        return (bits * 2 ** np.arange(bits.shape[1], dtype=np.int64)).sum(1) * 2 + np.asarray(states.stopped)


def closure(edges: Bool[Array, "d d"]) -> Bool[Array, "d d"]:
    """Which nodes each node reaches, itself included, by repeated squaring."""
    d = edges.shape[0]
    reach = edges | jnp.eye(d, dtype=bool)
    for _ in range(max(1, (d - 1).bit_length())):
        reach = (reach[:, :, None] & reach[None, :, :]).any(1)
    return reach


def _closures(edges: np.ndarray) -> np.ndarray:
    reach: np.ndarray = edges | np.eye(edges.shape[1], dtype=bool)
    for _ in range(max(1, (edges.shape[1] - 1).bit_length())):
        reach = (reach[:, :, :, None] & reach[:, None, :, :]).any(2)
    return reach
