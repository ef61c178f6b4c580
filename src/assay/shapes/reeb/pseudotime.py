"""Distance of each cell from a root: through the diffusion, or along the edges of the skeleton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.shapes.errors import ShapeError
from assay.shapes.reeb.lens import extremal_point

if TYPE_CHECKING:
    from assay.shapes.reeb.tower import ReebTower


def pseudotime(tower: ReebTower, root: Any, key: str | None, kind: str) -> NDArray[np.float64]:
    """See `ReebTower.pseudotime_`."""
    multiscale = tower._cell_coordinates([c.diffusion.multiscale() for c in tower.components_])
    cell = root_cell(tower, root, key, multiscale)
    inside = tower.component_ == tower.component_[cell]
    if kind == "diffusion":
        return np.where(inside, np.linalg.norm(multiscale - multiscale[cell], axis=1), np.nan)
    if kind != "skeleton":
        raise ShapeError(f"kind of pseudotime must be 'diffusion' or 'skeleton', not {kind!r}")
    return np.where(inside, along_edges(tower, cell), np.nan)


def root_cell(tower: ReebTower, root: Any, key: str | None, coordinates: NDArray[np.float64]) -> int:
    """The cell that a root names: itself, or of several the one nearest to their mean in diffusion coordinates."""
    if key is not None:
        data = tower._data
        if data is None or key not in data.obs:
            raise ShapeError(f"there is no column {key!r} in obs")
        chosen = np.flatnonzero(np.asarray(data.obs[key].astype(str)) == str(root))
        if not len(chosen):
            raise ShapeError(f"no cell has {root!r} in obs column {key!r}")
    elif root is None:
        part = tower.components_[0]
        point = part.points[extremal_point(part)]
        row = int(np.flatnonzero((tower.points_.point_of == point) & ~tower.points_.stray)[0])
        return int(np.flatnonzero(tower.prepared_.cell_of == row)[0])
    else:
        values = np.atleast_1d(np.asarray(root))
        if values.dtype.kind not in "biu":
            raise ShapeError("the root must be a cell number, several, or a mask; give key= for a value of obs")
        chosen = np.flatnonzero(values) if values.dtype == bool else values.astype(np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(tower.component_)):
            raise ShapeError(f"the root must be one of the cells 0 to {len(tower.component_) - 1}")
    chosen = chosen[tower.component_[chosen] >= 0]
    if not len(chosen):
        raise ShapeError("none of the root cells is in a component")
    main = np.bincount(tower.component_[chosen]).argmax()
    chosen = chosen[tower.component_[chosen] == main]
    spread = coordinates[chosen] - coordinates[chosen].mean(axis=0)
    return int(chosen[np.argmin((spread**2).sum(axis=1))])


def along_edges(tower: ReebTower, cell: int) -> NDArray[np.float64]:
    """Length along the edges from a cell to each cell; NaN where no edges lead."""
    skeleton = tower.working_skeleton_
    lengths = skeleton.length
    assert lengths is not None
    e, t = tower.edge_of_cell_, tower.t_
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
