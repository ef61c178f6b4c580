"""What a leaf keeps of a feature: a normal distribution of each class, or a histogram."""

from __future__ import annotations

import math

from assay.streams.jit import njit

MIN, MAX = 0, 1  # of a Gaussian observer, before n, mean and sum of squares of each class
ORIGIN, WIDTH = 0, 1  # of a histogram, before the bins of each class


@njit
def observe_gaussian(cells, x, c, weight):
    """Take in a value: range, and weight, mean and sum of squares of its class."""
    any_seen = False
    for i in range(2, len(cells), 3):
        any_seen = any_seen or cells[i] > 0.0
    cells[MIN] = min(cells[MIN], x) if any_seen else x
    cells[MAX] = max(cells[MAX], x) if any_seen else x
    at = 2 + 3 * c
    cells[at] += weight
    step = (x - cells[at + 1]) * weight / cells[at]
    # a class's first value has no spread; with a weight below 1 rounding can make the product a little less than 0
    cells[at + 2] += max(0.0, weight * (x - cells[at + 1]) * (x - cells[at + 1] - step))
    cells[at + 1] += step


@njit
def observe_histogram(cells, x, target, weight, settings):
    """Take in a value: the bin of its class (regression: weight, sum and sum of squares of the targets)."""
    bins = settings.bins
    groups = (len(cells) - 2) // bins
    if cells[WIDTH] == 0.0:
        # one value so far, and all of it in the first bin
        empty = True
        for g in range(groups):
            empty = empty and cells[2 + g * bins] == 0.0
        if empty:
            cells[ORIGIN] = x
    if cells[WIDTH] == 0.0 and x != cells[ORIGIN]:
        # second value: both fall into the middle half, the first at the start of bin bins / 2
        first = cells[ORIGIN]
        cells[WIDTH] = 4.0 * abs(x - first) / bins
        cells[ORIGIN] = first - (bins // 2) * cells[WIDTH]
        for g in range(groups):
            cells[2 + g * bins + bins // 2] = cells[2 + g * bins]
            cells[2 + g * bins] = 0.0
    b = 0
    if cells[WIDTH] > 0.0:
        while x < cells[ORIGIN] or x >= cells[ORIGIN] + bins * cells[WIDTH]:
            _double_range(cells, x < cells[ORIGIN], groups, bins)
        b = min(int((x - cells[ORIGIN]) / cells[WIDTH]), bins - 1)
    if settings.regression:
        cells[2 + b] += weight
        cells[2 + bins + b] += weight * target
        cells[2 + 2 * bins + b] += weight * target * target
    else:
        cells[2 + int(target) * bins + b] += weight


@njit
def _double_range(cells, downwards, groups, bins):
    """Merge bins in pairs; the room that this makes is below or above."""
    half = bins // 2
    for g in range(groups):
        start = 2 + g * bins
        if downwards:
            for i in range(half - 1, -1, -1):
                cells[start + half + i] = cells[start + 2 * i] + cells[start + 2 * i + 1]
            for i in range(half):
                cells[start + i] = 0.0
        else:
            for i in range(half):
                cells[start + i] = cells[start + 2 * i] + cells[start + 2 * i + 1]
            for i in range(half, bins):
                cells[start + i] = 0.0
    if downwards:
        cells[ORIGIN] -= bins * cells[WIDTH]
    cells[WIDTH] *= 2.0


@njit
def add_gaussian(cells, x, out):
    """Add the log density of each class at x."""
    # the pooled distribution stands in for a class that has not met the feature, and adds its variance to the others
    # as one observation, so that a class with few rows is not certain of anything
    n = 0.0
    mean = 0.0
    squares = 0.0
    for c in range(len(out)):
        nc = cells[2 + 3 * c]
        if nc > 0.0:
            difference = cells[3 + 3 * c] - mean
            mean += difference * nc / (n + nc)
            squares += cells[4 + 3 * c] + difference * difference * n * nc / (n + nc)
            n += nc
    if n <= 1.0 or squares <= 1e-12 * n * (1.0 + mean * mean):
        return
    pooled = squares / n
    for c in range(len(out)):
        nc = cells[2 + 3 * c]
        center = cells[3 + 3 * c] if nc > 0.0 else mean
        variance = (cells[4 + 3 * c] + pooled) / max(nc, 1.0)
        out[c] -= 0.5 * (math.log(variance) + (x - center) * (x - center) / variance)


@njit
def add_histogram(cells, x, out, bins):
    """Add the log share of the bin of x in each class."""
    if cells[WIDTH] == 0.0:
        return
    b = int(min(max(math.floor((x - cells[ORIGIN]) / cells[WIDTH]), 0.0), bins - 1.0))
    for c in range(len(out)):
        n = 0.0
        for i in range(bins):
            n += cells[2 + c * bins + i]
        out[c] += math.log((cells[2 + c * bins + b] + 1.0 / bins) / (n + 1.0))


@njit
def totals(cells, out, settings):
    """Weight of each class (regression: weight, sum, sum of squares) over the rows that have the feature."""
    for c in range(len(out)):
        if settings.histogram:
            out[c] = 0.0
            for i in range(settings.bins):
                out[c] += cells[2 + c * settings.bins + i]
        else:
            out[c] = cells[2 + 3 * c]


@njit
def gaussian_below(cells, c, threshold):
    """Weight of a class at or below a threshold, by its normal distribution."""
    n = cells[2 + 3 * c]
    if n <= 0.0:
        return 0.0
    deviation = math.sqrt(cells[4 + 3 * c] / n)
    if deviation == 0.0:
        return n if cells[3 + 3 * c] <= threshold else 0.0
    return n * 0.5 * math.erfc((cells[3 + 3 * c] - threshold) / (deviation * math.sqrt(2.0)))
