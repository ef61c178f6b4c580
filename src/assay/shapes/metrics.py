"""Topology-aware scores of skeletons, and scores of multi-label verdicts.

Skeletons are compared after vertices of degree 2 are contracted, so subdividing an edge changes nothing. Lengths are
divided by the diameter of the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from assay.shapes.errors import ShapeError
from assay.shapes.persistence import bottleneck, extended_persistence, wasserstein
from assay.shapes.skeleton import Skeleton

TOLERANCE = 0.1
STEP = 0.02
EDIT_VERTICES = 12
EDIT_SECONDS = 5.0
OVERALL = {"betti": 2.0, "leaf_f1": 1.0, "branch_f1": 1.0, "degree": 1.0, "chamfer": 1.0, "branches_f1": 1.0}


def betti_errors(pred: Skeleton, true: Skeleton) -> tuple[int, int]:
    """|b0 - b0*| and |b1 - b1*|."""
    (a0, a1), (b0, b1) = pred.betti(), true.betti()
    return abs(a0 - b0), abs(a1 - b1)


def matching_f1(pred: Float[np.ndarray, "p d"], true: Float[np.ndarray, "q d"], tolerance: float) -> float:
    """F1 of points matched one to one within a distance (Hungarian); 1 where both are empty.

    Examples
    --------
    >>> matching_f1(np.array([[0.0], [1.0]]), np.array([[0.05], [5.0], [1.0]]), 0.1)
    0.8
    """
    if not len(pred) and not len(true):
        return 1.0
    if not len(pred) or not len(true):
        return 0.0
    distance = cdist(pred, true)
    cost = np.where(distance <= tolerance, distance, 1e6)
    rows, columns = linear_sum_assignment(cost)
    hits = int((distance[rows, columns] <= tolerance).sum())
    return 2 * hits / (len(pred) + len(true))


def degree_distance(pred: Skeleton, true: Skeleton) -> int:
    """L1 distance of the sorted degree sequences, padded with zeros."""
    a, b = np.sort(pred.degrees())[::-1], np.sort(true.degrees())[::-1]
    size = max(len(a), len(b))
    return int(np.abs(np.pad(a, (0, size - len(a))) - np.pad(b, (0, size - len(b)))).sum())


def graph_edit(pred: Skeleton, true: Skeleton) -> tuple[float, bool]:
    """Exact graph edit distance with unit costs up to 12 vertices, else the Ipsen-Mikhailov-Hamming distance; and
    whether it is exact.

    Loops and parallel edges are subdivided first, so that both graphs are simple.
    """
    import networkx as nx

    a, b = _simple(pred), _simple(true)
    if max(len(a), len(b)) <= EDIT_VERTICES:
        found = nx.graph_edit_distance(a, b, timeout=EDIT_SECONDS)
        if found is not None:
            return float(found), True
    return him_distance(a, b), False


def him_distance(a: Any, b: Any, xi: float = 1.0) -> float:
    """Hamming and Ipsen-Mikhailov distances combined (Jurman et al. 2015), on graphs padded to one size.

    Examples
    --------
    >>> import networkx as nx
    >>> him_distance(nx.path_graph(5), nx.path_graph(5))
    0.0
    """
    import networkx as nx

    n = max(len(a), len(b))
    A, B = (
        np.pad(nx.to_numpy_array(g), (0, n - len(g)))[:n, :n] if len(g) < n else nx.to_numpy_array(g) for g in (a, b)
    )
    hamming = float(np.abs(A - B).sum()) / max(n * (n - 1), 1)
    gamma = 0.08
    grid = np.linspace(0, np.sqrt(2.0 * n) + 5, 2000)

    def density(M: NDArray[np.float64]) -> NDArray[np.float64]:
        laplacian = np.diag(M.sum(axis=1)) - M
        omega = np.sqrt(np.maximum(np.linalg.eigvalsh(laplacian)[1:], 0.0))
        rho = (gamma / ((grid[:, None] - omega) ** 2 + gamma**2)).sum(axis=1)
        return rho / np.trapezoid(rho, grid)

    spectral = float(np.sqrt(np.trapezoid((density(A) - density(B)) ** 2, grid))) if n > 1 else 0.0
    return float(np.sqrt(hamming**2 + xi * spectral**2) / np.sqrt(1 + xi))


def _simple(skeleton: Skeleton) -> Any:
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(len(skeleton.vertices)))
    extra = len(skeleton.vertices)
    for a, b in skeleton.edges.tolist():
        if a == b:
            graph.add_edges_from([(a, extra), (extra, extra + 1), (extra + 1, a)])
            extra += 2
        elif graph.has_edge(a, b):
            graph.add_edges_from([(a, extra), (extra, b)])
            extra += 1
        else:
            graph.add_edge(a, b)
    return graph


def gromov_wasserstein(pred: Skeleton, true: Skeleton, step: float = STEP) -> float:
    """Squared Gromov-Wasserstein discrepancy of the metric graphs, sampled every ``step`` of their own length, as
    they are.

    Distances run along edges, and between components are twice the longest finite one. Points are weighted by the
    length they stand for. Needs POT.
    """
    import ot

    parts = []
    for skeleton in (pred, true):
        total = float(skeleton.length.sum())  # type: ignore[union-attr]
        if total == 0:
            points = len(skeleton.vertices)
            D = np.where(np.eye(points, dtype=bool), 0.0, 1.0)
            parts.append((D, np.full(points, 1.0 / points)))
            continue
        fine, _, stands = skeleton.sample(step * total)
        D = fine.geodesic()
        finite = np.isfinite(D)
        D = np.where(finite, D, 2 * D[finite].max())
        stands = stands + 1e-6 * total
        parts.append((D, stands / stands.sum()))
    (C1, p), (C2, q) = parts
    return gw_discrepancy(C1, C2, p, q, ot)


def gw_discrepancy(C1: NDArray[Any], C2: NDArray[Any], p: NDArray[Any], q: NDArray[Any], ot: Any) -> float:
    """Best of three starts of POT's conditional gradient: independent, and sorted by eccentricity both ways."""
    best = np.inf
    ecc1, ecc2 = C1 @ p, C2 @ q
    for start in (None, 1, -1):
        G0 = None
        if start is not None:
            G0 = ot.emd_1d(ecc1, start * ecc2, p, q)
        value = float(ot.gromov.gromov_wasserstein2(C1, C2, p, q, loss_fun="square_loss", G0=G0))
        best = min(best, value)
    return max(best, 0.0)


def surface_distances(pred: Skeleton, true: Skeleton, step: float = STEP) -> dict[str, float]:
    """Directed and symmetric Hausdorff and Chamfer distances over the true diameter."""
    unit = max(true.diameter(), 1e-12)
    a = _points(pred, step * unit)
    b = _points(true, step * unit)
    distance = cdist(a, b)
    to_true, to_pred = distance.min(axis=1) / unit, distance.min(axis=0) / unit
    return {
        "hausdorff_to_true": float(to_true.max()),
        "hausdorff_to_pred": float(to_pred.max()),
        "hausdorff": float(max(to_true.max(), to_pred.max())),
        "chamfer_to_true": float(to_true.mean()),
        "chamfer_to_pred": float(to_pred.mean()),
        "chamfer": float((to_true.mean() + to_pred.mean()) / 2),
    }


def _points(skeleton: Skeleton, step: float) -> NDArray[np.float64]:
    return skeleton.sample(max(step, 1e-9))[1]


def persistence_distances(pred: Skeleton, true: Skeleton) -> dict[str, float]:
    """Bottleneck and 1-Wasserstein distances of extended persistence, by distance from the vertex farthest from the
    centre.

    The function on a skeleton is the distance along edges from its most eccentric vertex (of each component), over
    the true diameter.
    """
    unit = max(true.diameter(), 1e-12)
    diagrams = []
    for skeleton in (pred, true):
        height = eccentric_height(skeleton) / unit
        lengths = np.asarray(skeleton.length) / unit
        diagrams.append(extended_persistence(len(skeleton.vertices), skeleton.edges, height, lengths=lengths))
    kinds = ("ordinary", "relative", "essential", "loop")
    return {
        "bottleneck": max(bottleneck(diagrams[0][k], diagrams[1][k]) for k in kinds),
        "wasserstein": sum(wasserstein(diagrams[0][k], diagrams[1][k]) for k in kinds),
    }


def eccentric_height(skeleton: Skeleton) -> Float[np.ndarray, " V"]:
    """Distance along edges of each vertex from the most eccentric vertex of its component."""
    D = skeleton.geodesic()
    labels = skeleton.components()
    height = np.zeros(len(skeleton.vertices))
    for c in np.unique(labels):
        inside = np.flatnonzero(labels == c)
        part = D[np.ix_(inside, inside)]
        height[inside] = part[np.argmax(part.max(axis=1))]
    return height


def geodesic_correlation(pred: NDArray[Any], true: NDArray[Any]) -> float:
    """Spearman correlation of two matrices of cell-cell distances over pairs that are finite in both; NaN where there
    are none.
    """
    from scipy.stats import spearmanr

    upper = np.triu_indices(len(pred), 1)
    a, b = pred[upper], true[upper]
    good = np.isfinite(a) & np.isfinite(b)
    if good.sum() < 3 or np.ptp(a[good]) == 0 or np.ptp(b[good]) == 0:
        return float("nan")
    return float(spearmanr(a[good], b[good]).statistic)


def branches_f1(pred: ArrayLike, true: ArrayLike) -> float:
    """Harmonic mean of recovery and relevance of the groups of cells on edges (dynverse's F1_branches); -1 is no edge.

    Recovery is the mean over true edges of the best Jaccard index with a predicted edge; relevance the other way round.

    Examples
    --------
    >>> branches_f1([0, 0, 1, 1], [3, 3, 5, 5]), round(branches_f1([0, 0, 0, 0], [3, 3, 5, 5]), 3)
    (1.0, 0.5)
    """
    a, b = np.asarray(pred), np.asarray(true)
    on = b >= 0
    a, b = a[on], b[on]
    if not len(b):
        return float("nan")
    ours, theirs = np.unique(a[a >= 0]), np.unique(b)
    if not len(ours):
        return 0.0
    jaccard = np.array(
        [
            [(inter := np.sum((a == i) & (b == j))) / (np.sum(a == i) + np.sum(b == j) - inter) for j in theirs]
            for i in ours
        ]
    )
    recovery, relevance = float(jaccard.max(axis=0).mean()), float(jaccard.max(axis=1).mean())
    return 2 * recovery * relevance / (recovery + relevance)


def distances_on(skeleton: Skeleton, edge: NDArray[Any], t: NDArray[Any]) -> Float[np.ndarray, "n n"]:
    """Distance along edges between cells; NaN for cells on no edge."""
    edge = np.asarray(edge)
    D = skeleton.geodesic()
    on = edge >= 0
    out = np.full((len(edge), len(edge)), np.nan)
    if not on.any():
        return out
    e, s = edge[on], np.asarray(t, dtype=np.float64)[on]
    lengths = skeleton.length
    assert lengths is not None
    a, b = skeleton.edges[e].T
    to_a, to_b = s * lengths[e], (1 - s) * lengths[e]
    found = np.minimum.reduce(
        [
            to_a[:, None] + D[np.ix_(a, a)] + to_a[None],
            to_a[:, None] + D[np.ix_(a, b)] + to_b[None],
            to_b[:, None] + D[np.ix_(b, a)] + to_a[None],
            to_b[:, None] + D[np.ix_(b, b)] + to_b[None],
        ]
    )
    same = e[:, None] == e[None]
    found = np.where(same, np.minimum(found, np.abs(s[:, None] - s[None]) * lengths[e][:, None]), found)
    out[np.ix_(on, on)] = found
    return out


def score_skeleton(
    pred: Skeleton,
    true: Skeleton,
    *,
    metrics: Sequence[str] | None = None,
    cells_pred: tuple[NDArray[Any], NDArray[Any]] | None = None,
    cells_true: tuple[NDArray[Any], NDArray[Any]] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """All scores of a skeleton against the truth.

    Parameters
    ----------
    pred, true : Skeleton
        In the same space.
    metrics : sequence of str, optional
        Groups to compute, of ``topology, features, edit, gw, surface, persistence, cells``; default: all. ``overall``
        is there when its parts are.
    cells_pred, cells_true : (edge, t), optional
        Of the same cells, for the cell-wise scores (300 cells are drawn for distances).

    Returns
    -------
    dict
        ``overall`` is the geometric mean, with the weights of `OVERALL`, of 1/(1 + b0 and b1 errors), leaf F1, branch
        point F1, 1/(1 + degree distance), 1 - 10 Chamfer (at least 0) and branches F1, each raised to at least 0.01.

    Raises
    ------
    ShapeError
        If the two have different numbers of columns.
    """
    if pred.vertices.shape[1] != true.vertices.shape[1]:
        raise ShapeError(
            f"the skeletons lie in {pred.vertices.shape[1]} and {true.vertices.shape[1]} dimensions; give both in the same space"  # noqa: E501
        )
    groups = set(metrics or ("topology", "features", "edit", "gw", "surface", "persistence", "cells"))
    a, b = pred.simplify(), true.simplify()
    unit = max(b.diameter(), 1e-12)
    out: dict[str, float] = {}
    if "topology" in groups:
        out["b0_error"], out["b1_error"] = map(float, betti_errors(a, b))
        out["degree_distance"] = float(degree_distance(a, b))
        out["topology_right"] = float(out["b0_error"] + out["b1_error"] + out["degree_distance"] == 0)
    if "features" in groups:
        out["leaf_f1"] = matching_f1(a.vertices[a.leaves()], b.vertices[b.leaves()], TOLERANCE * unit)
        out["branch_f1"] = matching_f1(a.vertices[a.branch_points()], b.vertices[b.branch_points()], TOLERANCE * unit)
    if "edit" in groups:
        out["edit_distance"], exact = graph_edit(a, b)
        out["edit_exact"] = float(exact)
    if "gw" in groups:
        out["gw"] = gromov_wasserstein(a, b) / unit**2
    if "surface" in groups:
        out |= surface_distances(a, b)
    if "persistence" in groups:
        out |= persistence_distances(a, b)
    if "cells" in groups and cells_pred is not None and cells_true is not None:
        (pe, pt), (te, tt) = cells_pred, cells_true
        out["branches_f1"] = branches_f1(pe, te)
        rng = np.random.default_rng(seed)
        chosen = np.flatnonzero(np.asarray(te) >= 0)
        chosen = rng.choice(chosen, min(300, len(chosen)), replace=False) if len(chosen) else chosen
        true_d = distances_on(true, te[chosen], tt[chosen])
        pred_d = distances_on(pred, pe[chosen], pt[chosen])
        out["geodesic_spearman"] = geodesic_correlation(pred_d, true_d)
        root = int(np.nanargmax(np.nanmax(np.where(np.isfinite(true_d), true_d, np.nan), axis=1))) if len(chosen) else 0
        out["pseudotime_spearman"] = _row_correlation(pred_d, true_d, root) if len(chosen) else float("nan")
    needed = {"topology", "features", "surface"}
    if needed <= groups:
        out["overall"] = _overall(out)
    return out


def _row_correlation(pred: NDArray[Any], true: NDArray[Any], row: int) -> float:
    from scipy.stats import spearmanr

    a, b = pred[row], true[row]
    good = np.isfinite(a) & np.isfinite(b)
    if good.sum() < 3 or np.ptp(a[good]) == 0 or np.ptp(b[good]) == 0:
        return float("nan")
    return float(spearmanr(a[good], b[good]).statistic)


def _overall(out: Mapping[str, float]) -> float:
    parts = {
        "betti": 1 / (1 + out["b0_error"] + out["b1_error"]),
        "leaf_f1": out["leaf_f1"],
        "branch_f1": out["branch_f1"],
        "degree": 1 / (1 + out["degree_distance"]),
        "chamfer": max(0.0, 1 - 10 * out["chamfer"]),
        "branches_f1": out.get("branches_f1", float("nan")),
    }
    known = {k: max(v, 0.01) for k, v in parts.items() if np.isfinite(v)}
    weight = sum(OVERALL[k] for k in known)
    return float(np.exp(sum(OVERALL[k] * np.log(v) for k, v in known.items()) / weight))


def skeleton_distance_matrix(skeletons: Sequence[Skeleton]) -> Float[np.ndarray, "s s"]:
    """Square root of the Gromov-Wasserstein discrepancy between each two skeletons, lengths over the mean total
    length.
    """
    scale = np.mean([max(float(s.length.sum()), 1e-12) for s in skeletons])  # type: ignore[union-attr]
    n = len(skeletons)
    D = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            D[i, j] = D[j, i] = np.sqrt(gromov_wasserstein(skeletons[i].simplify(), skeletons[j].simplify())) / scale
    return D


# Labels
