"""Does the shape stay when cells, neighbours or components are changed a little?"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from assay.shapes.reeb.tower import ReebTower

MOST_CELLS = 5000


def stability_of(tower: ReebTower, *, random_state: int = 0) -> dict[str, float]:
    """Share of refits with the same topology as a fitted tower.

    Refits: two subsamples of 80 % of the cells, neighbours x 2/3 and x 4/3, rank less one (at least 2) and plus two; of
    more than 5000 cells, each on 5000 drawn ones. Topology is (components, loops, leaves).

    Returns
    -------
    dict
        ``subsample``, ``neighbors``, ``rank``: shares of the two refits each; ``all``: of the six.
    """
    rng = np.random.default_rng([random_state, 4])
    ready = tower.prepared_
    cells = ready.features
    if len(cells) > MOST_CELLS:
        cells = cells[np.sort(rng.choice(len(cells), MOST_CELLS, replace=False))]
    k, rank, columns = tower.n_neighbors, ready.rank, cells.shape[1]
    same: dict[str, list[bool]] = {"subsample": [], "neighbors": [], "rank": []}
    for name, change in (
        ("subsample", {}),
        ("subsample", {}),
        ("neighbors", {"n_neighbors": max(5, round(k * 2 / 3))}),
        ("neighbors", {"n_neighbors": round(k * 4 / 3)}),
        ("rank", {"rank": max(2, rank - 1)}),
        ("rank", {"rank": min(rank + 2, columns)}),
    ):
        part = cells
        if name == "subsample":
            part = cells[np.sort(rng.choice(len(cells), int(0.8 * len(cells)), replace=False))]
        settings: dict[str, Any] = {
            "n_neighbors": k,
            "decay": tower.decay,
            "n_components": tower.n_components,
            "overlap": tower.overlap,
            "n_levels": tower.n_levels,
            "scale": True if ready.scaled else None,
            "min_mass": tower.min_mass,
            "n_landmarks": tower.n_landmarks,
            "distance": tower.distance,
            "level": tower.level,
            "rank": rank,
            "n_jobs": tower.n_jobs,
            **change,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = ReebTower(n_bootstrap=0, random_state=random_state, **settings).fit(part)
        same[name].append(topology(other) == topology(tower))
    out = {name: float(np.mean(values)) for name, values in same.items()}
    out["all"] = float(np.mean([v for values in same.values() for v in values]))
    return out


def topology(tower: ReebTower) -> tuple[int, int, int]:
    """Components, loops and leaves."""
    b0, b1 = tower.skeleton_.betti()
    return b0, b1, len(tower.skeleton_.leaves())
