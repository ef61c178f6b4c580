"""Coverage of sets: by group, by class, by size; and against first-order targets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from assay.uncertainty.errors import TargetShape
from assay.uncertainty.metrics.intervals import wilson
from assay.uncertainty.representations import LabelSet


@dataclass(frozen=True)
class Cell:
    """Coverage of one group of rows with a 95 % interval (Wilson)."""

    name: Hashable
    coverage: float
    low: float
    high: float
    n: int


def coverage_by(covered: Bool[np.ndarray, " rows"], groups: ArrayLike) -> list[Cell]:
    """Coverage of each group (a class, a site, a year), worst first.

    Examples
    --------
    >>> cells = coverage_by(np.array([True] * 9 + [False]), ["a"] * 5 + ["b"] * 5)
    >>> cells[0].name, cells[0].coverage, round(cells[0].low, 3)
    ('b', 0.8, 0.376)
    """
    hit, names = np.asarray(covered, dtype=bool), np.asarray(groups)
    if hit.shape != names.shape:
        raise TargetShape(f"covered {hit.shape} and groups {names.shape}: one of both a row is needed")
    cells = []
    for name in np.unique(names):
        inside = hit[names == name]
        low, high = wilson(int(inside.sum()), len(inside))
        cells.append(
            Cell(name.item() if isinstance(name, np.generic) else name, float(inside.mean()), low, high, len(inside))
        )
    return sorted(cells, key=lambda cell: cell.coverage)


def size_stratified_coverage(sets: LabelSet, y: ArrayLike) -> list[Cell]:
    """Coverage of the rows whose set has a given size, worst first (Angelopoulos et al., 2021)."""
    return coverage_by(sets.covers(y), sets.size)


def first_order_coverage(sets: LabelSet, target: Float[np.ndarray, "rows classes"], alpha: float) -> dict[str, float]:
    """Mean true mass inside the sets, and the share of rows whose set holds at least ``1 - alpha`` of it
    (conditional satisfaction)."""
    if sets.mask.shape != target.shape:
        raise TargetShape(
            f"sets of shape {sets.mask.shape} and targets of shape {target.shape}; first-order targets are needed"
        )
    mass = (sets.mask * target).sum(1)
    return {
        "marginal_coverage": float(mass.mean()),
        "conditional_satisfaction": float((mass >= 1 - alpha - 1e-12).mean()),
        "set_size": float(sets.size.mean()),
    }
