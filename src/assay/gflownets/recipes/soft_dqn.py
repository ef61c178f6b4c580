"""Soft deep Q-learning, in one file: Tiapkin et al. 2024, algorithm 1.

1. A GFlowNet is entropy-regularised reinforcement learning (theorem 1) with reward log P_B(s|s') for each step, plus
   log R(x) for the last one, discount 1 and entropy coefficient 1. The policy is the softmax of Q, and the soft value
   of the source is log Z.
2. Draw trajectories from a policy near softmax Q. Q(s, a) regresses (Huber) on
   log P_B(s|s') + logsumexp Q_target(s', .), and on log P_B(s|x) + log R(x) at the last step, whose weight is larger.
3. The target network follows: theta_target += tau (theta - theta_target).

    python -m assay.gflownets.recipes.soft_dqn
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
    leaf_coeff: float = 5.0
    tau: float = 0.25


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


def loss(
    q: Float[Array, "T B"],
    ahead: Float[Array, "T B"],
    log_pb: Float[Array, "T B"],
    log_r: Float[Array, " B"],
    last: Bool[Array, "T B"],
    live: Bool[Array, "T B"],
    leaf_coeff: float,
) -> Float[Array, ""]:
    """Weighted Huber loss, mean over steps; ``ahead`` is the target network's soft value of s'."""
    goal = jax.lax.stop_gradient(log_pb + jnp.where(last, log_r, ahead))
    weight = jnp.where(last, leaf_coeff, 1.0)
    return jnp.where(live, weight * optax.losses.huber_loss(q, goal), 0.0).sum() / live.sum()


def objective(
    env: Hypergrid, model: eqx.nn.MLP, target: eqx.nn.MLP, key: Array, batch: int, explore: Array, leaf_coeff: float
) -> Float[Array, ""]:
    """The loss on fresh trajectories."""
    states, actions, live = walk(env, model, key, batch, explore)
    before, after = (jax.tree.map(lambda leaf, cut=cut: leaf[cut], states) for cut in (slice(-1), slice(1, None)))
    q = pick(jax.vmap(jax.vmap(lambda s: model(observe(env, s))))(before), actions)
    scores = jax.vmap(jax.vmap(lambda s: jnp.where(env.mask(s), target(observe(env, s)), -1e9)))(after)
    log_r = env.log_rewards(jax.tree.map(lambda leaf: leaf[-1], states))
    last = live & jax.vmap(jax.vmap(env.done))(after)
    return loss(q, jax.nn.logsumexp(scores, axis=-1), backward(env, states), log_r, last, live, leaf_coeff)


def log_z_of(env: Hypergrid, model: eqx.nn.MLP) -> float:
    """Soft value of the source."""
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
    target = params

    @jax.jit
    def update(params: Any, target: Any, opt: Any, key: Array, explore: Array) -> tuple[Any, Any]:
        def value(p: Any) -> Array:
            return objective(
                env,
                eqx.combine(p, static),
                eqx.combine(target, static),
                key,
                settings.batch,
                explore,
                settings.leaf_coeff,
            )

        gradient = jax.grad(value)(params)
        change, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, change), opt

    for i in range(settings.steps):
        explore = jnp.asarray(settings.explore * max(0.0, 1 - 2 * i / settings.steps))
        params, opt = update(params, target, opt, jax.random.fold_in(key, i), explore)
        target = jax.tree.map(lambda t, p: t + settings.tau * (p - t), target, params)
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
