"""Cells sampled from a known skeleton with variance: `make_shape`, and the grid "bench-v1" of `make_benchmark`.

The design is ours, after one sentence of the abstract of scShapeBench (2026): data "sampled from a ground truth
skeleton graph with variance".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import ShapeError, UnknownKindError
from assay.shapes.files import written_whole
from assay.shapes.skeleton import Skeleton, points_along

VERSION = "1"
LABELS = ("archetypal", "multi_branch", "simple_traj", "clusters")
KINDS = ("clusters", "path", "tree", "star", "cycle", "lollipop", "simplex", "mixture")
CURVE_POINTS = 25


@dataclass
class Shape:
    """Generated cells with their truth.

    Attributes
    ----------
    X : float32[n, d]
        Cells; counts of 2000 genes where a count layer was asked for (then ``latent`` holds the cells).
    skeleton : Skeleton
    edge_of_cell : int32[n]
        -1 for cells of isolated vertices, of simplices and for outliers.
    t : float32[n]
        Position on the edge, NaN where there is none.
    vertex_of_cell : int32[n]
        Isolated vertex of a cell, -1 where there is none.
    label : bool[4]
        In the order of `LABELS`.
    params : dict
    """

    X: NDArray[Any]
    skeleton: Skeleton
    edge_of_cell: NDArray[np.int32]
    t: NDArray[np.float32]
    vertex_of_cell: NDArray[np.int32]
    label: NDArray[np.bool_]
    params: dict[str, Any] = field(default_factory=dict)
    counts: NDArray[np.int32] | None = None

    @property
    def labels(self) -> list[str]:
        """Names of the labels that hold."""
        return [name for name, true in zip(LABELS, self.label, strict=True) if true]

    def save(self, path: str | Path) -> None:
        """Write ``.npz`` (cells, skeleton, truth) and ``.json`` (parameters) beside it."""
        path = Path(path)
        s = self.skeleton
        offsets = np.cumsum([0, *(len(p) for p in s.paths)])
        content: dict[str, Any] = {} if self.counts is None else {"counts": self.counts}
        arrays = {
            "X": self.X,
            "vertices": s.vertices,
            "edges": s.edges.astype(np.int32),
            "edge_of_cell": self.edge_of_cell,
            "t": self.t,
            "vertex_of_cell": self.vertex_of_cell,
            "label": self.label,
            "path_offsets": offsets,
            "path_points": np.concatenate(s.paths).astype(np.float32)
            if s.paths
            else np.empty((0, s.vertices.shape[1]), np.float32),
        }
        with written_whole(path.with_suffix(".json")) as partial:
            partial.write_text(json.dumps(self.params, indent=1, sort_keys=True))
        with written_whole(path) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays, **content)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> Shape:
        """Read what `save` wrote, or a file with the arrays X, vertices, edges, edge_of_cell, t and label.

        Raises
        ------
        ShapeError
            If an array is missing.
        """
        path = Path(path)
        with np.load(path, allow_pickle=False) as file:
            part = {name: file[name] for name in file.files}
        missing = [name for name in ("X", "vertices", "edges", "edge_of_cell", "t", "label") if name not in part]
        if missing:
            raise ShapeError(f"{path} is no generated shape: it lacks {', '.join(missing)}")
        beside = path.with_suffix(".json")
        params = json.loads(beside.read_text()) if beside.is_file() else {}
        none = np.full(len(part["X"]), -1, dtype=np.int32)
        return cls(
            part["X"],
            Skeleton.load(path),
            part["edge_of_cell"],
            part["t"],
            part.get("vertex_of_cell", none),
            part["label"],
            params,
            part.get("counts"),
        )


def make_shape(
    kind: str,
    n: int = 2000,
    d: int = 50,
    *,
    sigma: float = 0.1,
    imbalance: float = 1.0,
    parts: int | None = None,
    space: int | None = None,
    curvature: float = 0.0,
    taper: float = 0.0,
    beta: tuple[float, float] = (1.0, 1.0),
    outliers: float = 0.0,
    dirichlet: float | None = None,
    caterpillar: bool = False,
    counts: bool = False,
    n_genes: int = 2000,
    dispersion: float = 0.3,
    library: tuple[float, float] = (8.5, 0.3),
    dropout: float = 0.0,
    seed: int = 0,
) -> Shape:
    """Cells around a skeleton.

    Parameters
    ----------
    kind : str
        One of `KINDS`: ``clusters`` (isolated vertices), ``path``, ``tree``, ``star``, ``cycle``, ``lollipop`` (a cycle
        with a tail), ``simplex`` (a continuum between archetypes), ``mixture`` (a tree and clusters apart from it).
    n, d : int
        Cells and columns.
    sigma : float
        Standard deviation around the skeleton on each of the ``d`` axes, as a share of the mean edge length.
    imbalance : float
        Weight of the heaviest edge (or cluster) over that of the lightest.
    parts : int, optional
        Clusters (2 to 12), edges of a path, branches of a tree or star (3 to 8), vertices of a cycle, archetypes (3
        to 6).
    space : int, optional
        Dimension of the skeleton before it is lifted to ``d`` (2 to 10).
    curvature : float
        Edges are quadratic Bezier curves whose control point is off by this share of the edge length.
    taper : float
        Thickness falls by this share along an edge.
    beta : (float, float)
        Position on an edge is Beta(a, b).
    outliers : float
        Share of cells drawn from a box around the whole.
    dirichlet : float, optional
        Concentration of a simplex, 0.2 to 2.
    caterpillar : bool
        A tree with one long spine instead of a random recursive one.
    counts : bool
        Also draw counts: softplus of a random linear map to ``n_genes``, log-normal library sizes, negative binomial,
        dropout.
    seed : int

    Returns
    -------
    Shape

    Raises
    ------
    UnknownKindError, ShapeError

    Examples
    --------
    >>> y = make_shape("star", 500, parts=3, seed=1)
    >>> y.X.shape, y.skeleton.betti(), y.labels
    ((500, 50), (1, 0), ['multi_branch'])
    """
    if kind not in KINDS:
        raise UnknownKindError(f"there is no kind {kind!r}; give one of {', '.join(KINDS)}")
    if n < 1 or sigma < 0 or imbalance < 1 or not 0 <= outliers < 1:
        raise ShapeError("a shape needs n >= 1, sigma >= 0, imbalance >= 1 and a share of outliers in [0, 1)")
    rng = np.random.default_rng(seed)
    vertices, edges, lonely = _layout(kind, rng, parts, space, caterpillar)
    if vertices.shape[1] > d:
        raise ShapeError(f"a {kind} lies in {vertices.shape[1]} dimensions and does not fit into d={d}")
    paths = [_curve(vertices[a], vertices[b], curvature, rng) for a, b in edges]
    lengths = np.array([np.linalg.norm(np.diff(p, axis=0), axis=1).sum() for p in paths])
    unit = float(lengths.mean()) if len(lengths) else 1.0
    edge = np.full(n, -1, dtype=np.int32)
    t = np.full(n, np.nan, dtype=np.float32)
    vertex = np.full(n, -1, dtype=np.int32)
    points = np.empty((n, vertices.shape[1]))
    noise = np.full(n, sigma * unit)
    if kind == "simplex":
        corners = vertices[1:]
        share = rng.dirichlet(np.full(len(corners), dirichlet or 0.7), size=n)
        points[:] = share @ corners
    else:
        total = len(edges) + len(lonely)
        weight = imbalance ** -np.linspace(0, 1, total)[rng.permutation(total)] if total > 1 else np.ones(1)
        typical = float(lengths.mean()) if len(lengths) else 1.0
        weight = weight * np.concatenate([lengths, np.full(len(lonely), typical)])
        piece = rng.choice(total, size=n, p=weight / weight.sum())
        for e, path in enumerate(paths):
            mine = piece == e
            where = rng.beta(*beta, size=int(mine.sum()))
            edge[mine], t[mine] = e, where
            points[mine] = points_along(path, where)
            noise[mine] *= 1 - taper * where
        for c, v in enumerate(lonely):
            mine = piece == len(edges) + c
            vertex[mine] = v
            points[mine] = vertices[v]
            noise[mine] = max(sigma, 0.02) * unit
    lift = np.linalg.qr(rng.normal(size=(d, d)))[0][:, : vertices.shape[1]]
    X = points @ lift.T + rng.normal(size=(n, d)) * noise[:, None]
    stray = rng.random(n) < outliers
    if stray.any():
        low, high = points.min(axis=0) - 0.5 * unit, points.max(axis=0) + 0.5 * unit
        X[stray] = (
            rng.uniform(low, high, size=(int(stray.sum()), len(low))) @ lift.T
            + rng.normal(size=(int(stray.sum()), d)) * sigma * unit
        )
        edge[stray], t[stray], vertex[stray] = -1, np.nan, -1
    skeleton = Skeleton(vertices @ lift.T, edges, None, None, None, [(p @ lift.T).astype(np.float32) for p in paths])
    params = {
        "kind": kind,
        "n": n,
        "d": d,
        "sigma": sigma,
        "imbalance": imbalance,
        "parts": parts,
        "space": int(vertices.shape[1]),
        "curvature": curvature,
        "taper": taper,
        "beta": list(beta),
        "outliers": outliers,
        "dirichlet": dirichlet,
        "caterpillar": caterpillar,
        "counts": counts,
        "seed": seed,
        "version": VERSION,
    }
    made = Shape(X.astype(np.float32), skeleton, edge, t, vertex, _labels(kind, skeleton), params)
    if counts:
        made.counts = _counts(X, n_genes, dispersion, library, dropout, rng)
    return made


def _labels(kind: str, skeleton: Skeleton) -> NDArray[np.bool_]:
    branches = bool(len(skeleton.branch_points())) and skeleton.betti()[1] == 0 and kind != "simplex"
    trajectory = kind in ("path", "cycle", "lollipop")
    return np.array([kind == "simplex", branches, trajectory, kind in ("clusters", "mixture")])


def _layout(
    kind: str, rng: np.random.Generator, parts: int | None, space: int | None, caterpillar: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[int]]:
    """Vertices, edges, and the isolated vertices; edge lengths are about 1."""
    none: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)
    if kind == "clusters":
        count = parts or int(rng.integers(2, 13))
        return _scattered(rng, count, space or 5, 1.0), none, list(range(count))
    if kind == "simplex":
        count = parts or int(rng.integers(3, 7))
        corners = np.eye(count) * np.sqrt(2)
        centred = corners - corners.mean(axis=0)
        basis = np.linalg.svd(centred, full_matrices=False)[2][: count - 1]
        corners = centred @ basis.T
        if space and space > count - 1:
            corners = np.pad(corners, ((0, 0), (0, space - count + 1)))
        spokes = np.array([[0, i + 1] for i in range(count)])
        return np.concatenate([np.zeros((1, corners.shape[1])), corners]), spokes, []
    if kind == "star":
        count = parts or int(rng.integers(3, 9))
        r = max(space or 3, 2)
        tips = _directions(rng, count, r)
        return np.concatenate([np.zeros((1, r)), tips]), np.array([[0, i + 1] for i in range(count)]), []
    if kind in ("cycle", "lollipop"):
        count = parts or 6
        r = max(space or 3, 2)
        angle = 2 * np.pi * np.arange(count) / count
        radius = 1 / (2 * np.sin(np.pi / count))
        ring = np.zeros((count, r))
        ring[:, 0], ring[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
        ring_edges = [[i, (i + 1) % count] for i in range(count)]
        if kind == "cycle":
            return ring, np.array(ring_edges), []
        tail = ring[:1] * (1 + np.arange(1, 3)[:, None] / radius)
        return np.concatenate([ring, tail]), np.array([*ring_edges, [0, count], [count, count + 1]]), []
    if kind == "path":
        count = parts or int(rng.integers(2, 6))
        return _grown(rng, [[i, i + 1] for i in range(count)], space or 4)
    leaves = parts or int(rng.integers(3, 9))
    tree = _tree_edges(rng, leaves, caterpillar)
    vertices, edges, _ = _grown(rng, tree, space or 5)
    if kind == "tree":
        return vertices, edges, []
    lonely = int(rng.integers(1, 4))
    for _ in range(2000):
        centres = vertices.mean(axis=0) + rng.normal(size=(lonely, vertices.shape[1])) * (
            1.5 + np.ptp(vertices, axis=0).max()
        )
        gaps = [np.linalg.norm(vertices - c, axis=1).min() for c in centres]
        apart = [np.linalg.norm(centres[i] - centres[j]) for i in range(lonely) for j in range(i)]
        if min(gaps + apart) > 2.0:
            break
    return np.concatenate([vertices, centres]), edges, list(range(len(vertices), len(vertices) + lonely))


def _tree_edges(rng: np.random.Generator, leaves: int, caterpillar: bool) -> list[list[int]]:
    """A tree with this many leaves whose inner vertices have degree 3 or 4: each new branch splits a leaf or grows
    from an inner vertex.
    """
    edges = [[0, 1], [0, 2], [0, 3]]
    count, tips, inner = 4, [1, 2, 3], [0]
    last = 1
    while len(tips) < leaves:
        if caterpillar:
            split = last
        elif len(tips) + 1 <= leaves and rng.random() < 0.25:
            grown = [v for v in inner if sum(v in e for e in edges) < 4]
            if grown:
                edges.append([int(rng.choice(grown)), count])
                tips.append(count)
                count += 1
                continue
            split = int(rng.choice(tips))
        else:
            split = int(rng.choice(tips))
        edges += [[split, count], [split, count + 1]]
        tips.remove(split)
        inner.append(split)
        tips += [count, count + 1]
        last = count
        count += 2
    return edges


def _grown(
    rng: np.random.Generator, edges: list[list[int]], r: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], list[int]]:
    """Place a tree edge by edge so that edges that share no vertex keep apart, and those that do open at 60 degrees
    or more.
    """
    count = 1 + max(max(e) for e in edges)
    for attempt in range(200):
        clearance = 0.75 * 0.99**attempt
        vertices = np.full((count, r), np.nan)
        vertices[edges[0][0]] = 0.0
        placed: list[tuple[int, int]] = []
        for a, b in edges:
            good = None
            for _ in range(60):
                step = rng.normal(size=r)
                end = vertices[a] + step / np.linalg.norm(step) * rng.uniform(0.8, 1.2)
                if _clear(vertices, placed, a, end, clearance):
                    good = end
                    break
            if good is None:
                break
            vertices[b] = good
            placed.append((a, b))
        if len(placed) == len(edges):
            return vertices, np.array(edges, dtype=np.int64), []
    raise ShapeError(f"{len(edges)} edges do not fit apart from each other into {r} dimensions; give a larger space")


def _clear(
    vertices: NDArray[np.float64], placed: list[tuple[int, int]], a: int, end: NDArray[np.float64], clearance: float
) -> bool:
    s = np.linspace(0, 1, 9)[1:, None]
    new = vertices[a] + s * (end - vertices[a])
    for u, v in placed:
        if a in (u, v):
            other = vertices[v if a == u else u] - vertices[a]
            step = end - vertices[a]
            if other @ step > 0.5 * np.linalg.norm(other) * np.linalg.norm(step):
                return False
            continue
        old = vertices[u] + np.linspace(0, 1, 9)[:, None] * (vertices[v] - vertices[u])
        if np.linalg.norm(new[:, None] - old[None], axis=2).min() < clearance:
            return False
    return True


def _scattered(rng: np.random.Generator, count: int, r: int, gap: float) -> NDArray[np.float64]:
    points: list[NDArray[np.float64]] = []
    side = gap * max(2.0, count ** (1 / r) * 1.5)
    while len(points) < count:
        new = rng.uniform(0, side, size=r)
        if all(np.linalg.norm(new - p) >= gap for p in points):
            points.append(new)
        else:
            side *= 1.002
    return np.array(points)


def _directions(rng: np.random.Generator, count: int, r: int) -> NDArray[np.float64]:
    """Unit vectors that repel each other, so that no two arms of a star are close."""
    v = rng.normal(size=(count, r))
    for _ in range(300):
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        gap = v[:, None] - v[None]
        distance = np.linalg.norm(gap, axis=2) + np.eye(count)
        v = v + 0.05 * (gap / distance[..., None] ** 3).sum(axis=1)
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def _curve(
    a: NDArray[np.float64], b: NDArray[np.float64], curvature: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    if curvature == 0:
        return np.stack([a, b])
    along = b - a
    off = rng.normal(size=len(a))
    off -= along * (off @ along) / (along @ along)
    control = (a + b) / 2 + off / max(float(np.linalg.norm(off)), 1e-12) * curvature * np.linalg.norm(along)
    s = np.linspace(0, 1, CURVE_POINTS)[:, None]
    return (1 - s) ** 2 * a + 2 * s * (1 - s) * control + s**2 * b


def _counts(
    X: NDArray[np.float64],
    n_genes: int,
    dispersion: float,
    library: tuple[float, float],
    dropout: float,
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    centred = (X - X.mean(axis=0)) / X.std()
    loading = rng.normal(size=(X.shape[1], n_genes)) / np.sqrt(X.shape[1])
    rate = np.logaddexp(0.0, 2.0 * centred @ loading + rng.normal(size=n_genes))
    rate /= rate.sum(axis=1, keepdims=True)
    rate *= rng.lognormal(*library, size=(len(X), 1))
    size = 1.0 / dispersion
    drawn = rng.negative_binomial(size, size / (size + rate))
    if dropout:
        drawn[rng.random(drawn.shape) < dropout] = 0
    return drawn.astype(np.int32)


GRIDS: dict[str, dict[str, Any]] = {
    "bench-v1": {
        "sigma": (0.02, 0.05, 0.1, 0.2, 0.4),
        "n": (500, 2000, 10_000),
        "imbalance": (1, 5, 20),
        "replicates": 20,
    },
    "smoke": {"sigma": (0.05, 0.2), "n": (500,), "imbalance": (1,), "replicates": 1},
}


def grid_cells(grid: str = "bench-v1") -> Iterator[dict[str, Any]]:
    """Parameters of each file of a grid, with its fixed seed.

    Examples
    --------
    >>> sum(1 for _ in grid_cells("bench-v1"))
    7200
    """
    if grid not in GRIDS:
        raise UnknownKindError(f"there is no grid {grid!r}; give one of {', '.join(GRIDS)}")
    g = GRIDS[grid]
    for kind in KINDS:
        for sigma in g["sigma"]:
            for n in g["n"]:
                for imbalance in g["imbalance"]:
                    for replicate in range(g["replicates"]):
                        yield cell_params(kind, sigma, n, imbalance, replicate)


def cell_params(kind: str, sigma: float, n: int, imbalance: float, replicate: int) -> dict[str, Any]:
    """Parameters of one file of "bench-v1"; the seed is a hash of the others."""
    text = f"bench-v1/{kind}/{sigma}/{n}/{imbalance}/{replicate}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    return {
        "kind": kind,
        "n": n,
        "sigma": sigma,
        "imbalance": float(imbalance),
        "seed": seed,
        "curvature": 0.15 if replicate % 2 else 0.0,
    }


def make_benchmark(out_dir: str | Path, grid: str = "bench-v1", resume: bool = True) -> list[Path]:
    """Write the files of a grid; with ``resume`` those that are there already are kept."""
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i, params in enumerate(grid_cells(grid)):
        path = folder / f"{i:05d}_{params['kind']}_n{params['n']}_s{params['sigma']}_i{int(params['imbalance'])}.npz"
        if not (resume and path.is_file() and path.with_suffix(".json").is_file()):
            make_shape(**params).save(path)
        files.append(path)
    return files
