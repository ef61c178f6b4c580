"""Does the shape stay when cells, neighbours or components are changed a little?"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from assay.shapes.prepare import is_anndata
from assay.shapes.reeb.tower import ReebTower


def stability_of(data: Any, tower: ReebTower, *, use_rep: str | None = None, random_state: int = 0) -> dict[str, float]:
    """Share of refits with the same topology.

    Refits: two subsamples of 80 % of the cells, neighbours x 2/3 and x 4/3, rank less one (at least 2) and plus two.
    Topology is (components, loops, leaves).

    Returns
    -------
    dict
        ``subsample``, ``neighbors``, ``rank``: shares of the two refits each; ``all``: of the six.
    """
    rng = np.random.default_rng([random_state, 4])
    n = data.shape[0] if hasattr(data, "shape") else len(data)
    matrix = data if is_anndata(data) or hasattr(data, "tocsr") else np.asarray(data)
    k, rank = tower.n_neighbors, tower.prepared_.rank
    same: dict[str, list[bool]] = {"subsample": [], "neighbors": [], "rank": []}
    for name, change in (
        ("subsample", {}),
        ("subsample", {}),
        ("neighbors", {"n_neighbors": max(5, round(k * 2 / 3))}),
        ("neighbors", {"n_neighbors": round(k * 4 / 3)}),
        ("rank", {"rank": max(2, rank - 1)}),
        ("rank", {"rank": rank + 2}),
    ):
        part = matrix
        if name == "subsample":
            part = matrix[np.sort(rng.choice(n, int(0.8 * n), replace=False))]
        settings: dict[str, Any] = {
            "n_neighbors": k,
            "decay": tower.decay,
            "n_components": tower.n_components,
            "overlap": tower.overlap,
            "scale": tower.scale,
            "min_mass": tower.min_mass,
            "n_landmarks": tower.n_landmarks,
            "rank": tower.rank,
            "n_jobs": tower.n_jobs,
            **change,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = ReebTower(n_bootstrap=0, random_state=random_state, **settings).fit(part, use_rep=use_rep)
        same[name].append(topology(other) == topology(tower))
    out = {name: float(np.mean(values)) for name, values in same.items()}
    out["all"] = float(np.mean([v for values in same.values() for v in values]))
    return out


def topology(tower: ReebTower) -> tuple[int, int, int]:
    """Components, loops and leaves."""
    b0, b1 = tower.skeleton_.betti()
    return b0, b1, len(tower.skeleton_.leaves())
