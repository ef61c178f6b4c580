"""Any table of measured combinations: one factor after the other, only combinations that the table holds."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError, NonPositiveReward


class TableState(NamedTuple):
    """Levels chosen so far (-1 = not yet), and how many."""

    levels: Int[Array, " factors"]
    n: Int[Array, ""]


class TableReward(Environment):
    """Rows of a table as objects: combinations of levels of factors, each with a log reward.

    Parameters
    ----------
    rows : sequence of tuples
        One level of each factor.
    log_r : float[rows]
    """

    factors: tuple[tuple[Any, ...], ...] = eqx.field(static=True)
    offsets: tuple[int, ...] = eqx.field(static=True)
    viable: Any
    log_table: Any

    def __init__(self, rows: Listing[Listing[Any]], log_r: Any) -> None:
        values = np.asarray(log_r, np.float64)
        width = len(rows[0]) if len(rows) else 0
        if not width or values.shape != (len(rows),) or any(len(row) != width for row in rows):
            raise GFlowNetError("a table needs rows of one length and one log reward a row")
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise NonPositiveReward(f"the log reward of row {bad} ({tuple(rows[bad])!r}) is {values[bad]}")
        self.factors = tuple(tuple(dict.fromkeys(row[i] for row in rows)) for i in range(width))
        sizes = [len(levels) for levels in self.factors]
        if np.prod([float(s) for s in sizes]) > 5e6:
            raise GFlowNetError(f"a table over {sizes} levels has more than five million combinations")
        codes = [{level: k for k, level in enumerate(levels)} for levels in self.factors]
        number = np.zeros(len(rows), np.int64)
        offsets, viable = [0], [np.ones(1, bool)]
        for i, size in enumerate(sizes):
            number = number * size + np.array([codes[i][row[i]] for row in rows])
            offsets.append(offsets[-1] + len(viable[-1]))
            there = np.zeros(int(np.prod(sizes[: i + 1])), bool)
            there[number] = True
            viable.append(there)
        if len(np.unique(number)) != len(rows):
            raise GFlowNetError("two rows of the table are the same combination; average them first")
        table = np.zeros(len(viable[-1]))
        table[number] = values
        self.offsets = tuple(offsets)
        self.viable = jnp.asarray(np.concatenate(viable))
        self.log_table = jnp.asarray(table, jnp.result_type(float))

    @property
    def _sizes(self) -> np.ndarray:
        return np.array([len(levels) for levels in self.factors], np.int32)

    n_actions = property(lambda self: int(self._sizes.max()))
    n_bactions = property(lambda self: 1)
    max_steps = property(lambda self: len(self.factors))
    obs_spec = property(lambda self: ObsSpec("codes", len(self.factors), int(self._sizes.max()) + 1))

    def reset(self) -> TableState:
        return TableState(jnp.full(len(self.factors), -1, jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, state: TableState, action: Array) -> TableState:
        here = jnp.arange(len(self.factors)) == state.n
        return TableState(jnp.where(here, action.astype(jnp.int32), state.levels), state.n + 1)

    def undo(self, state: TableState, baction: Array) -> TableState:
        return TableState(jnp.where(jnp.arange(len(self.factors)) == state.n - 1, -1, state.levels), state.n - 1)

    def _prefix(self, state: TableState) -> Array:
        number = jnp.zeros((), jnp.int32)
        for i, size in enumerate(self._sizes.tolist()):
            number = jnp.where(i < state.n, number * size + state.levels[i], number)
        return number

    def mask(self, state: TableState) -> Array:
        last = len(self.factors) - 1
        n = jnp.minimum(state.n, last)
        size = jnp.asarray(self._sizes)[n]
        level = jnp.arange(self.n_actions)
        child = self._prefix(state) * size + level
        start = jnp.asarray(np.array((*self.offsets[1:], 0), np.int32))[n]
        known = self.viable.at[start + child].get(mode="clip")
        return (level < size) & known & (state.n <= last)

    def bmask(self, state: TableState) -> Array:
        return (state.n > 0)[None]

    def baction(self, state: TableState, action: Array, child: TableState) -> Array:
        return jnp.zeros_like(action)

    def faction(self, state: TableState, baction: Array, parent: TableState) -> Array:
        return state.levels[jnp.maximum(state.n - 1, 0)]

    def done(self, state: TableState) -> Array:
        return state.n == len(self.factors)

    def obs(self, state: TableState) -> Array:
        return jnp.where(state.levels < 0, self.n_actions, state.levels)

    def view(self, state: TableState) -> Array:
        return state.levels

    def log_reward(self, state: TableState) -> Array:
        return self.log_table.at[self._prefix(state)].get(mode="clip")

    def log_paths(self, state: TableState) -> Array:
        return jnp.zeros(())

    def index(self, state: TableState) -> Array:
        """Number of a combination among all combinations of levels, those that the table lacks included; first factor
        most significant."""
        return self._prefix(state)

    def objects(self, states: TableState) -> list[tuple[Any, ...]]:
        return [tuple(self.factors[i][k] for i, k in enumerate(row)) for row in np.asarray(states.levels).tolist()]

    def states_of(self, objects: Any) -> TableState:
        try:
            codes = [[self.factors[i].index(level) for i, level in enumerate(row)] for row in objects]
        except (ValueError, IndexError) as error:
            raise GFlowNetError(f"an object has a level that the table does not have: {error}") from error
        return TableState(jnp.asarray(codes, jnp.int32), jnp.full(len(codes), len(self.factors), jnp.int32))
