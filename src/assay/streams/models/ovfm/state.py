"""The arrays of OVFM: what is kept between rows, and the room that one row needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ROWS, FEATURES = 0, 1
X, Z = 0, 1  # the two learners: on the zero-filled row, on the completed row
V, H = 0, 1  # sum of gradients and decayed sum of weights
TIMES, FAILS, WARN_TIMES, WARN_FAILS, LEAST_ERROR, LEAST_DEVIATION, RATE, LOSS = range(8)


class State(NamedTuple):
    clock: NDArray[np.int64]
    order: NDArray[np.int64]
    seen_values: NDArray[np.int64]
    recent: NDArray[np.float64]
    ascending: NDArray[np.float64]
    distinct: NDArray[np.int64]
    covariance: NDArray[np.float64]
    linear: NDArray[np.float64]
    intercept: NDArray[np.float64]
    learners: NDArray[np.float64]
    targets: NDArray[np.float64]


class Settings(NamedTuple):
    regression: bool
    decay_choice: int
    error_share: float
    step: float
    forgetting: float
    eta: float
    max_ordinal: int


class Room(NamedTuple):
    z: NDArray[np.float64]  # latent scores, by slot
    present: NDArray[np.bool_]  # by slot
    absent: NDArray[np.int64]  # slots; the last entry is their number
    deviation: NDArray[np.float64]  # square roots of the diagonal of S, by slot
    variance: NDArray[np.float64]  # of the present scores: 0 for continuous features
    solved: NDArray[np.float64]  # Sigma_OO^-1 z_O
    column: NDArray[np.float64]
    inverse: NDArray[np.float64]
    low: NDArray[np.float64]  # interval of the present ordinal scores
    high: NDArray[np.float64]
    factor: NDArray[np.float64]  # Cholesky factor of Sigma_OO
    half: NDArray[np.float64]  # a row for each absent feature: factor^-1 Sigma_Om
    full: NDArray[np.float64]  # and Sigma_OO^-1 Sigma_Om
