"""Confidence of features: how often they come back when a fifth of the points is left out."""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from assay.shapes.reeb.lens import lens_values
from assay.shapes.reeb.points import Component, Points, diffusion_component
from assay.shapes.reeb.select import Tower, build_tower
from assay.shapes.reeb.simplify import Feature

SHARE = 0.8
OVERLAP = 0.5
NEGLIGIBLE = 0.05  # of the largest: a quarter of a per cent of its squared distance
GUARD = 6  # vectors beside the wanted ones that the refinement of eigenpairs carries


def confidences(
    points: Points,
    component: Component,
    tower: Tower,
    *,
    n_bootstrap: int,
    n_components: int,
    least_mass: float,
    floors: tuple[float, float],
    overlap: float,
    n_levels: int,
    level: int | None,
    random_state: int,
    distance: str = "diffusion",
) -> list[float]:
    """Share of subsamples in which each feature of a tower comes back.

    The neighbour graph and the kernel are those of the whole, restricted, and so are the diffusion time and the vectors
    from which eigenpairs are refined (without those that add nothing to the distance); lens, slabs, a tower of half as
    many levels and the choice of one are made again. A leaf
    arc has come back when one of the subsample holds half of its points, or the other way round; the i-th strongest
    loop when there are at least i loops.
    """
    if not tower.features:
        return []
    rng = np.random.default_rng([random_state, 2])
    n_components, t = enough_components(component, n_components), component.diffusion.t
    n = len(component.points)
    hits = np.zeros(len(tower.features))
    place = np.empty(len(points), dtype=np.int64)
    for _ in range(n_bootstrap):
        inside = np.sort(rng.choice(n, max(10, int(SHARE * n)), replace=False))
        labels = connected_components(component.graph[inside][:, inside], directed=False)[1]
        inside = inside[labels == np.bincount(labels).argmax()]
        index = component.points[inside]
        start = component.diffusion.vectors[inside, : n_components + GUARD]
        again = diffusion_component(points, index, n_components, t, random_state, distance=distance, start=start)
        lens = tower.lens[inside] if tower.lens_name == "user" else lens_values(again, tower.lens_name)
        other = build_tower(
            tower.lens_name,
            lens,
            again.coordinates,
            again.weights,
            n_intervals=len(tower.slabs.members),
            overlap=overlap,
            n_levels=max(2, n_levels // 2),
            least_mass=SHARE * least_mass,
            leaf_floor=floors[0],
            loop_floor=floors[1],
            level=level,
            maps=False,
            graph=again.graph,
        )
        place[:] = -1
        place[component.points[inside]] = np.arange(len(inside))
        hits += came_back(tower.features, other.features, place[component.points])
    return (hits / n_bootstrap).tolist()


def enough_components(component: Component, n_components: int) -> int:
    """Eigenpairs whose coordinates are at least a twentieth of the largest; 4 or more."""
    diffusion = component.diffusion
    powers = np.abs(diffusion.eigenvalues[1:]) ** diffusion.t
    if not len(powers):
        return n_components
    return min(n_components, max(4, 2 + int(np.flatnonzero(powers >= NEGLIGIBLE * powers.max())[-1])))


def came_back(features: list[Feature], others: list[Feature], place: np.ndarray) -> np.ndarray:
    """1 for each feature that has a counterpart."""
    found = np.zeros(len(features))
    leaves = [set(f.points.tolist()) for f in others if f.kind == "leaf"]
    loops = sum(f.kind == "loop" for f in others)
    rank = 0
    for i in sorted(range(len(features)), key=lambda i: -features[i].persistence):
        feature = features[i]
        if feature.kind == "loop":
            rank += 1
            found[i] = loops >= rank
            continue
        own = set(place[feature.points].tolist()) - {-1}
        found[i] = any(len(own & other) >= OVERLAP * min(len(own), len(other)) > 0 for other in leaves)
    return found


def drop_features(tower: Tower, leaf_floor: float, loop_floor: float) -> None:
    """Take features that were not confirmed out of the tower's graph, the weakest first."""
    graph = tower.graph
    while True:
        weak = [f for f in tower.features if not f.confirmed]
        beyond = [f for f in weak if f.kind == "loop"]
        leaves = [f for f in tower.features if f.kind == "leaf"]
        if len(leaves) > 2 or graph.betti()[1]:
            beyond += [f for f in weak if f.kind == "leaf"]
        if not beyond:
            return
        worst = min(beyond, key=lambda f: f.persistence)
        if worst.kind == "loop":
            graph.merge_loops(worst.persistence * (1 + 1e-9))
        else:
            graph.prune_leaf(worst.points)
        tower.features = [f for f in tower.features if f is not worst]
