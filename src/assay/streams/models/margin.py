"""Margin losses: hinge for two classes, epsilon-insensitive for regression."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.jit import njit
from assay.streams.models.weights import example_weight


def signed_targets(targets: NDArray[Any], task: str) -> NDArray[np.float64]:
    """Class codes as -1 and +1 (regression: the values); NaN where the label is missing."""
    if task == "regression":
        return targets.astype(np.float64)
    return np.where(targets < 0, np.nan, 2.0 * targets - 1.0)


@njit
def margin_loss(score, y, regression, epsilon):
    """Loss, and the direction (-1 or +1) in which the score should move."""
    if regression:
        residual = y - score
        return max(0.0, abs(residual) - epsilon), 1.0 if residual > 0.0 else -1.0
    return max(0.0, 1.0 - y * score), y


@njit
def row_weight(fixed, counts, y, regression):
    """Class weight of a row; in classification counts the row in ``counts[0]`` or ``counts[1]`` first."""
    if regression:
        return 1.0
    return example_weight(fixed, counts, 0, 1 if y > 0.0 else 0)
