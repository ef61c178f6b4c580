"""Replay: what was sampled is trained on again. Buffers are arrays, and live inside the compiled step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from assay.gflownets.envs.base import Environment, State
from assay.gflownets.errors import GFlowNetError
from assay.gflownets.rollout import Trajectories, _select, _start
from assay.gflownets.rows import any_of

KINDS = ("uniform", "prioritised", "diverse", "terminal")


class Replay(NamedTuple):
    """What a buffer is asked to be.

    Attributes
    ----------
    kind : {"uniform", "prioritised", "diverse", "terminal"}
        ``uniform``: a ring of trajectories. ``prioritised``: the same ring, half of each draw from the tenth with
        the highest reward (Shen et al. 2023). ``diverse``: a newcomer near one that is there (share of unequal
        observations at most ``cutoff``) replaces that one if it is better, any other replaces the worst.
        ``terminal``: a ring of terminal states, from which trajectories are drawn afresh by the backward policy.
    capacity : int
    share : float
        Part of each batch that comes from the buffer.
    cutoff : float
    """

    kind: str = "uniform"
    capacity: int = 1000
    share: float = 0.5
    cutoff: float = 0.1


class Buffer(NamedTuple):
    """Contents: rows of actions, terminal states, lengths, log rewards, conditions; how many, and where the next
    goes."""

    actions: Int[Array, "C T"]
    terminal: State
    lengths: Int[Array, " C"]
    log_r: Float[Array, " C"]
    condition: Float[Array, "C c"] | None
    size: Int[Array, ""]
    next: Int[Array, ""]


def check_replay(replay: Replay) -> Replay:
    """The same, if it makes sense.

    Raises
    ------
    GFlowNetError
    """
    if replay.kind not in KINDS:
        raise GFlowNetError(f"there is no buffer {replay.kind!r}; there is {', '.join(KINDS)}")
    if replay.capacity < 1 or not 0 < replay.share <= 1:
        raise GFlowNetError(
            f"a buffer needs capacity >= 1 and 0 < share <= 1, not {replay.capacity} and {replay.share}"
        )
    return replay


def empty(env: Environment, replay: Replay, condition: int = 0) -> Buffer:
    """A buffer with nothing in it."""
    C = replay.capacity
    none = jnp.zeros(C, jnp.int32)
    return Buffer(
        jnp.zeros((C, env.max_steps), jnp.int32),
        _start(env, C),
        none,
        jnp.full(C, -jnp.inf),
        jnp.zeros((C, condition)) if condition else None,
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def add(env: Environment, replay: Replay, buffer: Buffer, traj: Trajectories) -> Buffer:
    """Put a batch of trajectories in."""
    if replay.kind == "diverse":
        return _add_diverse(env, replay, buffer, traj)
    B, C = traj.log_r.shape[0], replay.capacity
    keep = min(B, C)
    at = (buffer.next + jnp.arange(keep)) % C

    def put(rows: Array, new: Any) -> Array:
        return rows.at[at].set(new[:keep])

    return Buffer(
        put(buffer.actions, traj.actions.T),
        jax.tree.map(put, buffer.terminal, traj.terminal),
        put(buffer.lengths, traj.lengths),
        put(buffer.log_r, traj.log_r),
        None if buffer.condition is None else put(buffer.condition, traj.condition),
        jnp.minimum(buffer.size + keep, C),
        (buffer.next + keep) % C,
    )


def _add_diverse(env: Environment, replay: Replay, buffer: Buffer, traj: Trajectories) -> Buffer:
    C = replay.capacity
    terminal = traj.terminal
    seen = jax.vmap(env.obs)(terminal).reshape(traj.log_r.shape[0], -1)

    def one(carry: tuple[Buffer, Array], b: Array) -> tuple[tuple[Buffer, Array], None]:
        now, observed = carry
        distance = jnp.where(jnp.arange(C) < now.size, (observed != seen[b]).mean(-1), jnp.inf)
        near = jnp.argmin(distance)
        close = distance[near] <= replay.cutoff
        room = now.size < C
        place = jnp.where(close, near, jnp.where(room, now.size, jnp.argmin(now.log_r)))
        better = (traj.log_r[b] > now.log_r[place]) | (room & ~close)

        def put(rows: Array, new: Array) -> Array:
            return rows.at[place].set(jnp.where(better, new, rows[place]))

        new = Buffer(
            put(now.actions, traj.actions[:, b]),
            jax.tree.map(lambda rows, t: put(rows, t[b]), now.terminal, terminal),
            put(now.lengths, traj.lengths[b]),
            put(now.log_r, traj.log_r[b]),
            None if now.condition is None else put(now.condition, traj.condition[b]),  # type: ignore[index]
            now.size + (room & ~close),
            now.next,
        )
        return (new, put(observed, seen[b])), None

    observed = jax.vmap(env.obs)(buffer.terminal).reshape(C, -1)
    (buffer, _), _ = jax.lax.scan(one, (buffer, observed), jnp.arange(traj.log_r.shape[0]))
    return buffer


def choose(replay: Replay, buffer: Buffer, key: Array, n: int) -> Int[Array, " n"]:
    """Rows of the buffer to train on."""
    size = jnp.maximum(buffer.size, 1)
    a, b = jax.random.split(key)
    anyone = jax.random.randint(a, (n,), 0, size)
    if replay.kind != "prioritised":
        return anyone
    order = jnp.argsort(-buffer.log_r)  # empty rows are -inf, and last
    best = order[jax.random.randint(b, (n,), 0, jnp.maximum(size // 10, 1))]
    return jnp.where(jnp.arange(n) < n // 2, best, anyone)


def retrace(
    env: Environment,
    actions: Int[Array, "T B"],
    lengths: Int[Array, " B"],
    log_r: Float[Array, " B"],
    condition: Array | None = None,
    ids: Int[Array, " B"] | None = None,
) -> Trajectories:
    """Trajectories from their actions."""
    T, B = actions.shape
    state = _start(env, B)
    states = jax.tree.map(lambda leaf: jnp.zeros((T + 1, *leaf.shape), leaf.dtype).at[0].set(leaf), state)

    def going(carry: Any) -> Array:
        return (carry[0] < T) & any_of(carry[0] < lengths)

    def body(carry: Any) -> Any:
        t, state, states, backs = carry
        child = jax.vmap(env.step)(state, actions[t])
        back = jax.vmap(env.baction)(state, actions[t], child)
        more = t < lengths
        child = _select(more, child, state)
        states = jax.tree.map(lambda all_, new: all_.at[t + 1].set(new), states, child)
        return t + 1, child, states, backs.at[t].set(jnp.where(more, back, 0).astype(jnp.int32))

    end, state, states, backs = jax.lax.while_loop(
        going, body, (jnp.zeros((), jnp.int32), state, states, jnp.zeros((T, B), jnp.int32))
    )
    late = jnp.arange(T + 1) > end
    states = jax.tree.map(
        lambda all_, last: jnp.where(late.reshape((-1,) + (1,) * last.ndim), last[None], all_), states, state
    )
    actions = jnp.where(jnp.arange(T)[:, None] < lengths, actions, 0)
    return Trajectories(
        states, actions, backs, lengths, log_r, condition, jnp.arange(B, dtype=jnp.int32) if ids is None else ids
    )


def join(a: Trajectories, b: Trajectories) -> Trajectories:
    """One batch out of two; the second one's ids follow the first one's."""

    def time_major(x: Array, y: Array) -> Array:
        return jnp.concatenate([x, y], axis=1)

    return Trajectories(
        jax.tree.map(time_major, a.states, b.states),
        time_major(a.actions, b.actions),
        time_major(a.bactions, b.bactions),
        jnp.concatenate([a.lengths, b.lengths]),
        jnp.concatenate([a.log_r, b.log_r]),
        None if a.condition is None else jnp.concatenate([a.condition, b.condition]),  # type: ignore[list-item]
        jnp.concatenate([a.ids, b.ids + a.log_r.shape[0]]),
    )
