"""Learning from one row (weights, relearned, dropped and added stumps), and scoring and learning row by row."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.draws import draw_to_front
from assay.streams.models.dynfo.buffer import insert
from assay.streams.models.dynfo.quantile import quantile
from assay.streams.models.dynfo.state import FEATURES, ROWS, STUMPS, WRONG
from assay.streams.models.dynfo.stumps import copy, learn_stump
from assay.streams.models.dynfo.voting import is_right, vote


@njit
def update(slots, values, target, seen, votes, cell, spare, forest, settings):
    """Learn from a row on which the forest has voted."""
    clock = forest.clock
    t = clock[ROWS]
    N = len(forest.targets)
    baseline = forest.totals[0]

    # the error over the last N rows
    at = t % N
    wrong = 0 if is_right(votes, target, baseline, settings.regression) else 1
    clock[WRONG] += wrong - forest.wrong[at]
    forest.wrong[at] = wrong

    # the row enters the buffer, the row N before it leaves
    forest.targets[at] = target
    for k in range(len(slots)):
        f = slots[k]
        if seen[f] == 0:
            forest.order[clock[FEATURES]] = f
            clock[FEATURES] += 1
        insert(f, values[k], t, N, forest)
    clock[ROWS] = t + 1
    if settings.regression:
        forest.totals[0] += (target - forest.totals[0]) / (t + 1)
    else:
        forest.totals[int(target)] += 1.0
    if clock[FEATURES] == 0:
        return

    if clock[STUMPS] == 0:
        for _ in range(settings.M):
            _add(t, forest, settings)
    elif clock[WRONG] > settings.gamma * min(t + 1, N) and clock[STUMPS] < len(forest.weight):
        _add(t, forest, settings)

    # weights
    for k in range(len(slots)):
        cell[slots[k]] = k
    for j in range(clock[STUMPS]):
        k = cell[forest.feature[j]]
        if k < 0:
            forest.weight[j] -= settings.epsilon
        else:
            side = forest.left[j] if values[k] <= forest.threshold[j] else forest.right[j]
            bonus = 2.0 * settings.alpha if is_right(side, target, baseline, settings.regression) else 0.0
            forest.weight[j] = (bonus + forest.weight[j]) / (1.0 + settings.alpha)
    for k in range(len(slots)):
        cell[slots[k]] = -1

    # relearn
    n = clock[STUMPS]
    bound = quantile(forest.weight, n, settings.theta2, spare)
    weak = np.empty(n, np.int64)
    m = 0
    for j in range(n):
        if settings.theta1 <= forest.weight[j] < bound:
            weak[m] = j
            m += 1
    if m == 0:
        # the lowest weights are all tied at the quantile, so that none is below it: they are the weak ones
        for j in range(n):
            if settings.theta1 <= forest.weight[j] <= bound:
                weak[m] = j
                m += 1
    share = int((1.0 - settings.beta) * m + 1e-9)
    draw_to_front(forest.draws, weak, share, m)
    for i in range(share):
        learn_stump(weak[i], t, forest, settings)

    # drop
    kept = 0
    for j in range(n):
        if forest.weight[j] >= settings.theta1:
            if kept != j:
                forest.feature[kept] = forest.feature[j]
                forest.threshold[kept] = forest.threshold[j]
                forest.weight[kept] = forest.weight[j]
                copy(forest.left[kept], forest.left[j])
                copy(forest.right[kept], forest.right[j])
            kept += 1
    clock[STUMPS] = kept
    if kept == 0:
        for _ in range(settings.M):
            _add(t, forest, settings)


@njit
def _add(t, forest, settings):
    j = forest.clock[STUMPS]
    if learn_stump(j, t, forest, settings):
        forest.clock[STUMPS] = j + 1


@njit
def run_rows(start, indptr, slots, values, targets, scores, seen, forest, settings):
    """Score and learn from row ``start`` on; returns the row at which a window has to be widened first, or the end."""
    n = len(indptr) - 1
    width = forest.values.shape[1]
    N = len(forest.targets)
    cell = np.full(len(forest.length), -1, np.int64)
    spare = np.empty(len(forest.weight))
    old = np.empty(len(forest.length), np.int64)
    x = np.empty(len(forest.length))
    votes = np.zeros(forest.left.shape[1])
    for t in range(start, n):
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        if width < N:
            for k in range(len(s)):
                if forest.length[s[k]] >= width:
                    return t
        known = 0
        for k in range(len(s)):
            if seen[s[k]] > 0:
                old[known] = s[k]
                x[known] = v[k]
                known += 1
        vote(old[:known], x[:known], cell, votes, forest, settings)
        for k in range(known):
            cell[old[k]] = -1
        copy(scores[t], votes)
        if targets[t] == targets[t]:
            update(s, v, targets[t], seen, votes, cell, spare, forest, settings)
            for k in range(len(s)):
                seen[s[k]] += 1
    return n
