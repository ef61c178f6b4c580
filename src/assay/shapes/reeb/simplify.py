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
    points: set[int]
    near: set[int] = field(default_factory=set)


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
        self.nodes: dict[int, _Node] = {
            v: _Node(
                int(level.slab[v]),
                float(level.height[v]),
                float(level.low[v]),
                float(level.high[v]),
                set(level.members[v].tolist()),
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

    def mass(self, points: set[int] | NDArray[np.int64]) -> float:
        """Share of cells."""
        index = np.fromiter(points, dtype=np.int64, count=len(points)) if isinstance(points, set) else points
        return float(self.weights[index].sum()) / self.total

    def betti(self) -> tuple[int, int]:
        """Components and independent loops."""
        edges = sum(len(node.near) for node in self.nodes.values()) // 2
        b0 = len(self.parts())
        return b0, edges - len(self.nodes) + b0

    def connect(self, coordinates: NDArray[np.float64]) -> None:
        """Join pieces of the graph by the closest pair of nodes in neighbouring or equal slabs, until it is one."""
        while len(parts := self.parts()) > 1:
            heaviest = max(parts, key=lambda part: sum(len(self.nodes[v].points) for v in part))
            centre = {v: coordinates[list(node.points)].mean(axis=0) for v, node in self.nodes.items()}
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
        w1, w2 = len(one.points), len(other.points)
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
        points = set().union(*(self.nodes[v].points for v in chain))
        if branch is not None:
            points -= self.nodes[branch].points
        mass = self.mass(points)
        length = float(np.abs(np.diff(heights)).sum()) / self.range
        index = np.fromiter(points, dtype=np.int64, count=len(points))
        feature = Feature(
            "leaf", length * mass**0.5, self._unit(heights[0]), self._unit(heights[-1]), mass, np.sort(index)
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
        wanted = set(points.tolist())
        arcs = [arc for arc in (self.leaf_feature(v) for v in self.leaves()) if arc[2] is not None]
        if arcs:
            _, chain, branch = max(arcs, key=lambda arc: len(wanted & set(arc[0].points.tolist())))
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

    def loop_features(self) -> list[tuple[Feature, int, int]]:
        """Pairs of nodes in one slab that are joined both above and below, with the loop they span, weakest first."""
        slabs: dict[int, list[int]] = {}
        for v, node in self.nodes.items():
            slabs.setdefault(node.slab, []).append(v)
        above, below = self._joined(slabs, +1), self._joined(slabs, -1)
        found = []
        for nodes in slabs.values():
            for i, a in enumerate(nodes):
                for b in nodes[i + 1 :]:
                    if above[a] != above[b] or below[a] != below[b]:
                        continue
                    up, side_up = self._meeting(a, b, +1)
                    down, side_down = self._meeting(a, b, -1)
                    if up is None or down is None:
                        continue
                    light = min((self._side(side_up[i] | side_down[i]) for i in (0, 1)), key=lambda s: s[1])
                    height = (up - down) / self.range
                    strength = height * min(1.0, (2 * light[1]) ** 0.5)
                    points = np.fromiter(light[0], dtype=np.int64, count=len(light[0]))
                    found.append(
                        (Feature("loop", strength, self._unit(down), self._unit(up), light[1], np.sort(points)), a, b)
                    )
        return sorted(found, key=lambda item: item[0].persistence)

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

    def _side(self, nodes: set[int]) -> tuple[set[int], float]:
        points = set().union(*(self.nodes[v].points for v in nodes)) if nodes else set()
        return points, self.mass(points) if points else 0.0

    def _meeting(self, a: int, b: int, sign: int) -> tuple[float | None, tuple[set[int], set[int]]]:
        """Lens where two nodes meet going up (or down), and what lies on either side before.

        Edges join neighbouring slabs (longer ones were made by `connect` and lie on no loop), so a step looks at the
        nodes of the slab before and at what is reached from there.
        """
        start = sign * self.nodes[a].slab
        reach: tuple[set[int], set[int]] = ({a}, {b})
        edge = [[a], [b]]
        s = start
        while edge[0] and edge[1]:
            s += 1
            before = (set(reach[0]), set(reach[1]))
            for k, side in enumerate(reach):
                stack, ahead = edge[k], []
                while stack:
                    for u in self.nodes[stack.pop()].near:
                        if u not in side and start <= sign * self.nodes[u].slab <= s:
                            side.add(u)
                            stack.append(u)
                            if sign * self.nodes[u].slab == s:
                                ahead.append(u)
                edge[k] = ahead
            common = reach[0] & reach[1]
            if common:
                top = [self.nodes[v].height for v in common if sign * self.nodes[v].slab == s]
                heights = top or [self.nodes[v].height for v in common]
                return (min(heights) if sign > 0 else max(heights)), before
        return None, (set(), set())

    def merge_loops(self, floor: float) -> None:
        """Close the weakest loop while it is below the floor, by merging its two sides where they face each other."""
        while True:
            weak = [item for item in self.loop_features() if item[0].persistence < floor]
            touched: set[int] = set()
            for _, a, b in weak:  # a round closes all weak loops whose nodes are still as they were
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
        loops: list[Feature] = []
        _, b1 = self.betti()
        for feature, _, _ in reversed(self.loop_features()):
            if len(loops) == b1:
                break
            own = set(feature.points.tolist())
            if all(len(own & set(other.points.tolist())) < 0.5 * min(len(own), len(other.points)) for other in loops):
                loops.append(feature)
        return found + loops

    def _unit(self, value: float) -> float:
        return (value - self.base) / self.range
