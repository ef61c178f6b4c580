"""A skeleton: vertices, edges that are curves, and the cells along them. Loops at a vertex and parallel edges are
allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components, dijkstra

from assay.shapes.errors import ShapeError
from assay.shapes.files import written_whole

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure

FORMAT = 1


@dataclass
class Skeleton:
    """A metric graph in the space of the data.

    Parameters
    ----------
    vertices : float32[V, d]
    edges : int64[E, 2]
        Pairs of vertices; ``(v, v)`` is a loop, and a pair may occur twice.
    length : float64[E], optional
        In units of the data. Default: the lengths of the curves.
    mass : float64[E], optional
        Share of all cells that are assigned to each edge.
    members : csr_array[E, n], optional
        Weight of each cell on each edge; a cell's weights add up to 1, or to 0 where it belongs to no edge.
    paths : list of float32[p, d], optional
        The curve of each edge from its first vertex to its second. Default: straight.
    width : float64[E], optional
        Root mean square distance of the edge's cells to its curve.
    confidence : float64[E], optional
        Share of bootstraps in which the edge's feature came back.

    Examples
    --------
    >>> y = Skeleton.from_graph([[0, 0], [1, 0], [2, 1], [2, -1]], [[0, 1], [1, 2], [1, 3]])
    >>> y.betti(), y.leaves().tolist(), y.branch_points().tolist()
    ((1, 0), [0, 2, 3], [1])
    >>> [round(float(x), 3) for x in y.length]
    [1.0, 1.414, 1.414]
    """

    vertices: Float[np.ndarray, "V d"]
    edges: Int[np.ndarray, "E 2"]
    length: Float[np.ndarray, " E"] | None = None
    mass: Float[np.ndarray, " E"] | None = None
    members: sparse.csr_array | None = None
    paths: list[NDArray[Any]] = field(default_factory=list)
    width: Float[np.ndarray, " E"] | None = None
    confidence: Float[np.ndarray, " E"] | None = None
    vertex_mass: Float[np.ndarray, " V"] | None = None

    def __post_init__(self) -> None:
        self.vertices = np.atleast_2d(np.asarray(self.vertices, dtype=np.float32))
        self.edges = np.asarray(self.edges, dtype=np.int64).reshape(-1, 2)
        if len(self.edges) and (self.edges.min() < 0 or self.edges.max() >= len(self.vertices)):
            raise ShapeError(
                f"an edge names vertex {int(self.edges.max())}, but there are {len(self.vertices)} vertices (from 0)"
            )
        if not self.paths:
            self.paths = [self.vertices[[a, b]] for a, b in self.edges]
        if len(self.paths) != len(self.edges):
            raise ShapeError(f"there are {len(self.edges)} edges and {len(self.paths)} curves; give one a curve each")
        if self.length is None:
            self.length = np.array([_curve_length(path) for path in self.paths], dtype=np.float64)
        self.length = np.asarray(self.length, dtype=np.float64)
        count = len(self.edges)
        self.mass = (
            np.full(count, 1.0 / max(count, 1)) if self.mass is None else np.asarray(self.mass, dtype=np.float64)
        )
        self.width = np.zeros(count) if self.width is None else np.asarray(self.width, dtype=np.float64)
        self.confidence = np.ones(count) if self.confidence is None else np.asarray(self.confidence, dtype=np.float64)
        self.vertex_mass = (
            np.zeros(len(self.vertices)) if self.vertex_mass is None else np.asarray(self.vertex_mass, dtype=np.float64)
        )

    @classmethod
    def from_graph(cls, vertices: ArrayLike, edges: Sequence[Sequence[int]] | NDArray[Any]) -> Skeleton:
        """Straight edges between points."""
        return cls(np.asarray(vertices, dtype=np.float32), np.asarray(edges, dtype=np.int64).reshape(-1, 2))

    def __repr__(self) -> str:
        b0, b1 = self.betti()
        return (
            f"Skeleton({len(self.vertices)} vertices, {len(self.edges)} edges, {b0} components, {b1} loops, "
            f"{len(self.leaves())} leaves, {len(self.branch_points())} branch points)"
        )

    def degrees(self) -> Int[np.ndarray, " V"]:
        """Ends of edges at each vertex; a loop has two."""
        return np.bincount(self.edges.ravel(), minlength=len(self.vertices))

    def components(self) -> Int[np.ndarray, " V"]:
        """Label of each vertex's connected component."""
        return connected_components(self._adjacency(), directed=False)[1].astype(np.int64)

    def betti(self) -> tuple[int, int]:
        """Number of components and of independent loops."""
        if not len(self.vertices):
            return 0, 0
        b0 = int(self.components().max()) + 1
        return b0, len(self.edges) - len(self.vertices) + b0

    def leaves(self) -> Int[np.ndarray, " leaves"]:
        """Vertices of degree 1."""
        return np.flatnonzero(self.degrees() == 1)

    def branch_points(self) -> Int[np.ndarray, " branches"]:
        """Vertices of degree 3 or more, not counting vertices in the middle of an edge."""
        return np.flatnonzero(self.degrees() >= 3)

    def simplify(self) -> Skeleton:
        """The same metric graph without vertices of degree 2; of a bare loop one vertex stays.

        Examples
        --------
        >>> square = Skeleton.from_graph([[0, 0], [1, 0], [1, 1], [0, 1]], [[0, 1], [1, 2], [2, 3], [3, 0]])
        >>> once = square.simplify()
        >>> once.edges.tolist(), float(once.length[0])
        ([[0, 0]], 4.0)
        """
        degree = self.degrees()
        incident: list[list[int]] = [[] for _ in range(len(self.vertices))]
        for e, (a, b) in enumerate(self.edges.tolist()):
            incident[a].append(e)
            if a != b:
                incident[b].append(e)
        keep = set(np.flatnonzero(degree != 2).tolist())
        labels = self.components()
        for c in range(int(labels.max()) + 1 if len(labels) else 0):
            inside = np.flatnonzero(labels == c)
            if not keep & set(inside.tolist()):
                keep.add(int(inside[0]))
        kept = sorted(keep)
        number = {v: i for i, v in enumerate(kept)}
        used: set[int] = set()
        chains: list[tuple[int, int, list[tuple[int, bool]]]] = []
        for start in kept:
            for e in incident[start]:
                if e in used:
                    continue
                chain, v, step = [], start, e
                while True:
                    used.add(step)
                    a, b = self.edges[step].tolist()
                    forward = a == v
                    chain.append((step, forward))
                    v = b if forward else a
                    if v in keep:
                        break
                    step = next(x for x in incident[v] if x != step)
                chains.append((number[start], number[v], chain))
        order = [[e for e, _ in chain] for _, _, chain in chains]
        assert (
            self.length is not None and self.mass is not None and self.width is not None and self.confidence is not None
        )
        mass = np.array([self.mass[o].sum() for o in order])
        width = np.array([float(np.sqrt(np.average(self.width[o] ** 2, weights=self.mass[o] + 1e-12))) for o in order])
        members = None
        if self.members is not None:
            gather = sparse.csr_array(
                (
                    np.ones(len(self.edges)),
                    ([i for i, o in enumerate(order) for _ in o], [e for o in order for e in o]),
                ),
                shape=(len(order), len(self.edges)),
            )
            members = (gather @ self.members).tocsr()
        paths = []
        for _, _, chain in chains:
            parts = [self.paths[e] if forward else self.paths[e][::-1] for e, forward in chain]
            paths.append(np.concatenate([parts[0], *(part[1:] for part in parts[1:])]))
        return Skeleton(
            self.vertices[kept],
            np.array([[a, b] for a, b, _ in chains], dtype=np.int64).reshape(-1, 2),
            np.array([self.length[o].sum() for o in order]),
            mass,
            members,
            paths,
            width,
            np.array([self.confidence[o].min() for o in order]),
            None if self.vertex_mass is None else self.vertex_mass[kept],
        )

    def geodesic(self) -> Float[np.ndarray, "V V"]:
        """Shortest distance along the edges between each two vertices; infinite between components."""
        return dijkstra(self._adjacency(), directed=False)

    def sample(self, step: float) -> tuple[Skeleton, Float[np.ndarray, "p d"], Float[np.ndarray, " p"]]:
        """The skeleton with a vertex at least every ``step`` of length, its points, and the length that each stands
        for.
        """
        vertices = [self.vertices.astype(np.float64)]
        edges, count = [], len(self.vertices)
        lengths = []
        assert self.length is not None
        for (a, b), path, total in zip(self.edges.tolist(), self.paths, self.length, strict=True):
            pieces = max(int(np.ceil(total / step - 1e-9)), 3 if a == b else 1)
            inner = points_along(path, np.arange(1, pieces) / pieces)
            chain = [a, *range(count, count + pieces - 1), b]
            count += pieces - 1
            vertices.append(inner)
            edges += list(pairwise(chain))
            lengths += [total / pieces] * pieces
        fine = Skeleton(np.concatenate(vertices), np.array(edges, dtype=np.int64).reshape(-1, 2), np.array(lengths))
        stands = np.zeros(len(fine.vertices))
        for (a, b), part in zip(fine.edges.tolist(), lengths, strict=True):
            stands[a] += part / 2
            stands[b] += part / 2
        return fine, fine.vertices.astype(np.float64), stands

    def diameter(self) -> float:
        """Largest Euclidean distance between points of the skeleton."""
        points = np.concatenate([self.vertices, *self.paths]) if self.paths else self.vertices
        if len(points) < 2:
            return 0.0
        from scipy.spatial.distance import pdist

        return float(pdist(points[:: max(1, len(points) // 2000)]).max())

    def _adjacency(self) -> sparse.csr_array:
        n = len(self.vertices)
        best: dict[tuple[int, int], float] = {}
        assert self.length is not None
        for (a, b), length in zip(self.edges.tolist(), self.length.tolist(), strict=True):
            if a != b:
                pair = (min(a, b), max(a, b))
                best[pair] = min(best.get(pair, np.inf), max(length, 1e-12))
        rows, columns = zip(*best, strict=True) if best else ((), ())
        return sparse.csr_array((list(best.values()), (list(rows), list(columns))), shape=(n, n))

    def to_networkx(self) -> networkx.MultiGraph:
        """A multigraph with ``pos`` at nodes; ``length``, ``mass``, ``width`` and ``confidence`` at edges."""
        import networkx

        graph = networkx.MultiGraph()
        for v, position in enumerate(self.vertices):
            graph.add_node(v, pos=" ".join(f"{x:.6g}" for x in position))
        assert (
            self.length is not None and self.mass is not None and self.width is not None and self.confidence is not None
        )
        for e, (a, b) in enumerate(self.edges.tolist()):
            graph.add_edge(
                a,
                b,
                length=float(self.length[e]),
                mass=float(self.mass[e]),
                width=float(self.width[e]),
                confidence=float(self.confidence[e]),
            )
        return graph

    def to_graphml(self, path: str | Path) -> None:
        """Write GraphML, which Cytoscape, Gephi and igraph read."""
        import networkx

        with written_whole(path) as partial:
            networkx.write_graphml(self.to_networkx(), str(partial))

    def milestones(
        self, edge_of_cell: NDArray[Any], t: NDArray[Any], cells: Sequence[str] | None = None
    ) -> tuple[Any, Any]:
        """Milestone network and percentages, as dynverse has them.

        Parameters
        ----------
        edge_of_cell : int[n]
            -1 where a cell is on no edge.
        t : float[n]
            Position on the edge, 0 to 1.
        cells : sequence of str, optional
            Names.

        Returns
        -------
        network : DataFrame
            Columns ``from, to, length, directed``.
        percentages : DataFrame
            Columns ``cell_id, milestone_id, percentage``; those of a cell add up to 1.
        """
        import pandas as pd

        names = [f"M{v + 1}" for v in range(len(self.vertices))]
        network = pd.DataFrame(
            {
                "from": [names[a] for a, _ in self.edges],
                "to": [names[b] for _, b in self.edges],
                "length": self.length,
                "directed": False,
            }
        )
        ids = list(cells) if cells is not None else [str(i) for i in range(len(t))]
        on = np.flatnonzero(np.asarray(edge_of_cell) >= 0)
        rows = []
        for i in on:
            a, b = self.edges[edge_of_cell[i]]
            if a == b:
                rows.append((ids[i], names[a], 1.0))
            else:
                rows += [(ids[i], names[a], 1.0 - float(t[i])), (ids[i], names[b], float(t[i]))]
        percentages = pd.DataFrame(rows, columns=["cell_id", "milestone_id", "percentage"])
        return network, percentages

    def save(self, path: str | Path) -> None:
        """Write an ``.npz`` file of plain arrays."""
        offsets = np.cumsum([0, *(len(p) for p in self.paths)])
        content: dict[str, Any] = {
            "format": FORMAT,
            "vertices": self.vertices,
            "edges": self.edges.astype(np.int32),
            "length": self.length,
            "mass": self.mass,
            "width": self.width,
            "confidence": self.confidence,
            "vertex_mass": self.vertex_mass,
            "path_offsets": offsets,
            "path_points": np.concatenate(self.paths)
            if self.paths
            else np.empty((0, self.vertices.shape[1]), np.float32),
        }
        if self.members is not None:
            content |= {
                "members_data": self.members.data,
                "members_indices": self.members.indices,
                "members_indptr": self.members.indptr,
                "members_shape": self.members.shape,
            }
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **content)

    @classmethod
    def load(cls, path: str | Path) -> Skeleton:
        """Read what `save` wrote, or any ``.npz`` with ``vertices`` and ``edges`` (a benchmark file).

        Raises
        ------
        ShapeError
            If the file has neither.
        """
        with np.load(path, allow_pickle=False) as file:
            if "vertices" not in file or "edges" not in file:
                raise ShapeError(
                    f"{path} holds no skeleton: arrays 'vertices' and 'edges' are needed, it has {sorted(file.files)}"
                )
            part = {name: file[name] for name in file.files}
        members = None
        if "members_data" in part:
            members = sparse.csr_array(
                (part["members_data"], part["members_indices"], part["members_indptr"]),
                shape=tuple(part["members_shape"]),
            )
        offsets = part.get("path_offsets")
        paths = [part["path_points"][a:b] for a, b in pairwise(offsets)] if offsets is not None else []
        return cls(
            part["vertices"],
            part["edges"],
            part.get("length"),
            part.get("mass"),
            members,
            paths,
            part.get("width"),
            part.get("confidence"),
            part.get("vertex_mass"),
        )

    def plot(self, embedding: NDArray[Any] | None = None, **options: Any) -> Figure:
        """Draw it over cells; see `assay.shapes.plots.plot_skeleton`."""
        from assay.shapes.plots import plot_skeleton

        return plot_skeleton(self, embedding, **options)

    def to_html(self, path: str | Path, embedding: NDArray[Any] | None = None) -> None:
        """One static file that shows the skeleton; see `assay.shapes.page.write_page`."""
        from assay.shapes.page import write_skeleton

        write_skeleton(path, self, embedding)


def points_along(path: Float[np.ndarray, "p d"], t: Float[np.ndarray, " q"]) -> Float[np.ndarray, "q d"]:
    """Points at shares ``t`` of the length of a polygonal curve."""
    steps = np.linalg.norm(np.diff(path.astype(np.float64), axis=0), axis=1)
    along = np.concatenate([[0.0], np.cumsum(steps)])
    where = np.asarray(t) * along[-1]
    return np.stack([np.interp(where, along, path[:, j]) for j in range(path.shape[1])], axis=1)


def _curve_length(path: NDArray[Any]) -> float:
    return float(np.linalg.norm(np.diff(path.astype(np.float64), axis=0), axis=1).sum())
