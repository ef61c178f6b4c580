"""Rewards on grids. Bounds are compared in integers: at sides 6, 11, 16, 21, ... floats decide .3 by rounding.

With ``a = |2x - (H-1)|`` the usual distance from the centre is ``a / (2(H-1))``, so that .25 < . reads 2a > H-1, .3
< . reads 5a > 3(H-1), . < .4 reads 5a < 4(H-1), .1 < . reads 5a > H-1.
"""

from __future__ import annotations

import itertools
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from assay.gflownets.errors import GFlowNetError

_LEVELS: dict[str, tuple[float, ...]] = {
    "easy": (1e-3, 0.5, 2.0),
    "hard": (1e-4, 1.0, 3.0),
    "cosine": (0.1, 0.5),
    "deceptive": (1e-5, 0.1, 2.0),
    "sparse": (1e-12,),
    "xor": (1e-3, 1.0, 10.0, 100.0),
    "coprime": (1e-3, 1.0, 10.0, 100.0),
}
_CORNERS = ("easy", "hard", "corners")


class GridReward(eqx.Module):
    """log R of grid cells.

    Parameters
    ----------
    family : str
        ``easy`` and ``hard``: R0 + R1 where all coordinates lie in the outer half, + R2 where all lie in a thin ring
        (Bengio et al. 2021). ``corners``: the same with levels of your own. ``cosine``, ``sparse``, ``deceptive``:
        as in torchgfn 2.4. ``xor``: R0 + w1 + ... + wt where, in the bit planes of tiers 1..t (planes 0; 0-1; 0-2),
        the parity of the coordinates is even. ``coprime``: the same sums, where every coordinate is positive and
        factors over 2, 3, 5 with exponents at most 3, 2, 1 and neighbouring coordinates are coprime (our smaller
        form of torchgfn's).
    levels : tuple of float, optional
        R0, R1, ... in place of the family's own.
    """

    family: str = eqx.field(static=True)
    levels: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, family: str = "easy", levels: tuple[float, ...] | None = None) -> None:
        if family != "corners" and family not in _LEVELS:
            raise GFlowNetError(f"there is no grid reward {family!r}; there is {', '.join([*_LEVELS, 'corners'])}")
        chosen = levels if levels is not None else _LEVELS.get(family)
        if chosen is None or not chosen or chosen[0] <= 0 or min(chosen) < 0:
            raise GFlowNetError(f"levels of {family!r} must be numbers >= 0 with R0 > 0, not {levels}")
        self.family, self.levels = family, tuple(float(v) for v in chosen)

    def __call__(self, x: Int[Array, "*batch dim"], side: int) -> Float[Array, "*batch"]:
        """log R, in the default float type."""
        return jnp.log(getattr(self, f"_{'corners' if self.family in _CORNERS else self.family}")(x, side))

    def _corners(self, x: Array, side: int) -> Array:
        r0, r1, r2 = self.levels
        a, h = jnp.abs(2 * x - (side - 1)), side - 1
        outer = (2 * a > h).all(-1)
        ring = ((5 * a > 3 * h) & (5 * a < 4 * h)).all(-1)
        return r0 + r1 * outer + r2 * ring

    def _deceptive(self, x: Array, side: int) -> Array:
        r0, r1, r2 = self.levels
        a, h = jnp.abs(2 * x - (side - 1)), side - 1
        ring = ((5 * a > 3 * h) & (5 * a < 4 * h)).all(-1)
        return r0 + r1 * ~(5 * a > h).all(-1) + r2 * ring

    def _cosine(self, x: Array, side: int) -> Array:
        r0, r1 = self.levels
        distance = jnp.abs(2 * x - (side - 1)) / (2 * (side - 1))
        density = jnp.exp(-((5 * distance) ** 2) / 2) / math.sqrt(2 * math.pi)
        return r0 + r1 * ((jnp.cos(50 * distance) + 1) * density).prod(-1)

    def _sparse(self, x: Array, side: int) -> Array:
        # Modes: coordinates 1 or side - 2, not all of them 1.
        there = ((x == 1) | (x == side - 2)).all(-1) & ~(x == 1).all(-1)
        return self.levels[0] + there

    def _xor(self, x: Array, side: int) -> Array:
        value, good = jnp.full(x.shape[:-1], self.levels[0]), jnp.ones(x.shape[:-1], bool)
        for plane, weight in enumerate(self.levels[1:]):
            good = good & (((x >> plane) & 1).sum(-1) % 2 == 0)
            value = value + weight * good
        return value

    def _coprime(self, x: Array, side: int) -> Array:
        tables, shared = _coprime_tables(side, len(self.levels) - 1)
        a, b = x, jnp.roll(x, -1, axis=-1)
        pairs = jnp.asarray(shared)[a, b]
        apart = pairs[..., :-1].all(-1) if x.shape[-1] > 1 else jnp.ones(x.shape[:-1], bool)
        value = jnp.full(x.shape[:-1], self.levels[0])
        for tier, weight in enumerate(self.levels[1:]):
            value = value + weight * (jnp.asarray(tables[-1 - tier])[x].all(-1) & apart)
        return value


def _coprime_tables(side: int, tiers: int) -> tuple[np.ndarray, np.ndarray]:
    """Which values factor over 2, 3, 5 with exponents <= cap (caps 1..tiers), and which pairs are coprime."""
    smooth = np.zeros((tiers, side), bool)
    for cap in range(1, tiers + 1):
        for powers in itertools.product(range(cap + 1), repeat=3):
            value = 2 ** powers[0] * 3 ** powers[1] * 5 ** powers[2]
            if value < side:
                smooth[cap - 1, value] = True
    values = np.arange(side)
    return smooth, np.gcd.outer(values, values) == 1
