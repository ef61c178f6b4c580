"""The Gaussian copula: latent scores of a row, those of absent features among them, and their covariance."""

from __future__ import annotations

import math

import numpy as np

from assay.streams.jit import njit
from assay.streams.models.ovfm.cholesky import conditional_precision, factorise, solve, solve_lower, solve_upper
from assay.streams.models.ovfm.normal import cut_normal, normal_quantile
from assay.streams.models.ovfm.state import FEATURES, ROWS
from assay.streams.models.ovfm.windows import at_or_below


@njit
def register(slots, seen, state):
    """Let in the features of the row that are new: uncorrelated to all others. Returns whether there are any."""
    new = False
    for k in range(len(slots)):
        f = slots[k]
        if seen[f] == 0:
            new = True
            state.order[state.clock[FEATURES]] = f
            state.clock[FEATURES] += 1
            state.covariance[f, :] = 0.0
            state.covariance[:, f] = 0.0
            state.covariance[f, f] = 1.0
    return new


@njit
def complete(slots, values, state, settings, room):
    """Latent scores of the whole row: ``room.z``; leaves what `update` needs in ``room``."""
    n = len(slots)
    window = state.recent.shape[1]
    ordinals = False
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        room.present[f] = False
        room.deviation[f] = math.sqrt(max(state.covariance[f, f], 1e-12))
    for k in range(n):
        f = slots[k]
        room.present[f] = True
        size = min(state.seen_values[f], window)
        ascending = state.ascending[f]
        less = at_or_below(ascending, size, values[k], True)
        below = at_or_below(ascending, size, values[k], False)
        room.variance[k] = 0.0
        room.low[k] = 0.0
        room.high[k] = 0.0
        # a first value says nothing of its rank: its interval is the whole line
        if size == 0 or (state.distinct[f] <= settings.max_ordinal and 2 * state.distinct[f] <= size):
            room.low[k] = normal_quantile(less / (size + 1.0)) if less > 0 else -np.inf
            room.high[k] = normal_quantile((below + 1.0) / (size + 1.0)) if below < size else np.inf
            room.z[f], room.variance[k] = cut_normal(0.0, 1.0, room.low[k], room.high[k])
            ordinals = True
        else:
            room.z[f] = normal_quantile((0.5 * (less + below) + 1.0) / (size + 2.0))
    factorise(slots, state, room)
    solve(slots, room)
    if ordinals and n > 1:
        # all ordinal scores given all others as they were, so that the order of the columns does not matter
        for k in range(n):
            room.column[k] = room.z[slots[k]]
            if room.low[k] < room.high[k]:
                # given the others: precision p = (Sigma_OO^-1)_kk, mean z - (Sigma_OO^-1 z)_k / p
                precision = conditional_precision(k, n, room)
                mean = room.z[slots[k]] - room.solved[k] / precision
                deviation = 1.0 / math.sqrt(precision)
                room.column[k], room.variance[k] = cut_normal(mean, deviation, room.low[k], room.high[k])
        for k in range(n):
            room.z[slots[k]] = room.column[k]
        solve(slots, room)
    absent = 0
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        if not room.present[f]:
            room.absent[absent] = f
            absent += 1
            total = 0.0
            for k in range(n):
                total += state.covariance[f, slots[k]] / room.deviation[slots[k]] * room.solved[k]
            room.z[f] = total / room.deviation[f]
    room.absent[len(room.absent) - 1] = absent


@njit
def update_covariance(slots, state, settings, room):
    """Average ``z z' + C`` of the row into S, `complete` having been called on it."""
    n = len(slots)
    absent = room.absent[len(room.absent) - 1]
    covariance = state.covariance
    g = settings.forgetting if settings.forgetting > 0.0 else settings.step / (state.clock[ROWS] + 1.0 + settings.step)
    ordinals = False
    for k in range(n):
        ordinals = ordinals or room.variance[k] > 0.0
    for i in range(absent):
        f = room.absent[i]
        for k in range(n):
            a = slots[k]
            room.half[i, k] = covariance[f, a] / (room.deviation[f] * room.deviation[a])
        solve_lower(room.factor, n, room.half[i])
        if ordinals:
            room.full[i, :n] = room.half[i, :n]
            solve_upper(room.factor, n, room.full[i])

    # absent pairs: the conditional covariance, and what is not known of the present ordinal scores
    for i in range(absent):
        a = room.absent[i]
        for j in range(i + 1):
            b = room.absent[j]
            c = covariance[a, b] / (room.deviation[a] * room.deviation[b]) if i != j else 1.0
            for k in range(n):
                c -= room.half[i, k] * room.half[j, k]
            if ordinals:
                for k in range(n):
                    c += room.full[i, k] * room.variance[k] * room.full[j, k]
            if i == j:
                c = max(c, 0.0)
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value
    for k in range(n):
        a = slots[k]
        for i in range(absent):
            b = room.absent[i]
            c = room.full[i, k] * room.variance[k] if ordinals else 0.0
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value
        for j in range(k + 1):
            b = slots[j]
            c = room.variance[k] if j == k else 0.0
            value = (1.0 - g) * covariance[a, b] + g * (room.z[a] * room.z[b] + c)
            covariance[a, b] = value
            covariance[b, a] = value
