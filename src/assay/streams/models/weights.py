"""Class weights inside the update of a two-class model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from assay.streams.errors import LabelOutOfRange, StreamError
from assay.streams.models.inlined import inlined

_NONE, _FIXED, _BALANCED = 0.0, 1.0, 2.0


def class_weights(
    class_weight: Mapping[Hashable, float] | str | None, classes: Sequence[Hashable]
) -> NDArray[np.float64]:
    """``[mode, weight of class 0, weight of class 1]`` for `example_weight`."""
    if class_weight is None:
        return np.array([_NONE, 1.0, 1.0])
    if class_weight == "balanced":
        return np.array([_BALANCED, 1.0, 1.0])
    if isinstance(class_weight, str):
        raise StreamError(f"class_weight is a dictionary, 'balanced' or None, not {class_weight!r}")
    unknown = [label for label in class_weight if len(classes) > 1 and label not in classes]
    if unknown:
        raise LabelOutOfRange(f"class_weight names {unknown[0]!r}; the classes are {list(classes)!r}")
    weights = [float(class_weight.get(label, 1.0)) for label in classes] + [1.0, 1.0]
    return np.array([_FIXED, weights[0], weights[1]])


@inlined
def example_weight(fixed, counts, at, code):
    """Weight of a row of this class; counts it in ``counts[at + code]`` first."""
    counts[at + code] += 1.0
    if fixed[0] == 1.0:
        return fixed[1 + code]
    if fixed[0] == 2.0:
        return (counts[at] + counts[at + 1]) / (2.0 * counts[at + code])
    return 1.0
