"""What a fitted tower leaves in AnnData."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from assay.shapes.errors import ShapeError
from assay.shapes.reeb.assemble import spread_to_cells

if TYPE_CHECKING:
    from assay.shapes.reeb.tower import ReebTower


def write_anndata(tower: ReebTower, adata: Any, key: str) -> Any:
    """Write results of a tower into AnnData, as `ReebTower.to_anndata` says."""
    if adata.n_obs != len(tower.edge_of_cell_):
        raise ShapeError(
            f"the tower was fitted on {len(tower.edge_of_cell_)} cells, and this AnnData has {adata.n_obs}"
        )
    adata.obs[f"{key}_edge"] = tower.edge_of_cell_
    adata.obs[f"{key}_t"] = tower.t_
    adata.obs[f"{key}_component"] = tower.component_
    adata.obsm[f"X_{key}_diffusion"] = tower.diffusion_coords_
    ready, skeleton, rows = tower.prepared_, tower.skeleton_, tower.persistence_
    space = ready.representation
    if space != "X" and space not in adata.obsm:
        space = f"X_{key}_space"
        adata.obsm[space] = spread_to_cells(ready.features.astype(np.float32), ready.cell_of, np.nan)
    adata.uns[key] = {
        "vertices": skeleton.vertices,
        "edges": skeleton.edges,
        "length": skeleton.length,
        "mass": skeleton.mass,
        "width": skeleton.width,
        "confidence": skeleton.confidence,
        "representation": space,
        "rank": ready.rank,
        "betti": np.array(skeleton.betti()),
        "persistence": {
            name: rows[name].astype(str).tolist() if name == "kind" else np.asarray(rows[name])
            for name in rows.dtype.names or ()
        },
    }
    return adata
