"""Sequences over an alphabet, built by appending, by appending and prepending, by inserting, or slot by slot."""

from __future__ import annotations

import math
from collections.abc import Sequence as Listing
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Int

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.envs.constraints import Automaton, Constraints
from assay.gflownets.errors import GFlowNetError

MODES = ("append", "prepend_append", "insert", "any_order")


class SequenceState(NamedTuple):
    """Tokens (``size`` = empty), how many there are, and whether the end token was placed."""

    tokens: Int[Array, " length"]
    n: Int[Array, ""]
    stopped: Bool[Array, ""]


class Sequence(Environment):
    """Sequences with up to ``max_len`` letters.

    Actions, for K letters: ``append`` c; ``prepend_append`` c to append, K + c to prepend (on the empty string both
    lead to one child, as parallel edges); ``insert`` gap * K + c; ``any_order`` slot * K + c. With ``variable`` a
    last action ends the sequence, and is the only one at full length.

    Parameters
    ----------
    alphabet : str or sequence of str
        Letters, or names of building blocks.
    max_len : int
    reward : callable
        ``int32[max_len] tokens -> log R`` in JAX, or a `HostReward`.
    mode : {"append", "prepend_append", "insert", "any_order"}
    variable : bool
        Sequences may end before ``max_len``.
    min_len : int
    constraints : Constraints, optional
        Forbidden motifs, fixed positions, bounds on counts (``append`` only): exact masks, no dead ends.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> env = Sequence("AB", 3, lambda tokens: jnp.log(1.0 + (tokens == 1).sum()))
    >>> from assay.gflownets import StateGraph
    >>> graph = StateGraph(env)
    >>> graph.n_terminal, round(float(jnp.exp(graph.log_z)), 4)
    (8, 20.0)
    """

    letters: tuple[str, ...] = eqx.field(static=True)
    max_len: int = eqx.field(static=True)
    mode: str = eqx.field(static=True)
    variable: bool = eqx.field(static=True)
    min_len: int = eqx.field(static=True)
    reward: Any
    automaton: Automaton | None

    def __init__(
        self,
        alphabet: str | Listing[str],
        max_len: int,
        reward: Any,
        mode: str = "append",
        *,
        variable: bool = False,
        min_len: int = 1,
        constraints: Constraints | None = None,
    ) -> None:
        letters = tuple(alphabet)
        if len(letters) < 1 or len(set(letters)) != len(letters):
            raise GFlowNetError(f"an alphabet needs distinct letters, not {alphabet!r}")
        if mode not in MODES:
            raise GFlowNetError(f"there is no mode {mode!r}; there is {', '.join(MODES)}")
        if variable and mode == "any_order":
            raise GFlowNetError("any_order fills every slot; variable=True needs another mode")
        if max_len < 1 or not 0 <= min_len <= max_len:
            raise GFlowNetError(f"lengths must hold 0 <= min_len <= max_len, max_len >= 1, not {min_len} and {max_len}")
        if constraints is not None and mode != "append":
            raise GFlowNetError(f"constraints need mode='append', not {mode!r}")
        self.letters, self.max_len, self.mode, self.variable, self.reward = letters, max_len, mode, variable, reward
        self.min_len = min_len if variable else max_len
        self.automaton = (
            Automaton.build(constraints, letters, max_len, self.min_len) if constraints is not None else None
        )

    @property
    def size(self) -> int:
        """Number of letters."""
        return len(self.letters)

    @property
    def _edits(self) -> int:
        return {"append": 1, "prepend_append": 2}.get(self.mode, self.max_len) * self.size

    @property
    def _removals(self) -> int:
        return {"append": 1, "prepend_append": 2}.get(self.mode, self.max_len)

    n_actions = property(lambda self: self._edits + self.variable)
    n_bactions = property(lambda self: self._removals + self.variable)
    max_steps = property(lambda self: self.max_len + self.variable)
    stop_action = property(lambda self: self._edits if self.variable else None)
    obs_spec = property(lambda self: ObsSpec("codes", self.max_len, self.size + 1))

    def reset(self) -> SequenceState:
        return SequenceState(
            jnp.full(self.max_len, self.size, jnp.int32), jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        )

    def _place(self, action: Array, n: Array) -> tuple[Array, Array]:
        """Position and letter of an action."""
        letter = action % self.size
        if self.mode == "append":
            return n, letter
        if self.mode == "prepend_append":
            return jnp.where(action < self.size, n, 0), letter
        return action // self.size, letter

    def step(self, state: SequenceState, action: Array) -> SequenceState:
        where, letter = self._place(action, state.n)
        slots = jnp.arange(self.max_len)
        if self.mode in ("append", "any_order"):
            tokens = state.tokens
        else:
            tokens = jnp.where(slots > where, jnp.roll(state.tokens, 1), state.tokens)
        tokens = jnp.where(slots == where, letter.astype(jnp.int32), tokens)
        if not self.variable:
            return SequenceState(tokens, state.n + 1, state.stopped)
        stop = action == self._edits
        return SequenceState(jnp.where(stop, state.tokens, tokens), state.n + ~stop, state.stopped | stop)

    def _at(self, baction: Array, n: Array) -> Array:
        if self.mode == "append":
            return n - 1
        if self.mode == "prepend_append":
            return jnp.where(baction == 0, n - 1, 0)
        return baction

    def undo(self, state: SequenceState, baction: Array) -> SequenceState:
        where = self._at(baction, state.n)
        slots = jnp.arange(self.max_len)
        if self.mode == "any_order":
            tokens = jnp.where(slots == where, self.size, state.tokens)
        else:
            shifted = jnp.append(state.tokens[1:], self.size)
            tokens = jnp.where(slots >= where, shifted, state.tokens)
        if not self.variable:
            return SequenceState(tokens, state.n - 1, state.stopped)
        stop = baction == self._removals
        return SequenceState(jnp.where(stop, state.tokens, tokens), state.n - ~stop, state.stopped & ~stop)

    def mask(self, state: SequenceState) -> Array:
        room = state.n < self.max_len
        if self.mode == "any_order":
            edits = jnp.repeat(state.tokens == self.size, self.size)
        elif self.mode == "insert":
            edits = jnp.repeat(jnp.arange(self.max_len) <= state.n, self.size) & room
        else:
            edits = jnp.broadcast_to(room, (self._edits,))
        may_stop = state.n >= self.min_len
        if self.automaton is not None:
            allowed, accepted = self.automaton.allowed(state.tokens, state.n)
            edits, may_stop = edits & allowed, may_stop & accepted
        if not self.variable:
            return edits
        return jnp.append(edits, may_stop) & ~state.stopped

    def bmask(self, state: SequenceState) -> Array:
        if self.mode in ("append", "prepend_append"):
            removals = jnp.broadcast_to(state.n > 0, (self._removals,))
        elif self.mode == "insert":
            removals = jnp.arange(self.max_len) < state.n
        else:
            removals = state.tokens < self.size
        if not self.variable:
            return removals
        return jnp.append(removals & ~state.stopped, state.stopped)

    def baction(self, state: SequenceState, action: Array, child: SequenceState) -> Array:
        if self.mode == "append":
            found = jnp.zeros_like(action)
        else:
            found = action // self.size
        return jnp.where(action == self._edits, self._removals, found) if self.variable else found

    def faction(self, state: SequenceState, baction: Array, parent: SequenceState) -> Array:
        letter = state.tokens[jnp.clip(self._at(baction, state.n), 0, self.max_len - 1)]
        if self.mode == "append":
            found = letter
        else:
            found = baction * self.size + letter
        return jnp.where(baction == self._removals, self._edits, found) if self.variable else found

    def done(self, state: SequenceState) -> Array:
        return state.stopped if self.variable else state.n == self.max_len

    def obs(self, state: SequenceState) -> Array:
        return state.tokens

    def view(self, state: SequenceState) -> Array:
        return state.tokens

    def log_reward(self, state: SequenceState) -> Array:
        batched = getattr(self.reward, "batched", None)
        if batched is not None:
            return batched(state.tokens[None])[0]
        return self.reward(state.tokens)

    def log_paths(self, state: SequenceState) -> Array:
        if self.mode == "append":
            return jnp.zeros(())
        if self.mode == "prepend_append":
            return state.n * math.log(2.0)  # parallel edges out of the empty string count twice
        return gammaln(state.n + 1.0)

    def index(self, state: SequenceState) -> Array:
        """Number of a terminal sequence, first letter most significant: in base K, or in base K + 1 where lengths vary
        (an empty place is the last digit)."""
        base = self.size + self.variable
        return (state.tokens * jnp.asarray(base ** np.arange(self.max_len - 1, -1, -1))).sum(-1)

    def decode(self, tokens: Any) -> list[Any]:
        """Token rows as strings (letters of one character) or tuples of names."""
        rows = [[self.letters[t] for t in row if t < self.size] for row in np.asarray(tokens).tolist()]
        plain = all(len(letter) == 1 for letter in self.letters)
        return ["".join(row) if plain else tuple(row) for row in rows]

    def encode(self, objects: Listing[Any]) -> np.ndarray:
        """``int32[objects, max_len]`` of strings or tuples.

        Raises
        ------
        GFlowNetError
            If one is too long or too short, or holds an unknown letter; the message names it.
        """
        code = {letter: i for i, letter in enumerate(self.letters)}
        tokens = np.full((len(objects), self.max_len), self.size, np.int32)
        for row, item in enumerate(objects):
            if not self.min_len <= len(item) <= self.max_len:
                raise GFlowNetError(
                    f"object {row} ({item!r}) has {len(item)} letters; {self.min_len} to {self.max_len} are legal"
                )
            for j, letter in enumerate(item):
                if letter not in code:
                    raise GFlowNetError(f"object {row} ({item!r}) holds {letter!r}, which is not in the alphabet")
                tokens[row, j] = code[letter]
        return tokens

    def objects(self, states: SequenceState) -> list[Any]:
        return self.decode(states.tokens)

    def states_of(self, objects: Listing[Any]) -> SequenceState:
        tokens = self.encode(objects)
        states = SequenceState(
            jnp.asarray(tokens),
            jnp.asarray((tokens < self.size).sum(1).astype(np.int32)),
            jnp.full(len(tokens), self.variable),
        )
        if self.automaton is not None:
            good = np.asarray(jax.vmap(self.automaton.accepts)(states.tokens))
            if not good.all():
                raise GFlowNetError(
                    f"object {int(np.argmin(good))} ({objects[int(np.argmin(good))]!r}) breaks a constraint"
                )
        return states
