"""Rooted binary trees over taxa, by joining two roots of a forest at a time (Zhou et al. 2024, PhyloGFN; parsimony)."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int, Integer

from assay.gflownets.envs.base import Environment, ObsSpec
from assay.gflownets.errors import GFlowNetError

_SKETCH = 32  # width of the random projection of a node's sets


class PhyloState(NamedTuple):
    """A forest.

    A tree sits in the slot of its first leaf. Joining slots i < j puts the new tree into slot i and empties j for
    good, so the new inner node is called n + j - 1: a name that depends on the forest alone, not on the order in
    which it was built.

    Attributes
    ----------
    root : int32[leaves]
        Node at each slot, -1 where there is none.
    left, right : int32[leaves]
        Children of the inner node n + j - 1, at position j; -1 where it does not exist.
    sets : uint8[nodes, patterns]
        Fitch sets as bits (A 1, C 2, G 4, T 8, gap 16); 0 for nodes that do not exist.
    mutations : int32[leaves]
        Mutations counted at the inner node of position j.
    price : int32[leaves, leaves]
        Mutations that joining two slots would cost; 0 where there are no two trees.
    sketch : float32[nodes, width]
        A random projection of each node's sets; 0 for nodes that do not exist.
    """

    root: Int[Array, " leaves"]
    left: Int[Array, " leaves"]
    right: Int[Array, " leaves"]
    sets: Integer[Array, "nodes patterns"]
    mutations: Int[Array, " leaves"]
    price: Int[Array, "leaves leaves"]
    sketch: Float[Array, "nodes width"]


class PhyloTree(Environment):
    """log R = (C - parsimony) / scale over rooted binary trees.

    Parameters
    ----------
    sets : uint8[taxa, sites]
        Fitch sets of the taxa, as `read_alignment` gives them.
    names : sequence of str
    C : float
        Constant that makes rewards moderate; 0 if left out. It changes log Z, never the distribution.
    scale : float

    Notes
    -----
    Equal columns are merged into patterns with weights, and columns that can never cost a mutation are dropped.

    A network sees, of each slot, what joining it with each other slot would cost, a random projection of its sets (our
    design: both are kept in the state and only change where a tree changes, so a step costs O(taxa x patterns)), and
    whether a tree is there.
    """

    leaves: Integer[Array, "taxa patterns"]
    projection: Float[Array, "bits width"]
    weights: Int[Array, " patterns"]
    n: int = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    C: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    pairs: tuple[tuple[int, int], ...] = eqx.field(static=True)

    def __init__(self, sets: Any, names: Any = None, C: float = 0.0, scale: float = 4.0) -> None:
        table = np.asarray(sets, np.uint8)
        if table.ndim != 2 or len(table) < 2:
            raise GFlowNetError(f"a tree needs an alignment of at least two taxa, not {table.shape}")
        if (table == 0).any():
            raise GFlowNetError("a Fitch set of the alignment is empty")
        if scale <= 0:
            raise GFlowNetError(f"scale must be positive, not {scale}")
        patterns, counts = np.unique(table.T, axis=0, return_counts=True)
        varies = np.bitwise_and.reduce(patterns, axis=1) == 0
        if not varies.any():
            varies[0] = True
        self.leaves = jnp.asarray(patterns[varies].T)
        self.weights = jnp.asarray(counts[varies].astype(np.int32))
        self.n = len(table)
        draws = np.random.default_rng(0).standard_normal((5 * int(varies.sum()), _SKETCH))
        self.projection = jnp.asarray(draws / np.sqrt(len(draws)), jnp.float32)
        self.names = tuple(names) if names is not None else tuple(f"t{i}" for i in range(self.n))
        self.C, self.scale = float(C), float(scale)
        self.pairs = tuple(itertools.combinations(range(self.n), 2))

    n_actions = property(lambda self: len(self.pairs))
    n_bactions = property(lambda self: self.n)
    max_steps = property(lambda self: self.n - 1)
    obs_spec = property(lambda self: ObsSpec("pairs", self.n, self.n + _SKETCH + 1))

    def reset(self) -> PhyloState:
        empty = jnp.full(self.n, -1, jnp.int32)
        inner = jnp.zeros((self.n - 1, self.leaves.shape[1]), jnp.uint8)
        price = jax.lax.map(lambda one: self._clashes(one, self.leaves), self.leaves)
        sketch = jnp.zeros((2 * self.n - 1, _SKETCH), jnp.float32)
        return PhyloState(
            jnp.arange(self.n, dtype=jnp.int32),
            empty,
            empty,
            jnp.concatenate([self.leaves, inner]),
            jnp.zeros(self.n, jnp.int32),
            jnp.where(jnp.eye(self.n, dtype=bool), 0, price),
            sketch.at[: self.n].set(self._sketch(self.leaves)),
        )

    def _clashes(self, one: Array, others: Array) -> Array:
        """Mutations between one row of sets and others."""
        return (((one & others) == 0) * self.weights).sum(-1).astype(jnp.int32)

    def _sketch(self, sets: Array) -> Array:
        bits = ((sets[..., None] >> jnp.arange(5, dtype=jnp.uint8)) & 1).reshape(*sets.shape[:-1], -1)
        return (bits.astype(jnp.float32) - 0.5) @ self.projection

    def _priced(self, state: PhyloState, slot: Array) -> PhyloState:
        """The state with the prices of one slot computed from its sets."""
        there = (state.root >= 0) & (jnp.arange(self.n) != slot) & (state.root[slot] >= 0)
        sets = state.sets[jnp.maximum(state.root, 0)]
        row = jnp.where(there, self._clashes(sets[slot], sets), 0)
        return state._replace(price=state.price.at[slot].set(row).at[:, slot].set(row))

    def _pair(self, action: Array) -> tuple[Array, Array]:
        table = np.asarray(self.pairs, np.int32)
        return jnp.asarray(table[:, 0])[action], jnp.asarray(table[:, 1])[action]

    def step(self, state: PhyloState, action: Array) -> PhyloState:
        i, j = self._pair(action)
        a, b = state.root[i], state.root[j]
        one, two = state.sets[a], state.sets[b]
        common = one & two
        joined = jnp.where(common == 0, one | two, common)
        node = self.n + j - 1
        child = PhyloState(
            state.root.at[i].set(node).at[j].set(-1),
            state.left.at[j].set(a),
            state.right.at[j].set(b),
            state.sets.at[node].set(joined),
            state.mutations.at[j].set(state.price[i, j]),
            state.price.at[j].set(0).at[:, j].set(0),
            state.sketch.at[node].set(self._sketch(joined)),
        )
        return self._priced(child, i)

    def undo(self, state: PhyloState, baction: Array) -> PhyloState:
        j = baction
        node = self.n + j - 1
        i = jnp.argmax(state.root == node)
        parent = PhyloState(
            state.root.at[i].set(state.left[j]).at[j].set(state.right[j]),
            state.left.at[j].set(-1),
            state.right.at[j].set(-1),
            state.sets.at[node].set(0),
            state.mutations.at[j].set(0),
            state.price,
            state.sketch.at[node].set(0.0),
        )
        return self._priced(self._priced(parent, i), j)

    def mask(self, state: PhyloState) -> Array:
        there = state.root >= 0
        table = np.asarray(self.pairs, np.int32)
        return there[table[:, 0]] & there[table[:, 1]]

    def bmask(self, state: PhyloState) -> Array:
        # position j may be undone where its inner node is a root
        nodes = self.n - 1 + jnp.arange(self.n)
        roots = (state.root[:, None] == nodes[None, :]).any(0)
        return roots & (state.left >= 0)

    def baction(self, state: PhyloState, action: Array, child: PhyloState) -> Array:
        return self._pair(action)[1]

    def faction(self, state: PhyloState, baction: Array, parent: PhyloState) -> Array:
        i = jnp.argmax(state.root == self.n + baction - 1)
        return (i * self.n - i * (i + 1) // 2 + baction - i - 1).astype(jnp.int32)

    def done(self, state: PhyloState) -> Array:
        return (state.root >= 0).sum() == 1

    def obs(self, state: PhyloState) -> Array:
        there = state.root >= 0
        sketch = jnp.where(there[:, None], state.sketch[jnp.maximum(state.root, 0)], 0.0)
        return jnp.concatenate([state.price / self.scale, sketch, there[:, None]], axis=1).astype(jnp.float32)

    def parsimony(self, state: PhyloState) -> Array:
        """Mutations counted so far."""
        return state.mutations.sum()

    def log_reward(self, state: PhyloState) -> Array:
        return (self.C - self.parsimony(state)) / self.scale

    def potential(self, state: PhyloState) -> Array:
        # C is spread over the n - 1 merges (gfnx divides by n, so that its gains miss log R by a constant)
        merges = (state.left >= 0).sum()
        return (self.C * merges / (self.n - 1) - self.parsimony(state)) / self.scale

    def log_paths(self, state: PhyloState) -> Array:
        """Orders of the merges: m! over the product of the sizes (in inner nodes) of all subtrees."""
        sizes = self._inner_sizes(state)
        there = state.left >= 0
        return gammaln(there.sum() + 1.0) - jnp.where(there, jnp.log(jnp.maximum(sizes, 1.0)), 0.0).sum()

    def _inner_sizes(self, state: PhyloState) -> Array:
        n = self.n
        sizes = jnp.zeros(2 * n - 1)
        there = state.left >= 0
        for_nodes = jnp.arange(n) + n - 1

        def grow(sizes: Array, _: None) -> tuple[Array, None]:
            new = jnp.where(there, 1.0 + sizes[state.left] + sizes[state.right], 0.0)
            return sizes.at[for_nodes[1:]].set(new[1:]), None

        sizes, _ = jax.lax.scan(grow, sizes, None, length=n - 1)
        return sizes[for_nodes]

    def index(self, state: PhyloState) -> Array:
        """Number of a tree, below (2n - 3)!!, for at most 11 taxa.

        Leaf k was put on one of the 2k - 1 edges of the tree over the leaves before it: the edge above its sibling in
        the tree restricted to leaves 0..k. These choices are the digits, the last leaf's least significant.

        Raises
        ------
        GFlowNetError
            For more than 11 taxa, whose trees outnumber 32-bit integers.
        """
        if self.n > 11:
            raise GFlowNetError(f"{self.n} taxa have more trees than a 32-bit number can count; index needs n <= 11")
        number = jnp.zeros((), jnp.int32)
        for k in range(1, self.n):
            sibling = state.left[k]
            for _ in range(k + 1, self.n):  # nodes that exist only because of later leaves restrict to their left side
                later = sibling - self.n + 1 > k
                sibling = jnp.where(later, state.left[jnp.where(later, sibling - self.n + 1, 0)], sibling)
            digit = jnp.where(sibling < self.n, sibling, k + sibling - self.n)
            number = number * (2 * k - 1) + digit
        return number

    def keys(self, states: PhyloState) -> np.ndarray:
        rows = np.concatenate([np.asarray(states.left), np.asarray(states.right)], axis=1).astype(np.int16)
        return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 2))).ravel()

    def objects(self, states: PhyloState) -> list[str]:
        """Newick strings."""
        left, right, root = (np.asarray(a) for a in (states.left, states.right, states.root))
        return [_newick(left[k], right[k], int(root[k].max()), self.names) + ";" for k in range(len(root))]

    def states_of(self, objects: Any) -> PhyloState:
        """States of Newick strings (branch lengths and inner labels are ignored)."""
        from assay.gflownets.trees import parse_newick

        number = {name: i for i, name in enumerate(self.names)}
        step = eqx.filter_jit(self.step)
        found = []
        for row, text in enumerate(objects):
            state = self.reset()
            merges = parse_newick(text, number)
            if len(merges) != self.n - 1:
                raise GFlowNetError(f"tree {row} is not a rooted binary tree over the {self.n} taxa of this alignment")
            for i, j in merges:
                state = step(state, jnp.int32(i * self.n - i * (i + 1) // 2 + j - i - 1))
            found.append(state)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def _newick(left: np.ndarray, right: np.ndarray, node: int, names: tuple[str, ...]) -> str:
    n = len(left)
    # Recursion would meet Python's limit on caterpillar trees of many taxa.
    text: dict[int, str] = {}
    stack = [(node, False)]
    while stack:
        at, ready = stack.pop()
        if at < n:
            name = names[at]
            text[at] = name if name.replace("_", "").replace(".", "").isalnum() else "'" + name.replace("'", "''") + "'"
            continue
        j = at - n + 1
        if ready:
            text[at] = f"({text[int(left[j])]},{text[int(right[j])]})"
        else:
            stack += [(at, True), (int(right[j]), False), (int(left[j]), False)]
    return text[node]
