"""Births and deaths of the nodes and edges of a tower: over which epsilons each is there.

Going from fine to coarse, a node dies when it merges with a heavier one of its slab (the elder rule, by mass instead of
age) or is too light to be a node any more; a new one is born where pieces lighter than the least mass merge into a
node. An edge follows its two nodes; of two edges that become one the older stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from assay.shapes.reeb.slabs import LevelGraph


@dataclass
class Lifetime:
    """Of a node or an edge.

    Attributes
    ----------
    kind : str
        ``node`` or ``edge``.
    birth : float
        Epsilon of the first level that has it.
    death : float
        Epsilon of the first level that has it no more; infinite where the last one has it.
    mass : float
        Cells of a node when it was born; of an edge those of its lighter node.
    slabs : tuple of int
        Slab of a node, slabs of an edge's nodes.
    """

    kind: str
    birth: float
    death: float
    mass: float
    slabs: tuple[int, ...]


def lifetimes(levels: Sequence[LevelGraph], maps: Sequence[Int[np.ndarray, " V"]]) -> list[Lifetime]:
    """Lifetimes of all nodes and edges of a tower, nodes first.

    Parameters
    ----------
    levels : sequence of LevelGraph
        Fine to coarse.
    maps : sequence of int64[V_l]
        As `assay.shapes.reeb.slabs.level_map` gives them, one fewer than levels.
    """
    nodes: list[Lifetime] = []
    edges: list[Lifetime] = []
    alive: list[int] = []  # number among `nodes` of each node of the level
    links: dict[tuple[int, int], int] = {}
    for number, level in enumerate(levels):
        now = [-1] * len(level)
        if number:
            order = np.argsort(-levels[number - 1].mass, kind="stable")
            for v in order.tolist():
                u = int(maps[number - 1][v])
                if u >= 0 and now[u] < 0:
                    now[u] = alive[v]
                else:
                    nodes[alive[v]].death = level.epsilon
            heir = {alive[v]: now[int(u)] for v, u in enumerate(maps[number - 1]) if u >= 0}
        else:
            heir = {}
        for u in range(len(level)):
            if now[u] < 0:
                now[u] = len(nodes)
                nodes.append(Lifetime("node", level.epsilon, np.inf, float(level.mass[u]), (int(level.slab[u]),)))
        moved: dict[tuple[int, int], int] = {}
        for (a, b), e in sorted(links.items(), key=lambda item: edges[item[1]].birth):
            pair = _pair(heir.get(a, -1), heir.get(b, -1))
            if pair[0] < 0 or pair[0] == pair[1] or pair in moved:
                edges[e].death = level.epsilon
            else:
                moved[pair] = e
        present = {_pair(now[a], now[b]): (a, b) for a, b in level.edges.tolist()}
        for pair, e in moved.items():
            if pair not in present:
                edges[e].death = level.epsilon
        links = {}
        for pair, (a, b) in present.items():
            if pair in moved:
                links[pair] = moved[pair]
                continue
            links[pair] = len(edges)
            light = float(min(level.mass[a], level.mass[b]))
            slabs = (int(level.slab[a]), int(level.slab[b]))
            edges.append(Lifetime("edge", level.epsilon, np.inf, light, slabs))
        alive = now
    return nodes + edges


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
