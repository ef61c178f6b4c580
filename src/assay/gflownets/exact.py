"""Exact answers for spaces that can be enumerated: the state graph, log Z, and distributions by dynamic programming.

A graph is enumerated once, layer by layer; every evaluation after that is one pass of the policy over the states and
one pass over the edges in topological order. All sums are float64.
"""

from __future__ import annotations

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from assay.gflownets.envs.base import Environment, State
from assay.gflownets.errors import DeadEnd, NotEnumerable
from assay.gflownets.rollout import Evaluation, Trajectories


class StateGraph:
    """All states of an environment, and all edges between them.

    Parameters
    ----------
    env : Environment
    limit : int
        Most states.

    Attributes
    ----------
    states : State, ``[N, ...]``
        In topological order; number 0 is the source.
    parent, action, child, baction : int[E]
        Edges, ordered by the layer of the child.
    terminal : int[n_terminal]
        Numbers of terminal states.
    log_r : float64[n_terminal]
    layer : int[N]
        Longest distance from the source.

    Raises
    ------
    NotEnumerable
    DeadEnd
        If a state that is not terminal has no legal action.
    """

    def __init__(self, env: Environment, limit: int = 2_000_000) -> None:
        self.env = env
        arrays, static = eqx.partition(env, eqx.is_array)

        def combined(a: Any) -> Any:
            return eqx.combine(a, static)

        look = jax.jit(lambda a, s: (jax.vmap(combined(a).mask)(s), jax.vmap(combined(a).done)(s)))

        def move(a: Any, s: State, act: Any) -> tuple[State, Any]:
            e = combined(a)
            child = jax.vmap(e.step)(s, act)
            return child, jax.vmap(e.baction)(s, act, child)

        move = jax.jit(move)
        source = jax.tree.map(lambda leaf: np.asarray(leaf)[None], env.reset())
        layers, parents, actions, children, bactions, dones = [source], [], [], [], [], []
        number: dict[bytes, int] = {env.keys(source)[0].tobytes(): 0}
        first = 0  # number of the first state of the current layer
        while len(layers[-1][0] if isinstance(layers[-1], tuple) else jax.tree.leaves(layers[-1])[0]):
            now = layers[-1]
            count = len(jax.tree.leaves(now)[0])
            mask, done = (np.asarray(x)[:count] for x in look(arrays, _padded(now)))
            dones.append(done)
            stuck = ~mask.any(1) & ~done
            if stuck.any():
                at = int(np.argmax(stuck))
                state = jax.tree.map(lambda leaf, at=at: np.asarray(leaf)[at], now)
                raise DeadEnd(f"a state that is not terminal has no legal action: {state}")
            rows, acts = np.nonzero(mask & ~done[:, None])
            if not len(rows):
                break
            taken = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], now)
            child, back = move(arrays, _padded(taken), _padded(acts.astype(np.int32)))
            child, back = jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[: len(rows)], (child, back))
            keys = env.keys(child)
            unique, index, inverse = np.unique(keys, return_index=True, return_inverse=True)
            ids = np.empty(len(unique), np.int64)
            fresh: list[int] = []
            total = first + count
            for k, key in enumerate(unique):
                raw = key.tobytes()
                found = number.get(raw)
                if found is None:
                    found = number[raw] = total + len(fresh)
                    fresh.append(index[k])
                ids[k] = found
            if total + len(fresh) > limit:
                raise NotEnumerable(total + len(fresh), limit)
            parents.append(first + rows)
            actions.append(acts)
            children.append(ids[inverse.ravel()])
            bactions.append(back)
            first = total
            layers.append(jax.tree.map(lambda leaf, fresh=fresh: leaf[np.asarray(fresh, np.int64)], child))
        states = jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts]), *layers)
        done = np.concatenate(dones)
        empty = np.zeros(0, np.int64)
        edges = [np.concatenate(x or [empty]).astype(np.int64) for x in (parents, actions, children, bactions)]
        self._finish(states, done, *edges)

    def _finish(
        self,
        states: State,
        done: np.ndarray,
        parent: np.ndarray,
        action: np.ndarray,
        child: np.ndarray,
        back: np.ndarray,
    ) -> None:
        n = len(done)
        layer = np.zeros(n, np.int64)
        while True:  # longest distance; one sweep suffices where all paths to a state are equally long
            longer = layer.copy()
            np.maximum.at(longer, child, layer[parent] + 1)
            if (longer == layer).all():
                break
            layer = longer
            if layer.max(initial=0) > n:
                raise NotEnumerable(n, n)
        order = np.argsort(layer, kind="stable")
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        self.states = jax.tree.map(lambda leaf: leaf[order], states)
        self.layer = layer[order]
        self.done: Bool[np.ndarray, " states"] = done[order]
        parent, child = place[parent], place[child]
        by_child = np.lexsort((parent, child, self.layer[child]))
        self.parent, self.action = parent[by_child], action[by_child]
        self.child, self.baction = child[by_child], back[by_child]
        self._by_parent = np.lexsort((self.child, self.parent, self.layer[self.parent]))
        self._children = _segments(self.layer, self.child)
        self._parents = _segments(self.layer, self.parent[self._by_parent])
        self.terminal: Int[np.ndarray, " terminal"] = np.flatnonzero(self.done)
        self.log_r = self.log_rewards()
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.done)

    def __repr__(self) -> str:
        return (
            f"StateGraph({type(self.env).__name__}: {len(self):,} states, {len(self.parent):,} edges, "
            f"{self.n_terminal:,} terminal)"
        )

    @property
    def n_terminal(self) -> int:
        """Number of terminal states."""
        return len(self.terminal)

    @property
    def terminal_states(self) -> State:
        """Terminal states, ``[n_terminal, ...]``."""
        return jax.tree.map(lambda leaf: leaf[self.terminal], self.states)

    def log_rewards(self) -> Float[np.ndarray, " terminal"]:
        """log R of terminal states, float64 (the environment is evaluated in double precision)."""
        host = getattr(getattr(self.env, "reward", None), "values", None)
        if host is not None:
            return np.asarray(host(self.env.objects(self.terminal_states)))
        with jax.enable_x64(True):
            env = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if _is_float(x) else x, self.env)
            return np.asarray(jax.jit(jax.vmap(env.log_reward))(self.terminal_states), np.float64)

    @property
    def log_z(self) -> float:
        """log of the sum of rewards."""
        return float(_logsumexp(self.log_r))

    @property
    def target(self) -> Float[np.ndarray, " terminal"]:
        """R(x) / Z."""
        return np.exp(self.log_r - self.log_z)

    def number(self, states: State) -> Int[np.ndarray, " batch"]:
        """Numbers of given states in the graph.

        Raises
        ------
        NotEnumerable
            If one is not in it.
        """
        if self._sorted is None:
            keys = self.env.keys(self.states)
            order = np.argsort(keys)
            self._sorted = keys[order], order
        keys, order = self._sorted
        wanted = self.env.keys(jax.tree.map(np.asarray, states))
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        if not (keys[at] == wanted).all():
            raise NotEnumerable(len(self), len(self))
        return order[at]

    def terminal_number(self, states: State) -> Int[np.ndarray, " batch"]:
        """Positions of terminal states among the terminal ones."""
        return np.searchsorted(self.terminal, self.number(states))

    # -- policies on edges --------------------------------------------------------------------------------------------

    def log_pf(self, net: Any, condition: Any = None, block: int = 8192) -> Float[np.ndarray, " edges"]:
        """log P_F of every edge under a network: its scores, normalised over the legal actions in float64."""
        scores = self._scores(net, condition, block, forward=True)[self.parent, self.action].astype(np.float64)
        return self._normalised(scores, self.parent, self._by_parent)

    def log_pb(
        self, net: Any = None, kind: str = "uniform", condition: Any = None, block: int = 8192
    ) -> Float[np.ndarray, " edges"]:
        """log P_B of every edge."""
        if kind == "uniform":
            return -np.log(np.bincount(self.child, minlength=len(self))[self.child])
        if kind == "maxent":
            paths = self.log_paths()
            return paths[self.parent] - paths[self.child]
        scores = self._scores(net, condition, block, forward=False)[self.child, self.baction].astype(np.float64)
        return self._normalised(scores, self.child, np.arange(len(scores)))

    def uniform(self) -> Float[np.ndarray, " edges"]:
        """log P_F of every edge under the policy that takes each legal action equally often."""
        return -np.log(np.bincount(self.parent, minlength=len(self))[self.parent])

    @staticmethod
    def _normalised(scores: np.ndarray, owner: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Log softmax of edge scores over the edges of each owner; ``order`` brings owners together."""
        if not len(scores):
            return scores
        mine = owner[order]
        begin = np.flatnonzero(np.diff(mine, prepend=-1))
        total = np.empty(owner.max() + 1)
        total[mine[begin]] = _segment_logsumexp(scores[order], begin)
        return scores - total[owner]

    def _scores(self, net: Any, condition: Any, block: int, forward: bool) -> np.ndarray:
        width = self.env.n_actions if forward else self.env.n_bactions
        out = np.empty((len(self), width), np.float32)
        run = _forward_scores if forward else _backward_scores
        wanted = np.flatnonzero(~self.done) if forward else np.arange(1, len(self))
        for start in range(0, len(wanted), block):
            these = wanted[start : start + block]
            part = jax.tree.map(lambda leaf, these=these: leaf[these], self.states)
            part = _padded(part, block if len(wanted) > block else None)
            rows = jax.tree.leaves(part)[0].shape[0]
            code = (
                None if condition is None else jnp.broadcast_to(jnp.asarray(condition), (rows, np.shape(condition)[-1]))
            )
            out[these] = np.asarray(run(self.env, net, part, code))[: len(these)]
        return out

    # -- dynamic programming ------------------------------------------------------------------------------------------

    def log_paths(self) -> Float[np.ndarray, " states"]:
        """Log number of trajectories from the source to each state."""
        return self._push(np.zeros(len(self.parent)))

    def reach(self, log_pf: Float[np.ndarray, " edges"]) -> Float[np.ndarray, " states"]:
        """Log probability that a trajectory visits each state."""
        return self._push(log_pf)

    def _push(self, weight: np.ndarray) -> np.ndarray:
        value = np.full(len(self), -np.inf)
        value[0] = 0.0
        for edges, where, begin in self._children:
            value[where] = _segment_logsumexp(value[self.parent[edges]] + weight[edges], begin)
        return value

    def log_terminal(self, log_pf: Float[np.ndarray, " edges"]) -> Float[np.ndarray, " terminal"]:
        """Log probability of each terminal state under a policy, by dynamic programming."""
        return self.reach(log_pf)[self.terminal]

    def log_flow(self, log_pb: Float[np.ndarray, " edges"] | None = None) -> Float[np.ndarray, " states"]:
        """Exact log flow of each state under a backward policy (uniform by default): F(s) = sum F(s') P_B(s|s')."""
        weight = self.log_pb() if log_pb is None else log_pb
        flow = np.full(len(self), -np.inf)
        flow[self.terminal] = self.log_r
        for edges, where, begin in reversed(self._parents):
            e = self._by_parent[edges]
            flow[where] = _segment_logsumexp(flow[self.child[e]] + weight[e], begin)
        return flow

    def exact_policy(self, log_pb: Float[np.ndarray, " edges"] | None = None) -> Float[np.ndarray, " edges"]:
        """log P_F that samples in proportion to the reward, given a backward policy."""
        weight = self.log_pb() if log_pb is None else log_pb
        flow = self.log_flow(weight)
        return flow[self.child] + weight - flow[self.parent]

    def elbo(self, log_pf: Float[np.ndarray, " edges"], log_pb: Float[np.ndarray, " edges"]) -> float:
        """E over P_F of log R + log P_B - log P_F: log Z minus the KL divergence of the trajectory laws."""
        visit = np.exp(self.reach(log_pf))
        edge = visit[self.parent] * np.exp(log_pf)
        return float(visit[self.terminal] @ self.log_r + np.where(edge > 0, edge * (log_pb - log_pf), 0.0).sum())

    def eubo(self, log_pf: Float[np.ndarray, " edges"], log_pb: Float[np.ndarray, " edges"]) -> float:
        """E over R(x)/Z and P_B of the same: log Z plus the other KL divergence."""
        visit = np.exp(self.log_flow(log_pb) - self.log_z)
        edge = visit[self.child] * np.exp(log_pb)
        return float(self.target @ self.log_r + (edge * (log_pb - log_pf)).sum())

    # -- trajectories as arrays ---------------------------------------------------------------------------------------

    def draw(self, log_pf: Float[np.ndarray, " edges"], n: int, rng: np.random.Generator) -> list[list[int]]:
        """Trajectories as lists of edge numbers."""
        start = np.searchsorted(self.parent[self._by_parent], np.arange(len(self) + 1))
        out = []
        for _ in range(n):
            at, path = 0, []
            while not self.done[at]:
                edges = self._by_parent[start[at] : start[at + 1]]
                p = np.exp(log_pf[edges])
                edge = int(edges[rng.choice(len(edges), p=p / p.sum())])
                path.append(edge)
                at = int(self.child[edge])
            out.append(path)
        return out

    def trajectories(self, paths: list[list[int]], steps: int | None = None) -> Trajectories:
        """Paths as `Trajectories`, with arrays of ``steps`` (default: the environment's)."""
        T = self.env.max_steps if steps is None else steps
        rows = np.zeros((T + 1, len(paths)), np.int64)
        actions, backs = np.zeros((T, len(paths)), np.int32), np.zeros((T, len(paths)), np.int32)
        for b, path in enumerate(paths):
            for t, edge in enumerate(path):
                rows[t + 1, b], actions[t, b], backs[t, b] = self.child[edge], self.action[edge], self.baction[edge]
            rows[len(path) + 1 :, b] = rows[len(path), b]
        log_r = self.log_r[np.searchsorted(self.terminal, rows[-1])]
        lengths = np.array([len(path) for path in paths], np.int32)
        states = jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), self.states)
        return Trajectories(
            states,
            jnp.asarray(actions),
            jnp.asarray(backs),
            jnp.asarray(lengths),
            jnp.asarray(log_r),
            None,
            jnp.arange(len(paths), dtype=jnp.int32),
        )

    def potentials(self) -> Float[np.ndarray, " states"]:
        """The environment's potential of every state, float64."""
        with jax.enable_x64(True):
            env = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if _is_float(x) else x, self.env)
            return np.asarray(jax.jit(jax.vmap(env.potential))(self.states), np.float64)

    def tables(self, log_pb: Float[np.ndarray, " edges"] | None = None) -> dict[str, np.ndarray]:
        """The exact flow as tables, float64: ``score`` (log edge flow), ``log_pb`` [edges], ``log_flow``,
        ``potential`` [states]."""
        back = self.log_pb() if log_pb is None else log_pb
        flow = self.log_flow(back)
        return {"score": flow[self.child] + back, "log_pb": back, "log_flow": flow, "potential": self.potentials()}

    def evaluate(self, tables: dict[str, Any], paths: list[list[int]], steps: int | None = None) -> Evaluation:
        """An `Evaluation` of paths from tables over edges and states, differentiable in the tables.

        ``log_flow`` is replaced by log R in terminal states; ``score`` is normalised over the legal actions of each
        state.
        """
        T = self.env.max_steps if steps is None else steps
        B = len(paths)
        edge, state = np.zeros((T, B), np.int64), np.zeros((T + 1, B), np.int64)
        step = np.zeros((T, B), bool)
        for b, path in enumerate(paths):
            for t, e in enumerate(path):
                edge[t, b], state[t + 1, b], step[t, b] = e, self.child[e], True
            state[len(path) + 1 :, b] = state[len(path), b]
        lengths = step.sum(0)
        last = step & (np.arange(T)[:, None] == lengths - 1)
        score = jnp.asarray(tables["score"])
        top = jax.ops.segment_max(jax.lax.stop_gradient(score), self.parent, len(self))
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = jax.ops.segment_sum(jnp.exp(score - top[self.parent]), self.parent, len(self))
        soft = jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1.0)) + top, 0.0)
        log_pf = score - soft[self.parent]
        stop = jnp.zeros(len(self), score.dtype)
        if self.env.stop_action is not None:
            ends = np.flatnonzero(self.action == self.env.stop_action)
            stop = stop.at[self.parent[ends]].set(log_pf[ends])
        log_r = jnp.asarray(self.log_r)[np.searchsorted(self.terminal, state[-1])]
        at = np.arange(T + 1)[:, None]
        flow = jnp.where(at >= lengths, jnp.where(at == lengths, log_r, 0.0), jnp.asarray(tables["log_flow"])[state])
        return Evaluation(
            jnp.where(step, log_pf[edge], 0.0),
            jnp.where(step, jnp.asarray(tables["log_pb"])[edge], 0.0),
            flow,
            jnp.where(step, score[edge], 0.0),
            soft[state],
            stop[state],
            jnp.asarray(tables["potential"])[state],
            jnp.asarray(step),
            jnp.asarray(last),
            log_r,
        )

    def inflow(self, score: Any) -> Any:
        """Log of the summed edge flows into each state, from scores of edges; 0 at the source."""
        score = jnp.asarray(score)
        top = jax.ops.segment_max(jax.lax.stop_gradient(score), self.child, len(self))
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        total = jax.ops.segment_sum(jnp.exp(score - top[self.child]), self.child, len(self))
        return jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1.0)) + top, 0.0)


@eqx.filter_jit
def _forward_scores(env: Environment, net: Any, states: State, condition: Any) -> Any:
    return net.forward(net.embed(jax.vmap(env.obs)(states), condition))


@eqx.filter_jit
def _backward_scores(env: Environment, net: Any, states: State, condition: Any) -> Any:
    return net.backward(net.embed(jax.vmap(env.obs)(states), condition))


def _segments(layer: np.ndarray, owner: np.ndarray) -> list[tuple[slice, np.ndarray, np.ndarray]]:
    """For each layer: its edges (sorted by owner), the owners, and where each owner's edges begin among them."""
    bounds = np.searchsorted(layer[owner], np.arange(layer.max(initial=0) + 2))
    found = []
    for start, end in itertools.pairwise(bounds.tolist()):
        if start < end:
            mine = owner[start:end]
            begin = np.flatnonzero(np.diff(mine, prepend=-1))
            found.append((slice(start, end), mine[begin], begin))
    return found


def _is_float(x: Any) -> bool:
    return eqx.is_inexact_array(x)


def _padded(tree: Any, size: int | None = None) -> Any:
    """Rows repeated up to a power of two (or ``size``), so that few shapes are compiled."""
    n = len(jax.tree.leaves(tree)[0])
    to = size if size is not None else max(256, 1 << (n - 1).bit_length())
    if to <= n:
        return tree
    rows = np.minimum(np.arange(to), n - 1)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree)


def _logsumexp(x: np.ndarray) -> np.ndarray:
    top = x.max()
    return np.log(np.exp(x - top).sum()) + top


def _segment_logsumexp(x: np.ndarray, begin: np.ndarray) -> np.ndarray:
    top = np.maximum.reduceat(x, begin)
    safe = np.where(np.isfinite(top), top, 0.0)
    sizes = np.diff(np.append(begin, len(x)))
    with np.errstate(divide="ignore"):
        return np.log(np.add.reduceat(np.exp(x - np.repeat(safe, sizes)), begin)) + safe
