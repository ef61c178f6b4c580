"""Clusters that still touch: modularity above that of a unimodal cloud, and dips of density between neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse

from assay.shapes.reeb.tower import ReebTower

CLUSTER_SHARE = 0.02
MODULARITY_CELLS = 3000


def density_valleys(tower: ReebTower, random_state: int = 0) -> dict[str, Any]:
    """Clusters that still touch: Leiden modularity above that of a unimodal cloud, and dips of density between
    neighbours.

    Each component of at least 100 points is partitioned by Leiden at resolution 0.5 and compared with the mean
    modularity of three Gaussian clouds with the same covariance. Between each two neighbouring clusters of at least 2 %
    of the cells the cells near the axis that joins their means are projected on it, and Hartigan's dip is compared with
    that of uniform samples.
    """
    from assay.shapes.baselines import leiden
    from assay.shapes.kernel import nearest_neighbors

    rng = np.random.default_rng([random_state, 3])
    found, excess, valleys, pairs = 0, 0.0, 0, 0
    total = float(tower.prepared_.weights.sum())
    for part in tower.components_:
        share = float(part.weights.sum()) / total
        cells = np.flatnonzero(np.isin(tower.points_.point_of, part.points))
        if len(cells) < 100 or share < 0.2:
            continue
        cells = np.sort(rng.choice(cells, MODULARITY_CELLS, replace=False)) if len(cells) > MODULARITY_CELLS else cells
        X = tower.prepared_.X[cells]

        def partition(Y: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
            graph = nearest_neighbors(Y, 15).graph()
            graph.data[:] = 1.0
            labels = leiden(graph, 0.5, random_state)
            return labels, modularity(graph, labels)

        labels, own = partition(X)
        spread = np.linalg.cholesky(np.cov(X, rowvar=False) + 1e-9 * np.eye(X.shape[1]) * X.var())
        null = [partition(rng.normal(size=X.shape) @ spread.T)[1] for _ in range(3)]
        excess = max(excess, own - float(np.mean(null)))
        sizes = np.bincount(labels)
        big = np.flatnonzero(sizes >= CLUSTER_SHARE * len(labels))
        found += len(big)
        for i, a in enumerate(big):
            means = [float(np.linalg.norm(X[labels == a].mean(axis=0) - X[labels == b].mean(axis=0))) for b in big]
            order = [b for b in big[np.argsort(means)] if b != a][:2]
            for b in order:
                if b < a and i > 0 and a in _nearest(X, labels, big, int(b)):
                    continue
                pairs += 1
                valleys += has_valley(X, labels, int(a), int(b), rng)
    share = valleys / pairs if pairs else 0.0
    score = float(np.clip(excess / 0.1, 0, 1) * np.clip((share - 0.2) / 0.4, 0, 1)) if found >= 2 else 0.0
    text = f"{found} Leiden clusters, modularity {excess:+.2f} against a unimodal cloud, density valleys between {valleys} of {pairs} neighbouring pairs"  # noqa: E501
    return {"score": score, "excess": excess, "valleys": share, "clusters": float(found), "text": text}


def _nearest(X: NDArray[np.float64], labels: NDArray[np.int64], big: NDArray[np.int64], b: int) -> list[int]:
    means = [float(np.linalg.norm(X[labels == b].mean(axis=0) - X[labels == c].mean(axis=0))) for c in big]
    return [int(c) for c in big[np.argsort(means)] if c != b][:2]


def modularity(graph: sparse.csr_array, labels: NDArray[np.int64]) -> float:
    """Newman's modularity of a partition of a symmetric graph."""
    degree = np.asarray(graph.sum(axis=1)).ravel()
    whole = degree.sum()
    coo = graph.tocoo()
    rows, columns = coo.coords
    inside = coo.data[labels[rows] == labels[columns]].sum() / whole
    return float(inside - ((np.bincount(labels, degree) / whole) ** 2).sum())


def has_valley(X: NDArray[np.float64], labels: NDArray[np.int64], a: int, b: int, rng: np.random.Generator) -> bool:
    """Whether cells of two clusters, projected on the discriminant axis between them, have two modes (Hartigan's dip,
    5 %).
    """
    one, two = X[labels == a], X[labels == b]
    size = min(len(one), len(two), 300)
    if size < 10:
        return False
    one, two = one[rng.choice(len(one), size, replace=False)], two[rng.choice(len(two), size, replace=False)]
    within = np.cov(one, rowvar=False) + np.cov(two, rowvar=False)
    within = np.atleast_2d(within) + 1e-6 * np.trace(np.atleast_2d(within)) * np.eye(X.shape[1])
    axis = np.linalg.solve(within, one.mean(axis=0) - two.mean(axis=0))
    values = np.concatenate([one, two]) @ axis
    return dip_statistic(values) > dip_bound(len(values))


def dip_statistic(values: Float[np.ndarray, " n"]) -> float:
    """Hartigan's dip: the least largest distance of the empirical distribution from a unimodal one.

    Taken over all places of the mode by the greatest convex minorant before and the least concave majorant after it.

    Examples
    --------
    >>> round(dip_statistic(np.array([0.0, 0.01, 0.02, 1.0, 1.01, 1.02])), 3)
    0.245
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    n = len(x)
    low, high = np.arange(n) / n, np.arange(1, n + 1) / n
    best = np.inf
    for m in np.unique(np.linspace(0, n - 1, min(n, 25)).astype(int)):
        left = _hull_gap(x[: m + 1], low[: m + 1], high[: m + 1], convex=True)
        right = _hull_gap(x[m:], low[m:], high[m:], convex=False)
        best = min(best, max(left, right))
    return float(best) / 2


def _hull_gap(x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], convex: bool) -> float:
    """Largest distance of a distribution function's steps from its convex minorant (concave majorant)."""
    if len(x) < 2 or x[-1] == x[0]:
        return 0.0
    y = low if convex else -high
    at, up = x.tolist(), y.tolist()  # single numbers of lists are ten times as fast as those of arrays
    hull = [0]
    for i in range(1, len(at)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (up[b] - up[a]) * (at[i] - at[a]) >= (up[i] - up[a]) * (at[b] - at[a]):
                hull.pop()
            else:
                break
        hull.append(i)
    line = np.interp(x, x[hull], y[hull])
    return float(np.max(high - line)) if convex else float(np.max(-line - low))


def dip_bound(n: int) -> float:
    """95th percentile of the dip of n uniform values: Hartigan's table, as c / sqrt(n) (0.47 at 20 values, 0.52 past
    1000).
    """
    return float(
        np.interp(np.log(n), np.log([20, 50, 100, 200, 500, 1000]), [0.48, 0.499, 0.508, 0.515, 0.519, 0.522])
        / np.sqrt(n)
    )
