"""`ReebTower`: from cells to a skeleton, with its levels, persistence and confidence, and the cells on its edges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from assay.shapes.errors import DisconnectedGraphWarning, ShapeError
from assay.shapes.kernel import Neighbors
from assay.shapes.prepare import is_anndata, prepare
from assay.shapes.reeb.bootstrap import confidences, drop_features
from assay.shapes.reeb.embed import assign, embed_graph
from assay.shapes.reeb.lens import AUTO, lens_values
from assay.shapes.reeb.null import null_floors, simulate_floors
from assay.shapes.reeb.points import Component, find_components, make_points
from assay.shapes.reeb.select import Tower, build_tower
from assay.shapes.skeleton import Skeleton

PERSISTENCE = np.dtype(
    [
        ("kind", "U8"),
        ("component", "i4"),
        ("birth", "f8"),
        ("death", "f8"),
        ("mass", "f8"),
        ("persistence", "f8"),
        ("floor", "f8"),
        ("confidence", "f8"),
        ("confirmed", "?"),
    ]
)
CONFIDENT = 0.8
# A path is no more than a blob, and becomes one vertex, where it explains little variance and diffusion is as slow
# along it as across.
EXPLAINED = 0.85
SPECTRAL = 0.7  # (1 - lambda_2) / (1 - lambda_3): 1/4 for a long path, near 1 for a ball


class ReebTower:
    """The skeleton of a point cloud, by multiscale Reeb graphs over its diffusion geometry.

    Components first; in each a lens is cut into overlapping slabs, each slab has one minimum spanning tree by diffusion
    distance, whose cuts at growing epsilon give a tower of graphs with maps between them; leaf arcs and loops above the
    persistence that Gaussian clouds leave are kept. There is no threshold to set.

    Parameters
    ----------
    n_neighbors : int
    decay : float
        Exponent of the kernel.
    n_components : int
        Eigenpairs of each component's diffusion.
    t : int or "auto"
        Diffusion time; the knee of the entropy by default.
    lens : str or array[n]
        ``auto`` (geodesic, eccentricity and psi_1; the one with the most persistent skeleton is kept), one of those,
        ``psi_2``, or one number a cell, such as a measured time.
    n_intervals : int or "auto"
    overlap : float
    n_levels : int
    n_landmarks : int
        Used past 5000 distinct cells.
    n_bootstrap : int
        Subsamples of 80 %; 0 leaves confidences out (NaN) and confirms by the floor alone.
    alpha : float
        Level of the null with ``null="data"``; the shipped table is the 99th percentile.
    min_mass : float
        Share of cells below which a slab component is no node (at least 5 cells, unless it is 0).
    scale, rank
        As in `assay.shapes.prepare.prepare`.
    null : {"table", "data"}
        Floors from the shipped table, or from Gaussian clouds with the data's own spectrum.
    level : int, optional
        Take this level of the tower (0 is the finest) instead of choosing one.
    n_jobs : int
        Threads of the neighbour search.
    random_state : int

    Attributes
    ----------
    skeleton_ : Skeleton
        In the coordinates of the input representation.
    towers_ : list of Tower
        The kept tower of each component; `tower_` is the first one's levels.
    lenses_ : list of dict
        All towers of each component by lens.
    persistence_ : structured array
        Fields kind, component, birth, death (shares of the lens range), mass (share of the component's cells),
        persistence, floor, confidence, confirmed.
    diffusion_coords_ : float32[n, r]
        Of each cell in its component; NaN for cells in none.
    component_ : int64[n]
        -1 for cells in none.
    lens_ : float64[n]
    edge_of_cell_ : int64[n]
        -1 where a component is one vertex.
    t_ : float64[n]
        Position on the edge.
    edge_weights_ : csr_array[n, E]
        Soft weights to up to three edges.
    elongation_ : list of float
        Of each component: length of the skeleton over twice the root mean square distance of its cells to it.
    explained_ : list of float
        Of each component: share of the variance that the skeleton explains.
    spectral_ : list of float
        Of each component: (1 - lambda_2) / (1 - lambda_3), 1/4 for a long path, near 1 for a ball.

    Examples
    --------
    >>> from assay.shapes import make_shape
    >>> made = make_shape("star", 1000, 20, parts=3, sigma=0.05, seed=1)
    >>> tower = ReebTower(n_bootstrap=3).fit(made.X)
    >>> tower.skeleton_.betti(), len(tower.skeleton_.leaves()), bool(tower.persistence_["confirmed"].all())
    ((1, 0), 3, True)
    """

    def __init__(
        self,
        n_neighbors: int = 15,
        decay: float = 40.0,
        n_components: int = 30,
        t: int | str = "auto",
        lens: str | ArrayLike = "auto",
        n_intervals: int | str = "auto",
        overlap: float = 0.3,
        n_levels: int = 10,
        n_landmarks: int = 2000,
        n_bootstrap: int = 30,
        alpha: float = 0.05,
        min_mass: float = 0.002,
        scale: str | bool | None = "auto",
        rank: str | int = "auto",
        null: str = "table",
        level: int | None = None,
        n_jobs: int = 2,
        random_state: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.decay = decay
        self.n_components = n_components
        self.t = t
        self.lens = lens
        self.n_intervals = n_intervals
        self.overlap = overlap
        self.n_levels = n_levels
        self.n_landmarks = n_landmarks
        self.n_bootstrap = n_bootstrap
        self.alpha = alpha
        self.min_mass = min_mass
        self.scale = scale
        self.rank = rank
        self.null = null
        self.level = level
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, data: Any, *, use_rep: str | None = None, neighbors: Neighbors | None = None) -> ReebTower:
        """Find the skeleton.

        Parameters
        ----------
        data : array[n, d], sparse matrix or AnnData
        use_rep : str, optional
            Entry of ``obsm``, or ``"X"``.
        neighbors : Neighbors, optional
            Of the distinct cells on the working axes, if they are known already.

        Raises
        ------
        NonFiniteInputError, TooFewCellsError, ConstantDataError, UnknownRepresentationError, UnknownKindError
        """
        if not 0 <= self.overlap < 1:
            raise ShapeError(f"overlap must be at least 0 and below 1, not {self.overlap}")
        if self.null not in ("table", "data"):
            raise ShapeError(f"null must be 'table' or 'data', not {self.null!r}")
        self.prepared_ = ready = prepare(data, use_rep=use_rep, scale=self.scale, rank=self.rank)
        self._data = data if is_anndata(data) else None
        self.points_ = points = make_points(
            ready.X,
            ready.weights,
            n_neighbors=self.n_neighbors,
            decay=self.decay,
            n_landmarks=self.n_landmarks,
            n_jobs=self.n_jobs,
            random_state=self.random_state,
            neighbors=neighbors,
        )
        total = float(ready.weights.sum())
        repeats = total / len(ready.weights)
        self.least_mass_ = max(5.0 * repeats, self.min_mass * total) if self.min_mass > 0 else 0.0
        self.components_, graph_parts = find_components(
            points,
            n_components=self.n_components,
            t=self.t,
            least_mass=max(self.least_mass_, 10.0),
            random_state=self.random_state,
        )
        if not self.components_:
            raise ShapeError("no part of the neighbour graph has as many as 10 cells; raise n_neighbors")
        if len(self.components_) > 1 or graph_parts > 1:
            sizes = [round(float(c.weights.sum())) for c in self.components_]
            if len(sizes) > 1:
                warnings.warn(DisconnectedGraphWarning(sizes), stacklevel=2)
        self.lenses_ = [self._towers(c) for c in self.components_]
        self.towers_ = [max(lenses.values(), key=lambda tower: tower.score) for lenses in self.lenses_]
        self._confirm()
        self._build_skeleton()
        return self

    @property
    def tower_(self) -> list[Any]:
        """Level graphs of the largest component, fine to coarse."""
        return self.towers_[0].levels

    def _towers(self, component: Component) -> dict[str, Tower]:
        names: Sequence[str] = (
            AUTO
            if isinstance(self.lens, str) and self.lens == "auto"
            else (self.lens if isinstance(self.lens, str) else "user",)
        )
        floors = self._floors(component)
        found = {}
        for name in names:
            if name == "user":
                values = np.asarray(self.lens, dtype=np.float64)
                if values.shape != (len(self.prepared_.cell_of),) or not np.isfinite(values).all():
                    raise ShapeError(
                        f"a lens needs one finite number for each of the {len(self.prepared_.cell_of)} cells"
                    )
                lens = self._to_points(values)[component.points]
            else:
                lens = lens_values(component, name)
            leaf, loop = floors.get(name) or self._table(component, name)
            found[name] = build_tower(
                name,
                lens,
                component.coordinates,
                component.weights,
                n_intervals=self.n_intervals,
                overlap=self.overlap,
                n_levels=self.n_levels,
                least_mass=self._least(component),
                leaf_floor=leaf,
                loop_floor=loop,
                level=self.level,
                graph=component.graph,
            )
        return found

    def _least(self, component: Component) -> float:
        if self.min_mass == 0:
            return 0.0
        mass = float(component.weights.sum())
        return max(5.0 * float(self.prepared_.weights.mean()), self.min_mass * mass)

    def _table(self, component: Component, lens: str) -> tuple[float, float]:
        cells = float(component.weights.sum()) / float(self.prepared_.weights.mean())
        return null_floors(round(cells), self.prepared_.rank, lens)

    def _floors(self, component: Component) -> dict[str, tuple[float, float]]:
        if self.null == "table":
            return {}
        X = self.points_.X[component.points]
        spectrum = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) / np.sqrt(len(X))
        return simulate_floors(
            min(len(X), 2000),
            X.shape[1],
            clouds=40,
            seed=self.random_state,
            spectrum=np.maximum(spectrum, 1e-9),
            quantile=1 - self.alpha,
        )

    def _confirm(self) -> None:
        rows = []
        for number, (component, tower) in enumerate(zip(self.components_, self.towers_, strict=True)):
            leaf, loop = (
                self._table(component, tower.lens_name)
                if self.null == "table"
                else self._floors(component).get(tower.lens_name, self._table(component, tower.lens_name))
            )
            if self.n_bootstrap > 0:
                found = confidences(
                    self.points_,
                    component,
                    tower,
                    n_bootstrap=self.n_bootstrap,
                    n_components=self.n_components,
                    t=self.t,
                    least_mass=self._least(component),
                    floors=(leaf, loop),
                    overlap=self.overlap,
                    n_levels=self.n_levels,
                    level=self.level,
                    random_state=self.random_state,
                )
                for feature, confidence in zip(tower.features, found, strict=True):
                    feature.confidence = confidence
            else:
                for feature in tower.features:
                    feature.confidence = float("nan")
            for feature in tower.features:
                floor = leaf if feature.kind == "leaf" else loop
                feature.confirmed = feature.persistence >= floor and not feature.confidence < CONFIDENT
                rows.append(
                    (
                        feature.kind,
                        number,
                        feature.birth,
                        feature.death,
                        feature.mass,
                        feature.persistence,
                        floor,
                        feature.confidence,
                        feature.confirmed,
                    )
                )
            if self.level is None:
                drop_features(tower, leaf, loop)
        self.persistence_ = np.array(rows, dtype=PERSISTENCE)

    def _build_skeleton(self) -> None:
        ready, points = self.prepared_, self.points_
        n = len(ready.X)
        component_of_point = np.full(len(points), -1, dtype=np.int64)
        for number, component in enumerate(self.components_):
            component_of_point[component.points] = number
        component = component_of_point[points.point_of]
        edge, t = np.full(n, -1, dtype=np.int64), np.full(n, np.nan)
        soft: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        vertices, edges, paths, widths, confidences_, offset = [], [], [], [], [], 0
        self.elongation_: list[float] = []
        self.explained_: list[float] = []
        self.spectral_: list[float] = []
        vertex_mass: list[float] = []
        lens, total = np.full(n, np.nan), float(ready.weights.sum())
        for number, (part, tower) in enumerate(zip(self.components_, self.towers_, strict=True)):
            cells = np.flatnonzero(component == number)
            values = np.full(len(points), np.nan)
            values[part.points] = tower.lens
            lens[cells] = values[points.point_of[cells]]
            embedded = embed_graph(tower.graph, points.X[part.points], len(tower.slabs.members))
            piece = Skeleton(embedded.positions, embedded.edges).simplify()
            piece.vertices = piece.vertices.astype(np.float64)
            own, where, distance, three, weights = assign(ready.X[cells], piece)
            w = ready.weights[cells]
            width = float(np.sqrt(np.average(distance**2, weights=w)))
            length = float(piece.length.sum()) if len(piece.edges) else 0.0  # type: ignore[union-attr]
            self.elongation_.append(length / max(2 * width, 1e-12))
            centre = np.average(ready.X[cells], axis=0, weights=w)
            spread = float(np.average(((ready.X[cells] - centre) ** 2).sum(axis=1), weights=w))
            self.explained_.append(1 - width**2 / max(spread, 1e-300))
            values = part.diffusion.eigenvalues
            self.spectral_.append(float((1 - values[1]) / max(1 - values[2], 1e-15)) if len(values) > 2 else 1.0)
            blob = self.explained_[-1] < EXPLAINED and self.spectral_[-1] > SPECTRAL
            if blob and self.level is None:
                self.persistence_["confirmed"][self.persistence_["component"] == number] = False
                vertices.append(centre[None])
                vertex_mass.append(float(w.sum()) / total)
                offset += 1
                continue
            vertices.append(piece.vertices)
            edges.append(piece.edges + offset)
            first = sum(len(e) for e in edges[:-1])
            offset += len(piece.vertices)
            vertex_mass += [0.0] * len(piece.vertices)
            paths += [np.asarray(p, dtype=np.float64) for p in piece.paths]
            edge[cells], t[cells] = own + first, where
            keep = three >= 0
            soft.append((np.repeat(cells, 3)[keep.ravel()], (three + first)[keep], weights[keep]))
            for e in range(len(piece.edges)):
                mine = own == e
                widths.append(float(np.sqrt(np.average(distance[mine] ** 2, weights=w[mine]))) if mine.any() else 0.0)
                confidences_.append(_edge_confidence(tower, points.point_of[cells[mine]], part))
        count = len(paths)
        mass = np.bincount(edge[edge >= 0], ready.weights[edge >= 0], minlength=count) / total
        cells_of_row = ready.cell_of
        inside = cells_of_row >= 0
        self.component_ = _spread(component, cells_of_row, -1)
        self.edge_of_cell_ = _spread(edge, cells_of_row, -1)
        self.t_ = _spread(t, cells_of_row, np.nan)
        self.lens_ = _spread(lens, cells_of_row, np.nan)
        by_row = (
            sparse.csr_array(
                (
                    np.concatenate([s[2] for s in soft]),
                    (np.concatenate([s[0] for s in soft]), np.concatenate([s[1] for s in soft])),
                ),
                shape=(n, count),
            )
            if soft
            else sparse.csr_array((n, count))
        )
        gather = sparse.csr_array(
            (np.ones(int(inside.sum())), (np.flatnonzero(inside), cells_of_row[inside])), shape=(len(cells_of_row), n)
        )
        self.edge_weights_ = (gather @ by_row).tocsr()
        self.working_skeleton_ = Skeleton(
            np.concatenate(vertices),
            np.concatenate(edges) if edges else np.empty((0, 2), dtype=np.int64),
            None,
            mass,
            None,
            paths,
            np.array(widths),
            np.array(confidences_),
            np.array(vertex_mass),
        )

        def back(Y: NDArray[Any]) -> NDArray[np.float32]:
            return (ready.mean + (np.asarray(Y, dtype=np.float64) @ ready.axes.T) * ready.scale).astype(np.float32)

        work = self.working_skeleton_
        self.skeleton_ = Skeleton(
            back(np.concatenate(vertices)),
            work.edges,
            work.length,
            mass,
            self.edge_weights_.T.tocsr(),
            [back(p) for p in paths],
            work.width,
            work.confidence,
            work.vertex_mass,
        )

    @property
    def diffusion_coords_(self) -> Float[np.ndarray, "n r"]:
        """Diffusion coordinates of every cell in its component."""
        return self._cell_coordinates([c.coordinates for c in self.components_]).astype(np.float32)

    def _cell_coordinates(self, per_component: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        points = self.points_
        width = max(c.shape[1] for c in per_component)
        rows = np.full((len(self.prepared_.X), width), np.nan)
        component = np.full(len(points), -1)
        for number, part in enumerate(self.components_):
            component[part.points] = number
        own = component[points.point_of]
        for number, (part, values) in enumerate(zip(self.components_, per_component, strict=True)):
            cells = np.flatnonzero(own == number)
            if points.extend is None:
                full = np.zeros((len(points), values.shape[1]))
                full[part.points] = values
                rows[cells, : values.shape[1]] = full[points.point_of[cells]]
            else:
                weights = points.extend[cells][:, part.points].tocsr()
                mass = np.asarray(weights.sum(axis=1)).ravel()
                rows[cells, : values.shape[1]] = (weights @ values) / np.maximum(mass, 1e-12)[:, None]
            rows[cells, values.shape[1] :] = 0.0
        return _spread(rows, self.prepared_.cell_of, np.nan)

    def pseudotime_(
        self, root: Any = None, *, key: str | None = None, kind: str = "diffusion"
    ) -> Float[np.ndarray, " n"]:
        """Distance of each cell from a root.

        Parameters
        ----------
        root : int, array of bool or int, str or None
            A cell; several cells (the one nearest to their mean in diffusion coordinates is taken); with AnnData, a
            value of the column ``key`` of ``obs``; None: the extremal cell of the largest component.
        key : str, optional
        kind : {"diffusion", "skeleton"}
            Multiscale diffusion distance (Haghverdi et al. 2016), or length along the edges.

        Returns
        -------
        float64[n]
            NaN in other components.

        Raises
        ------
        ShapeError
            If the root is in no component, or the column or value does not exist.
        """
        multiscale = self._cell_coordinates([c.diffusion.multiscale() for c in self.components_])
        cell = self._root(root, key, multiscale)
        component = self.component_[cell]
        if component < 0:
            raise ShapeError(f"cell {cell} was left out of every component and cannot be the root")
        inside = self.component_ == component
        if kind == "diffusion":
            return np.where(inside, np.linalg.norm(multiscale - multiscale[cell], axis=1), np.nan)
        if kind != "skeleton":
            raise ShapeError(f"kind of pseudotime must be 'diffusion' or 'skeleton', not {kind!r}")
        return np.where(inside, self._along_edges(cell), np.nan)

    def _root(self, root: Any, key: str | None, coordinates: NDArray[np.float64]) -> int:
        if key is not None:
            if self._data is None or key not in self._data.obs:
                raise ShapeError(f"there is no column {key!r} in obs")
            chosen = np.flatnonzero(np.asarray(self._data.obs[key].astype(str)) == str(root))
            if not len(chosen):
                raise ShapeError(f"no cell has {root!r} in obs column {key!r}")
        elif root is None:
            part = self.components_[0]
            from assay.shapes.reeb.lens import extremal_point

            point = part.points[extremal_point(part)]
            row = int(np.flatnonzero(self.points_.point_of == point)[0])
            return int(np.flatnonzero(self.prepared_.cell_of == row)[0])
        else:
            values = np.atleast_1d(np.asarray(root))
            chosen = np.flatnonzero(values) if values.dtype == bool else values.astype(np.int64)
            if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self.component_)):
                raise ShapeError(f"the root must be one of the cells 0 to {len(self.component_) - 1}")
        chosen = chosen[self.component_[chosen] >= 0]
        if not len(chosen):
            raise ShapeError("none of the root cells is in a component")
        main = np.bincount(self.component_[chosen]).argmax()
        chosen = chosen[self.component_[chosen] == main]
        spread = coordinates[chosen] - coordinates[chosen].mean(axis=0)
        return int(chosen[np.argmin((spread**2).sum(axis=1))])

    def _along_edges(self, cell: int) -> NDArray[np.float64]:
        skeleton = self.working_skeleton_
        lengths = skeleton.length
        assert lengths is not None
        e, t = self.edge_of_cell_, self.t_
        if e[cell] < 0:
            return np.where(e < 0, 0.0, np.nan)
        a, b = skeleton.edges[e].T
        between = skeleton.geodesic()
        own, at = skeleton.edges[e[cell]], np.array([t[cell], 1 - t[cell]]) * lengths[e[cell]]
        from_ends = np.minimum(at[0] + between[own[0]], at[1] + between[own[1]])
        out = np.full(len(e), np.nan)
        on = e >= 0
        length = lengths[e[on]]
        out[on] = np.minimum(from_ends[a[on]] + t[on] * length, from_ends[b[on]] + (1 - t[on]) * length)
        same = on & (e == e[cell])
        out[same] = np.minimum(out[same], np.abs(t[same] - t[cell]) * lengths[e[cell]])
        return out

    def transform(
        self, data: Any, *, use_rep: str | None = None
    ) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
        """Edge and position on it for new cells of the same representation.

        Raises
        ------
        ShapeError
            If the number of columns is another one.
        """
        if is_anndata(data):
            data = (
                data.obsm[use_rep or self.prepared_.representation] if self.prepared_.representation != "X" else data.X
            )
        new = data.toarray() if sparse.issparse(data) else np.asarray(data, dtype=np.float64)
        if new.ndim != 2 or new.shape[1] != len(self.prepared_.mean):
            raise ShapeError(
                f"new cells need the {len(self.prepared_.mean)} columns that the tower was fitted on, not {new.shape[1:]}"  # noqa: E501
            )
        X = self.prepared_.project(new)
        edge, t, _, _, _ = assign(X, self.working_skeleton_)
        rows = cKDTree(self.prepared_.X).query(X)[1]
        first = np.full(len(self.prepared_.X), -1, dtype=np.int64)
        inside = self.prepared_.cell_of >= 0
        first[self.prepared_.cell_of[inside]] = self.edge_of_cell_[inside]
        lonely = first[rows] < 0
        return np.where(lonely, -1, edge), np.where(lonely, np.nan, t)

    def to_anndata(self, adata: Any, key: str = "reeb") -> Any:
        """Write results into AnnData: ``obs[key_edge, key_t, key_component]``, ``obsm[X_key_diffusion]``, ``uns[key]``.

        Raises
        ------
        ShapeError
            If it has another number of cells.
        """
        if adata.n_obs != len(self.edge_of_cell_):
            raise ShapeError(
                f"the tower was fitted on {len(self.edge_of_cell_)} cells, and this AnnData has {adata.n_obs}"
            )
        adata.obs[f"{key}_edge"] = self.edge_of_cell_
        adata.obs[f"{key}_t"] = self.t_
        adata.obs[f"{key}_component"] = self.component_
        adata.obsm[f"X_{key}_diffusion"] = self.diffusion_coords_
        s = self.skeleton_
        adata.uns[key] = {
            "vertices": s.vertices,
            "edges": s.edges,
            "length": s.length,
            "mass": s.mass,
            "width": s.width,
            "confidence": s.confidence,
            "representation": self.prepared_.representation,
            "rank": self.prepared_.rank,
            "betti": np.array(s.betti()),
            "persistence": {
                name: (
                    self.persistence_[name].astype(str).tolist()
                    if name == "kind"
                    else np.asarray(self.persistence_[name])
                )
                for name in PERSISTENCE.names or ()
            },
        }
        return adata

    def _to_points(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = self.prepared_.cell_of >= 0
        point = self.points_.point_of[self.prepared_.cell_of[inside]]
        counts = np.bincount(point, minlength=len(self.points_))
        return np.bincount(point, values[inside], minlength=len(self.points_)) / np.maximum(counts, 1)

    def distances_from(self, cell: int) -> Float[np.ndarray, " m"]:
        """Length along the neighbour graph, in diffusion lengths, from a cell to all points of its component."""
        part = self.components_[max(int(self.component_[cell]), 0)]
        point = self.points_.point_of[self.prepared_.cell_of[cell]]
        return dijkstra(part.graph, directed=False, indices=int(np.flatnonzero(part.points == point)[0]))


def _spread(rows: NDArray[Any], cell_of: NDArray[np.int64], missing: float) -> NDArray[Any]:
    out = rows[np.maximum(cell_of, 0)].copy()
    out[cell_of < 0] = missing
    return out


def _edge_confidence(tower: Tower, points: NDArray[np.int64], part: Component) -> float:
    """Confidence of the feature that shares most points with an edge; that of all features where none does."""
    if not tower.features:
        return 1.0
    place = {int(p): i for i, p in enumerate(part.points)}
    own = np.array([place[int(p)] for p in np.unique(points)], dtype=np.int64)
    shared = [len(np.intersect1d(own, f.points)) / max(len(f.points), 1) for f in tower.features]
    if max(shared) < 0.3:
        return float(min(f.confidence for f in tower.features))
    return float(tower.features[int(np.argmax(shared))].confidence)
