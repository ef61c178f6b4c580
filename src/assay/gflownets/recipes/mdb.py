"""Modified detailed balance, in one file: Deleu et al. 2022, DAG-GFlowNet.

1. Objects are directed acyclic graphs, an edge an action; every state may stop, so every graph has a reward.
2. Draw trajectories. For each step s -> s' that is no stop (equation 4):
   log R(s') - log R(s) + log P_B(s|s') + log P_F(stop|s) - log P_F(s'|s) - log P_F(stop|s'), in a Huber loss.
   The gain log R(s') - log R(s) is one difference of local scores; no flow is learned.
3. log P_F(stop|s') is read from a target network, a copy that is renewed now and then.

    python -m assay.gflownets.recipes.mdb
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from assay.gflownets.data import linear_gaussian_data
from assay.gflownets.envs import DAG
from assay.gflownets.exact import StateGraph
from assay.gflownets.metrics import total_variation
from assay.gflownets.rewards import bge_table


class Settings(NamedTuple):
    """What may be changed."""

    batch: int = 16
    steps: int = 4000
    hidden: int = 128
    lr: float = 2e-3
    explore: float = 0.2
    seed: int = 0
    variables: int = 3
    rows: int = 100
    renew: int = 200


class Result(NamedTuple):
    """What comes out: the learned log Z, the exact one, and the exact distance to the target."""

    log_z: float
    exact_log_z: float
    total_variation: float


def observe(env: DAG, state: Any) -> Float[Array, " inputs"]:
    """What the network sees of one state."""
    return env.obs(state)


def masked(scores: Float[Array, " actions"], mask: Bool[Array, " actions"]) -> Float[Array, " actions"]:
    """Log softmax over the legal actions."""
    return jax.nn.log_softmax(jnp.where(mask, scores, -1e9))


def walk(env: DAG, net: eqx.nn.MLP, key: Array, batch: int, explore: Any) -> tuple[Any, Array, Array]:
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


def backward(env: DAG, states: Any) -> Float[Array, "T B"]:
    """log P_B of each step: one of the parents, each as likely."""
    children = jax.tree.map(lambda leaf: leaf[1:], states)
    return -jnp.log(jnp.maximum(jax.vmap(jax.vmap(env.bmask))(children).sum(-1), 1))


def pick(table: Float[Array, "T B actions"], actions: Int[Array, "T B"]) -> Float[Array, "T B"]:
    """Entries of the actions taken."""
    return jnp.take_along_axis(table, actions[..., None], -1)[..., 0]


def posterior_space(settings: Settings) -> DAG:
    """Structures for data of a random linear-Gaussian network, scored by BGe."""
    X, _ = linear_gaussian_data(settings.variables, settings.rows, rng=np.random.default_rng(settings.seed))
    table = bge_table(X)
    return DAG(table - table[:, :1])


def loss(
    gain: Float[Array, "T B"],
    log_pb: Float[Array, "T B"],
    log_pf: Float[Array, "T B"],
    stop: Float[Array, "T B"],
    stop_ahead: Float[Array, "T B"],
    counts: Bool[Array, "T B"],
) -> Float[Array, ""]:
    """Equation 4, mean over the steps that are no stop."""
    residual = gain + log_pb + stop - log_pf - jax.lax.stop_gradient(stop_ahead)
    return jnp.where(counts, optax.losses.huber_loss(residual), 0.0).sum() / jnp.maximum(counts.sum(), 1)


def objective(
    env: DAG, model: eqx.nn.MLP, target: eqx.nn.MLP, key: Array, batch: int, explore: Array
) -> Float[Array, ""]:
    """The loss on fresh trajectories."""
    states, actions, live = walk(env, model, key, batch, explore)
    before, after = (jax.tree.map(lambda leaf, cut=cut: leaf[cut], states) for cut in (slice(-1), slice(1, None)))
    log_p = jax.vmap(jax.vmap(lambda s: masked(model(observe(env, s)), env.mask(s))))(before)
    ahead = jax.vmap(jax.vmap(lambda s: masked(target(observe(env, s)), env.mask(s))))(after)
    gain = jax.vmap(jax.vmap(env.delta_score))(before, after)
    counts = live & (actions != env.stop_action)
    stop = env.stop_action
    return loss(gain, backward(env, states), pick(log_p, actions), log_p[..., stop], ahead[..., stop], counts)


def log_z_of(env: DAG, model: eqx.nn.MLP) -> float:
    """log R(s_0) - log P_F(stop|s_0): what the flow through the source must be."""
    source = env.reset()
    return float(env.score(source) - masked(model(observe(env, source)), env.mask(source))[env.stop_action])


def train(settings: Settings | None = None) -> Result:
    """Train, and compare with the exact distribution."""
    settings = settings or Settings()
    env = posterior_space(settings)
    key = jax.random.key(settings.seed)
    net = eqx.nn.MLP(observe(env, env.reset()).size, env.n_actions, settings.hidden, 2, key=key)
    params, static = eqx.partition(net, eqx.is_array)
    optimizer = optax.adam(optax.linear_schedule(settings.lr, 0.02 * settings.lr, settings.steps))
    opt = optimizer.init(params)
    target = params

    @jax.jit
    def update(params: Any, target: Any, opt: Any, key: Array, explore: Array) -> tuple[Any, Any]:
        def value(p: Any) -> Array:
            return objective(env, eqx.combine(p, static), eqx.combine(target, static), key, settings.batch, explore)

        gradient = jax.grad(value)(params)
        change, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, change), opt

    for i in range(settings.steps):
        explore = jnp.asarray(settings.explore * max(0.0, 1 - 2 * i / settings.steps))
        params, opt = update(params, target, opt, jax.random.fold_in(key, i), explore)
        target = params if (i + 1) % settings.renew == 0 else target
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
