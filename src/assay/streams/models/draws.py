"""Random numbers inside compiled loops, from a state that is two integers and is saved with the model.

The generator is the combined one of L'Ecuyer, "Efficient and portable combined random number generators" (CACM, 1988):
two multiplicative congruences whose products stay below 2**53, so that compiled and plain Python give the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit

_M1, _M2 = 2147483563, 2147483399


def draw_state(seed: int) -> NDArray[np.int64]:
    """The state int64[2] that a seed stands for."""
    rng = np.random.default_rng(seed)
    return np.array([rng.integers(1, _M1), rng.integers(1, _M2)], dtype=np.int64)


@njit
def uniform(state):
    """Next number in (0, 1); steps the state."""
    a = state[0] * 40014 % _M1
    b = state[1] * 40692 % _M2
    state[0] = a
    state[1] = b
    z = (a - b) % (_M1 - 1)
    return (z + 1) / (_M1 + 1.0)


@njit
def below(state, n):
    """Next whole number in 0 .. n-1."""
    return int(uniform(state) * n)


@njit
def draw_to_front(state, items, count, n):
    """Draw ``count`` of the first n items without replacement; they come to the front of the array."""
    for k in range(count):
        j = k + below(state, n - k)
        item = items[j]
        items[j] = items[k]
        items[k] = item
