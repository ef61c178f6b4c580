"""A linear learner by follow-the-regularised-leader, whose decay follows its error rate."""

from __future__ import annotations

import math

from assay.streams.jit import njit
from assay.streams.models.ovfm.state import (
    FAILS,
    FEATURES,
    LEAST_DEVIATION,
    LEAST_ERROR,
    LOSS,
    RATE,
    TIMES,
    WARN_FAILS,
    WARN_TIMES,
    H,
    V,
    X,
    Z,
)

WARM_UP = 30


@njit
def coefficient(entry, rate):
    """``w = (h - v) / r``."""
    return (entry[H] - entry[V]) / rate


@njit
def learn_linear(which, score, goal, weight, slots, values, state, settings, room):
    """One step of a learner on its score of the row."""
    learner = state.learners[which]
    if settings.regression:
        gradient = score - goal
        wrong = abs(gradient) > abs(goal)  # worse than the mean
        spread = state.targets[2] / state.targets[0] if state.targets[0] > 0.0 else 0.0
        if spread > 0.0:
            learner[LOSS] += 0.5 * gradient * gradient / spread
    else:
        p = 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))
        gradient = (p - goal) * weight
        wrong = abs(p - goal) > 0.5
        learner[LOSS] += max(score, 0.0) - goal * score + math.log1p(math.exp(-abs(score)))
    decay = _decay(learner, wrong, settings)
    rate = learner[RATE]
    if settings.regression:
        squares = 1.0
        if which == X:
            for k in range(len(slots)):
                squares += values[k] * values[k]
        else:
            for i in range(state.clock[FEATURES]):
                squares += room.z[state.order[i]] * room.z[state.order[i]]
        gradient /= 1.0 + squares / (1.0 + decay * rate)
    entry = state.intercept[which]
    w = coefficient(entry, rate)
    entry[V] += gradient
    entry[H] = decay * entry[H] + w
    for i in range(state.clock[FEATURES]):
        f = state.order[i]
        entry = state.linear[f, which]
        w = coefficient(entry, rate)
        if which == Z:
            entry[V] += gradient * room.z[f]
        entry[H] = decay * entry[H] + w
    if which == X:
        for k in range(len(slots)):
            state.linear[slots[k], X, V] += gradient * values[k]
    learner[RATE] = 1.0 + decay * rate


@njit
def _decay(learner, wrong, settings):
    """``dec`` of this step; the count of steps starts over when the error rate has risen beyond chance."""
    learner[TIMES] += 1.0
    if wrong:
        learner[FAILS] += 1.0
    t = learner[TIMES]
    if settings.decay_choice == 0:
        decay = 1.0 - t ** (-1.0 / 3.0)
    elif settings.decay_choice == 1:
        decay = 1.0 - 1.0 / math.sqrt(t)
    elif settings.decay_choice == 2:
        decay = (t - 1.0) / t
    elif settings.decay_choice == 3:
        decay = t / (t + 1.0)
    else:
        decay = 1.0 - math.log(t) / (2.0 * t)
    if t > WARM_UP:
        error = learner[FAILS] / t
        deviation = math.sqrt(error * (1.0 - error) / t)
        decay = decay * (1.0 - settings.error_share) + settings.error_share * error
        if error + deviation < learner[LEAST_ERROR] + learner[LEAST_DEVIATION]:
            learner[LEAST_ERROR] = error
            learner[LEAST_DEVIATION] = deviation
        if error + deviation < learner[LEAST_ERROR] + 2.0 * learner[LEAST_DEVIATION]:
            learner[WARN_TIMES] = 0.0
            learner[WARN_FAILS] = 0.0
        else:
            learner[WARN_TIMES] += 1.0
            if wrong:
                learner[WARN_FAILS] += 1.0
            if error + deviation > learner[LEAST_ERROR] + 3.0 * learner[LEAST_DEVIATION]:
                learner[TIMES] = learner[WARN_TIMES]
                learner[FAILS] = learner[WARN_FAILS]
                learner[LEAST_ERROR] = 1.0
                learner[LEAST_DEVIATION] = 10.0
    return decay
