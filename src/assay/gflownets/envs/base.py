"""What an environment is: a state graph as pure functions of one state.

Everything here speaks of a single state; the library batches with ``vmap``. An environment is an `equinox.Module`:
plain fields are compiled in, arrays (reward tables, couplings) are arguments of the compiled functions, so that a
reward may change or be learned without compiling again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

State = Any


class ObsSpec(NamedTuple):
    """What `Environment.obs` gives, for the networks.

    Attributes
    ----------
    kind : {"codes", "features", "pairs"}
        ``codes``: ``int32[slots]`` with values below ``levels``. ``features``: ``float32[slots]``.
        ``pairs``: ``float32[slots, levels]``, where an action is a pair i < j of slots (trees), the first ``slots``
        features of a slot are what joining it with each slot costs, and the last says whether something is there.
    """

    kind: str
    slots: int
    levels: int


class Environment(eqx.Module):
    """A finite directed acyclic graph of states with one source; terminal states carry the reward.

    A subclass gives the methods below. Actions and backward actions are numbered from 0; each legal (state, action) has
    exactly one legal (child, backward action), also where several actions lead to one child (parallel edges).
    """

    @property
    @abstractmethod
    def n_actions(self) -> int:
        """Number of actions, legal or not."""

    @property
    @abstractmethod
    def n_bactions(self) -> int:
        """Number of backward actions."""

    @property
    @abstractmethod
    def max_steps(self) -> int:
        """Longest trajectory, in actions."""

    @property
    @abstractmethod
    def obs_spec(self) -> ObsSpec:
        """Form of `obs`."""

    @property
    def stop_action(self) -> int | None:
        """The action that ends a trajectory and changes nothing else; None where the last construction step ends it."""
        return None

    @abstractmethod
    def reset(self) -> State:
        """The source."""

    @abstractmethod
    def step(self, state: State, action: Int[Array, ""]) -> State:
        """The child that a legal action leads to."""

    @abstractmethod
    def undo(self, state: State, baction: Int[Array, ""]) -> State:
        """The parent that a legal backward action leads to."""

    @abstractmethod
    def mask(self, state: State) -> Bool[Array, " actions"]:
        """Legal actions; none in a terminal state."""

    @abstractmethod
    def bmask(self, state: State) -> Bool[Array, " bactions"]:
        """Legal backward actions; none in the source."""

    @abstractmethod
    def baction(self, state: State, action: Int[Array, ""], child: State) -> Int[Array, ""]:
        """The backward action of the edge ``state -action-> child``."""

    @abstractmethod
    def faction(self, state: State, baction: Int[Array, ""], parent: State) -> Int[Array, ""]:
        """The action of the edge from ``parent`` to ``state`` whose backward action is ``baction``."""

    @abstractmethod
    def done(self, state: State) -> Bool[Array, ""]:
        """Whether the state is terminal."""

    @abstractmethod
    def obs(self, state: State) -> Array:
        """What a network sees."""

    @abstractmethod
    def log_reward(self, state: State) -> Float[Array, ""]:
        """log R of a terminal state."""

    def log_rewards(self, states: State) -> Float[Array, " batch"]:
        """log R of a batch of terminal states (a reward on the host overrides the batch, not the single state)."""
        reward = getattr(self, "reward", None)
        batched = getattr(reward, "batched", None)
        if batched is not None:
            return batched(jax.vmap(self.view)(states))
        return jax.vmap(self.log_reward)(states)

    def view(self, state: State) -> Any:
        """The part of a state that a reward sees (coordinates, tokens, spins)."""
        return state

    def potential(self, state: State) -> Float[Array, ""]:
        """Log reward so far, for the forward-looking objectives: equals log R in terminal states, 0 elsewhere by
        default."""
        return jnp.where(self.done(state), self.log_reward(state), 0.0)

    def log_paths(self, state: State) -> Float[Array, ""]:
        """Logarithm of the number of trajectories from the source to a state (maximum-entropy backward policy).

        Raises
        ------
        GFlowNetError
            Where the environment has no closed form.
        """
        from assay.gflownets.errors import GFlowNetError

        raise GFlowNetError(
            f"{type(self).__name__} has no closed form for its number of paths; choose backward='uniform' or 'learned'"
        )

    def objects(self, states: State) -> list[Any]:
        """Terminal states (a batch) as what a person reads: strings, tuples, graphs, trees."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        return [tuple(leaf[i].tolist() for leaf in leaves) for i in range(len(leaves[0]))]

    def states_of(self, objects: Sequence[Any]) -> State:
        """A batch of terminal states from objects as `objects` gives them."""
        from assay.gflownets.errors import GFlowNetError

        raise GFlowNetError(f"{type(self).__name__} cannot read objects back into states")

    def keys(self, states: State) -> np.ndarray:
        """An identity of each state of a batch, for enumeration: equal exactly where the states are."""
        rows = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        flat = [np.ascontiguousarray(r.reshape(len(r), -1)).view(np.uint8).reshape(len(r), -1) for r in rows]
        joined = np.ascontiguousarray(np.concatenate(flat, axis=1))
        return joined.view(np.dtype((np.void, joined.shape[1]))).ravel()
