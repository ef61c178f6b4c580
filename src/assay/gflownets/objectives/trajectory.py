"""Trajectory balance and its kin: one residual a trajectory."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from assay.gflownets.errors import GFlowNetError
from assay.gflownets.objectives.base import Objective
from assay.gflownets.rollout import Evaluation


class TB(Objective):
    """Trajectory balance (Malkin et al. 2022, equation 14).

    1. Sample tau = (s_0 -> ... -> s_n = x) with the policy.
    2. Loss: (log Z + sum_t log P_F(s_t | s_{t-1}) - log R(x) - sum_t log P_B(s_{t-1} | s_t))^2.
    3. Step on the policy, and on log Z with a learning rate of its own.

    Parameters
    ----------
    tlm : float
        Weight of -log P_B(tau | x) on the sampled trajectories (Gritsaev et al. 2025, trajectory likelihood
        maximisation; with replayed trajectories the pessimistic backward policy of Jang et al. 2024). P_B then
        learns from that term alone.
    """

    tlm: float = eqx.field(static=True, default=0.0)

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        log_pb = e.log_pb.sum(0)
        forward = jax.lax.stop_gradient(log_pb) if self.tlm else log_pb
        residual = log_z + e.log_pf.sum(0) - e.log_r - forward  # equation 14
        return self.distance(residual).mean() - self.tlm * log_pb.mean()


class VarGrad(Objective):
    """Log-partition variance (Zhang et al. 2023, section 3; Richter et al. 2020): TB without a trained log Z.

    1. For each trajectory of the batch: z = log R(x) + sum log P_B - sum log P_F, an estimate of log Z.
    2. Loss: the population variance of z over the batch, 1/B sum (z - mean z)^2. Its gradient is that of TB at log Z
    = mean z.
    """

    log_z = "batch"

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        z = e.log_r + e.log_pb.sum(0) - e.log_pf.sum(0)
        return self.distance(z - z.mean()).mean()


class RTB(Objective):
    """Relative trajectory balance to a prior policy (Venkatraman et al. 2024, equation 9).

    The posterior is proportional to P_prior(x) R(x): loss (log Z + sum log P_F - log R(x) - sum log P_prior)^2,
    where the sums run over the same steps.
    """

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        if e.log_prior is None:
            raise GFlowNetError("relative trajectory balance needs a prior policy: GFlowNet(..., prior=network)")
        residual = log_z + e.log_pf.sum(0) - e.log_r - e.log_prior.sum(0)
        return self.distance(residual).mean()


class SubTB(Objective):
    """Sub-trajectory balance, SubTB(lambda) (Madan et al. 2023, equations 8 and 9).

    1. For all i < j of a trajectory: r_ij = log F(s_i) + sum_{i<t<=j} log P_F - log F(s_j) - sum_{i<t<=j} log P_B, with
       F(x) = R(x) at the end.
    2. Loss: sum_ij w_ij r_ij^2 with w_ij = lambda^(j-i) / sum lambda^(j-i), mean over trajectories.

    With c_t = sum_{u<=t} (log P_F - log P_B), r_ij = d_i - d_j where d = log F - c; so no sum is taken twice.

    Parameters
    ----------
    lam : float
    forward_looking : bool
        The flow head holds log F~ (Pan et al. 2023): log F = log F~ + potential.
    """

    lam: float = eqx.field(static=True, default=0.9)
    forward_looking: bool = eqx.field(static=True, default=False)

    log_z = "flow"

    @property
    def needs(self):  # type: ignore[override]
        """Flows, and the potential where it looks forward."""
        return Objective.needs._replace(log_flow=True, potential=self.forward_looking)

    def weights(self, lengths: Array, T: int) -> Float[Array, "T1 T1 B"]:
        """w_ij for trajectories of given lengths, 0 unless i < j <= length."""
        i, j = jnp.arange(T + 1)[:, None, None], jnp.arange(T + 1)[None, :, None]
        there = (i < j) & (j <= lengths)
        power = (j - i - jnp.where(self.lam > 1, lengths, 1)) * jnp.log(
            self.lam
        )  # scaled: long ones neither over- nor underflow
        w = jnp.where(there, jnp.exp(jnp.where(there, power, 0.0)), 0.0)
        return w / jnp.maximum(w.sum((0, 1)), jnp.finfo(w.dtype).tiny)

    def __call__(self, e: Evaluation, log_z: Float[Array, "*B"], target: Evaluation | None = None) -> Float[Array, ""]:
        T = e.step.shape[0]
        lengths = e.step.sum(0)
        flow = e.log_flow
        if self.forward_looking:
            flow = jnp.where(jnp.arange(T + 1)[:, None] == lengths, e.log_r, flow + e.potential)
        d = flow - jnp.pad(jnp.cumsum(e.log_pf - e.log_pb, 0), ((1, 0), (0, 0)))
        w = self.weights(lengths, T)
        if T <= 128:
            return (w * self.distance(d[:, None] - d[None, :])).sum((0, 1)).mean()

        def row(i: Array) -> Array:  # a row of pairs at a time: memory T B in place of T^2 B
            return (w[i] * self.distance(d[i] - d)).sum(0)

        return jax.lax.map(row, jnp.arange(T + 1)).sum(0).mean()
