"""Level-set slabs of a lens, each with its single linkage; graphs of slab components at any epsilon, and the maps
between.

One minimum spanning tree a slab holds the whole Vietoris-Rips filtration of its connected components, so the components
at every epsilon are read off and none is computed twice. Pairs that are neighbours in the neighbour graph count as
joined from the start (distance 0): the graph follows the local density, and one epsilon for all slabs would have to be
as large as the sparsest stretch needs, where dense branches are one long before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

LEAST_CELLS = 5


@dataclass
class Slabs:
    """Overlapping intervals of a lens.

    Attributes
    ----------
    bounds : float64[h, 2]
    members : list of int64[m_s]
        Points with ``bounds[s, 0] <= lens <= bounds[s, 1]``.
    linkages : list of float64[m_s - 1, 4]
        Single linkage of each slab (SciPy's form); empty for slabs of 0 or 1 point.
    crossings : int64[e, 2]
        Edges of the neighbour graph from the last slab of one point to the first slab of another, the next slab up.
    """

    bounds: Float[np.ndarray, "h 2"]
    members: list[NDArray[np.int64]]
    linkages: list[NDArray[np.float64]]
    crossings: Int[np.ndarray, "edges 2"] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))

    def components(self, slab: int, epsilon: float) -> NDArray[np.int64]:
        """Label of each member: its component in the graph of all pairs within ``epsilon`` and all neighbours."""
        m = len(self.members[slab])
        if m < 2:
            return np.zeros(m, dtype=np.int64)
        Z = self.linkages[slab]
        count = int(np.searchsorted(Z[:, 2], epsilon, "right"))
        parent = np.arange(m + count)
        parent[Z[:count, :2].astype(np.int64)] = (m + np.arange(count))[:, None]
        while True:  # each round halves the way to the root
            further = parent[parent]
            if np.array_equal(further, parent):
                return np.unique(parent[:m], return_inverse=True)[1].astype(np.int64)
            parent = further

    def ladder(self, n_levels: int) -> Float[np.ndarray, " levels"]:
        """0 (the neighbour graph alone), then a geometric ladder of epsilon over the joins that it does not make.

        Without a graph: from the median edge of the spanning trees to the longest.
        """
        heights = np.concatenate([Z[:, 2] for Z in self.linkages] or [np.empty(0)])
        joined = bool((heights == 0).any())
        heights = heights[heights > 0]
        if not len(heights):
            return np.zeros(1)
        high = float(heights.max()) * (1 + 1e-9)
        if not joined:
            return np.geomspace(max(float(np.median(heights)), 1e-6 * high), high, n_levels)
        low = max(float(heights.min()), 1e-3 * high)
        return np.concatenate([[0.0], np.geomspace(low, high, n_levels - 1)]) if n_levels > 1 else np.array([high])


def slab_bounds(
    lens: Float[np.ndarray, " n"], n_intervals: int, overlap: float, weights: Float[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "h 2"]:
    """Intervals whose borders are half way between equal lengths and equal masses, each widened by ``overlap``.

    Examples
    --------
    >>> slab_bounds(np.linspace(0, 1, 101), 2, 0.5).tolist()
    [[0.0, 0.625], [0.375, 1.0]]
    """
    low, high = float(lens.min()), float(lens.max())
    steps = np.linspace(0, 1, n_intervals + 1)
    order = np.argsort(lens, kind="stable")
    mass = np.ones(len(lens)) if weights is None else weights
    share = np.cumsum(mass[order]) - 0.5 * mass[order]
    by_mass = np.interp(steps, share / mass.sum(), lens[order])
    by_mass[0], by_mass[-1] = low, high
    borders = 0.5 * (low + (high - low) * steps) + 0.5 * by_mass
    width = np.diff(borders)
    bounds = np.stack([borders[:-1] - 0.5 * overlap * width, borders[1:] + 0.5 * overlap * width], axis=1)
    return np.clip(bounds, low, high)


def make_slabs(
    lens: Float[np.ndarray, " n"],
    coordinates: Float[np.ndarray, "n q"],
    n_intervals: int,
    overlap: float = 0.3,
    weights: Float[np.ndarray, " n"] | None = None,
    graph: sparse.csr_array | None = None,
) -> Slabs:
    """Slabs of a lens and the single linkage of each, by Euclidean distance of ``coordinates``.

    With a ``graph`` of neighbours these are at distance 0, and components of adjacent slabs are also joined by its
    edges: where cells are sparse, two slabs of one arc may share none.
    """
    bounds = slab_bounds(lens, n_intervals, overlap, weights)
    order = np.argsort(lens, kind="stable")
    ordered = lens[order]
    first = np.searchsorted(ordered, bounds[:, 0], "left")
    last = np.searchsorted(ordered, bounds[:, 1], "right")
    members = [np.sort(order[a:b]) for a, b in zip(first, last, strict=True)]
    linkages = [_single_linkage(coordinates[m], None if graph is None else graph[m][:, m]) for m in members]
    if graph is None:
        return Slabs(bounds, members, linkages)
    lowest, highest = np.full(len(lens), -1), np.full(len(lens), -1)
    for s, points in enumerate(members):
        highest[points] = s
        lowest[points] = np.where(lowest[points] < 0, s, lowest[points])
    a, b = graph.tocoo().coords
    across = lowest[b] == highest[a] + 1
    return Slabs(bounds, members, linkages, np.stack([a[across], b[across]], axis=1).astype(np.int64))


def _single_linkage(points: NDArray[np.float64], graph: sparse.csr_array | None) -> NDArray[np.float64]:
    m = len(points)
    if m < 2:
        return np.empty((0, 4))
    distances = pdist(points)
    if graph is not None:
        i, j = graph.tocoo().coords
        upper = i < j
        i, j = i[upper].astype(np.int64), j[upper].astype(np.int64)
        distances[m * i + j - (i + 2) * (i + 1) // 2] = 0.0
    return linkage(distances, "single")


@dataclass
class LevelGraph:
    """Components of all slabs at one epsilon, joined where they share cells.

    Attributes
    ----------
    epsilon : float
    slab : int64[V]
        Slab of each node.
    members : list of int64[.]
        Points of each node.
    mass : float64[V]
        Cells of each node.
    height : float64[V]
        Mean lens.
    low, high : float64[V]
        Least and largest lens.
    edges : int64[E, 2]
    """

    epsilon: float
    slab: Int[np.ndarray, " V"]
    members: list[NDArray[np.int64]]
    mass: Float[np.ndarray, " V"]
    height: Float[np.ndarray, " V"]
    low: Float[np.ndarray, " V"]
    high: Float[np.ndarray, " V"]
    edges: Int[np.ndarray, "E 2"]

    def __len__(self) -> int:
        return len(self.slab)


def level_graph(
    slabs: Slabs, epsilon: float, lens: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], least_mass: float
) -> LevelGraph:
    """The graph at one epsilon.

    A component lighter than ``least_mass`` cells is left out unless it bridges: shares cells with two components of
    neighbouring slabs. So a sparse stretch does not break an arc, and a stray cell is no node. Where nothing is heavy
    enough, everything stays.
    """
    n = len(lens)
    slab_of: list[int] = []
    members: list[NDArray[np.int64]] = []
    edges: list[NDArray[np.int64]] = []
    below: NDArray[np.int64] = np.full(n, -1)
    first: NDArray[np.int64] = np.full(n, -1)
    last: NDArray[np.int64] = np.full(n, -1)
    for s, points in enumerate(slabs.members):
        here: NDArray[np.int64] = np.full(n, -1)
        if len(points):
            labels = slabs.components(s, epsilon)
            here[points] = last[points] = len(slab_of) + labels
            first[points] = np.where(first[points] < 0, here[points], first[points])
            sizes = np.bincount(labels)
            members += np.split(points[np.argsort(labels, kind="stable")], np.cumsum(sizes)[:-1])
            slab_of += [s] * len(sizes)
            shared = np.flatnonzero((here >= 0) & (below >= 0))
            if len(shared):
                pairs = np.unique(below[shared] * (len(slab_of) + 1) + here[shared])
                edges.append(np.stack(np.divmod(pairs, len(slab_of) + 1), axis=1))
        below = here
    near = slabs.crossings
    edges.append(np.stack([last[near[:, 0]], first[near[:, 1]]], axis=1))
    a, b = np.concatenate(edges).T
    pairs = np.stack(np.divmod(np.unique(a * (len(members) + 1) + b), len(members) + 1), axis=1)
    sizes = np.array([len(m) for m in members], dtype=np.int64)
    order = np.concatenate(members) if members else np.empty(0, dtype=np.int64)
    node = np.repeat(np.arange(len(members)), sizes)
    mass = np.bincount(node, weights[order], minlength=len(members))
    bridges = np.bincount(pairs.ravel(), minlength=len(members)) >= 2
    kept = np.flatnonzero((mass >= least_mass) | bridges)
    if not len(kept):  # a component so small that no slab has enough of it
        kept = np.arange(len(members))
    number = np.full(len(members), -1)
    number[kept] = np.arange(len(kept))
    pairs = number[pairs]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    height = np.bincount(node, weights[order] * lens[order], minlength=len(members)) / np.maximum(mass, 1e-300)
    low = np.minimum.reduceat(lens[order], starts) if len(order) else np.empty(0)
    high = np.maximum.reduceat(lens[order], starts) if len(order) else np.empty(0)
    return LevelGraph(
        float(epsilon),
        np.array(slab_of, dtype=np.int64)[kept],
        [members[v] for v in kept],
        mass[kept],
        height[kept],
        low[kept],
        high[kept],
        pairs[(pairs >= 0).all(axis=1)],
    )


def level_map(fine: LevelGraph, coarse: LevelGraph) -> Int[np.ndarray, " V"]:
    """Node of the coarser graph that holds each node of the finer one (components merge and never split).

    -1 for a light node whose two neighbours have merged, so that it bridges nothing any more (never with a least mass
    of 0).
    """
    if not len(fine) or not len(coarse):
        return np.full(len(fine), -1, dtype=np.int64)
    sizes = np.array([len(m) for m in coarse.members])
    points = np.concatenate(coarse.members)
    wide = 1 + max(int(points.max()), *(int(m[0]) for m in fine.members))
    keys = np.repeat(coarse.slab, sizes) * wide + points  # a point is in one component of each of its slabs
    order = np.argsort(keys)
    wanted = fine.slab * wide + np.array([m[0] for m in fine.members])
    place = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    owner = np.repeat(np.arange(len(coarse)), sizes)[order[place]]
    return np.where(keys[order[place]] == wanted, owner, -1)
