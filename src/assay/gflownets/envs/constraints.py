"""Constraints on sequences as exact masks: an automaton that knows which prefixes can still be completed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from assay.gflownets.errors import DeadEnd, GFlowNetError

_MOST_STATES = 200_000


@dataclass(frozen=True)
class Constraints:
    """What a sequence must and must not hold.

    Parameters
    ----------
    forbidden : tuple of str
        Motifs that may not occur.
    fixed : dict of int to str
        Letters of positions (from 0).
    counts : dict of str to (int, int)
        Least and most occurrences of any of the letters in the key, such as ``{"GC": (2, 5)}``.
    """

    forbidden: tuple[str, ...] = ()
    fixed: Mapping[int, str] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Automaton(eqx.Module):
    """Product of a motif automaton and counters, with the prefixes that can still be completed.

    Attributes
    ----------
    move : int32[states, letters]
    viable : bool[max_len + 1, states]
        Whether a prefix of that length in that state can be completed.
    accept : bool[states]
    """

    move: Int[Array, "states letters"]
    viable: Bool[Array, "lengths states"]
    accept: Bool[Array, " states"]
    fixed: Int[Array, " length"]

    @classmethod
    def build(cls, rules: Constraints, letters: tuple[str, ...], max_len: int, min_len: int) -> Automaton:
        """Compile constraints.

        Raises
        ------
        GFlowNetError
            If they name a letter or position that does not exist.
        DeadEnd
            If no sequence satisfies them.
        """
        code = {letter: i for i, letter in enumerate(letters)}
        for letter in [
            *(c for m in rules.forbidden for c in m),
            *rules.fixed.values(),
            *(c for g in rules.counts for c in g),
        ]:
            if letter not in code:
                raise GFlowNetError(f"a constraint names {letter!r}, which is not in the alphabet")
        fixed = np.full(max_len, -1, np.int32)
        for position, letter in rules.fixed.items():
            if not 0 <= position < max_len:
                raise GFlowNetError(f"position {position} of a constraint lies outside 0..{max_len - 1}")
            fixed[position] = code[letter]
        motifs = [tuple(code[c] for c in m) for m in rules.forbidden if m]
        prefixes = {m[:i] for m in motifs for i in range(len(m))} | {()}
        groups = [({code[c] for c in group}, low, high) for group, (low, high) in rules.counts.items()]

        def after(node: tuple, letter: int) -> tuple | None:
            prefix, counts = node
            text = (*prefix, letter)
            if any(text[-len(m) :] == m for m in motifs):
                return None
            while text not in prefixes:
                text = text[1:]
            new = tuple(min(c + (letter in g), high + 1) for c, (g, _, high) in zip(counts, groups, strict=True))
            return None if any(c > high for c, (_, _, high) in zip(new, groups, strict=True)) else (text, new)

        start: tuple = ((), (0,) * len(groups))
        number, queue, moves = {start: 0}, [start], []
        for node in queue:
            row = []
            for token in range(len(letters)):
                child = after(node, token)
                if child is not None and child not in number:
                    if len(number) >= _MOST_STATES:
                        raise GFlowNetError(
                            f"these constraints need more than {_MOST_STATES:,} automaton states; use fewer counts"
                        )
                    number[child] = len(queue)
                    queue.append(child)
                row.append(-1 if child is None else number[child])
            moves.append(row)
        move = np.array(moves, np.int32)
        accept = np.array([all(c >= low for c, (_, low, _) in zip(counts, groups, strict=True)) for _, counts in queue])
        viable = np.zeros((max_len + 1, len(queue)), bool)
        for n in range(max_len, -1, -1):
            if n >= min_len:
                viable[n] = accept & ~(fixed[n:] >= 0).any()  # a fixed position may not be left out
            if n < max_len:
                ok = (move >= 0) & viable[n + 1][move]
                if fixed[n] >= 0:
                    ok &= np.arange(len(letters)) == fixed[n]
                viable[n] |= ok.any(1)
        if not viable[0, 0]:
            raise DeadEnd("no sequence satisfies these constraints; loosen one of them")
        return cls(jnp.asarray(move), jnp.asarray(viable), jnp.asarray(accept), jnp.asarray(fixed))

    def _state(self, tokens: Array, n: Array) -> Array:
        size = self.move.shape[1]

        def read(state: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
            token, i = item
            next_state = self.move[state, jnp.clip(token, 0, size - 1)]
            return jnp.where((i < n) & (state >= 0), next_state, state), None

        return jax.lax.scan(read, jnp.zeros((), jnp.int32), (tokens, jnp.arange(tokens.shape[0])))[0]

    def allowed(self, tokens: Array, n: Array) -> tuple[Array, Array]:
        """Letters that keep the prefix completable, and whether it may end here."""
        state = self._state(tokens, n)
        following = jnp.minimum(n + 1, self.viable.shape[0] - 1)
        moves = self.move[state]
        ok = (moves >= 0) & self.viable[following][moves]
        here = self.fixed[jnp.minimum(n, self.fixed.shape[0] - 1)]
        ok = ok & ((here < 0) | (jnp.arange(moves.shape[0]) == here))
        left_out = ((self.fixed >= 0) & (jnp.arange(self.fixed.shape[0]) >= n)).any()
        return ok, self.accept[state] & ~left_out

    def accepts(self, tokens: Array) -> Array:
        """Whether a finished sequence satisfies all constraints."""
        n = (tokens < self.move.shape[1]).sum()
        state = self._state(tokens, n)
        wrong = (self.fixed >= 0) & (tokens != self.fixed)
        return (state >= 0) & self.accept[state] & ~wrong.any()
