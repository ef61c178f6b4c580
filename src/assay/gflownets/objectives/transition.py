"""Detailed balance and its kin: one residual a transition."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from assay.gflownets.objectives.base import Objective, mean_over_steps
from assay.gflownets.rollout import Evaluation, Needs


class DB(Objective):
    """Detailed balance (Bengio et al. 2023, equation 26).

    For each transition: (log F(s) + log P_F(s'|s) - log F(s') - log P_B(s|s'))^2, where F(x) = R(x) at the end.
    """

    needs = Needs(log_flow=True)
    log_z = "flow"

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        residual = e.log_flow[:-1] + e.log_pf - e.log_flow[1:] - e.log_pb
        return mean_over_steps(self.distance(residual), e.step)


class FLDB(Objective):
    """Forward-looking detailed balance (Pan et al. 2023, equation 9).

    With energies E(s) of all states (E(x) = -log R(x)) the flow head holds log F~ = log F + E, so that F~(x) = 1.
    For each transition: log F~(s) + log P_F - log F~(s') - log P_B - delta, delta = E(s) - E(s'), the gain in log
    reward. log F~(s') is read from the target network and takes no gradient.
    """

    regression: str = eqx.field(static=True, default="huber")

    needs = Needs(log_flow=True, potential=True)
    log_z = "flow"
    target = True
    forward_looking = True

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        delta = e.potential[1:] - e.potential[:-1]
        ahead = e.log_flow[1:] if target is None else jax.lax.stop_gradient(target.log_flow[1:])
        ahead = jnp.where(e.last, 0.0, ahead)
        residual = e.log_flow[:-1] + e.log_pf - ahead - e.log_pb - delta
        return mean_over_steps(self.distance(residual), e.step)


class MDB(Objective):
    """Modified detailed balance, where every state may stop (Deleu et al. 2022, equation 4): no flow is learned.

    For each transition that is no stop: delta_score(s, s') + log P_B(s|s') + log P_F(stop|s) - log P_F(s'|s)
    - log P_F(stop|s'). The last term is read from the target network.
    """

    regression: str = eqx.field(static=True, default="huber")

    needs = Needs(log_stop=True, potential=True)
    log_z = "batch"
    target = True
    stop_only = True

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        delta = e.potential[1:] - e.potential[:-1]
        ahead = e.log_stop[1:] if target is None else jax.lax.stop_gradient(target.log_stop[1:])
        residual = delta + e.log_pb + e.log_stop[:-1] - e.log_pf - ahead
        return mean_over_steps(self.distance(residual), e.step & ~e.last)


class SoftDQN(Objective):
    """Entropy-regularised RL (Tiapkin et al. 2024, section 3): reward log P_B on the way and log R at the end,
    discount 1.

    1. Q(s, a) regresses on log P_B(s|s') + logsumexp Q_target(s', .), at the last transition on log P_B(s|x) + log
    R(x).
       (gfnx leaves out that log P_B, which is right only where a stop action ends the trajectory.)
    2. The policy is the softmax of Q; the soft value of the source is log Z.

    Parameters
    ----------
    leaf_coeff : float
        Weight of the last transition.
    alpha : float
        Munchausen term (Vieillard et al. 2020): adds alpha tau max(log pi(a|s), floor) to the target. With tau =
        1/(1 - alpha) the entropy coefficient stays 1; the network holds Q / tau.
    """

    regression: str = eqx.field(static=True, default="huber")
    leaf_coeff: float = eqx.field(static=True, default=5.0)
    alpha: float = eqx.field(static=True, default=0.0)
    floor: float = eqx.field(static=True, default=-100.0)

    needs = Needs(q=True)
    log_z = "scores"
    target = True

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        frozen = jax.lax.stop_gradient(e if target is None else target)
        tau = 1 / (1 - self.alpha)
        goal = e.log_pb + jnp.where(e.last, e.log_r, tau * frozen.soft_value[1:])
        if self.alpha:
            goal = goal + self.alpha * tau * jnp.maximum(frozen.log_pf, self.floor)
        residual = tau * e.q_taken - jax.lax.stop_gradient(goal)
        weight = jnp.where(e.last, self.leaf_coeff, 1.0)
        return mean_over_steps(weight * self.distance(residual), e.step)


class FM(Objective):
    """Flow matching (Bengio et al. 2021, equation 11): scores are log edge flows.

    For each state but the source: (log sum over parents of F(s -> s') - log sum over actions of F(s' -> .))^2, where a
    terminal state's outflow is R(x). Parallel edges count each.
    """

    needs = Needs(log_pf=False, log_pb=False, q=True)
    log_z = "scores"
    inflow = True

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        # For this objective log_flow holds the inflow of each state.
        out = jnp.where(e.last, e.log_r, e.soft_value[1:])
        return mean_over_steps(self.distance(e.log_flow[1:] - out), e.step)
