"""The points on which a tower is built: all cells, or landmarks of many cells; their graph, and their components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree

from assay.shapes.cache import BasisCache
from assay.shapes.kernel import (
    BANDWIDTH_NEIGHBOR,
    Diffusion,
    Neighbors,
    alpha_decay_kernel,
    diffusion_map,
    nearest_neighbors,
    without_density,
)

SPLIT_RATIO = 0.1
SPLIT_SHARE = 0.02
ALL_CELLS = 5000
STRAY = 1.5
COMPANIONS = 3
STRAY_SHARE = 0.2


@dataclass
class Points:
    """Points with weights, a symmetric kernel on them, and what links them to cells.

    Attributes
    ----------
    X : float64[m, r]
    weights : float64[m]
        Cells that each point stands for.
    kernel : csr_array[m, m]
        Symmetric; its row sums over those of P's stationary measure.
    adjacency : csr_array[m, m]
        Pattern of pairs joined by an edge of the neighbour graph.
    point_of : int64[n]
        Point of each distinct cell; of a stray cell that of its nearest other cell.
    stray : bool[n]
        Cells that lie alone (see `stray_cells`) and are no points, nor part of landmarks.
    extend : csr_array[n, m], optional
        P_nm: what carries functions on landmarks to cells; None where points are cells.
    """

    X: Float[np.ndarray, "m r"]
    weights: Float[np.ndarray, " m"]
    kernel: sparse.csr_array
    kernel_weights: Float[np.ndarray, " m"]
    adjacency: sparse.csr_array
    neighbors: Neighbors
    point_of: Int[np.ndarray, " n"]
    stray: NDArray[np.bool_]
    extend: sparse.csr_array | None = None

    def __len__(self) -> int:
        return len(self.X)


def make_points(
    X: Float[np.ndarray, "n r"],
    weights: Float[np.ndarray, " n"],
    *,
    n_neighbors: int,
    decay: float,
    n_landmarks: int,
    n_jobs: int = 1,
    random_state: int = 0,
    neighbors: Neighbors | None = None,
    cache: BasisCache | None = None,
) -> Points:
    """Neighbour graph, kernel without density, and, past 5000 cells, ``n_landmarks`` landmarks.

    The compressed operator is P_mn P_nm: from a landmark to the cells of its kernel, and back. With K the kernel
    between cells and C the indicator of the landmark of each cell, it is the row-normalised (K C)^T D^-1 (K C), which
    is symmetric.
    """
    found = neighbors or _neighbors(X, n_neighbors, n_jobs, random_state, cache)
    raw = alpha_decay_kernel(found, decay=decay)
    stray = stray_cells(found)
    core = np.flatnonzero(~stray)
    nearest_core = _nearest_core(X, stray, found, n_jobs)
    if stray.any():
        raw = raw[core][:, core].tocsr()
    kernel = without_density(raw, weights[core])
    if len(core) <= max(ALL_CELLS, n_landmarks):
        return Points(X[core], weights[core], kernel, weights[core], raw, found, nearest_core, stray)
    Y, w = X[core], weights[core]
    nearest = _landmarks(Y, n_landmarks, random_state, n_jobs)
    _, nearest = np.unique(nearest, return_inverse=True)
    n, m = len(Y), int(nearest.max()) + 1
    indicator = sparse.csr_array((w, (np.arange(n), nearest)), shape=(n, m))
    to_landmarks = (kernel @ indicator).tocsr()
    extend = (sparse.diags_array(1.0 / np.asarray(to_landmarks.sum(axis=1)).ravel()) @ to_landmarks).tocsr()
    compressed = (to_landmarks.T @ sparse.diags_array(w) @ extend).tocsr()
    compressed = (0.5 * (compressed + compressed.T)).tocsr()
    pattern = sparse.csr_array((np.ones(n), (np.arange(n), nearest)), shape=(n, m))
    links = (pattern.T @ (raw @ pattern)).tocsr()
    links.setdiag(1.0)
    mass = np.bincount(nearest, w, minlength=m)
    centres = np.stack([np.bincount(nearest, w * Y[:, j], minlength=m) / mass for j in range(Y.shape[1])], axis=1)
    point_of = nearest.astype(np.int64)[nearest_core]
    if stray.any():
        extend = extend[nearest_core].tocsr()
    return Points(centres, mass, compressed, np.ones(m), links, found, point_of, stray, extend)


def _neighbors(X: NDArray[np.float64], k: int, n_jobs: int, random_state: int, cache: BasisCache | None) -> Neighbors:
    if cache is None:
        return nearest_neighbors(X, k, n_jobs=n_jobs, random_state=random_state)

    def make() -> dict[str, NDArray[Any]]:
        found = nearest_neighbors(X, k, n_jobs=n_jobs, random_state=random_state)
        return {
            "indices": found.indices,
            "distances": found.distances,
            "method": np.array(found.method),
            "recall": np.array(found.recall),
        }

    kept = cache.get(cache.key("neighbors", X, k, random_state), make)
    return Neighbors(kept["indices"], kept["distances"], str(kept["method"]), float(kept["recall"]))


def stray_cells(neighbors: Neighbors) -> NDArray[np.bool_]:
    """Cells that lie alone: their distance to the tenth neighbour is over twice the median of their neighbours' own.

    A local outlier factor (Breunig et al. 2000) of distances instead of reachability densities. Such cells would join
    arcs that have nothing to do with each other. At most a fifth of the cells, the loneliest, count.

    Examples
    --------
    >>> X = np.append(np.linspace(0, 1, 200), 9.0)[:, None]
    >>> np.flatnonzero(stray_cells(nearest_neighbors(X, 15))).tolist()
    [200]
    """
    k = neighbors.distances.shape[1]
    reach = neighbors.distances[:, min(BANDWIDTH_NEIGHBOR, k) - 1]
    own = neighbors.distances[:, min(COMPANIONS, k) - 1]
    ratio = own / np.maximum(np.median(reach[neighbors.indices], axis=1), 1e-12)
    return ratio > max(STRAY, float(np.quantile(ratio, 1 - STRAY_SHARE)))


def _nearest_core(
    X: NDArray[np.float64], stray: NDArray[np.bool_], neighbors: Neighbors, n_jobs: int
) -> NDArray[np.int64]:
    """Number among the cells that are not stray of each cell, or of the nearest such cell."""
    number = np.cumsum(~stray) - 1
    out = number.astype(np.int64)
    lost = np.flatnonzero(stray)
    if not len(lost):
        return out
    good = ~stray[neighbors.indices[lost]]
    first = neighbors.indices[lost, good.argmax(axis=1)]
    out[lost] = number[first]
    alone = lost[~good.any(axis=1)]
    if len(alone):
        out[alone] = cKDTree(X[~stray]).query(X[alone], workers=n_jobs)[1]
    return out


def _landmarks(X: NDArray[np.float64], m: int, random_state: int, n_jobs: int) -> NDArray[np.int64]:
    """k-means++ on a random subset, three rounds of Lloyd, and the nearest landmark of every cell."""
    from sklearn.cluster import kmeans_plusplus

    rng = np.random.default_rng(random_state)
    subset = X[rng.choice(len(X), min(len(X), 5 * m), replace=False)]
    centres, _ = kmeans_plusplus(subset, m, random_state=random_state, n_local_trials=1)
    for _ in range(3):
        nearest = cKDTree(centres).query(subset, workers=n_jobs)[1]
        counts = np.bincount(nearest, minlength=m)
        sums = np.stack([np.bincount(nearest, subset[:, j], minlength=m) for j in range(X.shape[1])], axis=1)
        centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
    return cKDTree(centres).query(X, workers=n_jobs)[1]


@dataclass
class Component:
    """A connected part of the data, with a diffusion of its own.

    Attributes
    ----------
    points : int64[c]
    diffusion : Diffusion
    coordinates : float64[c, q]
        In which distance is the diffusion distance D_t.
    graph : csr_array[c, c]
        Edges of the neighbour graph with their lengths in these coordinates.
    weights : float64[c]
    """

    points: Int[np.ndarray, " c"]
    diffusion: Diffusion
    coordinates: Float[np.ndarray, "c q"]
    graph: sparse.csr_array
    weights: Float[np.ndarray, " c"]


def diffusion_component(
    points: Points,
    index: Int[np.ndarray, " c"],
    n_components: int,
    t: int | str,
    random_state: int,
    *,
    distance: str = "diffusion",
    cache: BasisCache | None = None,
    start: Float[np.ndarray, "c q"] | None = None,
) -> Component:
    """Diffusion restricted to some points, and their graph with diffusion (or potential) lengths; with a ``start`` its
    eigenvectors are refined from these.
    """
    kernel = points.kernel[index][:, index].tocsr()
    weights = points.kernel_weights[index]

    def make() -> dict[str, NDArray[Any]]:
        found = diffusion_map(kernel, n_components, weights=weights, t=t, random_state=random_state, start=start)
        return {
            "eigenvalues": found.eigenvalues,
            "vectors": found.vectors,
            "stationary": found.stationary,
            "entropy": found.entropy,
            "t": np.array(found.t),
        }

    if cache is None:
        kept = make()
    else:
        parts = (kernel.indptr, kernel.indices, kernel.data, weights, n_components, t, random_state)
        kept = cache.get(cache.key("diffusion", *parts), make)
    diffusion = Diffusion(kept["eigenvalues"], kept["vectors"], kept["stationary"], int(kept["t"]), kept["entropy"])
    coordinates = diffusion.coordinates() if distance == "diffusion" else diffusion.potential(kernel, weights)
    edges = sparse.triu(points.adjacency[index][:, index], 1).tocoo()
    a, b = edges.coords
    lengths = np.maximum(np.linalg.norm(coordinates[a] - coordinates[b], axis=1), 1e-12)
    graph = sparse.csr_array((lengths, (a, b)), shape=kernel.shape)
    return Component(index, diffusion, coordinates, (graph + graph.T).tocsr(), points.weights[index])


def find_components(
    points: Points,
    *,
    n_components: int,
    t: int | str,
    least_mass: float,
    random_state: int,
    distance: str = "diffusion",
    cache: BasisCache | None = None,
) -> tuple[list[Component], int]:
    """Connected components, and inside each the near-disconnections; and how many components the graph itself has.

    A component is split by the sign of psi_2 when (1 - lambda_2) / (1 - lambda_3) is below 0.1 (a path has 1/4, a Y
    0.8, two
    Gaussian clouds 6 standard deviations apart 0.04 to 0.1), both sides hold 2 % of the cells, and the tree of mutual
    neighbours has a gap there. Pieces of fewer than ``least_mass`` cells are no component of their own.
    """
    count, labels = connected_components(points.adjacency, directed=False)
    waiting = [np.flatnonzero(labels == c) for c in range(count)]
    found: list[Component] = []
    total = float(points.weights.sum())
    while waiting:
        index = waiting.pop()
        if points.weights[index].sum() < least_mass or len(index) < 3:
            continue
        component = diffusion_component(points, index, n_components, t, random_state, distance=distance, cache=cache)
        sides = near_disconnection(points, component, total, least_mass)
        if sides is None:
            found.append(component)
        else:
            waiting += [part for side in sides for part in _connected(points, side)]
    found.sort(key=lambda c: (-c.weights.sum(), int(c.points[0])))
    return found, count


def _connected(points: Points, index: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    count, labels = connected_components(points.adjacency[index][:, index], directed=False)
    return [index[labels == c] for c in range(count)]


def near_disconnection(
    points: Points, component: Component, total: float, least_mass: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The two sides of a near-disconnection, or None."""
    values = component.diffusion.eigenvalues
    if len(values) < 3 or (1 - values[1]) / max(1 - values[2], 1e-15) >= SPLIT_RATIO:
        return None
    side = component.diffusion.vectors[:, 1] > 0
    shares = [float(component.weights[s].sum()) / total for s in (side, ~side)]
    if min(shares) < max(SPLIT_SHARE, least_mass / total):
        return None
    index = component.points
    edges = sparse.triu(points.adjacency[index][:, index], 1).tocoo()
    a, b = edges.coords
    lengths = np.maximum(np.linalg.norm(points.X[index[a]] - points.X[index[b]], axis=1), 1e-12)
    tree = minimum_spanning_tree(sparse.csr_array((lengths, (a, b)), shape=edges.shape)).tocoo()
    ta, tb = tree.coords
    across = side[ta] != side[tb]
    inside = tree.data[~across]
    if not across.any() or not len(inside) or tree.data[across].min() <= np.quantile(inside, 0.9):
        return None
    return index[side], index[~side]
