"""From a graph of slab components to its features: leaf arcs and loops, their persistence, and the graph without the
weak.

Heights are in units of the component's lens range and masses in shares of its cells, so persistences are pure numbers
that can be compared between data sets: a leaf arc has (change of the lens along it) x sqrt(share of cells on it); a
loop has its lens height x sqrt(2 x share of cells on its lighter side), which is its height alone where both sides are
halves of the cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.shapes.reeb.slabs import LevelGraph


@dataclass
class Feature:
    """A leaf arc or a loop of a graph.

    Attributes
    ----------
    kind : str
        ``leaf`` or ``loop``.
    persistence : float
    birth, death : float
        Lens at the tip and at the branch point of a leaf arc; lowest and highest lens of a loop.
    mass : float
        Share of the component's cells.
    points : int64[.]
        Points on the arc, or on the loop's lighter side.
    """

    kind: str
    persistence: float
    birth: float
    death: float
    mass: float
    points: NDArray[np.int64]
    confidence: float = 1.0
    confirmed: bool = False


@dataclass
class _Node:
    slab: int
    height: float
    low: float
    high: float
    points: int  # a set of points, one bit each
    near: set[int] = field(default_factory=set)


@dataclass
class _Loop:
    strength: float
    low: float
    high: float
    mass: float
    points: int
    pair: tuple[int, int]


class ReebGraph:
    """A graph of slab components that can be simplified.

    Parameters
    ----------
    level : LevelGraph
    lens : float64[n]
        Of the component's points.
    weights : float64[n]
    """

    def __init__(self, level: LevelGraph, lens: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        self.lens, self.weights = lens, weights
        self.base = float(lens.min()) if len(lens) else 0.0
        self.range = max(float(np.ptp(lens)), 1e-12) if len(lens) else 1.0
        self.total = float(weights.sum())
        equal = len(weights) > 0 and bool((weights == weights[0]).all())
        self._each = float(weights[0]) / self.total if equal else None
        self.nodes: dict[int, _Node] = {
            v: _Node(
                int(level.slab[v]),
                float(level.height[v]),
                float(level.low[v]),
                float(level.high[v]),
                self.bits(level.members[v]),
            )
            for v in range(len(level))
        }
        for a, b in level.edges.tolist():
            self.nodes[a].near.add(b)
            self.nodes[b].near.add(a)

    def parts(self) -> list[set[int]]:
        """Connected components, as sets of nodes."""
        left, found = set(self.nodes), []
        while left:
            part, stack = set(), [left.pop()]
            while stack:
                v = stack.pop()
                part.add(v)
                new = self.nodes[v].near - part
                stack += new
                left -= new
                part |= new
            found.append(part)
        return found

    def bits(self, index: NDArray[np.int64]) -> int:
        """A set of points as a whole number: point i is bit i."""
        flags = np.zeros(len(self.lens), dtype=bool)
        flags[index] = True
        return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")

    def index(self, bits: int) -> NDArray[np.int64]:
        """The points of a set, ascending."""
        n = len(self.lens)
        raw = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(raw, count=n, bitorder="little"))

    def points_of(self, node: int) -> NDArray[np.int64]:
        """Points of a node, ascending."""
        return self.index(self.nodes[node].points)

    def mass(self, bits: int) -> float:
        """Share of cells."""
        if self._each is not None:
            return bits.bit_count() * self._each
        return float(self.weights[self.index(bits)].sum()) / self.total

    def betti(self) -> tuple[int, int]:
        """Components and independent loops."""
        edges = sum(len(node.near) for node in self.nodes.values()) // 2
        b0 = len(self.parts())
        return b0, edges - len(self.nodes) + b0

    def connect(self, coordinates: NDArray[np.float64]) -> None:
        """Join pieces of the graph by the closest pair of nodes in neighbouring or equal slabs, until it is one."""
        while len(parts := self.parts()) > 1:
            heaviest = max(parts, key=lambda part: sum(self.nodes[v].points.bit_count() for v in part))
            centre = {v: coordinates[self.points_of(v)].mean(axis=0) for v in self.nodes}
            pairs = [
                (
                    max(0, abs(self.nodes[a].slab - self.nodes[b].slab) - 1),
                    float(np.linalg.norm(centre[a] - centre[b])),
                    a,
                    b,
                )
                for a in heaviest
                for part in parts
                if part is not heaviest
                for b in part
            ]
            _, _, a, b = min(pairs)
            if self.nodes[a].slab == self.nodes[b].slab:
                self._merge(a, b)
            else:
                self.nodes[a].near.add(b)
                self.nodes[b].near.add(a)

    def _merge(self, a: int, b: int) -> None:
        one, other = self.nodes[a], self.nodes.pop(b)
        for v in other.near:
            self.nodes[v].near.discard(b)
            if v != a:
                self.nodes[v].near.add(a)
                one.near.add(v)
        one.near.discard(a)
        w1, w2 = one.points.bit_count(), other.points.bit_count()
        one.height = (one.height * w1 + other.height * w2) / (w1 + w2)
        one.low, one.high = min(one.low, other.low), max(one.high, other.high)
        one.points |= other.points

    # Leaf arcs

    def chain(self, leaf: int) -> tuple[list[int], int | None]:
        """Nodes from a leaf to the next branch node, and that node (None where the graph is a path)."""
        chain, before, v = [], None, leaf
        while len(self.nodes[v].near) <= 2:
            chain.append(v)
            onward = [u for u in self.nodes[v].near if u != before]
            if not onward:
                return chain, None
            before, v = v, onward[0]
        return chain, v

    def leaf_feature(self, leaf: int) -> tuple[Feature, list[int], int | None]:
        """The leaf arc that ends in this node."""
        chain, branch = self.chain(leaf)
        heights = [self.nodes[v].height for v in chain]
        tip = self.nodes[leaf]
        if len(chain) > 1 or branch is not None:
            nxt = self.nodes[chain[1] if len(chain) > 1 else branch].height  # type: ignore[index]
            heights[0] = tip.high if tip.height >= nxt else tip.low
        if branch is not None:
            heights.append(self.nodes[branch].height)
        points = 0
        for v in chain:
            points |= self.nodes[v].points
        if branch is not None:
            points &= ~self.nodes[branch].points
        mass = self.mass(points)
        length = float(np.abs(np.diff(heights)).sum()) / self.range
        feature = Feature(
            "leaf", length * mass**0.5, self._unit(heights[0]), self._unit(heights[-1]), mass, self.index(points)
        )
        return feature, chain, branch

    def leaves(self) -> list[int]:
        """Nodes of degree at most 1."""
        return [v for v, node in self.nodes.items() if len(node.near) <= 1]

    def prune_leaves(self, floor: float, closed_minimum: bool = False) -> None:
        """Take the weakest leaf arc away while it is below the floor; its points go to its branch node.

        With ``closed_minimum`` the arc that ends at the least value of the lens goes too, however long it is.
        """
        while True:
            arcs = [self.leaf_feature(v) for v in self.leaves()]
            arcs = [
                arc
                for arc in arcs
                if arc[2] is not None and (arc[0].persistence < floor or (closed_minimum and arc[0].birth <= 1e-9))
            ]
            if not arcs:
                return
            _, chain, branch = min(arcs, key=lambda arc: arc[0].persistence)
            self._fold(chain, branch)  # type: ignore[arg-type]

    def prune_leaf(self, points: NDArray[np.int64]) -> None:
        """Take away the leaf arc that shares most with these points."""
        arcs = [arc for arc in (self.leaf_feature(v) for v in self.leaves()) if arc[2] is not None]
        if arcs:
            _, chain, branch = max(arcs, key=lambda arc: len(np.intersect1d(points, arc[0].points)))
            self._fold(chain, branch)  # type: ignore[arg-type]

    def _fold(self, chain: list[int], branch: int) -> None:
        keeper = self.nodes[branch]
        for v in chain:
            node = self.nodes.pop(v)
            for u in node.near:
                if u in self.nodes:
                    self.nodes[u].near.discard(v)
            keeper.points |= node.points

    # Loops

    def _loops(self) -> list[_Loop]:
        """Pairs of nodes in one slab that are joined both above and below, with the loop they span, weakest first."""
        slabs: dict[int, list[int]] = {}
        for v, node in self.nodes.items():
            slabs.setdefault(node.slab, []).append(v)
        above, below = self._joined(slabs, +1), self._joined(slabs, -1)
        found = []
        for s, nodes in slabs.items():
            pairs = [
                (a, b)
                for i, a in enumerate(nodes)
                for b in nodes[i + 1 :]
                if above[a] == above[b] and below[a] == below[b]
            ]
            if not pairs:
                continue
            up, down = self._meetings(slabs, s, pairs, +1), self._meetings(slabs, s, pairs, -1)
            for a, b in pairs:
                if (a, b) not in up or (a, b) not in down:
                    continue
                high, *over = up[a, b]
                low, *under = down[a, b]
                sides = [over[i] | under[i] for i in (0, 1)]
                mass, light = min(((self.mass(side), side) for side in sides), key=lambda item: item[0])
                strength = (high - low) / self.range * min(1.0, (2 * mass) ** 0.5)
                found.append(_Loop(strength, low, high, mass, light, (a, b)))
        return sorted(found, key=lambda loop: loop.strength)

    def _meetings(
        self, slabs: dict[int, list[int]], start: int, pairs: list[tuple[int, int]], sign: int
    ) -> dict[tuple[int, int], tuple[float, int, int]]:
        """Where pairs of nodes of one slab meet going up (down, for -1): the lens there, and the points that each of
        the two reaches before.

        Slab after slab is added to a forest of what is joined so far, so each edge is looked at once for all pairs.
        Edges join neighbouring slabs; longer ones were made by `connect` and lie on no loop.
        """
        parent = {v: v for v in slabs[start]}
        points = {v: self.nodes[v].points for v in slabs[start]}

        def root(v: int) -> int:
            while parent[v] != v:
                parent[v] = parent[parent[v]]
                v = parent[v]
            return v

        found: dict[tuple[int, int], tuple[float, int, int]] = {}
        for s in sorted((s for s in slabs if sign * s > sign * start), key=lambda s: sign * s):
            before = {v: points[root(v)] for pair in pairs for v in pair}
            for v in slabs[s]:
                parent[v], points[v] = v, self.nodes[v].points
            for v in slabs[s]:
                for u in self.nodes[v].near:
                    if u in parent:
                        a, b = root(u), root(v)
                        if a != b:
                            parent[a] = b
                            points[b] |= points.pop(a)
            nearest: dict[int, float] = {}
            for v in slabs[s]:
                r, height = root(v), sign * self.nodes[v].height
                nearest[r] = min(nearest.get(r, height), height)
            waiting = []
            for a, b in pairs:
                r = root(a)
                if r == root(b):
                    found[a, b] = (sign * nearest[r], before[a], before[b])
                else:
                    waiting.append((a, b))
            pairs = waiting
            if not pairs:
                break
        return found

    def _joined(self, slabs: dict[int, list[int]], sign: int) -> dict[int, int]:
        """For each node a label: nodes of one slab share it where they are joined at or above that slab (below, for
        -1).
        """
        parent: dict[int, int] = {}

        def root(v: int) -> int:
            while parent[v] != v:
                parent[v] = parent[parent[v]]
                v = parent[v]
            return v

        labels: dict[int, int] = {}
        for s in sorted(slabs, reverse=sign > 0):
            parent.update({v: v for v in slabs[s]})
            for v in slabs[s]:
                for u in self.nodes[v].near:
                    if u in parent:
                        parent[root(u)] = root(v)
            labels.update({v: root(v) for v in slabs[s]})
        return labels

    def merge_loops(self, floor: float) -> None:
        """Close the weakest loop while it is below the floor, by merging its two sides where they face each other."""
        while True:
            weak = [loop.pair for loop in self._loops() if loop.strength < floor]
            touched: set[int] = set()
            for a, b in weak:  # a round closes all weak loops whose nodes are still as they were
                if a not in touched and b not in touched:
                    touched |= {a, b}
                    self._merge(a, b)
            if not weak and not self._merge_zigzag(floor):
                return

    def _merge_zigzag(self, floor: float) -> bool:
        """Close cycles of less lens height than the floor that run to and fro between slabs, so that no pair spans
        them.
        """
        if self.betti()[1] == 0:
            return False
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(sorted(self.nodes))
        graph.add_edges_from(sorted((v, u) for v, node in self.nodes.items() for u in node.near if v < u))
        weak: list[tuple[float, int, int]] = []
        for cycle in networkx.cycle_basis(graph):
            heights = [self.nodes[v].height for v in cycle]
            height = (max(heights) - min(heights)) / self.range
            if height < floor:
                turns = [(v, cycle[(k + 2) % len(cycle)]) for k, v in enumerate(cycle)]
                weak += [(height, v, u) for v, u in turns if u != v and self.nodes[u].slab == self.nodes[v].slab][:1]
        touched: set[int] = set()
        for _, v, u in sorted(weak):
            if v not in touched and u not in touched:
                touched |= {v, u}
                self._merge(v, u)
        return bool(touched)

    def simplify(self, leaf_floor: float, loop_floor: float, closed_minimum: bool = False) -> ReebGraph:
        """Both kinds of pruning, until nothing is below its floor."""
        while True:
            size = len(self.nodes)
            self.merge_loops(loop_floor)
            self.prune_leaves(leaf_floor, closed_minimum)
            if len(self.nodes) == size:
                return self

    def features(self) -> list[Feature]:
        """Leaf arcs and independent loops of the graph as it is."""
        leaves = [self.leaf_feature(v) for v in self.leaves()]
        found = [feature for feature, _, branch in leaves if branch is not None]
        if not found and leaves and len(self.nodes) > 1:
            found = [feature for feature, _, _ in leaves]
        chosen: list[_Loop] = []
        _, b1 = self.betti()
        for loop in reversed(self._loops()) if b1 else ():
            if len(chosen) == b1:
                break
            size = loop.points.bit_count()
            if all(
                (loop.points & other.points).bit_count() < 0.5 * min(size, other.points.bit_count()) for other in chosen
            ):
                chosen.append(loop)
        return found + [
            Feature(
                "loop", loop.strength, self._unit(loop.low), self._unit(loop.high), loop.mass, self.index(loop.points)
            )
            for loop in chosen
        ]

    def _unit(self, value: float) -> float:
        return (value - self.base) / self.range
