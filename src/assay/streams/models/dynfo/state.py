"""The arrays of the forest and of its buffer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS, FEATURES, STUMPS, WRONG = 0, 1, 2, 3


class Forest(NamedTuple):
    clock: NDArray[np.int64]
    draws: NDArray[np.int64]
    totals: NDArray[np.float64]
    targets: NDArray[np.float64]
    wrong: NDArray[np.int64]
    order: NDArray[np.int64]
    length: NDArray[np.int64]
    values: NDArray[np.float64]
    rows: NDArray[np.int64]
    until: NDArray[np.int64]
    split: NDArray[np.float64]
    split_left: NDArray[np.float64]
    split_right: NDArray[np.float64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    weight: NDArray[np.float64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]


class Settings(NamedTuple):
    regression: bool
    M: int
    alpha: float
    beta: float
    delta: float
    epsilon: float
    gamma: float
    theta1: float
    theta2: float
