"""Conditional GFlowNets: one network for a family of rewards, described by numbers that it is given."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from assay.gflownets.errors import GFlowNetError


class Temperature(NamedTuple):
    """R(x)^beta with beta between ``low`` and ``high``; the network sees a thermometer code of beta.

    Attributes
    ----------
    low, high : float
    bins : int
        Length of the code.
    """

    low: float
    high: float
    bins: int = 16

    @property
    def size(self) -> int:
        """Numbers that the network is given."""
        return self.bins

    def check(self) -> Temperature:
        """The same, if it makes sense.

        Raises
        ------
        GFlowNetError
        """
        if not 0 <= self.low < self.high or self.bins < 1:
            raise GFlowNetError(f"a temperature condition needs 0 <= low < high and bins >= 1, not {self}")
        return self

    def draw(self, key: Array, n: int) -> Float[Array, " n"]:
        """Uniform betas."""
        return jax.random.uniform(key, (n,), minval=self.low, maxval=self.high)

    def encode(self, value: Float[Array, " n"]) -> Float[Array, "n bins"]:
        """Thermometer code: full below the value, empty above, partial at it."""
        position = (value - self.low) / (self.high - self.low) * self.bins
        return jnp.clip(position[:, None] - jnp.arange(self.bins), 0.0, 1.0)

    def reward(self, log_r: Float[Array, " n"], value: Float[Array, " n"]) -> Float[Array, " n"]:
        """log R(x | c)."""
        return value * log_r

    def decode(self, code: Float[Array, "n bins"]) -> Float[Array, " n"]:
        """The value of a code."""
        return self.low + code.sum(-1) / self.bins * (self.high - self.low)


class Preference(NamedTuple):
    """Interpolates between a flat reward (c = 0) and the environment's (c = 1): log R(x | c) = log((1 - c) + c
    R(x))."""

    @property
    def size(self) -> int:
        """Numbers that the network is given."""
        return 1

    def check(self) -> Preference:
        """The same."""
        return self

    def draw(self, key: Array, n: int) -> Float[Array, " n"]:
        """Uniform preferences in [0, 1)."""
        return jax.random.uniform(key, (n,))

    def encode(self, value: Float[Array, " n"]) -> Float[Array, "n 1"]:
        """The number itself."""
        return value[:, None]

    def reward(self, log_r: Float[Array, " n"], value: Float[Array, " n"]) -> Float[Array, " n"]:
        """log R(x | c)."""
        tiny = jnp.finfo(value.dtype).tiny
        return jnp.logaddexp(jnp.log(jnp.maximum(1 - value, tiny)), jnp.log(jnp.maximum(value, tiny)) + log_r)

    def decode(self, code: Float[Array, "n 1"]) -> Float[Array, " n"]:
        """The number itself."""
        return code[:, 0]


Condition = Any
