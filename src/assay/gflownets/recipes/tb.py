"""Trajectory balance, in one file: Malkin et al. 2022, algorithm 1.

1. Draw tau = (s_0 -> ... -> s_n = x) from a policy near P_F.
2. Loss (equation 14): (log Z + sum_t log P_F(s_t | s_{t-1}) - log R(x) - sum_t log P_B(s_{t-1} | s_t))^2.
3. Step on P_F, and on log Z with a larger learning rate.

    python -m assay.gflownets.recipes.tb
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

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
    log_z_lr: float = 0.1


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


def backward(env: Hypergrid, states: Any) -> Float[Array, "T B"]:
    """log P_B of each step: one of the parents, each as likely."""
    children = jax.tree.map(lambda leaf: leaf[1:], states)
    return -jnp.log(jnp.maximum(jax.vmap(jax.vmap(env.bmask))(children).sum(-1), 1))


def pick(table: Float[Array, "T B actions"], actions: Int[Array, "T B"]) -> Float[Array, "T B"]:
    """Entries of the actions taken."""
    return jnp.take_along_axis(table, actions[..., None], -1)[..., 0]


class Params(NamedTuple):
    """Policy and log Z."""

    net: eqx.nn.MLP
    log_z: Array


def loss(
    log_z: Float[Array, ""], log_pf: Float[Array, "T B"], log_pb: Float[Array, "T B"], log_r: Float[Array, " B"]
) -> Float[Array, ""]:
    """Equation 14, mean over trajectories; steps after the end hold 0."""
    return ((log_z + log_pf.sum(0) - log_r - log_pb.sum(0)) ** 2).mean()


def objective(env: Hypergrid, model: Params, key: Array, batch: int, explore: Array) -> Float[Array, ""]:
    """The loss on fresh trajectories."""
    states, actions, live = walk(env, model.net, key, batch, explore)
    before = jax.tree.map(lambda leaf: leaf[:-1], states)
    log_p = jax.vmap(jax.vmap(lambda s: masked(model.net(observe(env, s)), env.mask(s))))(before)
    log_pf = jnp.where(live, pick(log_p, actions), 0.0)
    log_pb = jnp.where(live, backward(env, states), 0.0)
    log_r = env.log_rewards(jax.tree.map(lambda leaf: leaf[-1], states))
    return loss(model.log_z, log_pf, log_pb, log_r)


def train(settings: Settings | None = None) -> Result:
    """Train, and compare with the exact distribution."""
    settings = settings or Settings()
    env = Hypergrid(settings.dim, settings.side)
    key = jax.random.key(settings.seed)
    net = eqx.nn.MLP(observe(env, env.reset()).size, env.n_actions, settings.hidden, 2, key=key)
    params, static = eqx.partition(Params(net, jnp.zeros(())), eqx.is_array)
    rates = {"net": settings.lr, "log_z": settings.log_z_lr}
    adam = {k: optax.adam(optax.linear_schedule(lr, 0.02 * lr, settings.steps)) for k, lr in rates.items()}
    optimizer = optax.partition(adam, Params(jax.tree.map(lambda _: "net", params.net), "log_z"))  # type: ignore[arg-type]
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
    policy = jax.jit(jax.vmap(lambda s: masked(model.net(observe(env, s)), env.mask(s))))
    log_pf = np.asarray(policy(graph.states), np.float64)[graph.parent, graph.action]
    distance = total_variation(np.exp(graph.log_terminal(log_pf)), graph.target).value
    return Result(float(model.log_z), graph.log_z, distance)


def main() -> None:
    """Train and print."""
    found = train()
    print(f"log Z {found.log_z:.4f} (exact {found.exact_log_z:.4f}), total variation {found.total_variation:.4f}")


if __name__ == "__main__":
    main()
