"""Values that change over the updates: exploration, learning rates."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array


class Constant(NamedTuple):
    """Always ``value``."""

    value: float

    def __call__(self, step: Any) -> Array:
        return jnp.asarray(self.value, jnp.float32)


class Linear(NamedTuple):
    """From ``start`` to ``end`` over ``steps`` updates, then ``end``.

    >>> [round(float(Linear(0.1, 0.0, 100)(t)), 3) for t in (0, 50, 100, 1000)]
    [0.1, 0.05, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __call__(self, step: Any) -> Array:
        done = jnp.clip(step / self.steps, 0.0, 1.0)
        return self.start + (self.end - self.start) * done


class Exponential(NamedTuple):
    """From ``start`` to ``end`` (both positive) by a constant factor over ``steps`` updates."""

    start: float
    end: float
    steps: int

    def __call__(self, step: Any) -> Array:
        done = jnp.clip(step / self.steps, 0.0, 1.0)
        return jnp.exp(math.log(self.start) + (math.log(self.end) - math.log(self.start)) * done)


class Cosine(NamedTuple):
    """From ``start`` to ``end`` along half a cosine, after ``warmup`` updates of linear growth."""

    start: float
    end: float
    steps: int
    warmup: int = 0

    def __call__(self, step: Any) -> Array:
        done = jnp.clip((step - self.warmup) / max(self.steps - self.warmup, 1), 0.0, 1.0)
        value = self.end + (self.start - self.end) * 0.5 * (1 + jnp.cos(math.pi * done))
        return value * jnp.clip((step + 1) / max(self.warmup, 1), 0.0, 1.0) if self.warmup else value


def as_schedule(value: Any) -> Any:
    """A number as a constant; a schedule as it is."""
    return value if callable(value) else Constant(float(value))
