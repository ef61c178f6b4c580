"""The merit of a split, and the threshold of a feature that has most of it."""

from __future__ import annotations

import math

from assay.streams.jit import njit
from assay.streams.models.hoeffding.observers import MAX, MIN, ORIGIN, WIDTH, gaussian_below, totals

CANDIDATES = 10  # thresholds that are tried on a Gaussian observer
LEAST_BRANCH = 0.01  # of the rows that have the feature


@njit
def find_threshold(cells, total, settings, room):
    """Highest merit of a feature and its threshold; ``room.shares`` is what is left of it."""
    merit = 0.0
    best = 0.0
    whole = room.right
    left = room.left
    totals(cells, whole, settings)
    observed = side_weight(whole, settings)
    if observed <= 0.0:
        return merit, best
    for c in range(len(left)):
        left[c] = 0.0
    candidates = settings.bins - 1 if settings.histogram else CANDIDATES
    if settings.histogram and cells[WIDTH] == 0.0:
        return merit, best
    for i in range(candidates):
        if settings.histogram:
            threshold = cells[ORIGIN] + (i + 1) * cells[WIDTH]
            for c in range(len(left)):
                left[c] += cells[2 + c * settings.bins + i]
        else:
            threshold = cells[MIN] + (cells[MAX] - cells[MIN]) * (i + 1) / (CANDIDATES + 1)
            for c in range(len(left)):
                left[c] = gaussian_below(cells, c, threshold)
        below = side_weight(left, settings)
        if min(below, observed - below) < LEAST_BRANCH * observed:
            continue
        gain = gain_of_split(whole, left, observed, below, settings) * observed / total
        if gain > merit:
            merit = gain
            best = threshold
            copy(left, room.shares)
    return merit, best


@njit
def gain_of_split(whole, left, observed, below, settings):
    """Information gain in bits, or share of the variance that the split removes."""
    above = observed - below
    if settings.regression:
        squares = whole[2] - whole[1] * whole[1] / observed
        if squares <= 0.0:
            return 0.0
        between = left[1] * left[1] / below + (whole[1] - left[1]) * (whole[1] - left[1]) / above
        return (between - whole[1] * whole[1] / observed) / squares
    gain = 0.0
    for c in range(len(whole)):
        gain -= _bits(whole[c] / observed)
        gain += below / observed * _bits(left[c] / below)
        gain += above / observed * _bits((whole[c] - left[c]) / above)
    return gain


@njit
def _bits(share):
    return share * math.log2(share) if share > 0.0 else 0.0


@njit
def side_weight(side, settings):
    """Weight of the rows on one side."""
    if settings.regression:
        return side[0]
    total = 0.0
    for c in range(len(side)):
        total += side[c]
    return total


@njit
def copy(source, to):
    """Copy the first array into the second."""
    for c in range(len(to)):
        to[c] = source[c]
