"""From the log joint of each class to a score of each class."""

from __future__ import annotations

import math

import numpy as np

from assay.streams.jit import njit


@njit
def class_scores(joint, counts, out):
    """Score of each class, ``log(1 + odds)`` of the class against all others; P(class) is ``1 - exp(-score)``.

    It grows with the log-odds and, unlike a probability, does not saturate; with two classes the difference of the
    scores is the log-odds. A class without a learned row has probability 0 and score 0, so it never wins against one
    that has. Where a single class has been learned, its odds are taken as N to 1, N the rows learned.

    Parameters
    ----------
    joint : float64[K]
        log P(class, row) up to a constant; read for classes with ``counts > 0`` only.
    counts : float64[K]
        Rows learned of each class.
    out : float64[K]
        The scores.
    """
    first = -1  # the class of the largest joint
    rest = -np.inf  # the second largest
    learned = 0
    for c in range(len(counts)):
        out[c] = 0.0
        if counts[c] > 0.0:
            learned += 1
            if first < 0 or joint[c] > joint[first]:
                if first >= 0:
                    rest = joint[first]
                first = c
            elif joint[c] > rest:
                rest = joint[c]
    if learned == 0:
        return
    if learned == 1:
        out[first] = math.log(1.0 + counts[first])
        return
    total, total_rest = 0.0, 0.0
    for c in range(len(counts)):
        if counts[c] > 0.0:
            total += math.exp(joint[c] - joint[first])
            if c != first:
                total_rest += math.exp(joint[c] - rest)
    for c in range(len(counts)):
        if counts[c] > 0.0:
            if c == first:
                others = rest + math.log(total_rest)
            else:
                others = joint[first] + math.log(total - math.exp(joint[c] - joint[first]))
            odds = joint[c] - others
            out[c] = max(odds, 0.0) + math.log1p(math.exp(-abs(odds)))
