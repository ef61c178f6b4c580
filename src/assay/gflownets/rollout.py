"""Trajectories: forward by the policy, backward from terminal states, and what an objective needs to know about them.

Arrays are time-major. Random numbers belong to (update, time step, position in the batch), so that a loop which ends
early, a smaller bucket, or ``vmap`` over seeds draws the same actions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from assay.gflownets.envs.base import Environment, State
from assay.gflownets.rows import Rows, any_of, distinct_pays, distinct_rows, live_rows, step_sizes


class Trajectories(NamedTuple):
    """A batch of trajectories.

    Attributes
    ----------
    states : State, ``[T + 1, B, ...]``
        State before step t; a finished trajectory repeats its terminal state.
    actions, bactions : int32[T, B]
        Of step t, 0 after the end.
    lengths : int32[B]
        Number of actions.
    log_r : float[B]
    condition : float[B, c] or None
    ids : int32[B]
        Position in the batch that drew it; backward trajectories carry the number of their object.
    """

    states: State
    actions: Int[Array, "T B"]
    bactions: Int[Array, "T B"]
    lengths: Int[Array, " B"]
    log_r: Float[Array, " B"]
    condition: Float[Array, "B c"] | None
    ids: Int[Array, " B"]

    @property
    def terminal(self) -> State:
        """Last states, ``[B, ...]``."""
        return jax.tree.map(lambda leaf: leaf[-1], self.states)


class Evaluation(NamedTuple):
    """What the network says along trajectories.

    Attributes
    ----------
    log_pf, log_pb : float[T, B]
        Log probability of each step and of its backward step; 0 after the end.
    log_flow : float[T + 1, B]
        Log flow of state t; log R at the terminal state.
    q_taken, soft_value : float
        Unnormalised score of the action taken, ``[T, B]``, and logsumexp of the legal scores, ``[T + 1, B]``.
    log_stop : float[T + 1, B]
        Log probability of stopping at once.
    potential : float[T + 1, B]
        Log reward so far.
    step : bool[T, B]
        Whether there is a step t.
    last : bool[T, B]
        Whether it is the last one.
    log_r : float[B]
    """

    log_pf: Array
    log_pb: Array
    log_flow: Array
    q_taken: Array
    soft_value: Array
    log_stop: Array
    potential: Array
    step: Array
    last: Array
    log_r: Array
    log_prior: Array | None = None


class Needs(NamedTuple):
    """Which parts of an `Evaluation` an objective reads; the others are not computed."""

    log_pf: bool = True
    log_pb: bool = True
    log_flow: bool = False
    q: bool = False
    log_stop: bool = False
    potential: bool = False


def uniforms(key: Array, steps: int, batch: int) -> Float[Array, "T B"]:
    """One uniform number for each (step, position), the same whatever T and B are."""

    def one(t: Array, b: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, t), b))

    return jax.vmap(lambda t: jax.vmap(lambda b: one(t, b))(jnp.arange(batch)))(jnp.arange(steps))


def masked_log_softmax(scores: Float[Array, "... A"], mask: Bool[Array, "... A"]) -> Float[Array, "... A"]:
    """Log softmax over legal entries. Illegal ones get the most negative finite number: -inf would make NaN
    gradients."""
    low = jnp.finfo(scores.dtype).min
    safe = jnp.where(mask, scores, low)
    top = jax.lax.stop_gradient(safe.max(-1, keepdims=True))
    top = jnp.where(top > low, top, 0.0)
    shifted = jnp.where(mask, scores - top, low)
    total = jnp.where(mask, jnp.exp(shifted), 0.0).sum(-1, keepdims=True)
    return jnp.where(mask, shifted - jnp.log(jnp.maximum(total, jnp.finfo(scores.dtype).tiny)), low)


def masked_logsumexp(scores: Float[Array, "... A"], mask: Bool[Array, "... A"]) -> Float[Array, ...]:
    """Log of the sum of exponentials over legal entries; 0 where there is none."""
    top = jax.lax.stop_gradient(jnp.where(mask, scores, -jnp.inf).max(-1))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = jnp.where(mask, jnp.exp(jnp.where(mask, scores - top[..., None], 0.0)), 0.0).sum(-1)
    return jnp.where(mask.any(-1), jnp.log(jnp.where(total > 0, total, 1.0)) + top, 0.0)


def draw(
    scores: Float[Array, "B A"], mask: Bool[Array, "B A"], u: Float[Array, " B"], eps: Any = 0.0, temperature: Any = 1.0
) -> Int[Array, " B"]:
    """Draw actions from (1 - eps) softmax(scores / temperature) + eps uniform over the legal ones.

    One uniform number an environment decides both whether to explore and what to do; an illegal action has
    probability 0 exactly, and can never be drawn.
    """
    low = jnp.finfo(scores.dtype).min
    safe = jnp.where(mask, scores, low) / temperature
    weight = jnp.where(mask, jnp.exp(safe - safe.max(-1, keepdims=True)), 0.0)
    p = (1 - eps) * weight / weight.sum(-1, keepdims=True) + eps * mask / jnp.maximum(mask.sum(-1, keepdims=True), 1)
    total = jnp.cumsum(p, axis=-1)
    return jnp.argmax(total > u[:, None] * total[:, -1:], axis=-1).astype(jnp.int32)


def _select(flag: Bool[Array, " B"], new: State, old: State) -> State:
    return jax.tree.map(lambda a, b: jnp.where(flag.reshape(flag.shape + (1,) * (a.ndim - 1)), a, b), new, old)


def _start(env: Environment, batch: int) -> State:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch, *leaf.shape)), env.reset())


def forward(
    env: Environment,
    net: Any,
    key: Array,
    batch: int,
    *,
    eps: Any = 0.0,
    temperature: Any = 1.0,
    condition: Array | None = None,
    steps: int | None = None,
    start: State | None = None,
) -> Trajectories:
    """Sample trajectories with the policy; the loop ends when all have.

    Parameters
    ----------
    net : network
    key : key
        Of the update.
    batch : int
    eps, temperature : float
        Exploration, as in `draw`.
    condition : float[B, c], optional
    steps : int, optional
        Length of the arrays, default ``env.max_steps``.
    start : State, optional
        Batch of states to start from in place of the source.
    """
    T = env.max_steps if steps is None else steps
    u = uniforms(key, T, batch)
    state = _start(env, batch) if start is None else start
    states = jax.tree.map(lambda leaf: jnp.zeros((T + 1, *leaf.shape), leaf.dtype).at[0].set(leaf), state)
    cached = getattr(net, "causal", False) and start is None
    cache = net.start(batch) if cached else None
    token = jnp.full(batch, env.obs_spec.levels, jnp.int32) if cached else None
    sizes = step_sizes(env, batch) if condition is None else (batch,)

    def alive(carry: Any) -> Array:
        t, state, *_ = carry
        return (t < T) & any_of(~jax.vmap(env.done)(state))

    def body(carry: Any) -> Any:
        t, state, states, actions, bactions, cache, token = carry
        done = jax.vmap(env.done)(state)
        if cached:
            cache, h = net.decode(cache, token, t, condition)
            scores = net.forward(h)
        elif len(sizes) > 1:
            scores = _scores_of_distinct(env, net, state, ~done, sizes)
        else:
            scores = net.forward(net.embed(jax.vmap(env.obs)(state), condition))
        action = draw(scores, jax.vmap(env.mask)(state), u[t], eps, temperature)
        child = jax.vmap(env.step)(state, action)
        back = jax.vmap(env.baction)(state, action, child)
        child = _select(done, state, child)
        states = jax.tree.map(lambda all_, new: all_.at[t + 1].set(new), states, child)
        actions = actions.at[t].set(jnp.where(done, 0, action))
        bactions = bactions.at[t].set(jnp.where(done, 0, back).astype(jnp.int32))
        if cached:
            token = jnp.minimum(action, env.obs_spec.levels - 1)
        return t + 1, child, states, actions, bactions, cache, token

    none = jnp.zeros((T, batch), jnp.int32)
    carry = (jnp.zeros((), jnp.int32), state, states, none, none, cache, token)
    end, state, states, actions, bactions, *_ = jax.lax.while_loop(alive, body, carry)
    # rows after the end of the loop repeat the terminal state
    late = jnp.arange(T + 1) > end
    states = jax.tree.map(
        lambda all_, last: jnp.where(late.reshape((-1,) + (1,) * last.ndim), last[None], all_), states, state
    )
    done = jax.vmap(jax.vmap(env.done))(states)
    lengths = (~done[:-1]).sum(0).astype(jnp.int32)
    return Trajectories(
        states, actions, bactions, lengths, env.log_rewards(state), condition, jnp.arange(batch, dtype=jnp.int32)
    )


def _scores_of_distinct(
    env: Environment, net: Any, state: State, live: Bool[Array, " B"], sizes: tuple[int, ...]
) -> Float[Array, "B A"]:
    """Forward scores, with one evaluation for equal states (all are equal at the source) and none for ended ones."""
    rows = distinct_rows(state, live)
    obs = jax.vmap(env.obs)(state)

    def some(n: int) -> Any:
        return lambda: net.forward(net.embed(obs[rows.cells[:n]], None))[jnp.minimum(rows.position, n - 1)]

    return jax.lax.switch(jnp.searchsorted(jnp.asarray(sizes), rows.needed), [some(n) for n in sizes])


def backward(
    env: Environment,
    net: Any,
    key: Array,
    terminal: State,
    log_r: Float[Array, " B"],
    *,
    kind: str = "uniform",
    condition: Array | None = None,
    steps: int | None = None,
) -> Trajectories:
    """Sample trajectories that end in given terminal states, by the backward policy.

    Parameters
    ----------
    kind : {"uniform", "learned", "maxent"}
    steps : int, optional
        Go back that many steps at most; the trajectories then start where that ended.
    """
    T, batch = env.max_steps if steps is None else min(steps, env.max_steps), log_r.shape[0]
    u = uniforms(key, T, batch)
    states = jax.tree.map(lambda leaf: jnp.zeros((T + 1, *leaf.shape), leaf.dtype).at[0].set(leaf), terminal)
    none = jnp.zeros((T, batch), jnp.int32)

    def going(carry: Any) -> Array:
        t, state, *_ = carry
        return (t < T) & any_of(jax.vmap(env.bmask)(state).any(-1))

    def body(carry: Any) -> Any:
        t, state, states, actions, bactions, lengths = carry
        mask = jax.vmap(env.bmask)(state)
        more = mask.any(-1)
        scores = backward_scores(env, net, state, mask, kind, condition)
        back = draw(scores, mask, u[t])
        parent = jax.vmap(env.undo)(state, back)
        action = jax.vmap(env.faction)(state, back, parent)
        parent = _select(more, parent, state)
        states = jax.tree.map(lambda all_, new: all_.at[t + 1].set(new), states, parent)
        actions = actions.at[t].set(jnp.where(more, action, 0).astype(jnp.int32))
        bactions = bactions.at[t].set(jnp.where(more, back, 0))
        return t + 1, parent, states, actions, bactions, lengths + more

    carry = (jnp.zeros((), jnp.int32), terminal, states, none, none, jnp.zeros(batch, jnp.int32))
    _, _, states, actions, bactions, lengths = jax.lax.while_loop(going, body, carry)
    # turn round: step t of the forward trajectory is backward step n - 1 - t
    b = jnp.arange(batch)
    at = lengths[None] - jnp.arange(T + 1)[:, None]
    states = jax.tree.map(lambda leaf: leaf[jnp.maximum(at, 0), b], states)
    step = at[:-1] > 0
    turned = jnp.maximum(at[:-1] - 1, 0)
    actions, bactions = jnp.where(step, actions[turned, b], 0), jnp.where(step, bactions[turned, b], 0)
    return Trajectories(states, actions, bactions, lengths, log_r, condition, jnp.arange(batch, dtype=jnp.int32))


def backward_scores(
    env: Environment, net: Any, state: State, mask: Bool[Array, "B Y"], kind: str, condition: Array | None = None
) -> Float[Array, "B Y"]:
    """Unnormalised log probabilities of backward actions."""
    if kind == "learned":
        return net.backward(net.embed(jax.vmap(env.obs)(state), condition))
    if kind == "maxent":

        def count(s: State, y: Array) -> Array:
            return env.log_paths(env.undo(s, y))

        ys = jnp.arange(mask.shape[-1], dtype=jnp.int32)
        return jnp.where(mask, jax.vmap(lambda s: jax.vmap(lambda y: count(s, y))(ys))(state), 0.0)
    return jnp.zeros(mask.shape, jnp.result_type(float))


def needs_terminal(env: Environment, kind: str) -> bool:
    """Whether the network must see terminal states: to score backward actions where no stop action ends a
    trajectory."""
    return kind == "learned" and env.stop_action is None


def rows_of(env: Environment, net: Any, traj: Trajectories, terminal: bool) -> Rows | None:
    """The states that the network must see, or None where that is all of them."""
    T1, B = traj.actions.shape[0] + 1, traj.actions.shape[1]
    distinct = distinct_pays(env, B) and traj.condition is None
    if getattr(net, "causal", False) or (env.stop_action is None and not distinct):
        return None
    t = jnp.arange(T1)[:, None]
    live = (t <= traj.lengths if terminal else t < traj.lengths).reshape(-1)
    if not distinct:
        return live_rows(live)
    return distinct_rows(jax.tree.map(lambda leaf: leaf.reshape(T1 * B, *leaf.shape[2:]), traj.states), live)


def evaluate(
    env: Environment,
    net: Any,
    traj: Trajectories,
    needs: Needs,
    kind: str = "uniform",
    rows: Rows | None = None,
    n: int | None = None,
) -> Evaluation:
    """Run the network over states of trajectories, once, and lay the results out in time.

    Parameters
    ----------
    needs : Needs
    kind : {"uniform", "learned", "maxent"}
        Backward policy.
    rows : Rows, optional
        Which states it must see (`rows_of`); all, if left out.
    n : int, optional
        Room for them, never less than ``rows.needed``.
    """
    T, B = traj.actions.shape
    t = jnp.arange(T + 1)[:, None]
    step, last = t[:-1] < traj.lengths, t[:-1] == traj.lengths - 1
    live = t <= traj.lengths if needs_terminal(env, kind) else t < traj.lengths
    causal = getattr(net, "causal", False)
    if rows is None:
        seen = (T + 1 if needs_terminal(env, kind) or causal else T) * B
        index = jnp.arange(seen)
        position = jnp.minimum(jnp.arange((T + 1) * B), seen - 1).reshape(T + 1, B)
    else:
        index = rows.cells[:n]
        position = jnp.minimum(rows.position, index.shape[0] - 1).reshape(T + 1, B)

    some = jax.tree.map(lambda leaf: leaf.reshape((T + 1) * B, *leaf.shape[2:])[index], traj.states)
    if causal:
        h_all = net.prefixes(jax.vmap(env.obs)(traj.terminal), traj.condition)  # [B, places, dim]
        places = jnp.minimum(jnp.arange(T + 1), h_all.shape[1] - 1)
        h = jnp.swapaxes(h_all[:, places], 0, 1).reshape((T + 1) * B, -1)[index]
    else:
        h = net.embed(jax.vmap(env.obs)(some), None if traj.condition is None else traj.condition[index % B])

    def lay(values: Float[Array, " n"]) -> Float[Array, "T1 B"]:
        return jnp.where(live, values[position], 0.0)

    def taken(table: Float[Array, "n A"], where: Array, action: Int[Array, "T B"]) -> Float[Array, "T B"]:
        return table.reshape(-1)[where * table.shape[-1] + action]

    zero, zero1 = jnp.zeros((T, B)), jnp.zeros((T + 1, B))
    log_pf, q_taken, soft_value, log_stop = zero, zero, zero1, zero1
    if needs.log_pf or needs.q or needs.log_stop:
        scores, mask = net.forward(h), jax.vmap(env.mask)(some)
        total = masked_logsumexp(scores, mask)
        log_p = jnp.where(mask.sum(-1, keepdims=True) == 1, 0.0, scores - total[:, None])
        if needs.log_pf:
            log_pf = jnp.where(step, taken(log_p, position[:-1], traj.actions), 0.0)
        if needs.q:
            q_taken, soft_value = jnp.where(step, taken(scores, position[:-1], traj.actions), 0.0), lay(total)
        if needs.log_stop and env.stop_action is not None:
            log_stop = lay(log_p[:, env.stop_action])

    log_pb = zero
    if needs.log_pb and kind == "learned":
        scores, mask = net.backward(h), jax.vmap(env.bmask)(some)
        log_p = jnp.where(mask.sum(-1, keepdims=True) == 1, 0.0, scores - masked_logsumexp(scores, mask)[:, None])
        # where only a stop leads to terminal states they are not evaluated: its backward step is certain
        log_pb = jnp.where(step & live[1:], taken(log_p, position[1:], traj.bactions), 0.0)
    elif needs.log_pb:
        log_pb = jnp.where(step, _fixed_log_pb(env, traj, kind), 0.0)

    log_flow = zero1
    if needs.log_flow:
        flow = jnp.where(t < traj.lengths, net.flow(h)[position], 0.0)
        log_flow = flow + jnp.where(t == traj.lengths, traj.log_r, 0.0)
    potential = jax.vmap(jax.vmap(env.potential))(traj.states) if needs.potential else zero1
    return Evaluation(log_pf, log_pb, log_flow, q_taken, soft_value, log_stop, potential, step, last, traj.log_r)


def _fixed_log_pb(env: Environment, traj: Trajectories, kind: str) -> Float[Array, "T B"]:
    if kind == "uniform":
        after = jax.tree.map(lambda leaf: leaf[1:], traj.states)
        ways = jax.vmap(jax.vmap(env.bmask))(after).sum(-1)
        return -jnp.log(jnp.maximum(ways, 1).astype(jnp.result_type(float)))
    paths = jax.vmap(jax.vmap(env.log_paths))(traj.states)
    # log_paths counts construction steps, so a stop keeps it: its backward step is certain
    return paths[:-1] - paths[1:]


class Move(NamedTuple):
    """Back from terminal states and forward again: where it ended, and the log Metropolis-Hastings ratio without the
    rewards."""

    trajectories: Trajectories
    log_ratio: Float[Array, " B"]


def back_and_forth(
    env: Environment,
    net: Any,
    key: Array,
    terminal: State,
    log_r: Float[Array, " B"],
    steps: int,
    *,
    kind: str = "uniform",
    condition: Array | None = None,
) -> Move:
    """Go ``steps`` back by P_B and forward again by P_F (local search, Kim et al. 2024; the proposals of Zhang et
    al. 2022).

    The proposal x' is accepted with probability min(1, R(x') / R(x) exp(log_ratio)) for a chain that keeps the
    target, where log_ratio = log P_B(x' -> s) + log P_F(s -> x) - log P_B(x -> s) - log P_F(s -> x') along the two
    paths.
    """
    old = backward(env, net, jax.random.fold_in(key, 0), terminal, log_r, kind=kind, condition=condition, steps=steps)
    start = jax.tree.map(lambda leaf: leaf[0], old.states)
    new = forward(env, net, jax.random.fold_in(key, 1), log_r.shape[0], condition=condition, start=start)
    a, b = (evaluate(env, net, traj, Needs(), kind) for traj in (old, new))
    return Move(new, (b.log_pb - b.log_pf).sum(0) - (a.log_pb - a.log_pf).sum(0))
