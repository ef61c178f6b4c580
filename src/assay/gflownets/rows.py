"""Which states of a batch of trajectories the network must see: live ones only, and in large batches each one once.

A program has a fixed number of rows, so what is needed is rounded up to one of a few sizes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Int

from assay.gflownets.envs.base import Environment, State

# From this batch size on, finding equal states costs less than evaluating them again.
DISTINCT_FROM = 128
_WIDEST_STATE = 128  # words of 32 bits
_LIVE_SHARES = (1 / 8, 1 / 4, 1 / 2)
_DISTINCT_SHARES = (0.1, 0.25, 0.4, 0.55, 0.75)


class Rows(NamedTuple):
    """Rows for the network.

    Attributes
    ----------
    cells : int32[n]
        For each row a cell (t * B + b, or b) whose state it is; what follows the first ``needed`` is padding.
    position : int32[cells]
        For each live cell its row.
    needed : int32
        How many rows are needed (the largest number over seeds, under ``vmap``).
    """

    cells: Int[Array, " n"]
    position: Int[Array, " cells"]
    needed: Int[Array, ""]


@custom_vmap
def any_of(flags: Bool[Array, " B"]) -> Bool[Array, ""]:
    """Whether one is true, in any seed."""
    return flags.any()


@any_of.def_vmap
def _any_of_all(axis_size: int, in_batched: Any, flags: Array) -> tuple[Array, bool]:
    # One answer for all seeds: the loop stays a loop, without a select over its whole carry at each step.
    return flags.any(), False


@custom_vmap
def _largest(count: Int[Array, ""]) -> Int[Array, ""]:
    return count


@_largest.def_vmap
def _largest_of_all(axis_size: int, in_batched: Any, count: Array) -> tuple[Array, bool]:
    return count.max(), False


def distinct_pays(env: Environment, batch: int) -> bool:
    """Whether equal states are worth looking for: in a large batch of small states that does not spread at once.

    After t actions in any order there are about A^t / t! states; while these are fewer than the batch, some are equal.
    Where that is so for less than a tenth of the way (spins on a lattice), looking costs more than it saves.
    """
    if batch < DISTINCT_FROM:
        return False
    words = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(env.reset)))
    reached, t = 1.0, 0
    while t < env.max_steps and reached <= batch:
        t += 1
        reached *= env.n_actions / t
    return words <= _WIDEST_STATE and t > 0.1 * env.max_steps


def row_sizes(env: Environment, batch: int, steps: int | None = None, terminal: bool = True) -> tuple[int, ...]:
    """Sizes to which the rows of a batch of trajectories are rounded up; one where all of them are always needed."""
    T = env.max_steps if steps is None else steps
    full = (T + terminal) * batch
    if distinct_pays(env, batch):
        return _rounded(full, _DISTINCT_SHARES, 1)
    return (full,) if env.stop_action is None else _rounded(full, _LIVE_SHARES, batch)


def step_sizes(env: Environment, batch: int) -> tuple[int, ...]:
    """The same for the states of one time step."""
    return _rounded(batch, (1 / 32, 1 / 4, 1 / 2, 3 / 4), 1) if distinct_pays(env, batch) else (batch,)


def _rounded(full: int, shares: tuple[float, ...], least: int) -> tuple[int, ...]:
    return tuple(sorted({full, *(min(full, max(least, math.ceil(full * share))) for share in shares)}))


def live_rows(live: Bool[Array, " cells"]) -> Rows:
    """One row for each live cell."""
    index = jnp.nonzero(live, size=live.shape[0], fill_value=0)[0]
    return Rows(index.astype(jnp.int32), jnp.maximum(jnp.cumsum(live) - 1, 0), _largest(live.sum()))


def distinct_rows(states: State, live: Bool[Array, " cells"]) -> Rows:
    """One row for each distinct state among the live cells.

    States are sorted by a hash and compared with their neighbours word by word: should two states share a hash, a state
    may get two rows, and never another state's.
    """
    n = live.shape[0]
    words = jnp.concatenate([_words(leaf.reshape(n, -1)) for leaf in jax.tree.leaves(states)], axis=1)
    factors = np.random.default_rng(0).integers(0, 2**32, words.shape[1], dtype=np.uint32) | 1
    mixed = (words * jnp.asarray(factors)).sum(-1, dtype=jnp.uint32)
    mixed = jnp.where(live, mixed ^ (mixed >> 15), jnp.uint32(0xFFFFFFFF))
    _, order = jax.lax.sort((mixed, jnp.arange(n, dtype=jnp.int32)), num_keys=1)
    sorted_words, sorted_live = words[order], live[order]
    same = (sorted_words[1:] == sorted_words[:-1]).all(-1) & sorted_live[:-1]
    first = sorted_live & ~jnp.pad(same, (1, 0))
    group = jnp.maximum(jnp.cumsum(first) - 1, 0).astype(jnp.int32)
    position = jnp.zeros(n, jnp.int32).at[order].set(group, unique_indices=True)
    index = jnp.zeros(n, jnp.int32).at[jnp.where(first, group, n)].set(order, mode="drop", unique_indices=True)
    return Rows(index, position, _largest(first.sum()))


def _words(leaf: Array) -> Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.int32)
    return leaf.astype(jnp.uint32)
