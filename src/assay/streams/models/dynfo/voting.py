"""The weighted vote of the stumps."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.dynfo.state import ROWS, STUMPS


@njit
def vote(slots, values, cell, votes, forest, settings):
    """Vote of the forest on a row; returns the weight of the stumps that voted. ``cell`` is -1 all over on entry."""
    for c in range(len(votes)):
        votes[c] = 0.0
    for k in range(len(slots)):
        cell[slots[k]] = k
    total = 0.0
    for j in range(forest.clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k >= 0:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            weight = forest.weight[j]
            total += weight
            for c in range(len(votes)):
                votes[c] += weight * side[c]
    if total > 0.0:
        for c in range(len(votes)):
            votes[c] /= total
    elif settings.regression:
        votes[0] = forest.totals[0]
    elif forest.clock[ROWS] > 0:
        for c in range(len(votes)):
            votes[c] = forest.totals[c] / forest.clock[ROWS]
    return total


@njit
def contributions(slots, values, cell, parts, base, forest):
    """Add up what the stumps of each feature voted, relative to a base."""
    for j in range(forest.clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k >= 0:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            for c in range(parts.shape[1]):
                parts[k, c] += forest.weight[j] * (side[c] - base)


@njit
def is_right(side, target, baseline, regression):
    """Whether shares name the class; in regression, whether a mean is nearer to the target than the mean of all."""
    if regression:
        return abs(side[0] - target) < abs(baseline - target)
    return np.argmax(side) == int(target)
