"""`ReebTower`: from cells to a skeleton, with its levels, persistence and confidence, and the cells on its edges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import dijkstra
from scipy.spatial import cKDTree

from assay.shapes.cache import BasisCache
from assay.shapes.errors import (
    ConfoundedSkeletonWarning,
    DisconnectedGraphWarning,
    ShapeError,
    UnknownRepresentationError,
)
from assay.shapes.kernel import Neighbors
from assay.shapes.prepare import Prepared, is_anndata, prepare
from assay.shapes.reeb.annotate import write_anndata
from assay.shapes.reeb.assemble import build_skeleton, spread_to_cells
from assay.shapes.reeb.bootstrap import confidences, drop_features
from assay.shapes.reeb.embed import assign
from assay.shapes.reeb.lens import AUTO, lens_values
from assay.shapes.reeb.null import null_floors, simulate_floors
from assay.shapes.reeb.points import Component, Points, find_components, make_points
from assay.shapes.reeb.pseudotime import pseudotime
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
    distance : {"diffusion", "potential"}
        In which slabs are linked and lens lengths measured: D_t, or between rows of -log P^t as PHATE has it. The
        shipped floors are for ``diffusion``.
    cache : path, optional
        Folder where neighbours and eigenpairs are kept, by a hash of the data and the settings that they depend on.
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
    stray_ : bool[n]
        Cells that lie alone: no part of the tower, and assigned to the edge that is nearest.
    edge_weights_ : csr_array[n, E]
        Soft weights to up to three edges.
    share_ : list of float
        Of each component: share of the cells.
    graph_parts_ : int
        Connected components of the neighbour graph, however small.
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

    prepared_: Prepared
    points_: Points
    components_: list[Component]
    towers_: list[Tower]
    lenses_: list[dict[str, Tower]]
    persistence_: NDArray[Any]
    skeleton_: Skeleton
    working_skeleton_: Skeleton
    component_: Int[np.ndarray, " n"]
    edge_of_cell_: Int[np.ndarray, " n"]
    t_: Float[np.ndarray, " n"]
    lens_: Float[np.ndarray, " n"]
    stray_: NDArray[np.bool_]
    edge_weights_: sparse.csr_array
    share_: list[float]
    elongation_: list[float]
    explained_: list[float]
    spectral_: list[float]

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
        distance: str = "diffusion",
        cache: str | Path | None = None,
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
        self.distance = distance
        self.cache = cache
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self, data: Any, *, use_rep: str | None = None, batch: Any = None, neighbors: Neighbors | None = None
    ) -> ReebTower:
        """Find the skeleton.

        Parameters
        ----------
        data : array[n, d], sparse matrix or AnnData
        use_rep : str, optional
            Entry of ``obsm``, or ``"X"``.
        batch : str or array[n], optional
            Column of ``obs``, or a value a cell. The fit does not use it; a `ConfoundedSkeletonWarning` says when the
            skeleton follows it.
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
        if self.distance not in ("diffusion", "potential"):
            raise ShapeError(f"distance must be 'diffusion' or 'potential', not {self.distance!r}")
        cache = None if self.cache is None else BasisCache(self.cache)
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
            cache=cache,
        )
        total = float(ready.weights.sum())
        repeats = total / len(ready.weights)
        self.least_mass_ = max(5.0 * repeats, self.min_mass * total) if self.min_mass > 0 else 0.0
        self.components_, self.graph_parts_ = find_components(
            points,
            n_components=self.n_components,
            t=self.t,
            least_mass=max(self.least_mass_, 10.0),
            random_state=self.random_state,
            distance=self.distance,
            cache=cache,
        )
        if not self.components_:
            raise ShapeError("no part of the neighbour graph has as many as 10 cells; raise n_neighbors")
        self.lenses_ = [self._towers(c) for c in self.components_]
        self.towers_ = [max(lenses.values(), key=lambda tower: tower.score) for lenses in self.lenses_]
        self._confirm()
        build_skeleton(self)
        if len(self.components_) > 1:
            warnings.warn(DisconnectedGraphWarning([round(s * total) for s in self.share_]), stacklevel=2)
        if batch is not None:
            self._warn_of_batch(data, batch)
        return self

    def _warn_of_batch(self, data: Any, batch: Any) -> None:
        from assay.shapes.confounders import batch_warning

        found = batch_warning(self, data, batch, random_state=self.random_state)
        if found is not None:
            warnings.warn(ConfoundedSkeletonWarning(found), stacklevel=3)

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
                    least_mass=self._least(component),
                    floors=(leaf, loop),
                    overlap=self.overlap,
                    n_levels=self.n_levels,
                    level=self.level,
                    random_state=self.random_state,
                    distance=self.distance,
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
        return spread_to_cells(rows, self.prepared_.cell_of, np.nan)

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
        return pseudotime(self, root, key, kind)

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
            name = use_rep or self.prepared_.representation
            if name not in ("X", "array") and name not in data.obsm:
                raise UnknownRepresentationError(name, list(data.obsm.keys()))
            data = data.X if name in ("X", "array") else data.obsm[name]
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

        Where the cells that the tower was fitted on are neither ``X`` nor in ``obsm`` (an array, components made here),
        they are written to ``obsm[X_key_space]``, since the skeleton lies among them.

        Raises
        ------
        ShapeError
            If it has another number of cells.
        """
        return write_anndata(self, adata, key)

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
