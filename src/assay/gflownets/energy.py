"""Learning couplings from spin samples together with the sampler (EB-GFN, Zhang et al. 2022, algorithm 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from assay.gflownets.envs.ising import Ising, IsingState
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.metrics import log_rmse
from assay.gflownets.rollout import back_and_forth
from assay.gflownets.train import CHUNK, Config, Trainer


class Couplings(NamedTuple):
    """What was learned.

    Attributes
    ----------
    J : float[sites, sites]
    acceptance : float
        Share of accepted proposals over the last tenth.
    curve : list of (update, -log RMSE)
        Where the true couplings are known.
    """

    J: Float[np.ndarray, "sites sites"]
    acceptance: float
    curve: list[tuple[int, float]]


def learn_couplings(
    spins: Int[np.ndarray, "n sites"],
    steps: int = 2000,
    *,
    true: Float[np.ndarray, "sites sites"] | None = None,
    lr: float = 1e-3,
    l1: float = 0.0,
    back: int | None = None,
    batch: int = 64,
    seed: int = 0,
    net_options: dict[str, Any] | None = None,
) -> Couplings:
    """Couplings of exp(x'Jx) from samples.

    1. Update the sampler by trajectory balance on the current J.
    2. From data x go ``back`` steps back and forth; accept by Metropolis-Hastings.
    3. Move J along E_data[x x'] - E_proposal[x x'] (contrastive divergence), minus ``l1`` times its sign.

    Parameters
    ----------
    spins : int[n, sites]
        Rows of -1 and 1.
    back : int, optional
        Steps of a proposal, default all sites.

    Raises
    ------
    GFlowNetError
        If the data is no table of spins.
    """
    data = np.asarray(spins)
    if data.ndim != 2 or not np.isin(data, (-1, 1)).all():
        raise GFlowNetError(f"data must be rows of spins -1 and 1, not {data.shape}")
    sites = data.shape[1]
    depth = sites if back is None else back
    if not 1 <= depth <= sites:
        raise GFlowNetError(f"back must lie between 1 and {sites}, not {back}")
    env = Ising(np.zeros((sites, sites)))
    trainer = Trainer(
        env, "tb", "mlp", Config(batch=batch, lr=1e-3, log_z_lr=0.1, explore=0.05, net=net_options or {"hidden": 128})
    )
    rows = jnp.asarray(data.astype(np.int8))
    eye = jnp.eye(sites)

    def one(i: Any, carry: Any) -> Any:
        state, J, first, second, accepted = carry
        now = eqx.tree_at(lambda e: e.J, env, J)
        state, _ = trainer.update(state, now)
        key = jax.random.fold_in(jax.random.key(seed + 1), state.step)
        x = rows[jax.random.randint(jax.random.fold_in(key, 0), (batch,), 0, len(rows))]
        log_r = now.log_rewards(IsingState(x))
        net = trainer.model(state).net
        move = back_and_forth(now, net, jax.random.fold_in(key, 1), IsingState(x), log_r, depth)
        ratio = move.trajectories.log_r - log_r + move.log_ratio
        take = jnp.log(jax.random.uniform(jax.random.fold_in(key, 2), (batch,))) < ratio
        y = jnp.where(take[:, None], move.trajectories.terminal.spins, x)
        a, b = x.astype(J.dtype), y.astype(J.dtype)
        gradient = (a.T @ a - b.T @ b) / batch - l1 * jnp.sign(J)
        # Adam by hand: J is no part of the sampler's parameters
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        t = state.step.astype(J.dtype)
        J = J + lr * (first / (1 - 0.9**t)) / (jnp.sqrt(second / (1 - 0.999**t)) + 1e-8)
        return state, J * (1 - eye), first, second, accepted + take.mean()

    @jax.jit
    def run(state: Any, J: Any, first: Any, second: Any, n: Any) -> Any:
        return jax.lax.fori_loop(0, n, one, (state, J, first, second, jnp.zeros(())))

    J = jnp.zeros((sites, sites))
    state, first, second = trainer.init(seed), J, J
    curve, rates, done = [], [], 0
    while done < steps:
        n = min(CHUNK, steps - done)
        state, J, first, second, accepted = run(state, J, first, second, jnp.int32(n))
        done += n
        rates.append(float(accepted) / n)
        if true is not None:
            curve.append((done, log_rmse(np.asarray(J), true).value))
    return Couplings(np.asarray(J, np.float64), float(np.mean(rates[-max(1, len(rates) // 10) :])), curve)
