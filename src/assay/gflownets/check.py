"""`check_env`: finds a wrong mask, an edge that does not go back, or a dead end, before a week of training does."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from assay.gflownets.envs.base import Environment, State
from assay.gflownets.errors import DeadEnd, GFlowNetError, MaskMismatch, NonPositiveReward


class EnvReport(NamedTuple):
    """What was walked through."""

    walks: int
    states: int
    longest: int


def check_env(env: Environment, *, walks: int = 50, seed: int = 0, rewards: bool = True) -> EnvReport:
    """Walk at random and check every edge of every state met.

    For each legal action: the child's backward action is legal there, undoing it gives the state back, and the
    forward action of that edge is the action again. For each legal backward action: the parent's forward action is
    legal and leads back; no two forward edges share a backward edge. Terminal states have no actions, others have
    one; the source has no backward action, others have one; walks end within ``max_steps``; rewards are finite.

    Parameters
    ----------
    env : Environment
    walks : int
        Random walks.
    rewards : bool
        Whether to evaluate rewards of terminal states.

    Raises
    ------
    DeadEnd, MaskMismatch, NonPositiveReward
        With the shortest trajectory found that shows it.
    GFlowNetError
        If masks or observations have another shape than the environment says.

    Examples
    --------
    >>> from assay.gflownets import Hypergrid
    >>> check_env(Hypergrid(2, 4), walks=10).longest <= 7
    True
    """
    _shapes(env)
    rng = np.random.default_rng(seed)
    probe = _Probe(env)
    failures: list[tuple[list[int], Exception]] = []
    seen = longest = 0
    for _ in range(walks):
        actions: list[int] = []
        state = env.reset()
        while True:
            error = probe.state(state, actions)
            seen += 1
            if error is not None:
                failures.append((list(actions), error))
                break
            mask = probe.mask(state)
            if not mask.any():
                if rewards:
                    value = float(env.log_rewards(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], state))[0])
                    if hasattr(getattr(env, "reward", None), "raise_pending"):
                        env.reward.raise_pending()  # type: ignore[attr-defined]
                    if not np.isfinite(value):
                        failures.append((list(actions), NonPositiveReward(f"log R is {value} for {probe.show(state)}")))
                break
            if len(actions) >= env.max_steps:
                failures.append(
                    (
                        list(actions),
                        MaskMismatch(
                            f"a walk is longer than max_steps = {env.max_steps}: {probe.show(state)} still has "
                            f"legal actions"
                        ),
                    )
                )
                break
            action = int(rng.choice(np.flatnonzero(mask)))
            actions.append(action)
            state = probe.step(state, jnp.int32(action))
        longest = max(longest, len(actions))
    if failures:
        actions, error = min(failures, key=lambda item: len(item[0]))
        actions, error = _shrunk(env, probe, actions, error)
        raise type(error)(f"{error}; shortest trajectory that shows it: {actions}")
    return EnvReport(walks, seen, longest)


def _shapes(env: Environment) -> None:
    state = env.reset()
    for name, found, size in (
        ("mask", env.mask(state), env.n_actions),
        ("bmask", env.bmask(state), env.n_bactions),
    ):
        if found.shape != (size,) or found.dtype != jnp.bool_:
            raise GFlowNetError(
                f"{name}() of {type(env).__name__} must give bool[{size}], not {found.dtype}{list(found.shape)}"
            )
    after = jax.eval_shape(env.step, state, jnp.int32(0))
    same = bool(jax.tree.structure(after) == jax.tree.structure(state))  # type: ignore[operator]
    kinds = [(a.shape, a.dtype) for a in jax.tree.leaves(after)]
    if not same or kinds != [(jnp.shape(b), jnp.asarray(b).dtype) for b in jax.tree.leaves(state)]:
        raise GFlowNetError(
            f"step() of {type(env).__name__} must give a state of the same form as reset(): {after} is not "
            f"{jax.eval_shape(lambda: state)}"
        )


class _Probe:
    """Compiled functions of one state, over all its actions at once."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        # functions, since a bound method of a module with arrays cannot be hashed
        self._mask, self._bmask = jax.jit(lambda s: env.mask(s)), jax.jit(lambda s: env.bmask(s))
        self.step = jax.jit(lambda s, a: env.step(s, a))
        self._done = jax.jit(lambda s: env.done(s))
        acts, backs = jnp.arange(env.n_actions, dtype=jnp.int32), jnp.arange(env.n_bactions, dtype=jnp.int32)

        def ahead(s: State) -> Any:
            def one(a: Any) -> Any:
                child = env.step(s, a)
                back = env.baction(s, a, child).astype(jnp.int32)
                home = env.undo(child, back)
                legal = env.bmask(child)[back]
                return back, legal, _equal(home, s), env.faction(child, back, s), child

            return jax.vmap(one)(acts)

        def behind(s: State) -> Any:
            def one(b: Any) -> Any:
                parent = env.undo(s, b)
                act = env.faction(s, b, parent).astype(jnp.int32)
                return act, env.mask(parent)[act], _equal(env.step(parent, act), s), env.baction(parent, act, s)

            return jax.vmap(one)(backs)

        self._ahead, self._behind = jax.jit(ahead), jax.jit(behind)

    def mask(self, state: State) -> np.ndarray:
        return np.asarray(self._mask(state))

    def show(self, state: State) -> str:
        try:
            return repr(self.env.objects(jax.tree.map(lambda leaf: np.asarray(leaf)[None], state))[0])
        except Exception:
            return repr(jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), state))

    def state(self, state: State, actions: list[int]) -> Exception | None:
        mask, bmask, done = self.mask(state), np.asarray(self._bmask(state)), bool(self._done(state))
        where = self.show(state)
        if done and mask.any():
            return MaskMismatch(f"the terminal state {where} has legal actions {np.flatnonzero(mask).tolist()}")
        if not done and not mask.any():
            return DeadEnd(
                f"the state {where} is not terminal and has no legal action (mask {mask.astype(int).tolist()})"
            )
        if not actions and bmask.any():
            return MaskMismatch(f"the source has legal backward actions {np.flatnonzero(bmask).tolist()}")
        if actions and not bmask.any():
            return MaskMismatch(
                f"the state {where} has no legal backward action, but was reached by action {actions[-1]}"
            )
        back, legal, home, again, child = jax.tree.map(np.asarray, self._ahead(state))
        groups: dict[tuple[bytes, int], int] = {}
        keys = self.env.keys(child)
        for a in np.flatnonzero(mask):
            if not legal[a]:
                return MaskMismatch(
                    f"action {a} is legal in {where}, but its backward action {back[a]} is not legal in the child"
                )
            if not home[a]:
                return MaskMismatch(f"undoing action {a} (backward action {back[a]}) does not give {where} back")
            if again[a] != a:
                return MaskMismatch(f"action {a} of {where} has backward action {back[a]}, whose action is {again[a]}")
            edge = (keys[a].tobytes(), int(back[a]))
            if edge in groups:
                return MaskMismatch(
                    f"actions {groups[edge]} and {a} of {where} share the backward action {back[a]} of one child"
                )
            groups[edge] = int(a)
        act, legal, same, again = (np.asarray(x) for x in self._behind(state))
        for b in np.flatnonzero(bmask):
            if not legal[b]:
                return MaskMismatch(
                    f"backward action {b} is legal in {where}, but its action {act[b]} is not legal in the parent"
                )
            if not same[b]:
                return MaskMismatch(
                    f"backward action {b} of {where} leads to a parent whose action {act[b]} does not lead back"
                )
            if again[b] != b:
                return MaskMismatch(
                    f"backward action {b} of {where} has action {act[b]}, whose backward action is {again[b]}"
                )
        return None


def _equal(a: State, b: State) -> Any:
    same = [jnp.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return jnp.stack(same).all()


def _shrunk(env: Environment, probe: _Probe, actions: list[int], error: Exception) -> tuple[list[int], Exception]:
    """Leave out actions one by one as long as a failure of the same kind remains."""
    i = 0
    while i < len(actions):
        shorter = actions[:i] + actions[i + 1 :]
        found = _replayed(env, probe, shorter)
        if found is not None and type(found[1]) is type(error):
            actions, error = found
            i = 0
        else:
            i += 1
    return actions, error


def _replayed(env: Environment, probe: _Probe, actions: list[int]) -> tuple[list[int], Exception] | None:
    state = env.reset()
    for t, action in enumerate(actions):
        found = probe.state(state, actions[:t])
        if found is not None:
            return actions[:t], found
        if not probe.mask(state)[action]:
            return None
        state = probe.step(state, jnp.int32(action))
    found = probe.state(state, actions)
    return None if found is None else (actions, found)
