"""The multilayer perceptron: one trunk, a head for each thing that an objective may ask for."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from assay.gflownets.envs.base import ObsSpec
from assay.gflownets.nets.layers import Linear

# Above this many inputs a one-hot product costs more than the sum of rows that it selects.
_WIDEST_ONE_HOT = 640


class MLP(eqx.Module):
    """Trunk of ``depth`` ReLU layers with heads for forward scores, backward scores and log flow.

    Heads are separate, so that what an objective does not use is never computed.
    """

    first: Linear
    trunk: tuple[Linear, ...]
    forward_head: Linear
    backward_head: Linear
    flow_head: Linear
    condition_head: Linear | None
    spec: ObsSpec = eqx.field(static=True)
    dueling: bool = eqx.field(static=True)

    def __init__(
        self,
        spec: ObsSpec,
        n_actions: int,
        n_bactions: int,
        *,
        key: Array,
        hidden: int = 256,
        depth: int = 2,
        condition: int = 0,
        dueling: bool = False,
    ) -> None:
        keys = jax.random.split(key, depth + 4)
        inputs = spec.slots if spec.kind == "features" and spec.levels == 1 else spec.slots * spec.levels
        self.first = Linear(inputs, hidden, keys[0])
        self.trunk = tuple(Linear(hidden, hidden, k) for k in keys[1:depth])
        self.forward_head = Linear(hidden, n_actions, keys[depth])
        self.backward_head = Linear(hidden, n_bactions, keys[depth + 1])
        self.flow_head = Linear(hidden, 1, keys[depth + 2])
        self.condition_head = Linear(condition, hidden, keys[depth + 3]) if condition else None
        self.spec, self.dueling = spec, dueling

    def embed(self, obs: Array, condition: Array | None = None) -> Float[Array, "rows hidden"]:
        """Hidden activations of observations ``[rows, slots]``."""
        if self.spec.kind == "codes":
            width = self.spec.slots * self.spec.levels
            if width <= _WIDEST_ONE_HOT:
                one_hot = obs[..., None] == jnp.arange(self.spec.levels)
                h = self.first(one_hot.reshape(*obs.shape[:-1], width).astype(self.first.weight.dtype))
            else:
                rows = obs + jnp.asarray(np.arange(self.spec.slots) * self.spec.levels)
                h = self.first.weight[rows].sum(-2) + self.first.bias
        else:
            h = self.first(obs.reshape(obs.shape[0], -1).astype(self.first.weight.dtype))
        if self.condition_head is not None and condition is not None:
            h = h + self.condition_head(condition)
        h = jax.nn.relu(h)
        for layer in self.trunk:
            h = jax.nn.relu(layer(h))
        return h

    def forward(self, h: Array) -> Float[Array, "rows actions"]:
        """Scores of actions."""
        scores = self.forward_head(h)
        if self.dueling:
            scores = self.flow_head(h) + scores - scores.mean(-1, keepdims=True)
        return scores

    def backward(self, h: Array) -> Float[Array, "rows bactions"]:
        """Scores of backward actions."""
        return self.backward_head(h)

    def flow(self, h: Array) -> Float[Array, " rows"]:
        """Log flow."""
        return self.flow_head(h)[..., 0]
