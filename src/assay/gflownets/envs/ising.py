"""Spins on a graph: give each site a spin, in any order, until all have one (Zhang et al. 2022, EB-GFN)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError


class IsingState(NamedTuple):
    """Spins: -1, 1, or 0 where there is none yet."""

    spins: Int[Array, " sites"]


def torus(n: int, sigma: float = 1.0) -> Float[np.ndarray, "sites sites"]:
    """sigma times the adjacency of an ``n x n`` torus; symmetric, so that x'Jx counts each bond twice.

    Raises
    ------
    GFlowNetError
        For n < 3, where a site would neighbour another one twice.
    """
    if n < 3:
        raise GFlowNetError(f"a torus needs n >= 3, not {n}: smaller ones have double bonds")
    site = np.arange(n * n).reshape(n, n)
    J = np.zeros((n * n, n * n))
    for axis in (0, 1):
        other = np.roll(site, -1, axis).ravel()
        J[site.ravel(), other] = J[other, site.ravel()] = sigma
    return J


class Ising(Environment):
    """log R(x) = x' J x over spins x in {-1, 1}^D; ends when all sites have a spin, without a stop action.

    Action i gives site i the spin -1, action D + i the spin +1.

    Parameters
    ----------
    J : int or float[sites, sites]
        Couplings (symmetric), or the side of a torus with ``sigma``.
    sigma : float
        Coupling of the torus.
    field : float[sites], optional
        External field h, adding h'x.

    Examples
    --------
    >>> from assay.gflownets import StateGraph
    >>> round(StateGraph(Ising(3, 0.1)).log_z, 3)
    6.67
    """

    J: Float[Array, "sites sites"]
    field: Float[Array, " sites"]
    sites: int = eqx.field(static=True)

    def __init__(self, J: Any = 6, sigma: float = 0.1, field: Any = None) -> None:
        couplings = torus(J, sigma) if isinstance(J, int) else np.asarray(J, np.float64)
        if couplings.ndim != 2 or couplings.shape[0] != couplings.shape[1] or not np.isfinite(couplings).all():
            raise GFlowNetError(f"couplings must be a square matrix of finite numbers, not {couplings.shape}")
        if not np.allclose(couplings, couplings.T):
            raise GFlowNetError("couplings must be symmetric; give (J + J') / 2, which has the same energy")
        self.sites = len(couplings)
        self.J = jnp.asarray(couplings, jnp.result_type(float))
        self.field = jnp.asarray(np.zeros(self.sites) if field is None else field, jnp.result_type(float))
        if self.field.shape != (self.sites,):
            raise GFlowNetError(f"the field must have one number a site ({self.sites}), not {self.field.shape}")

    n_actions = property(lambda self: 2 * self.sites)
    n_bactions = property(lambda self: self.sites)
    max_steps = property(lambda self: self.sites)
    obs_spec = property(lambda self: ObsSpec("features", self.sites, 2))

    def reset(self) -> IsingState:
        return IsingState(jnp.zeros(self.sites, jnp.int8))

    def step(self, state: IsingState, action: Array) -> IsingState:
        spin = jnp.where(action >= self.sites, 1, -1).astype(jnp.int8)
        return IsingState(jnp.where(jnp.arange(self.sites) == action % self.sites, spin, state.spins))

    def undo(self, state: IsingState, baction: Array) -> IsingState:
        return IsingState(jnp.where(jnp.arange(self.sites) == baction, 0, state.spins).astype(jnp.int8))

    def mask(self, state: IsingState) -> Array:
        free = state.spins == 0
        return jnp.concatenate([free, free])

    def bmask(self, state: IsingState) -> Array:
        return state.spins != 0

    def baction(self, state: IsingState, action: Array, child: IsingState) -> Array:
        return action % self.sites

    def faction(self, state: IsingState, baction: Array, parent: IsingState) -> Array:
        return baction + jnp.where(state.spins[baction] > 0, self.sites, 0)

    def done(self, state: IsingState) -> Array:
        return (state.spins != 0).all()

    def obs(self, state: IsingState) -> Array:
        return jnp.concatenate([state.spins == -1, state.spins == 1]).astype(jnp.float32)

    def view(self, state: IsingState) -> Array:
        return state.spins

    def energy(self, spins: Float[Array, " sites"]) -> Float[Array, ""]:
        """-log R."""
        x = spins.astype(self.J.dtype)
        return -(x @ self.J @ x + self.field @ x)

    def log_reward(self, state: IsingState) -> Array:
        return -self.energy(state.spins)

    def potential(self, state: IsingState) -> Array:
        return -self.energy(state.spins)  # bonds between sites that have a spin

    def log_paths(self, state: IsingState) -> Array:
        return gammaln((state.spins != 0).sum() + 1.0)

    def index(self, state: IsingState) -> Array:
        """Number of a full configuration, first site most significant."""
        return ((state.spins > 0) * jnp.asarray(2 ** np.arange(self.sites - 1, -1, -1))).sum(-1)

    def objects(self, states: IsingState) -> list[tuple[int, ...]]:
        return [tuple(row) for row in np.asarray(states.spins).tolist()]

    def states_of(self, objects: Any) -> IsingState:
        spins = np.asarray(list(objects), np.int8)
        if spins.ndim != 2 or spins.shape[1] != self.sites or not (np.abs(spins) == 1).all():
            raise GFlowNetError(f"configurations of this model are {self.sites} spins of -1 or 1")
        return IsingState(jnp.asarray(spins))
