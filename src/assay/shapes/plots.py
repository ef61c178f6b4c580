"""Pictures of skeletons, persistence, towers and verdicts (matplotlib)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import ShapeError
from assay.shapes.skeleton import Skeleton, points_along

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from assay.shapes.classify import ShapeReport
    from assay.shapes.reeb.tower import ReebTower

MOST_CELLS = 20_000
NEAREST = 8


def flat_embedding(X: NDArray[Any]) -> NDArray[np.float64]:
    """First two principal components; one column is paired with zeros."""
    Y = np.asarray(X, dtype=np.float64)
    if Y.shape[1] == 1:
        return np.column_stack([Y, np.zeros(len(Y))])
    if Y.shape[1] == 2:
        return Y
    Y = Y - Y.mean(axis=0)
    return Y @ np.linalg.svd(Y[:: max(1, len(Y) // 5000)], full_matrices=False)[2][:2].T


def curves_on(
    skeleton: Skeleton, cells: NDArray[Any], embedding: NDArray[Any], points: int = 40
) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
    """Curves and vertices of a skeleton carried to an embedding: each point goes to the mean of its eight nearest
    cells there.

    Returns
    -------
    curves : list of float64[points, 2]
    vertices : float64[V, 2]
    """
    from scipy.spatial import cKDTree

    tree = cKDTree(np.asarray(cells, dtype=np.float64))
    flat = np.asarray(embedding, dtype=np.float64)[:, :2]

    def carry(Y: NDArray[Any]) -> NDArray[np.float64]:
        return flat[tree.query(np.asarray(Y, dtype=np.float64), k=min(NEAREST, len(flat)))[1].reshape(len(Y), -1)].mean(
            axis=1
        )

    vertices = carry(skeleton.vertices)
    curves = []
    for (a, b), path in zip(skeleton.edges.tolist(), skeleton.paths, strict=True):
        curve = carry(points_along(path, np.linspace(0, 1, points)))
        for _ in range(3):
            curve[1:-1] = (curve[:-2] + 2 * curve[1:-1] + curve[2:]) / 4
        curve[0], curve[-1] = vertices[a], vertices[b]
        curves.append(curve)
    return curves, vertices


def plot_skeleton(
    skeleton: Skeleton,
    embedding: NDArray[Any] | None = None,
    *,
    cells: NDArray[Any] | None = None,
    color: NDArray[Any] | None = None,
    title: str = "",
) -> Figure:
    """The skeleton over the cells.

    Parameters
    ----------
    skeleton : Skeleton
    embedding : array[n, 2], optional
        Where the cells are drawn (UMAP, PHATE, ...); default: the first two axes of the skeleton's own space.
    cells : array[n, d], optional
        The cells in the skeleton's space; needed with an embedding of another space.
    color : array[n], optional
        A number or a category a cell.

    Raises
    ------
    ShapeError
        If an embedding is given without cells and does not have the skeleton's columns.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 4.8), layout="constrained")
    axes = figure.subplots()
    if embedding is None and cells is not None:
        embedding = flat_embedding(cells)
    if embedding is None:
        curves = [points_along(p, np.linspace(0, 1, 40))[:, :2] for p in skeleton.paths]
        vertices = skeleton.vertices[:, :2].astype(np.float64)
    else:
        embedding = np.asarray(embedding, dtype=np.float64)
        if cells is None and embedding.shape[1] != skeleton.vertices.shape[1]:
            raise ShapeError(
                "give the cells in the skeleton's space as well (cells=...), so that it can be carried to the embedding"
            )
        curves, vertices = curves_on(skeleton, embedding if cells is None else cells, embedding)
        shown = np.arange(len(embedding))[:: max(1, len(embedding) // MOST_CELLS)]
        _scatter(axes, embedding[shown], None if color is None else np.asarray(color)[shown], figure)
    _draw(axes, skeleton, curves, vertices)
    axes.set_title(title or repr(skeleton)[9:-1], loc="left", fontsize=9)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    return figure


def _scatter(axes: Any, points: NDArray[Any], color: NDArray[Any] | None, figure: Any) -> None:
    size = float(np.clip(4000 / len(points), 1, 14))
    if color is None:
        axes.scatter(points[:, 0], points[:, 1], s=size, c="0.78", linewidths=0, rasterized=True)
        return
    if color.dtype.kind in "biuf" and len(np.unique(color)) > 12:
        dots = axes.scatter(
            points[:, 0], points[:, 1], s=size, c=color.astype(float), cmap="viridis", linewidths=0, rasterized=True
        )
        figure.colorbar(dots, ax=axes, shrink=0.6)
        return
    for i, value in enumerate(np.unique(color)):
        mine = color == value
        axes.scatter(
            points[mine, 0],
            points[mine, 1],
            s=size,
            color=f"C{i % 10}",
            linewidths=0,
            label=str(value),
            rasterized=True,
        )
    axes.legend(frameon=False, fontsize=7, markerscale=2)


def _draw(axes: Any, skeleton: Skeleton, curves: list[NDArray[np.float64]], vertices: NDArray[np.float64]) -> None:
    assert skeleton.mass is not None and skeleton.confidence is not None
    top = max(float(skeleton.mass.max()), 1e-12) if len(curves) else 1.0
    for curve, mass, confidence in zip(curves, skeleton.mass, skeleton.confidence, strict=True):
        width = 1.2 + 2.5 * float(mass) / top
        axes.plot(curve[:, 0], curve[:, 1], color="white", linewidth=width + 2, solid_capstyle="round", zorder=3)
        axes.plot(
            curve[:, 0],
            curve[:, 1],
            color="#b2182b",
            linewidth=width,
            solid_capstyle="round",
            zorder=4,
            linestyle="-" if not confidence < 0.8 else (0, (3, 2)),
        )
    degree = skeleton.degrees()
    for v, (x, y) in enumerate(vertices):
        axes.scatter(
            [x],
            [y],
            s=46 if degree[v] >= 3 else 26,
            color="#67001f" if degree[v] >= 3 else "white",
            edgecolor="#67001f",
            linewidth=1.4,
            zorder=5,
        )


def plot_persistence(tower: ReebTower) -> Figure:
    """Persistence of each leaf arc and loop with its floor; hollow marks are not confirmed."""
    from matplotlib.figure import Figure

    rows = np.sort(tower.persistence_, order="persistence")[::-1]
    figure = Figure(figsize=(5.4, 0.9 + 0.26 * max(len(rows), 2)), layout="constrained")
    axes = figure.subplots()
    for i, row in enumerate(rows):
        hue = "#2166ac" if row["kind"] == "leaf" else "#b2182b"
        axes.plot([0, row["persistence"]], [i, i], color=hue, linewidth=2)
        axes.scatter(
            [row["persistence"]], [i], s=38, color=hue if row["confirmed"] else "white", edgecolor=hue, zorder=3
        )
        axes.plot([row["floor"]] * 2, [i - 0.35, i + 0.35], color="0.3", linewidth=1.5)
    axes.set_yticks(
        range(len(rows)),
        [
            f"{r['kind']}, component {r['component']}"
            + ("" if np.isnan(r["confidence"]) else f", back in {r['confidence']:.0%}")
            for r in rows
        ],
        fontsize=7,
    )
    axes.invert_yaxis()
    axes.set_xlabel("persistence; bar: what Gaussian clouds leave", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_tower(tower: ReebTower, component: int = 0) -> Figure:
    """Nodes of each level of a component's tower: lens against level, size by mass, lines for the maps between
    levels.
    """
    from matplotlib.figure import Figure

    kept = tower.towers_[component]
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, level in enumerate(kept.levels):
        if number < len(kept.maps):
            above = kept.levels[number + 1]
            for v, u in enumerate(kept.maps[number]):
                if u < 0:
                    continue
                axes.plot(
                    [level.height[v], above.height[u]], [number, number + 1], color="0.85", linewidth=0.5, zorder=1
                )
        axes.scatter(
            level.height,
            np.full(len(level), number),
            s=4 + 60 * np.sqrt(level.mass / max(level.mass.max(), 1e-12)),
            color="#b2182b" if number == kept.level else "#4393c3",
            alpha=0.7,
            linewidths=0,
            zorder=2,
        )
    axes.set_yticks(range(len(kept.levels)), [f"{level.epsilon:.2g}" for level in kept.levels], fontsize=7)
    axes.set_ylabel("epsilon (diffusion distance)", fontsize=8)
    axes.set_xlabel(f"lens: {kept.lens_name}", fontsize=8)
    axes.set_title("level graphs, fine to coarse; red: the level of the skeleton", loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_verdict(report: ShapeReport) -> Figure:
    """Scores of the shapes as bars."""
    from matplotlib.figure import Figure

    names = list(report.scores)
    values = [report.scores[name] for name in names]
    figure = Figure(figsize=(5.4, 2.0), layout="constrained")
    axes = figure.subplots()
    axes.barh(names, values, color=["#b2182b" if v >= 0.5 else "0.75" for v in values])
    axes.axvline(0.5, color="0.3", linewidth=0.8, linestyle="--")
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_title("shape: " + ", ".join(report.labels), loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def reeb(adata: Any, *, key: str = "reeb", basis: str | None = None, color: str | None = None) -> Figure:
    """scanpy-style: the skeleton that `ReebTower.to_anndata` stored, over an embedding of the same AnnData.

    Parameters
    ----------
    adata : AnnData
    key : str
    basis : str, optional
        Entry of ``obsm`` (``"umap"`` finds ``X_umap``); default: umap, tsne, phate or pca, whichever is there first.
    color : str, optional
        Column of ``obs``.

    Raises
    ------
    ShapeError
    """
    if key not in adata.uns:
        raise ShapeError(f"uns has no {key!r}; call ReebTower().fit(adata).to_anndata(adata, key={key!r}) first")
    stored = adata.uns[key]
    names = [f"X_{n}" for n in ("umap", "tsne", "phate", "pca")]
    wanted = next((n for n in ((basis, f"X_{basis}") if basis else names) if n in adata.obsm), None)
    representation = str(stored["representation"])
    if representation in adata.obsm:
        cells = np.asarray(adata.obsm[representation])
    elif representation == "X" and adata.shape[1] == np.shape(stored["vertices"])[1]:
        cells = adata.X.toarray() if hasattr(adata.X, "toarray") else np.asarray(adata.X)
    else:
        raise ShapeError(f"obsm no longer has the representation {representation!r} on which the skeleton lies")
    skeleton = Skeleton(
        stored["vertices"],
        stored["edges"],
        stored["length"],
        stored["mass"],
        None,
        _curves_from(adata, stored, key, cells),
        stored["width"],
        stored["confidence"],
    )
    flat = np.asarray(adata.obsm[wanted])[:, :2] if wanted else flat_embedding(cells)
    kept = np.isfinite(cells).all(axis=1)  # cells that were left out of the fit have no place
    cells, flat = cells[kept], flat[kept]
    return plot_skeleton(
        skeleton,
        flat,
        cells=cells,
        color=None if color is None else np.asarray(adata.obs[color])[kept],
        title=", ".join([wanted or "PCA"]),
    )


def _curves_from(adata: Any, stored: Any, key: str, cells: NDArray[Any]) -> list[NDArray[Any]]:
    """Curves of the edges from the cells on them: means of tenths of the position."""
    edge, t = np.asarray(adata.obs[f"{key}_edge"]), np.asarray(adata.obs[f"{key}_t"])
    curves = []
    for e, (a, b) in enumerate(np.asarray(stored["edges"]).reshape(-1, 2)):
        parts = [stored["vertices"][a]]
        for k in range(10):
            mine = (edge == e) & (t >= k / 10) & (t < (k + 1) / 10)
            if mine.sum() >= 3:
                parts.append(cells[mine].mean(axis=0))
        parts.append(stored["vertices"][b])
        curves.append(np.array(parts, dtype=np.float32))
    return curves
