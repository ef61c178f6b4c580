"""Extended persistence of a function on a graph, and distances of diagrams.

Ordinary pairs are made by merging sublevel components (minimum, saddle), relative ones by superlevel components
(maximum, saddle), each component of the graph has one essential pair (its minimum and maximum), and each independent
loop one pair (its lowest and its highest point, paired by the elder rule). After Cohen-Steiner, Edelsbrunner and Harer,
"Extending persistence using Poincare and Lefschetz duality" (2009).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

Diagram = Float[np.ndarray, "_ 2"]


def extended_persistence(
    n: int,
    edges: Int[np.ndarray, "E 2"],
    height: Float[np.ndarray, " n"],
    *,
    lengths: Float[np.ndarray, " E"] | None = None,
) -> dict[str, Diagram]:
    """Extended persistence of a graph, parallel edges and loops allowed.

    With ``lengths`` the function along an edge rises at unit speed from both ends and meets at a peak (distances from
    a point do so);
    without, it is linear.

    Returns
    -------
    dict
        ``ordinary``, ``relative``, ``essential``, ``loop``: pairs (birth, death) without those of equal values.

    Examples
    --------
    >>> found = extended_persistence(4, np.array([[0, 1], [1, 2], [2, 3], [3, 0]]), np.array([0.0, 1.0, 3.0, 2.0]))
    >>> found["loop"].tolist(), found["essential"].tolist()
    ([[3.0, 0.0]], [[0.0, 3.0]])
    """
    f = np.asarray(height, dtype=np.float64)
    edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    if lengths is not None:
        peaks = np.maximum((f[edges[:, 0]] + f[edges[:, 1]] + lengths) / 2, np.maximum(f[edges[:, 0]], f[edges[:, 1]]))
        count = len(f)
        f = np.concatenate([f, peaks])
        middle = np.arange(count, count + len(edges))
        edges = np.concatenate([np.stack([edges[:, 0], middle], axis=1), np.stack([middle, edges[:, 1]], axis=1)])
        n = len(f)
    rise = np.maximum(f[edges[:, 0]], f[edges[:, 1]])
    fall = np.minimum(f[edges[:, 0]], f[edges[:, 1]])
    ordinary, joined = _merge(n, edges, f, rise, +1)
    relative, _ = _merge(n, edges, f, fall, -1)
    essential = _ranges(n, edges, f)
    return {
        "ordinary": ordinary,
        "relative": relative,
        "essential": essential,
        "loop": _loops(n, edges, f, rise, fall, joined),
    }


def _merge(
    n: int, edges: NDArray[np.int64], f: NDArray[np.float64], value: NDArray[np.float64], sign: int
) -> tuple[Diagram, NDArray[np.bool_]]:
    parent = np.arange(n)

    def root(v: int) -> int:
        while parent[v] != v:
            parent[v] = parent[parent[v]]
            v = int(parent[v])
        return v

    pairs, joins = [], np.zeros(len(edges), dtype=bool)
    for e in np.argsort(sign * value, kind="stable"):
        a, b = root(int(edges[e, 0])), root(int(edges[e, 1]))
        if a == b:
            continue
        joins[e] = True
        old, young = (a, b) if sign * f[a] <= sign * f[b] else (b, a)
        parent[young] = old
        if sign * value[e] > sign * f[young]:
            pairs.append((f[young], value[e]))
    return np.array(pairs, dtype=np.float64).reshape(-1, 2), joins


def _ranges(n: int, edges: NDArray[np.int64], f: NDArray[np.float64]) -> Diagram:
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    graph = sparse.csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    count, labels = connected_components(graph, directed=False)
    return np.array([(f[labels == c].min(), f[labels == c].max()) for c in range(count)], dtype=np.float64)


def _loops(
    n: int,
    edges: NDArray[np.int64],
    f: NDArray[np.float64],
    rise: NDArray[np.float64],
    fall: NDArray[np.float64],
    joins: NDArray[np.bool_],
) -> Diagram:
    """Each edge that closes a loop going up is paired with the lowest edge it can be exchanged for.

    Going up, an edge that does not join components closes a loop at its upper value. Going through these in that order
    while a maximum spanning tree by lower value is kept, the edge that falls out of the tree is the bottom of the loop.
    """
    tree: dict[int, set[int]] = {v: set() for v in range(n)}
    pairs = []
    for e in sorted(np.flatnonzero(np.ones(len(edges), dtype=bool)), key=lambda e: (rise[e], not joins[e])):
        a, b = (int(v) for v in edges[e])
        path = _tree_path(tree, edges, a, b)
        if path is None:
            tree[a].add(int(e))
            tree[b].add(int(e))
            continue
        lowest = min([*path, int(e)], key=lambda x: fall[x])
        if rise[e] > fall[lowest]:
            pairs.append((rise[e], fall[lowest]))
        if lowest != e:
            for v in edges[lowest]:
                tree[int(v)].discard(lowest)
            tree[a].add(int(e))
            tree[b].add(int(e))
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def _tree_path(tree: dict[int, set[int]], edges: NDArray[np.int64], a: int, b: int) -> list[int] | None:
    """Edges of the forest between two vertices, [] for a vertex and itself, None where they are not joined."""
    came: dict[int, tuple[int, int]] = {a: (-1, -1)}
    stack = [a]
    while stack:
        v = stack.pop()
        if v == b:
            path = []
            while came[v][0] >= 0:
                before, e = came[v]
                path.append(e)
                v = before
            return path
        for e in tree[v]:
            u = int(edges[e, 0] + edges[e, 1] - v)
            if u not in came:
                came[u] = (v, e)
                stack.append(u)
    return None


def _costs(a: Diagram, b: Diagram) -> NDArray[np.float64]:
    """Distances with a diagonal point for each point: max norm, half the persistence to the diagonal."""
    n, m = len(a), len(b)
    cost = np.zeros((n + m, n + m))
    if n and m:
        cost[:n, :m] = cdist(a, b, "chebyshev")
    cost[:n, m:] = np.abs(a[:, 1] - a[:, 0])[:, None] / 2 if n else 0.0
    cost[n:, :m] = np.abs(b[:, 1] - b[:, 0])[None] / 2 if m else 0.0
    return cost


def wasserstein(a: Diagram, b: Diagram) -> float:
    """1-Wasserstein distance of diagrams with the max norm.

    Examples
    --------
    >>> wasserstein(np.array([[0.0, 1.0]]), np.empty((0, 2)))
    0.5
    """
    if not len(a) and not len(b):
        return 0.0
    cost = _costs(a, b)
    rows, columns = linear_sum_assignment(cost)
    return float(cost[rows, columns].sum())


def bottleneck(a: Diagram, b: Diagram) -> float:
    """Bottleneck distance of diagrams: the least bound under which all points can be matched."""
    if not len(a) and not len(b):
        return 0.0
    cost = _costs(a, b)
    values = np.unique(cost)
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        over = (cost > values[middle]).astype(np.float64)
        rows, columns = linear_sum_assignment(over)
        if over[rows, columns].sum() == 0:
            high = middle
        else:
            low = middle + 1
    return float(values[low])
