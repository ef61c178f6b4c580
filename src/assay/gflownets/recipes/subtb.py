"""Sub-trajectory balance, in one file: Madan et al. 2023, SubTB(lambda).

1. Draw trajectories from a policy near P_F.
2. For all i < j of a trajectory of n steps (equation 8):
   r_ij = log F(s_i) + sum_{i < t <= j} log P_F(s_t | s_{t-1}) - log F(s_j) - sum_{i < t <= j} log P_B(s_{t-1} | s_t),
   where F(x) = R(x) in terminal states.
3. Loss (equation 9): sum_ij lambda^(j-i) r_ij^2 / sum_ij lambda^(j-i), mean over trajectories.

With c_t = sum_{u <= t} (log P_F - log P_B) and d_t = log F(s_t) - c_t, r_ij = d_i - d_j: one running sum is enough.

    python -m assay.gflownets.recipes.subtb
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
    lam: float = 0.9


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
        p = jnp.exp(jax.vmap(lambda s, m: masked(net(observe(env, s))[:-1], m))(state, mask))
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
    log_flow: Float[Array, "T1 B"],
    log_pf: Float[Array, "T B"],
    log_pb: Float[Array, "T B"],
    live: Bool[Array, "T B"],
    lam: float,
) -> Float[Array, ""]:
    """Equation 9; ``log_flow`` holds log R where a trajectory ends."""
    c = jnp.cumsum(jnp.where(live, log_pf - log_pb, 0.0), 0)
    d = log_flow - jnp.pad(c, ((1, 0), (0, 0)))
    i, j = jnp.arange(len(d))[:, None, None], jnp.arange(len(d))[None, :, None]
    weight = jnp.where((i < j) & (j <= live.sum(0)), lam ** jnp.maximum(j - i, 0).astype(float), 0.0)
    residual = d[:, None] - d[None, :]  # equation 8
    return ((weight * residual**2).sum((0, 1)) / weight.sum((0, 1))).mean()


def objective(
    env: Hypergrid, model: eqx.nn.MLP, key: Array, batch: int, explore: Array, lam: float
) -> Float[Array, ""]:
    """The loss on fresh trajectories."""
    states, actions, live = walk(env, model, key, batch, explore)
    out = jax.vmap(jax.vmap(lambda s: model(observe(env, s))))(states)
    mask = jax.vmap(jax.vmap(env.mask))(states)
    log_p = jax.vmap(jax.vmap(masked))(out[..., :-1], mask)
    log_r = env.log_rewards(jax.tree.map(lambda leaf: leaf[-1], states))
    ended = jnp.pad(~live, ((0, 1), (0, 0)), constant_values=True)
    log_flow = jnp.where(ended, log_r, out[..., -1])  # F(x) = R(x)
    return loss(log_flow, pick(log_p[:-1], actions), backward(env, states), live, lam)


def log_z_of(env: Hypergrid, model: eqx.nn.MLP) -> float:
    """log F(s_0)."""
    return float(model(observe(env, env.reset()))[-1])


def train(settings: Settings | None = None) -> Result:
    """Train, and compare with the exact distribution."""
    settings = settings or Settings()
    env = Hypergrid(settings.dim, settings.side)
    key = jax.random.key(settings.seed)
    net = eqx.nn.MLP(observe(env, env.reset()).size, env.n_actions + 1, settings.hidden, 2, key=key)
    params, static = eqx.partition(net, eqx.is_array)
    optimizer = optax.adam(optax.linear_schedule(settings.lr, 0.02 * settings.lr, settings.steps))
    opt = optimizer.init(params)

    @jax.jit
    def update(params: Any, opt: Any, key: Array, explore: Array) -> tuple[Any, Any]:
        def value(p: Any) -> Array:
            return objective(env, eqx.combine(p, static), key, settings.batch, explore, settings.lam)

        gradient = jax.grad(value)(params)
        change, opt = optimizer.update(gradient, opt, params)
        return optax.apply_updates(params, change), opt

    for i in range(settings.steps):
        explore = jnp.asarray(settings.explore * max(0.0, 1 - 2 * i / settings.steps))
        params, opt = update(params, opt, jax.random.fold_in(key, i), explore)
    model = eqx.combine(params, static)
    graph = StateGraph(env)
    policy = jax.jit(jax.vmap(lambda s: masked(model(observe(env, s))[:-1], env.mask(s))))
    log_pf = np.asarray(policy(graph.states), np.float64)[graph.parent, graph.action]
    distance = total_variation(np.exp(graph.log_terminal(log_pf)), graph.target).value
    return Result(log_z_of(env, model), graph.log_z, distance)


def main() -> None:
    """Train and print."""
    found = train()
    print(f"log Z {found.log_z:.4f} (exact {found.exact_log_z:.4f}), total variation {found.total_variation:.4f}")


if __name__ == "__main__":
    main()
