"""What the linear models share: targets as signs, class weights, and the margin losses."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.streams.models.inlined import inlined
from assay.streams.models.weights import class_weights, example_weight


def signed_targets(targets: NDArray[Any], task: str) -> NDArray[np.float64]:
    """Class codes as -1 and +1 (regression: the values); NaN where the label is missing."""
    if task == "regression":
        return targets.astype(np.float64)
    return np.where(targets < 0, np.nan, 2.0 * targets - 1.0)


@inlined
def margin_loss(score, y, regression, epsilon):
    """Loss, and the direction (-1 or +1) in which the score should move."""
    if regression:
        residual = y - score
        return max(0.0, abs(residual) - epsilon), 1.0 if residual > 0.0 else -1.0
    return max(0.0, 1.0 - y * score), y


def optional_weights(
    class_weight: Mapping[Hashable, float] | str | None, classes: Sequence[Hashable]
) -> NDArray[np.float64] | None:
    """`class_weights`, or None where there are none; for None the kernels are compiled without weights."""
    return None if class_weight is None else class_weights(class_weight, classes)


@inlined
def row_weight(fixed, counts, at, y, regression):
    """Class weight of a row; where there are weights, it is counted in ``counts[at]`` or ``counts[at + 1]`` first."""
    if fixed is None:
        return 1.0
    if regression:
        return 1.0
    return example_weight(fixed, counts, at, 1 if y > 0.0 else 0)
