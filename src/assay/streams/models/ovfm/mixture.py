"""The two learners, on the row with zeros and on the completed row, mixed by their losses."""

from __future__ import annotations

import math

from assay.streams.jit import njit
from assay.streams.models.ovfm.cholesky import solve_lower, solve_upper
from assay.streams.models.ovfm.ftrl import coefficient
from assay.streams.models.ovfm.state import FEATURES, LOSS, RATE, X, Z


@njit
def two_scores(slots, values, state, room):
    """Scores of both learners."""
    rate = state.learners[X, RATE]
    on_x = coefficient(state.intercept[X], rate)
    for k in range(len(slots)):
        on_x += coefficient(state.linear[slots[k], X], rate) * values[k]
    rate = state.learners[Z, RATE]
    on_z = coefficient(state.intercept[Z], rate)
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        on_z += coefficient(state.linear[f, Z], rate) * room.z[f]
    return on_x, on_z


@njit
def _share_of_x(state, settings):
    return 1.0 / (1.0 + math.exp(min(settings.eta * (state.learners[X, LOSS] - state.learners[Z, LOSS]), 700.0)))


@njit
def mix(slots, values, state, settings, room):
    """The score of the row, `complete` having been called on it."""
    on_x, on_z = two_scores(slots, values, state, room)
    share = _share_of_x(state, settings)
    score = share * on_x + (1.0 - share) * on_z
    return score + state.targets[1] if settings.regression else score


@njit
def contributions(slots, values, parts, state, settings, room):
    """What each present feature adds to the score, itself and through the absent ones."""
    n = len(slots)
    share = _share_of_x(state, settings)
    rate_x = state.learners[X, RATE]
    rate_z = state.learners[Z, RATE]
    # Sigma_OO^-1 Sigma_OM w_M: what a unit of a present score adds through the absent ones
    for k in range(n):
        total = 0.0
        for i in range(room.absent[len(room.absent) - 1]):
            f = room.absent[i]
            weight = coefficient(state.linear[f, Z], rate_z)
            total += weight * state.covariance[f, slots[k]] / (room.deviation[f] * room.deviation[slots[k]])
        room.column[k] = total
    solve_lower(room.factor, n, room.column)
    solve_upper(room.factor, n, room.column)
    rest = share * coefficient(state.intercept[X], rate_x) + (1.0 - share) * coefficient(state.intercept[Z], rate_z)
    if settings.regression:
        rest += state.targets[1]
    for k in range(n):
        f = slots[k]
        own = share * coefficient(state.linear[f, X], rate_x) * values[k]
        latent = (coefficient(state.linear[f, Z], rate_z) + room.column[k]) * room.z[f]
        parts[k] = own + (1.0 - share) * latent + rest / n
