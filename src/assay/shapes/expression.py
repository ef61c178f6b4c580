"""Features that change along an edge, and features that differ between branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse, stats

from assay.shapes.errors import ShapeError
from assay.shapes.reeb.tower import ReebTower

LEAST = 10


def benjamini_hochberg(p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Adjusted p-values.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])).round(4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    m = len(p)
    order = np.argsort(p)
    adjusted = np.minimum.accumulate((p[order] * m / np.arange(1, m + 1))[::-1])[::-1]
    out = np.empty(m)
    out[order] = np.minimum(adjusted, 1.0)
    return out


def changes_along(tower: ReebTower, features: Any, edge: int, names: Sequence[str] | None = None) -> Any:
    """Which features change along an edge.

    Each feature is regressed on a cubic of the position on the edge, ranks for both, against the constant (F test).

    Parameters
    ----------
    features : array[n, m] or sparse matrix
    edge : int
    names : sequence of str, optional

    Returns
    -------
    DataFrame
        Columns ``feature, spearman, f, p, q``, sorted by p; q is Benjamini-Hochberg's.

    Raises
    ------
    ShapeError
        If there is no such edge, or its cells share one position.
    """
    import pandas as pd

    cells = _cells(tower, edge)
    t = stats.rankdata(tower.t_[cells])
    if np.ptp(t) == 0:
        raise ShapeError(f"all cells of edge {edge} have the same position, so nothing can change along it")
    Y = _dense(features, cells)
    R = np.apply_along_axis(stats.rankdata, 0, Y)
    s = (t - t.mean()) / t.std()
    design = np.stack([np.ones_like(s), s, s**2, s**3], axis=1)
    fitted = design @ np.linalg.lstsq(design, R, rcond=None)[0]
    whole = ((R - R.mean(axis=0)) ** 2).sum(axis=0)
    rest = ((R - fitted) ** 2).sum(axis=0)
    free = len(cells) - 4
    with np.errstate(divide="ignore", invalid="ignore"):
        f = np.where(whole > 0, ((whole - rest) / 3) / np.maximum(rest / free, 1e-12), 0.0)
        rho = np.where(whole > 0, (s @ (R - R.mean(axis=0))) / np.sqrt(len(s) * np.maximum(whole, 1e-12)), 0.0)
    p = stats.f.sf(f, 3, free)
    table = pd.DataFrame(
        {"feature": _names(names, Y.shape[1]), "spearman": rho, "f": f, "p": p, "q": benjamini_hochberg(p)}
    )
    return table.sort_values("p", kind="stable", ignore_index=True)


def differs_between(
    tower: ReebTower, features: Any, first: int, second: int, names: Sequence[str] | None = None
) -> Any:
    """Which features differ between the cells of two edges (Mann-Whitney).

    Returns
    -------
    DataFrame
        Columns ``feature, auroc, p, q``; an AUROC above 0.5 is higher on the first edge.
    """
    import pandas as pd

    a, b = _dense(features, _cells(tower, first)), _dense(features, _cells(tower, second))
    found = stats.mannwhitneyu(a, b, axis=0)
    table = pd.DataFrame(
        {
            "feature": _names(names, a.shape[1]),
            "auroc": found.statistic / (len(a) * len(b)),
            "p": found.pvalue,
            "q": benjamini_hochberg(found.pvalue),
        }
    )
    return table.sort_values("p", kind="stable", ignore_index=True)


def _cells(tower: ReebTower, edge: int) -> NDArray[np.int64]:
    count = len(tower.skeleton_.edges)
    if not 0 <= edge < count:
        raise ShapeError(f"there is no edge {edge}; the skeleton has {count} edges, from 0")
    cells = np.flatnonzero(tower.edge_of_cell_ == edge)
    if len(cells) < LEAST:
        raise ShapeError(f"edge {edge} has {len(cells)} cells; at least {LEAST} are needed for a test")
    return cells


def _dense(features: Any, cells: NDArray[np.int64]) -> NDArray[np.float64]:
    part = features[cells]
    return (part.toarray() if sparse.issparse(part) else np.asarray(part)).astype(np.float64)


def _names(names: Sequence[str] | None, m: int) -> list[str]:
    out = list(map(str, names)) if names is not None else [str(j) for j in range(m)]
    if len(out) != m:
        raise ShapeError(f"{len(out)} names were given for {m} features")
    return out
