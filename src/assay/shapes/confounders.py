"""Does the skeleton follow a batch or a technical column? Each against permutations of that column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from assay.shapes.prepare import column_of, is_anndata
from assay.shapes.reeb.tower import ReebTower

PERMUTATIONS = 99
LEAST_NMI = 0.1
LEAST_RHO = 0.3
TECHNICAL = ("total_counts", "n_counts", "n_genes_by_counts", "pct_counts_mt", "percent_mito")


def normalized_mutual_information(a: Int[np.ndarray, " n"], b: Int[np.ndarray, " n"]) -> float:
    """Mutual information of two labellings over the mean of their entropies.

    Examples
    --------
    >>> normalized_mutual_information(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    table = np.zeros((int(a.max()) + 1, int(b.max()) + 1))
    np.add.at(table, (a, b), 1.0)
    p = table / table.sum()
    row, column = p.sum(axis=1), p.sum(axis=0)

    def entropy(q: NDArray[np.float64]) -> float:
        q = q[q > 0]
        return float(-(q * np.log(q)).sum())

    both = entropy(row) + entropy(column)
    return 0.0 if both == 0 else float(2 * (both - entropy(p.ravel())) / both)


def batch_association(
    regions: Int[np.ndarray, " n"], batch: NDArray[Any], permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[float, float]:
    """NMI between regions of the skeleton and batches, and its permutation p-value."""
    codes = np.unique(batch.astype(str), return_inverse=True)[1]
    own = np.unique(regions, return_inverse=True)[1]
    value = normalized_mutual_information(own, codes)
    rng = np.random.default_rng([seed, 7])
    larger = sum(normalized_mutual_information(own, rng.permutation(codes)) >= value for _ in range(permutations))
    return value, (1 + larger) / (1 + permutations)


def rank_association(
    position: Float[np.ndarray, " n"], column: Float[np.ndarray, " n"], permutations: int = PERMUTATIONS, seed: int = 0
) -> tuple[float, float]:
    """|Spearman| between the lens and a column, and its permutation p-value."""
    from scipy.stats import rankdata

    good = np.isfinite(position) & np.isfinite(column)
    a, b = rankdata(position[good]), rankdata(column[good])
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0, 1.0
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    value = abs(float(np.mean(a * b)))
    rng = np.random.default_rng([seed, 8])
    larger = sum(abs(float(np.mean(a * rng.permutation(b)))) >= value for _ in range(permutations))
    return value, (1 + larger) / (1 + permutations)


def batch_warning(tower: ReebTower, data: Any, batch: Any, *, random_state: int = 0) -> str | None:
    """What to say when the regions of a skeleton (edges cut in thirds, components) follow a batch; else None."""
    with np.errstate(invalid="ignore"):
        third = np.clip(np.nan_to_num(tower.t_, nan=0.0) * 3, 0, 2).astype(int)
    regions = (tower.component_ + 1) * 1_000_000 + (tower.edge_of_cell_ + 1) * 3 + third
    value, p = batch_association(regions, column_of(data, batch), seed=random_state)
    if value < LEAST_NMI or p > 0.01:
        return None
    return f"the skeleton follows the batch (NMI {value:.2f} with its regions, p = {p:.2f}); correct for the batch, or judge each batch alone"  # noqa: E501


def confounding(
    tower: ReebTower,
    data: Any,
    batch: Any = None,
    covariates: Mapping[str, Any] | None = None,
    *,
    random_state: int = 0,
) -> list[str]:
    """Warnings, one a column that the skeleton follows.

    A batch counts when the NMI with the regions (edge cut in thirds, component) is at least 0.1 and p <= 0.01; a
    technical column when its |Spearman| with the lens of a component of at least 20 % of the cells is at least 0.3 and
    p <= 0.01. NMI and correlation have no unit.
    """
    out = []
    if batch is not None:
        found = batch_warning(tower, data, batch, random_state=random_state)
        if found is not None:
            out.append(found)
    columns = dict(covariates or {})
    if is_anndata(data):
        columns = {**{name: data.obs[name] for name in TECHNICAL if name in data.obs}, **columns}
    for name, values in columns.items():
        column = np.asarray(values, dtype=np.float64)
        best, least = 0.0, 1.0
        for i in range(len(tower.components_)):
            inside = tower.component_ == i
            if inside.mean() >= 0.2:
                value, p = rank_association(tower.lens_[inside], column[inside], seed=random_state)
                if value > best:
                    best, least = value, p
        if best >= LEAST_RHO and least <= 0.01:
            out.append(
                f"the skeleton follows {name} (|Spearman| {best:.2f} with the lens, p = {least:.2f}); it may be technical"  # noqa: E501
            )
    return out
