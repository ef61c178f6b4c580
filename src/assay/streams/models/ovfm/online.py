"""Learning from one row, and scoring and learning row by row."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.ovfm.copula import complete, register, update_covariance
from assay.streams.models.ovfm.ftrl import learn_linear
from assay.streams.models.ovfm.mixture import mix, two_scores
from assay.streams.models.ovfm.state import ROWS, X, Z
from assay.streams.models.ovfm.windows import remember
from assay.streams.models.weights import example_weight


@njit
def update(slots, values, target, weight, state, settings, room):
    """Learn the row, `complete` having been called on it."""
    on_x, on_z = two_scores(slots, values, state, room)
    goal = target
    if settings.regression:
        goal = target - state.targets[1] if state.targets[0] > 0.0 else 0.0
    learn_linear(X, on_x, goal, weight, slots, values, state, settings, room)
    learn_linear(Z, on_z, goal, weight, slots, values, state, settings, room)
    if settings.regression:
        state.targets[0] += 1.0
        difference = target - state.targets[1]
        state.targets[1] += difference / state.targets[0]
        state.targets[2] += difference * (target - state.targets[1])
    update_covariance(slots, state, settings, room)
    for k in range(len(slots)):
        remember(slots[k], values[k], state)
    state.clock[ROWS] += 1


@njit
def run_rows(indptr, slots, values, targets, fixed, seen, state, settings, room):
    """Score each row with what is known before it, then learn from it."""
    n = len(indptr) - 1
    scores = np.empty(n)
    old = np.empty(len(state.order), np.int64)
    x = np.empty(len(state.order))
    for t in range(n):
        s = slots[indptr[t] : indptr[t + 1]]
        v = values[indptr[t] : indptr[t + 1]]
        known = 0
        for k in range(len(s)):
            if seen[s[k]] > 0:
                old[known] = s[k]
                x[known] = v[k]
                known += 1
        complete(old[:known], x[:known], state, settings, room)
        scores[t] = mix(old[:known], x[:known], state, settings, room)
        if targets[t] == targets[t]:
            weight = 1.0 if settings.regression else example_weight(fixed, state.targets, 0, int(targets[t]))
            if register(s, seen, state):
                complete(s, v, state, settings, room)
            update(s, v, targets[t], weight, state, settings, room)
            for k in range(len(s)):
                seen[s[k]] += 1
    return scores
