"""Hypergrids: walk up the axes of a grid from the corner, stop anywhere (Bengio et al. 2021, section 4.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Int

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.rewards.grid import GridReward


class GridState(NamedTuple):
    """Coordinates, and whether the walk has stopped."""

    x: Int[Array, " dim"]
    stopped: Bool[Array, ""]


class Hypergrid(Environment):
    """``side ** dim`` cells; an action raises one coordinate, the last one stops.

    Parameters
    ----------
    dim, side : int
    reward : str or GridReward
        ``"easy"``, ``"hard"`` or a family of `GridReward`.

    Examples
    --------
    >>> from assay.gflownets import StateGraph
    >>> round(StateGraph(Hypergrid(2, 8)).log_z, 3)
    2.777
    """

    dim: int = eqx.field(static=True)
    side: int = eqx.field(static=True)
    reward: Any

    def __init__(self, dim: int = 4, side: int = 20, reward: str | GridReward = "easy") -> None:
        if dim < 1 or side < 2:
            raise GFlowNetError(f"a hypergrid needs dim >= 1 and side >= 2, not dim={dim}, side={side}")
        self.dim, self.side = dim, side
        self.reward = GridReward(reward) if isinstance(reward, str) else reward

    n_actions = property(lambda self: self.dim + 1)
    n_bactions = property(lambda self: self.dim + 1)
    max_steps = property(lambda self: self.dim * (self.side - 1) + 1)
    stop_action = property(lambda self: self.dim)
    obs_spec = property(lambda self: ObsSpec("codes", self.dim, self.side))

    def reset(self) -> GridState:
        return GridState(jnp.zeros(self.dim, jnp.int32), jnp.zeros((), bool))

    def step(self, state: GridState, action: Array) -> GridState:
        return GridState(state.x + (jnp.arange(self.dim) == action), state.stopped | (action == self.dim))

    def undo(self, state: GridState, baction: Array) -> GridState:
        return GridState(state.x - (jnp.arange(self.dim) == baction), state.stopped & (baction != self.dim))

    def mask(self, state: GridState) -> Array:
        return jnp.append(state.x < self.side - 1, True) & ~state.stopped

    def bmask(self, state: GridState) -> Array:
        return jnp.append((state.x > 0) & ~state.stopped, state.stopped)

    def baction(self, state: GridState, action: Array, child: GridState) -> Array:
        return action

    def faction(self, state: GridState, baction: Array, parent: GridState) -> Array:
        return baction

    def done(self, state: GridState) -> Array:
        return state.stopped

    def obs(self, state: GridState) -> Array:
        return state.x

    def view(self, state: GridState) -> Array:
        return state.x

    def log_reward(self, state: GridState) -> Array:
        return self.reward(state.x, self.side)

    def potential(self, state: GridState) -> Array:
        return self.reward(state.x, self.side)  # every cell has a reward, so the forward-looking one is the cell's own

    def log_rewards(self, states: GridState) -> Array:
        return self.reward(states.x, self.side)

    def log_paths(self, state: GridState) -> Array:
        return gammaln(state.x.sum() + 1.0) - gammaln(state.x + 1.0).sum()

    def index(self, state: GridState) -> Array:
        """Number of the cell, first coordinate most significant."""
        return (state.x * jnp.asarray(self.side ** np.arange(self.dim - 1, -1, -1))).sum(-1)

    def objects(self, states: GridState) -> list[tuple[int, ...]]:
        return [tuple(row) for row in np.asarray(states.x).tolist()]

    def states_of(self, objects: Any) -> GridState:
        x = np.asarray(list(objects), np.int32)
        if x.ndim != 2 or x.shape[1] != self.dim or x.min() < 0 or x.max() >= self.side:
            raise GFlowNetError(f"cells of this grid have {self.dim} coordinates from 0 to {self.side - 1}")
        return GridState(jnp.asarray(x), jnp.ones(len(x), bool))
