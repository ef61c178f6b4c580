"""Small spaces for teaching and testing: subsets, permutations, perfect binary trees."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Int

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError


class SetState(NamedTuple):
    """Which elements are in."""

    chosen: Bool[Array, " elements"]


class SetBuilder(Environment):
    """Subsets of ``size`` out of ``elements``, one element an action, in any order.

    Parameters
    ----------
    elements, size : int
    reward : callable
        ``bool[elements] -> log R``.
    """

    elements: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    reward: Any

    def __init__(self, elements: int, size: int, reward: Any) -> None:
        if not 1 <= size <= elements:
            raise GFlowNetError(f"a subset needs 1 <= size <= elements, not {size} of {elements}")
        self.elements, self.size, self.reward = elements, size, reward

    n_actions = property(lambda self: self.elements)
    n_bactions = property(lambda self: self.elements)
    max_steps = property(lambda self: self.size)
    obs_spec = property(lambda self: ObsSpec("features", self.elements, 1))

    def reset(self) -> SetState:
        return SetState(jnp.zeros(self.elements, bool))

    def step(self, state: SetState, action: Array) -> SetState:
        return SetState(state.chosen | (jnp.arange(self.elements) == action))

    def undo(self, state: SetState, baction: Array) -> SetState:
        return SetState(state.chosen & (jnp.arange(self.elements) != baction))

    def mask(self, state: SetState) -> Array:
        return ~state.chosen & (state.chosen.sum() < self.size)

    def bmask(self, state: SetState) -> Array:
        return state.chosen

    def baction(self, state: SetState, action: Array, child: SetState) -> Array:
        return action

    def faction(self, state: SetState, baction: Array, parent: SetState) -> Array:
        return baction

    def done(self, state: SetState) -> Array:
        return state.chosen.sum() == self.size

    def obs(self, state: SetState) -> Array:
        return state.chosen.astype(jnp.float32)

    def view(self, state: SetState) -> Array:
        return state.chosen

    def log_reward(self, state: SetState) -> Array:
        batched = getattr(self.reward, "batched", None)
        return batched(state.chosen[None])[0] if batched is not None else self.reward(state.chosen)

    def log_paths(self, state: SetState) -> Array:
        return gammaln(state.chosen.sum() + 1.0)

    def index(self, state: SetState) -> Array:
        """Bit mask of the set, element 0 least significant."""
        return (state.chosen * jnp.asarray(2 ** np.arange(self.elements))).sum(-1)

    def objects(self, states: SetState) -> list[tuple[int, ...]]:
        return [tuple(np.flatnonzero(row).tolist()) for row in np.asarray(states.chosen)]

    def states_of(self, objects: Any) -> SetState:
        chosen = np.zeros((len(objects), self.elements), bool)
        for row, members in enumerate(objects):
            if len(set(members)) != self.size or min(members) < 0 or max(members) >= self.elements:
                raise GFlowNetError(f"object {row} ({members!r}) is not {self.size} elements of 0..{self.elements - 1}")
            chosen[row, list(members)] = True
        return SetState(jnp.asarray(chosen))


class PermutationState(NamedTuple):
    """Elements in order; ``n`` = free place."""

    order: Int[Array, " elements"]
    n: Int[Array, ""]


class Permutation(Environment):
    """Orders of ``elements`` things, built from the front; the state graph is a tree.

    Parameters
    ----------
    reward : callable
        ``int32[elements] -> log R``.
    """

    elements: int = eqx.field(static=True)
    reward: Any

    def __init__(self, elements: int, reward: Any) -> None:
        if elements < 1:
            raise GFlowNetError(f"a permutation needs at least one element, not {elements}")
        self.elements, self.reward = elements, reward

    n_actions = property(lambda self: self.elements)
    n_bactions = property(lambda self: 1)
    max_steps = property(lambda self: self.elements)
    obs_spec = property(lambda self: ObsSpec("codes", self.elements, self.elements + 1))

    def reset(self) -> PermutationState:
        return PermutationState(jnp.full(self.elements, self.elements, jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, state: PermutationState, action: Array) -> PermutationState:
        here = jnp.arange(self.elements) == state.n
        return PermutationState(jnp.where(here, action.astype(jnp.int32), state.order), state.n + 1)

    def undo(self, state: PermutationState, baction: Array) -> PermutationState:
        here = jnp.arange(self.elements) == state.n - 1
        return PermutationState(jnp.where(here, self.elements, state.order), state.n - 1)

    def mask(self, state: PermutationState) -> Array:
        return ~(state.order[:, None] == jnp.arange(self.elements)).any(0)

    def bmask(self, state: PermutationState) -> Array:
        return (state.n > 0)[None]

    def baction(self, state: PermutationState, action: Array, child: PermutationState) -> Array:
        return jnp.zeros_like(action)

    def faction(self, state: PermutationState, baction: Array, parent: PermutationState) -> Array:
        return state.order[jnp.maximum(state.n - 1, 0)]

    def done(self, state: PermutationState) -> Array:
        return state.n == self.elements

    def obs(self, state: PermutationState) -> Array:
        return state.order

    def view(self, state: PermutationState) -> Array:
        return state.order

    def log_reward(self, state: PermutationState) -> Array:
        batched = getattr(self.reward, "batched", None)
        return batched(state.order[None])[0] if batched is not None else self.reward(state.order)

    def log_paths(self, state: PermutationState) -> Array:
        return jnp.zeros(())

    def index(self, state: PermutationState) -> Array:
        """Rank of a full order in the dictionary of all orders (at most 12 elements)."""
        later = jnp.triu(state.order[:, None] > state.order[None, :], 1).sum(1)
        return (later * jnp.asarray([math.factorial(self.elements - 1 - i) for i in range(self.elements)])).sum()

    def objects(self, states: PermutationState) -> list[tuple[int, ...]]:
        return [tuple(row) for row in np.asarray(states.order).tolist()]

    def states_of(self, objects: Any) -> PermutationState:
        order = np.asarray(list(objects), np.int32)
        if order.shape[1:] != (self.elements,) or not (np.sort(order, 1) == np.arange(self.elements)).all():
            raise GFlowNetError(f"objects must be orders of 0..{self.elements - 1}")
        return PermutationState(jnp.asarray(order), jnp.full(len(order), self.elements, jnp.int32))


class TreeState(NamedTuple):
    """Node of a perfect binary tree in heap order (root 1), and how deep it is."""

    node: Int[Array, ""]
    depth: Int[Array, ""]


class PerfectTree(Environment):
    """Walk from the root of a binary tree to one of ``2 ** depth`` leaves; exactly one path leads to each.

    Parameters
    ----------
    log_r : float[leaves]
        Log rewards of the leaves, left to right.
    """

    depth: int = eqx.field(static=True)
    log_r: Any

    def __init__(self, log_r: Any) -> None:
        values = np.asarray(log_r, np.float64)
        depth = len(values).bit_length() - 1
        if values.ndim != 1 or 2**depth != len(values) or depth < 1:
            raise GFlowNetError(f"a perfect tree needs 2, 4, 8, ... log rewards, not {values.shape}")
        self.depth, self.log_r = depth, jnp.asarray(values, jnp.result_type(float))

    n_actions = property(lambda self: 2)
    n_bactions = property(lambda self: 1)
    max_steps = property(lambda self: self.depth)
    obs_spec = property(lambda self: ObsSpec("codes", self.depth, 3))

    def reset(self) -> TreeState:
        return TreeState(jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, state: TreeState, action: Array) -> TreeState:
        return TreeState(2 * state.node + action.astype(jnp.int32), state.depth + 1)

    def undo(self, state: TreeState, baction: Array) -> TreeState:
        return TreeState(state.node // 2, state.depth - 1)

    def mask(self, state: TreeState) -> Array:
        return jnp.broadcast_to(state.depth < self.depth, (2,))

    def bmask(self, state: TreeState) -> Array:
        return (state.depth > 0)[None]

    def baction(self, state: TreeState, action: Array, child: TreeState) -> Array:
        return jnp.zeros_like(action)

    def faction(self, state: TreeState, baction: Array, parent: TreeState) -> Array:
        return state.node % 2

    def done(self, state: TreeState) -> Array:
        return state.depth == self.depth

    def obs(self, state: TreeState) -> Array:
        level = jnp.arange(self.depth)
        turn = (state.node >> jnp.maximum(state.depth - 1 - level, 0)) & 1
        return jnp.where(level < state.depth, turn, 2)

    def log_reward(self, state: TreeState) -> Array:
        return self.log_r[jnp.clip(state.node - 2**self.depth, 0, 2**self.depth - 1)]

    def log_paths(self, state: TreeState) -> Array:
        return jnp.zeros(())

    def index(self, state: TreeState) -> Array:
        """Number of the leaf."""
        return state.node - 2**self.depth

    def objects(self, states: TreeState) -> list[int]:
        return (np.asarray(states.node) - 2**self.depth).tolist()

    def states_of(self, objects: Any) -> TreeState:
        leaves = np.asarray(list(objects), np.int32)
        return TreeState(jnp.asarray(leaves + 2**self.depth), jnp.full(len(leaves), self.depth, jnp.int32))
