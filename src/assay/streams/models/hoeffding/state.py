"""The arrays of the tree, and the room that one row needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEATURES, NODES, LEAVES = 0, 1, 2
SHARES, BAYES, ADAPTIVE = 0, 1, 2


class Tree(NamedTuple):
    clock: NDArray[np.int64]
    shift: NDArray[np.float64]
    order: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    children: NDArray[np.int64]
    observed: NDArray[np.float64]
    leaf: NDArray[np.int64]
    stats: NDArray[np.float64]
    next: NDArray[np.float64]
    correct: NDArray[np.float64]
    cells: NDArray[np.float64]


class Settings(NamedTuple):
    regression: bool
    histogram: bool
    branches: bool
    leaf: int
    bins: int
    grace: float
    log_delta: float
    tau: float
    max_leaves: int


class Scratch(NamedTuple):
    cell: NDArray[np.int64]  # where a feature is in the row, -1 if absent
    nodes: NDArray[np.int64]  # still to visit
    parts: NDArray[np.float64]
    leaves: NDArray[np.int64]  # nodes reached
    weights: NDArray[np.float64]
    shares: NDArray[np.float64]
    bayes: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    best: NDArray[np.float64]
