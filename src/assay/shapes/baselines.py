"""Other ways to a skeleton, behind one call: what a method is compared with.

`paga` follows Wolf et al., "PAGA: graph abstraction reconciles clustering with trajectory inference" (2019): clusters,
and between each two the ratio of the edges found to those expected at random. `mapper` follows Singh, Memoli and
Carlsson (2007) with the lens, cover and clustering that the common packages use. `principal_tree` is a tree of
centroids regularised towards straight and even (in the spirit of ElPiGraph, Albergante et al. 2020; the grammar of
grafts is not written again here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist

from assay.shapes.archetypes import simplex_test
from assay.shapes.errors import UnknownKindError
from assay.shapes.kernel import nearest_neighbors
from assay.shapes.prepare import Prepared, prepare
from assay.shapes.reeb.embed import assign
from assay.shapes.skeleton import Skeleton


@dataclass
class Found:
    """What a method of this module says of cells.

    Attributes
    ----------
    skeleton : Skeleton
        In the coordinates of the input.
    edge_of_cell : int64[n]
    t : float64[n]
    """

    skeleton: Skeleton
    edge_of_cell: Int[np.ndarray, " n"]
    t: Float[np.ndarray, " n"]


def leiden(graph: sparse.csr_array, resolution: float = 1.0, random_state: int = 0) -> NDArray[np.int64]:
    """Leiden clusters of a symmetric graph (leidenalg)."""
    import igraph
    import leidenalg

    upper = sparse.triu(graph, 1).tocoo()
    g = igraph.Graph(n=graph.shape[0], edges=np.stack(upper.coords, axis=1).tolist())
    found = leidenalg.find_partition(
        g,
        leidenalg.RBConfigurationVertexPartition,
        weights=upper.data.tolist(),
        resolution_parameter=resolution,
        seed=random_state,
        n_iterations=2,
    )
    return np.array(found.membership, dtype=np.int64)


def paga(
    data: Any, *, n_neighbors: int = 15, resolution: float = 1.0, threshold: float = 0.05, random_state: int = 0
) -> Found:
    """Clusters as vertices, joined where their connectivity is at least ``threshold``."""
    ready = prepare(data)
    pattern = nearest_neighbors(ready.X, n_neighbors).graph()
    pattern.data[:] = 1.0
    labels = leiden(pattern, resolution, random_state)
    connectivity = paga_connectivity(pattern, labels)
    a, b = np.nonzero(np.triu(connectivity >= threshold, 1) & (np.triu(connectivity, 1) > 0))
    centres = np.stack([ready.X[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
    return _found(ready, centres, np.stack([a, b], axis=1))


def paga_connectivity(pattern: sparse.csr_array, labels: NDArray[np.int64]) -> Float[np.ndarray, "c c"]:
    """Edges between each two clusters over those expected if each end were drawn at random, at most 1.

    With e_i the edge ends of cluster i and n_i its cells, (e_i n_j + e_j n_i) / (n - 1) edges are expected (PAGA v1.2).
    """
    n = len(labels)
    count = int(labels.max()) + 1
    member = sparse.csr_array((np.ones(n), (np.arange(n), labels)), shape=(n, count))
    between = np.asarray((member.T @ (pattern @ member)).todense())
    ends, cells = between.sum(axis=1), np.bincount(labels, minlength=count)
    expected = (ends[:, None] * cells[None] + ends[None] * cells[:, None]) / max(n - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(expected > 0, 2 * between / expected, 0.0)
    np.fill_diagonal(ratio, 0.0)
    return np.minimum(ratio, 1.0)


def mapper(
    data: Any,
    *,
    lens: str = "pca",
    n_cubes: int = 10,
    overlap: float = 0.3,
    min_samples: int = 3,
    eps: float | str = "auto",
) -> Found:
    """Mapper: a cover of the lens, DBSCAN in each cell of the cover, nodes joined where they share cells.

    Parameters
    ----------
    lens : {"pca", "eccentricity", "knn"}
        First two components; mean distance to all cells; distance to the 15th neighbour and first component.
    eps : float or "auto"
        Radius of DBSCAN; the 90th percentile of the distances to the fifth neighbour by default.
    """
    from sklearn.cluster import DBSCAN

    ready = prepare(data)
    X = ready.X
    near = nearest_neighbors(X, 15)
    if lens == "pca":
        values = X[:, :2]
    elif lens == "eccentricity":
        sample = X[:: max(1, len(X) // 500)]
        values = cdist(X, sample).mean(axis=1)[:, None]
    elif lens == "knn":
        values = np.stack([near.distances[:, -1], X[:, 0]], axis=1)
    else:
        raise UnknownKindError(f"there is no Mapper lens {lens!r}; give pca, eccentricity or knn")
    radius = float(np.quantile(near.distances[:, 4], 0.9)) if eps == "auto" else float(eps)
    nodes: list[NDArray[np.int64]] = []
    for cell in _cover(values, n_cubes, overlap):
        if len(cell) < 2:
            continue
        labels = DBSCAN(eps=radius, min_samples=min_samples).fit_predict(X[cell])
        nodes += [cell[labels == c] for c in range(labels.max() + 1)]
    if not nodes:
        return _found(ready, X.mean(axis=0)[None], np.empty((0, 2), dtype=np.int64))
    member = sparse.csr_array(
        (
            np.ones(sum(map(len, nodes))),
            (np.repeat(np.arange(len(nodes)), [len(m) for m in nodes]), np.concatenate(nodes)),
        ),
        shape=(len(nodes), len(X)),
    )
    shared = sparse.triu(member @ member.T, 1).tocoo()
    centres = np.stack([X[m].mean(axis=0) for m in nodes])
    return _found(ready, centres, np.stack(shared.coords, axis=1).astype(np.int64))


def _cover(values: NDArray[np.float64], n_cubes: int, overlap: float) -> list[NDArray[np.int64]]:
    low, high = values.min(axis=0), values.max(axis=0)
    width = np.maximum(high - low, 1e-12) / n_cubes
    boxes = []
    for corner in np.ndindex(*([n_cubes] * values.shape[1])):
        start = low + np.array(corner) * width - overlap * width / 2
        inside = ((values >= start) & (values <= start + width * (1 + overlap))).all(axis=1)
        boxes.append(np.flatnonzero(inside))
    return boxes


def minimum_tree(data: Any, *, n_centres: int = 30, random_state: int = 0) -> Found:
    """Minimum spanning tree of k-means centres."""
    ready, centres, _ = _centres(data, n_centres, random_state)
    return _found(ready, centres, _tree(centres))


def principal_tree(
    data: Any, *, n_nodes: int = 30, stretch: float = 0.01, bend: float = 0.1, rounds: int = 30, random_state: int = 0
) -> Found:
    """A tree of nodes near the cells that is even and straight.

    Minimises the mean squared distance of cells to their node, plus ``stretch`` times the squared edge lengths, plus
    ``bend`` times the squared distance of each inner node from the mean of its neighbours; cells are assigned and nodes
    solved for in turn, the tree taken anew from the nodes. Leaf arcs of one edge are cut at the end.
    """
    ready, nodes, _ = _centres(data, n_nodes, random_state)
    X = ready.X
    n, k = len(X), len(nodes)
    edges = _tree(nodes)
    for _ in range(rounds):
        nearest = cdist(X, nodes).argmin(axis=1)
        counts = np.bincount(nearest, minlength=k) / n
        sums = np.stack([np.bincount(nearest, column, minlength=k) for column in X.T], axis=1) / n
        edges = _tree(nodes)
        A = np.zeros((k, k))
        A[edges[:, 0], edges[:, 1]] = A[edges[:, 1], edges[:, 0]] = 1.0
        degree = A.sum(axis=1)
        laplacian = np.diag(degree) - A
        inner = degree >= 2
        star = (np.eye(k) - A / np.maximum(degree, 1)[:, None])[inner]
        system = np.diag(counts) + stretch * laplacian / k + bend * star.T @ star / k
        moved = np.linalg.solve(system + 1e-9 * np.eye(k), sums)
        if np.abs(moved - nodes).max() < 1e-6 * np.ptp(X):
            break
        nodes = moved
    degree = np.bincount(edges.ravel(), minlength=k)
    short = [(degree[a] == 1 and degree[b] >= 3) or (degree[b] == 1 and degree[a] >= 3) for a, b in edges]
    edges = edges[~np.array(short, dtype=bool)]
    used = np.unique(edges)
    place = np.full(k, -1)
    place[used] = np.arange(len(used))
    return _found(ready, nodes[used], place[edges])


def _centres(data: Any, k: int, random_state: int) -> tuple[Prepared, NDArray[np.float64], NDArray[np.int64]]:
    from sklearn.cluster import KMeans

    ready = prepare(data)
    fit = KMeans(min(k, len(ready.X)), n_init=1, random_state=random_state).fit(ready.X, sample_weight=ready.weights)
    return ready, fit.cluster_centers_, fit.labels_


def _tree(centres: NDArray[np.float64]) -> NDArray[np.int64]:
    tree = minimum_spanning_tree(sparse.csr_array(cdist(centres, centres))).tocoo()
    return np.stack(tree.coords, axis=1).astype(np.int64)


def archetypal(data: Any, *, random_state: int = 0) -> Found:
    """Always a simplex: spokes from the mean to the archetypes at the elbow."""
    ready = prepare(data)
    found = simplex_test(ready.X, nulls=0, random_state=random_state).archetypes.vertices
    vertices = np.concatenate([ready.X.mean(axis=0)[None], found])
    return _found(ready, vertices, np.array([[0, i + 1] for i in range(len(found))]))


def always_clusters(data: Any, *, random_state: int = 0) -> Found:
    """Leiden clusters as isolated vertices: what a person does who never asks for the shape."""
    ready = prepare(data)
    pattern = nearest_neighbors(ready.X, 15).graph()
    pattern.data[:] = 1.0
    labels = leiden(pattern, 1.0, random_state)
    centres = np.stack([ready.X[labels == c].mean(axis=0) for c in range(labels.max() + 1)])
    return _found(ready, centres, np.empty((0, 2), dtype=np.int64))


def _found(ready: Prepared, vertices: NDArray[np.float64], edges: NDArray[np.int64]) -> Found:
    whole = Skeleton(vertices, edges)
    work = whole.simplify()
    edge, t, _, _, _ = assign(ready.X, work)
    cells = ready.cell_of
    inside = cells >= 0
    out_edge, out_t = np.full(len(cells), -1, dtype=np.int64), np.full(len(cells), np.nan)
    out_edge[inside], out_t[inside] = edge[cells[inside]], t[cells[inside]]

    return Found(
        Skeleton(ready.back(work.vertices), work.edges, work.length, None, None, [ready.back(p) for p in work.paths]),
        out_edge,
        out_t,
    )


METHODS: dict[str, Callable[..., Found]] = {
    "paga": paga,
    "mapper": mapper,
    "minimum_tree": minimum_tree,
    "principal_tree": principal_tree,
    "archetypal": archetypal,
    "always_clusters": always_clusters,
}
