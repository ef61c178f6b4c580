"""Decision stumps: the best split of a feature's window, and the best feature of those drawn."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.draws import draw_to_front
from assay.streams.models.dynfo.buffer import expire
from assay.streams.models.dynfo.state import FEATURES


@njit
def learn_stump(j, t, forest, settings):
    """Fit stump j afresh; False (and nothing done) when none of the features it drew is in the buffer."""
    known = forest.clock[FEATURES]
    count = max(1, int(settings.delta * known + 1e-9))
    draw_to_front(forest.draws, forest.order, count, known)
    best = -1
    lowest = np.inf
    for k in range(count):
        f = forest.order[k]
        if forest.until[f] <= t:
            find_split(f, t, forest, settings)
        if forest.split[f, 0] < lowest:
            lowest = forest.split[f, 0]
            best = f
    if best < 0:
        return False
    forest.feature[j] = best
    forest.threshold[j] = forest.split[best, 1]
    copy(forest.left[j], forest.split_left[best])
    copy(forest.right[j], forest.split_right[best])
    forest.weight[j] = 1.0
    return True


@njit
def find_split(f, t, forest, settings):
    """Best split of the feature's window: least weighted Gini impurity, or least variance within the sides."""
    N = len(forest.targets)
    forest.until[f] = expire(f, t, N, forest) + N
    values = forest.values[f]
    rows = forest.rows[f]
    n = forest.length[f]
    forest.split[f, 0] = np.inf
    if n == 0:
        return
    left = forest.split_left[f]
    right = forest.split_right[f]
    left[:] = 0.0
    right[:] = 0.0
    mean = 0.0
    if settings.regression:
        for k in range(n):
            mean += forest.targets[rows[k] % N]
        mean /= n
    # with purity = sum over sides of (sum over classes of count^2) / size, Gini is 1 - purity / n;
    # with purity = sum over sides of (sum of centred targets)^2 / size, variance is (squares - purity) / n
    squares = 0.0
    for k in range(n):
        target = forest.targets[rows[k] % N]
        if settings.regression:
            squares += (target - mean) * (target - mean)
        else:
            right[int(target)] += 1.0
    left_square = 0.0
    right_square = 0.0
    if not settings.regression:
        for c in range(len(right)):
            right_square += right[c] * right[c]
    best = right_square / n
    best_at = -1
    total = 0.0
    for k in range(n - 1):
        target = forest.targets[rows[k] % N]
        if settings.regression:
            total += target - mean
            left_square = total * total
            right_square = left_square
        else:
            c = int(target)
            left_square += 2.0 * left[c] + 1.0
            right_square -= 2.0 * right[c] - 1.0
            left[c] += 1.0
            right[c] -= 1.0
        if values[k + 1] > values[k]:
            purity = left_square / (k + 1) + right_square / (n - 1 - k)
            if purity > best:
                best = purity
                best_at = k
    forest.split[f, 0] = (squares - best) / n if settings.regression else 1.0 - best / n

    # shares of the sides; where no split helps, both sides are the whole
    size = best_at + 1
    threshold = values[n - 1]
    if best_at >= 0:
        middle = values[best_at] + 0.5 * (values[best_at + 1] - values[best_at])
        threshold = middle if middle < values[best_at + 1] else values[best_at]
    else:
        size = n
    forest.split[f, 1] = threshold
    left[:] = 0.0
    right[:] = 0.0
    for k in range(n):
        target = forest.targets[rows[k] % N]
        side = left if k < size else right
        if settings.regression:
            side[0] += target
        else:
            side[int(target)] += 1.0
    for c in range(len(left)):
        left[c] /= size
        right[c] = right[c] / (n - size) if size < n else left[c]


@njit
def copy(to, source):
    """Copy the second array into the first."""
    for c in range(len(to)):
        to[c] = source[c]
