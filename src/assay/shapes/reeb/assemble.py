"""From the towers of all components to one skeleton with its cells.

A component whose best skeleton says no more than a point would is one vertex. An arc whose cells share one position (a
needle, a knot between two branch points) is no arc: it is merged into its neighbours, because nothing can be said of
what changes along it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from assay.shapes.reeb.embed import assign, embed_graph
from assay.shapes.reeb.points import Component
from assay.shapes.reeb.select import Tower
from assay.shapes.skeleton import Skeleton

if TYPE_CHECKING:
    from assay.shapes.reeb.tower import ReebTower

# A path is no more than a blob, and becomes one vertex, where it explains little variance and diffusion is as slow
# along it as across.
EXPLAINED = 0.85
SPECTRAL = 0.7  # (1 - lambda_2) / (1 - lambda_3): 1/4 for a long path, near 1 for a ball
SHORTEST = 0.5  # least length of an arc over twice the root mean square distance of its cells
LEAST_ON_ARC = 3
SPREAD = 0.02  # least range of the middle 60 % of the positions of the cells of an arc


@dataclass
class Pieces:
    """What the components add to the whole, one after another."""

    vertices: list[NDArray[np.float64]] = field(default_factory=list)
    edges: list[NDArray[np.int64]] = field(default_factory=list)
    paths: list[NDArray[np.float64]] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    vertex_mass: list[float] = field(default_factory=list)
    soft: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = field(default_factory=list)


def build_skeleton(tower: ReebTower) -> None:
    """Set ``skeleton_``, ``working_skeleton_`` and everything by cell of a tower whose features are confirmed."""
    ready, points = tower.prepared_, tower.points_
    n, total = len(ready.X), float(ready.weights.sum())
    component_of_point = np.full(len(points), -1, dtype=np.int64)
    for number, component in enumerate(tower.components_):
        component_of_point[component.points] = number
    component = component_of_point[points.point_of]
    edge, t, lens = np.full(n, -1, dtype=np.int64), np.full(n, np.nan), np.full(n, np.nan)
    tower.share_, tower.elongation_, tower.explained_, tower.spectral_ = [], [], [], []
    whole = Pieces()
    for number, (part, kept) in enumerate(zip(tower.components_, tower.towers_, strict=True)):
        cells = np.flatnonzero(component == number)
        values = np.full(len(points), np.nan)
        values[part.points] = kept.lens
        lens[cells] = values[points.point_of[cells]]
        w = ready.weights[cells]
        lone = points.stray[cells]
        sure = np.where(lone, 0.0, w)  # cells that lie alone say nothing of how wide an arc is
        embedded = embed_graph(kept.graph, points.X[part.points], len(kept.slabs.members))
        piece = Skeleton(embedded.positions, embedded.edges).simplify()
        piece.vertices = piece.vertices.astype(np.float64)
        piece, found, gone = without_degenerate(piece, ready.X[cells], sure)
        for points_lost in gone:
            _unconfirm(tower, number, points.point_of[cells[points_lost]], part, kept)
        own, where, distance, three, weights = found
        width = _width(distance, sure)
        length = float(piece.length.sum()) if len(piece.edges) else 0.0  # type: ignore[union-attr]
        centre = np.average(ready.X[cells], axis=0, weights=sure)
        spread = float(np.average(((ready.X[cells] - centre) ** 2).sum(axis=1), weights=sure))
        eigenvalues = part.diffusion.eigenvalues
        tower.share_.append(float(w.sum()) / total)
        tower.elongation_.append(length / max(2 * width, 1e-12))
        tower.explained_.append(1 - width**2 / max(spread, 1e-300))
        tower.spectral_.append(
            float((1 - eigenvalues[1]) / max(1 - eigenvalues[2], 1e-15)) if len(eigenvalues) > 2 else 1.0
        )
        offset = sum(map(len, whole.vertices))
        blob = tower.explained_[-1] < EXPLAINED and tower.spectral_[-1] > SPECTRAL
        if blob and tower.level is None:
            tower.persistence_["confirmed"][tower.persistence_["component"] == number] = False
            whole.vertices.append(centre[None])
            whole.vertex_mass.append(float(w.sum()) / total)
            continue
        first = len(whole.paths)
        whole.vertices.append(piece.vertices)
        whole.edges.append(piece.edges + offset)
        whole.vertex_mass += [0.0] * len(piece.vertices)
        whole.paths += [np.asarray(p, dtype=np.float64) for p in piece.paths]
        edge[cells], t[cells] = np.where(own >= 0, own + first, -1), where
        keep = three >= 0
        whole.soft.append((np.repeat(cells, 3)[keep.ravel()], (three + first)[keep], weights[keep]))
        for e in range(len(piece.edges)):
            mine = own == e
            whole.widths.append(_width(distance[mine], sure[mine]))
            whole.confidence.append(edge_confidence(kept, points.point_of[cells[mine]], part))
    _finish(tower, whole, component, edge, t, lens)


def _finish(
    tower: ReebTower,
    whole: Pieces,
    component: NDArray[np.int64],
    edge: NDArray[np.int64],
    t: NDArray[np.float64],
    lens: NDArray[np.float64],
) -> None:
    ready = tower.prepared_
    n, count, total = len(ready.X), len(whole.paths), float(ready.weights.sum())
    mass = np.bincount(edge[edge >= 0], ready.weights[edge >= 0], minlength=count) / total
    rows = ready.cell_of
    inside = rows >= 0
    tower.component_ = spread_to_cells(component, rows, -1)
    tower.edge_of_cell_ = spread_to_cells(edge, rows, -1)
    tower.t_ = spread_to_cells(t, rows, np.nan)
    tower.lens_ = spread_to_cells(lens, rows, np.nan)
    tower.stray_ = spread_to_cells(tower.points_.stray, rows, False)
    by_row = sparse.csr_array((n, count))
    if whole.soft:
        cells, edges, weights = (np.concatenate(part) for part in zip(*whole.soft, strict=True))
        by_row = sparse.csr_array((weights, (cells, edges)), shape=(n, count))
    gather = sparse.csr_array(
        (np.ones(int(inside.sum())), (np.flatnonzero(inside), rows[inside])), shape=(len(rows), n)
    )
    tower.edge_weights_ = (gather @ by_row).tocsr()
    work = tower.working_skeleton_ = Skeleton(
        np.concatenate(whole.vertices),
        np.concatenate(whole.edges) if whole.edges else np.empty((0, 2), dtype=np.int64),
        None,
        mass,
        None,
        whole.paths,
        np.array(whole.widths),
        np.array(whole.confidence),
        np.array(whole.vertex_mass),
    )
    tower.skeleton_ = Skeleton(
        ready.back(np.concatenate(whole.vertices)),
        work.edges,
        work.length,
        mass,
        tower.edge_weights_.T.tocsr(),
        [ready.back(p) for p in whole.paths],
        work.width,
        work.confidence,
        work.vertex_mass,
    )


Assigned = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def without_degenerate(
    skeleton: Skeleton, X: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[Skeleton, Assigned, list[NDArray[np.int64]]]:
    """A component's skeleton with its cells, degenerate arcs merged one after another, the shortest first.

    An arc is degenerate when it has fewer than three cells, when it is shorter than half of twice the width of its
    cells, or when the middle 60 % of its cells lie on less than 2 % of it. Loops and the last arc stay.

    Returns
    -------
    skeleton : Skeleton
    assigned : tuple
        As `assay.shapes.reeb.embed.assign` gives them.
    gone : list of int64[.]
        Cells that were on each merged leaf arc.
    """
    gone: list[NDArray[np.int64]] = []
    while True:
        found = assign(X, skeleton)
        own, where, distance = found[:3]
        worst: tuple[float, int] | None = None
        for e, (a, b) in enumerate(skeleton.edges.tolist()):
            if a == b or len(skeleton.edges) == 1:
                continue
            mine = own == e
            length = float(skeleton.length[e])  # type: ignore[index]
            width = _width(distance[mine], weights[mine])
            middle = float(np.diff(np.quantile(where[mine], [0.2, 0.8]))[0]) if mine.any() else 0.0
            if mine.sum() < LEAST_ON_ARC or length < SHORTEST * 2 * width or middle < SPREAD:
                worst = min(worst or (np.inf, -1), (length, e))
        if worst is None:
            return skeleton, found, gone
        e = worst[1]
        if 1 in skeleton.degrees()[skeleton.edges[e]]:
            gone.append(np.flatnonzero(own == e))
        skeleton = merge_edge(skeleton, e)


def merge_edge(skeleton: Skeleton, e: int) -> Skeleton:
    """The skeleton without an edge whose ends become one vertex: the inner end of a leaf arc, else the middle.

    Examples
    --------
    >>> y = Skeleton.from_graph([[0, 0], [1, 0], [2, 1], [2, -1]], [[0, 1], [1, 2], [1, 3]])
    >>> merge_edge(y, 1).betti(), len(merge_edge(y, 1).leaves())
    ((1, 0), 2)
    """
    a, b = skeleton.edges[e].tolist()
    degree = skeleton.degrees()
    place = skeleton.vertices[a] if degree[b] == 1 else skeleton.vertices[b]
    if degree[a] > 1 and degree[b] > 1:
        place = (skeleton.vertices[a] + skeleton.vertices[b]) / 2
    kept = np.arange(len(skeleton.edges)) != e
    vertices = skeleton.vertices.astype(np.float64)
    vertices[a] = place
    edges = np.where(skeleton.edges[kept] == b, a, skeleton.edges[kept])
    paths = [np.asarray(p, dtype=np.float64).copy() for p, keep in zip(skeleton.paths, kept, strict=True) if keep]
    for path, (u, v) in zip(paths, edges.tolist(), strict=True):
        if u == a:
            path[0] = place
        if v == a:
            path[-1] = place
    used = np.delete(np.arange(len(vertices)), b)
    number = np.full(len(vertices), -1)
    number[used] = np.arange(len(used))
    merged = Skeleton(vertices[used], number[edges], None, None, None, paths).simplify()
    merged.vertices = merged.vertices.astype(np.float64)
    return merged


def _width(distance: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    total = float(weights.sum())
    return float(np.sqrt((distance**2 @ weights) / total)) if total > 0 else 0.0


def _unconfirm(tower: ReebTower, number: int, lost: NDArray[np.int64], part: Component, kept: Tower) -> None:
    """The leaf feature that shares most points with a merged arc is not confirmed any more."""
    place = np.full(int(part.points.max()) + 1, -1)
    place[part.points] = np.arange(len(part.points))
    own = np.unique(place[lost])
    leaves = [f for f in kept.features if f.kind == "leaf" and f.confirmed]
    if not leaves:
        return
    worst = max(leaves, key=lambda f: len(np.intersect1d(own, f.points)))
    worst.confirmed = False
    rows = tower.persistence_
    same = (rows["component"] == number) & (rows["kind"] == "leaf") & (rows["persistence"] == worst.persistence)
    rows["confirmed"][same] = False


def edge_confidence(tower: Tower, points: NDArray[np.int64], part: Component) -> float:
    """Confidence of the feature that shares most points with an edge; the least of all where none does."""
    if not tower.features:
        return 1.0
    place = np.full(int(part.points.max()) + 1, -1)
    place[part.points] = np.arange(len(part.points))
    own = place[np.unique(points)]
    shared = [len(np.intersect1d(own, f.points)) / max(len(f.points), 1) for f in tower.features]
    if max(shared) < 0.3:
        return float(min(f.confidence for f in tower.features))
    return float(tower.features[int(np.argmax(shared))].confidence)


def spread_to_cells(rows: NDArray[Any], cell_of: NDArray[np.int64], missing: float) -> NDArray[Any]:
    """Values of distinct cells for all cells of the input."""
    out = rows[np.maximum(cell_of, 0)].copy()
    out[cell_of < 0] = missing
    return out
