"""Flow matching, in one file: Bengio et al. 2021, equation 11.

1. The network gives log F(s -> s') of each edge; the policy is its softmax over the legal actions.
2. Draw trajectories. For each state s' but the source: inflow = sum over parents s of F(s -> s'), outflow = R(s') where
   s' is terminal, otherwise sum over children of F(s' -> s'').
3. Loss (equation 11): (log inflow - log outflow)^2, mean over states. log of the source's outflow is log Z.

    python -m assay.gflownets.recipes.fm
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from assay.gflownets.envs import Hypergrid
from assay.gflownets.exact import StateGraph
from assay.gflownets.metrics import total_variation


class Settings(NamedTuple):
    """What may be changed."""

    dim: int = 2
    side: int = 8
    batch: int = 16
    steps: int = 4000
    hidden: int = 128
    lr: float = 2e-3
    explore: float = 0.2
    seed: int = 0


class Result(NamedTuple):
    """What comes out: the learned log Z, the exact one, and the exact distance to the target."""

    log_z: float
    exact_log_z: float
    total_variation: float


def observe(env: Hypergrid, state: Any) -> Float[Array, " inputs"]:
    """What the network sees of one state."""
    return jax.nn.one_hot(env.obs(state), env.side).reshape(-1)


def masked(scores: Float[Array, " actions"], mask: Bool[Array, " actions"]) -> Float[Array, " actions"]:
    """Log softmax over the legal actions."""
    return jax.nn.log_softmax(jnp.where(mask, scores, -1e9))


def walk(env: Hypergrid, net: eqx.nn.MLP, key: Array, batch: int, explore: Any) -> tuple[Any, Array, Array]:
    """Trajectories of the policy mixed with uniform actions: states ``[T + 1, B]``, actions and whether there is a
    step, ``[T, B]``."""

    def step(state: Any, key: Array) -> tuple[Any, tuple[Any, Array, Array]]:
        live = ~jax.vmap(env.done)(state)
        mask = jax.vmap(env.mask)(state)
        p = jnp.exp(jax.vmap(lambda s, m: masked(net(observe(env, s)), m))(state, mask))
        p = (1 - explore) * p + explore * mask / jnp.maximum(mask.sum(-1, keepdims=True), 1)
        action = jax.random.categorical(key, jnp.log(p))
        child = jax.vmap(env.step)(state, action)
        child = jax.vmap(lambda go, new, old: jax.tree.map(lambda a, b: jnp.where(go, a, b), new, old))(
            live, child, state
        )
        return child, (child, action, live)

    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch, *leaf.shape)), env.reset())
    _, (later, actions, live) = jax.lax.scan(step, start, jax.random.split(key, env.max_steps))
    states = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, later)
    return states, actions, live


def loss(log_in: Float[Array, "T B"], log_out: Float[Array, "T B"], live: Bool[Array, "T B"]) -> Float[Array, ""]:
    """Equation 11, mean over the states that were reached."""
    return jnp.where(live, (log_in - log_out) ** 2, 0.0).sum() / live.sum()


def inflow(env: Hypergrid, model: eqx.nn.MLP, state: Any) -> Float[Array, ""]:
    """Log of the sum of the flows of all edges into a state."""

    def edge(b: Array) -> Array:
        parent = env.undo(state, b)
        return model(observe(env, parent))[env.faction(state, b, parent)]

    flows = jax.vmap(edge)(jnp.arange(env.n_bactions))
    return jax.nn.logsumexp(jnp.where(env.bmask(state), flows, -1e9))


def objective(env: Hypergrid, model: eqx.nn.MLP, key: Array, batch: int, explore: Array) -> Float[Array, ""]:
    """The loss on fresh trajectories."""
    states, _, live = walk(env, model, key, batch, explore)
    reached = jax.tree.map(lambda leaf: leaf[1:], states)
    log_in = jax.vmap(jax.vmap(lambda s: inflow(env, model, s)))(reached)
    scores = jax.vmap(jax.vmap(lambda s: jnp.where(env.mask(s), model(observe(env, s)), -1e9)))(reached)
    log_r = env.log_rewards(jax.tree.map(lambda leaf: leaf[-1], states))
    log_out = jnp.where(jax.vmap(jax.vmap(env.done))(reached), log_r, jax.nn.logsumexp(scores, axis=-1))
    return loss(log_in, log_out, live)


def log_z_of(env: Hypergrid, model: eqx.nn.MLP) -> float:
    """Log of the outflow of the source."""
    return float(jax.nn.logsumexp(model(observe(env, env.reset())), where=env.mask(env.reset())))


def train(settings: Settings | None = None) -> Result:
    """Train, and compare with the exact distribution."""
    settings = settings or Settings()
    env = Hypergrid(settings.dim, settings.side)
    key = jax.random.key(settings.seed)
    net = eqx.nn.MLP(observe(env, env.reset()).size, env.n_actions, settings.hidden, 2, key=key)
    params, static = eqx.partition(net, eqx.is_array)
    optimizer = optax.adam(optax.linear_schedule(settings.lr, 0.02 * settings.lr, settings.steps))
    opt = optimizer.init(params)

    @jax.jit
    def update(params: Any, opt: Any, key: Array, explore: Array) -> tuple[Any, Any]:
        def value(p: Any) -> Array:
            return objective(env, eqx.combine(p, static), key, settings.batch, explore)

        gradient = jax.grad(value)(params)
        change, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, change), opt

    for i in range(settings.steps):
        explore = jnp.asarray(settings.explore * max(0.0, 1 - 2 * i / settings.steps))
        params, opt = update(params, opt, jax.random.fold_in(key, i), explore)
    model = eqx.combine(params, static)
    graph = StateGraph(env)
    policy = jax.jit(jax.vmap(lambda s: masked(model(observe(env, s)), env.mask(s))))
    log_pf = np.asarray(policy(graph.states), np.float64)[graph.parent, graph.action]
    distance = total_variation(np.exp(graph.log_terminal(log_pf)), graph.target).value
    return Result(log_z_of(env, model), graph.log_z, distance)


def main() -> None:
    """Train and print."""
    found = train()
    print(f"log Z {found.log_z:.4f} (exact {found.exact_log_z:.4f}), total variation {found.total_variation:.4f}")


if __name__ == "__main__":
    main()
