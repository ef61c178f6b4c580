"""The tower of one component under one lens, and which of its levels becomes the skeleton.

A level is considered once the level graph is connected (90 % of its nodes' cells in one piece): below, the spanning
trees are cut inside arcs. A feature counts at a level when the next coarser one has it too, so it holds over a range of
epsilon. Of these levels the one is kept whose features beyond a mere path are the most persistent together; a feature
counts when it is above the floor that Gaussian clouds leave under the same lens. The two strongest leaf arcs are no
features: a path has them. Nor is an arc that ends at the least eccentricity: the central point is no tip.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from assay.shapes.reeb.lifetimes import Lifetime, lifetimes
from assay.shapes.reeb.simplify import Feature, ReebGraph
from assay.shapes.reeb.slabs import LevelGraph, Slabs, level_graph, level_map, make_slabs

CONNECTED = 0.9
SURVIVES = 0.5  # share of the floor that a feature must still have at the next coarser level
BRANCH_SLABS = 3.0  # branch points nearer than this many slabs are one


@dataclass
class Tower:
    """Level graphs from fine to coarse, with the maps between them.

    Attributes
    ----------
    lens_name : str
    lens : float64[c]
    slabs : Slabs
    levels : list of LevelGraph
    maps : list of int64[V_l]
        Node of level l + 1 that holds each node of level l.
    level : int
        The level that became the skeleton.
    graph : ReebGraph
        It, simplified.
    features : list of Feature
    score : float
        Sum of the persistences of features beyond a path, in units of their floors.
    """

    lens_name: str
    lens: Float[np.ndarray, " c"]
    slabs: Slabs
    levels: list[LevelGraph]
    maps: list[Int[np.ndarray, " V"]]
    level: int
    graph: ReebGraph
    features: list[Feature]
    score: float
    table: list[dict[str, float]] = field(default_factory=list)

    def lifetimes(self) -> list[Lifetime]:
        """Births and deaths of the nodes and edges of the levels; those of leaf arcs and loops are `features`."""
        return lifetimes(self.levels, self.maps)


def number_of_intervals(n: int) -> int:
    """clip(2 n^(1/3), 12, 60).

    Examples
    --------
    >>> [number_of_intervals(n) for n in (100, 3000, 100_000)]
    [12, 28, 60]
    """
    return int(np.clip(2 * n ** (1 / 3), 12, 60))


def build_tower(
    lens_name: str,
    lens: Float[np.ndarray, " c"],
    coordinates: Float[np.ndarray, "c q"],
    weights: Float[np.ndarray, " c"],
    *,
    n_intervals: int | str = "auto",
    overlap: float = 0.3,
    n_levels: int = 10,
    least_mass: float = 5.0,
    leaf_floor: float = 0.05,
    loop_floor: float = 0.1,
    level: int | None = None,
    maps: bool = True,
    graph: sparse.csr_array | None = None,
) -> Tower:
    """Slabs, levels, maps and the selected skeleton of one component under one lens."""
    h = number_of_intervals(len(lens)) if n_intervals == "auto" else int(n_intervals)
    slabs = make_slabs(lens, coordinates, h, overlap, weights, graph)
    levels = [level_graph(slabs, epsilon, lens, weights, least_mass) for epsilon in slabs.ladder(n_levels)]
    best: tuple[float, int, ReebGraph, list[Feature]] | None = None
    table: list[dict[str, float]] = []
    coarser: list[Feature] | None = None
    for number in reversed(range(len(levels))):
        if level is not None and number != min(level, len(levels) - 1):
            continue
        level_ = levels[number]
        reeb = ReebGraph(level_, lens, weights)
        share = largest_share(reeb)
        if share < CONNECTED and best is not None:
            table.append(
                {"epsilon": level_.epsilon, "nodes": len(level_), "largest_share": share, "score": float("nan")}
            )
            continue
        reeb.connect(coordinates)
        closed = lens_name == "eccentricity"
        reeb.simplify(SURVIVES * leaf_floor, SURVIVES * loop_floor, closed_minimum=closed)
        weak = reeb.features()
        reeb.simplify(leaf_floor, loop_floor, closed_minimum=closed)
        features = reeb.features()
        if coarser is not None:
            features = keep_survivors(reeb, features, coarser, leaf_floor, loop_floor)
        coarser = weak
        score = beyond_a_path(features, leaf_floor, loop_floor)
        table.append({"epsilon": level_.epsilon, "nodes": len(level_), "largest_share": share, "score": score})
        if best is None or score >= best[0]:
            best = (score, number, reeb, features)
    table.reverse()
    assert best is not None
    between = [level_map(a, b) for a, b in pairwise(levels)] if maps else []
    return Tower(lens_name, lens, slabs, levels, between, best[1], best[2], best[3], best[0], table)


def keep_survivors(
    graph: ReebGraph, features: list[Feature], coarser: list[Feature], leaf_floor: float, loop_floor: float
) -> list[Feature]:
    """Give each loop the lesser of its persistence and that of the loop of the same rank at the next coarser level,
    and drop the weak.

    Loops of noise shrink as epsilon grows, true ones stay. Leaf arcs are counted only: beyond the number that the
    coarser level has, the weakest go.
    """
    loops = ranked(features, "loop")
    others = ranked(coarser, "loop")
    held = [min(a, b) for a, b in zip(loops, others + [0.0] * len(loops))]
    changed = False
    for own, value in reversed(list(zip(loops, held, strict=True))):
        if value < loop_floor:
            graph.merge_loops(own * (1 + 1e-9))
            changed = True
    if changed:
        features = graph.features()
    while True:
        leaves = sorted((f for f in features if f.kind == "leaf"), key=lambda f: -f.persistence)
        others = ranked(coarser, "leaf")
        lasting = [min(f.persistence, b) for f, b in zip(leaves, others + [0.0] * len(leaves))]
        if len(leaves) <= 2 or lasting[-1] >= leaf_floor:
            break
        graph.prune_leaf(leaves[-1].points)
        features = graph.features()
    if len(leaves) > 2:
        for feature, value in zip(leaves[2:], lasting[2:], strict=True):
            feature.persistence = value
    for feature, value in zip(sorted((f for f in features if f.kind == "loop"), key=lambda f: -f.persistence), held):
        feature.persistence = min(feature.persistence, value)
    return features


def ranked(features: list[Feature], kind: str) -> list[float]:
    """Persistences of one kind, strongest first."""
    return sorted((f.persistence for f in features if f.kind == kind), reverse=True)


def largest_share(graph: ReebGraph) -> float:
    """Share of the nodes' cells in the largest piece."""
    sizes = [sum(graph.nodes[v].points.bit_count() for v in part) for part in graph.parts()]
    return max(sizes) / sum(sizes) if sizes else 0.0


def beyond_a_path(features: list[Feature], leaf_floor: float, loop_floor: float) -> float:
    """Sum of the persistences of loops, and of leaf arcs but the two strongest, each in units of its floor."""
    leaves = sorted((f.persistence for f in features if f.kind == "leaf"), reverse=True)
    return sum(f.persistence for f in features if f.kind == "loop") / loop_floor + sum(leaves[2:]) / leaf_floor


def largest_noise(features: list[Feature]) -> tuple[float, float]:
    """Largest persistence of a leaf arc and of a loop that a path would not have (for the null)."""
    leaves = sorted((f.persistence for f in features if f.kind == "leaf"), reverse=True)
    loops = [f.persistence for f in features if f.kind == "loop"]
    return (leaves[2] if len(leaves) > 2 else 0.0), max(loops, default=0.0)
