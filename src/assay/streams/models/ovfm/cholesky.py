"""Cholesky factor of the correlations of the present scores, and what is solved with it."""

from __future__ import annotations

import math

from assay.streams.jit import njit


@njit
def factorise(slots, state, room):
    """Cholesky factor of Sigma_OO, with as much jitter as it takes."""
    n = len(slots)
    jitter = 1e-8
    factor = room.factor
    while True:
        good = True
        for i in range(n):
            for j in range(i + 1):
                a = slots[i]
                b = slots[j]
                total = state.covariance[a, b] / (room.deviation[a] * room.deviation[b]) if i != j else 1.0 + jitter
                for k in range(j):
                    total -= factor[i, k] * factor[j, k]
                if i != j:
                    factor[i, j] = total / factor[j, j]
                elif total > 1e-10:
                    factor[i, i] = math.sqrt(total)
                else:
                    good = False
            if not good:
                break
        if good or jitter > 1.0:
            return
        jitter *= 10.0


@njit
def solve_lower(factor, n, x):
    """Solve factor x = b in place."""
    for i in range(n):
        total = x[i]
        for k in range(i):
            total -= factor[i, k] * x[k]
        x[i] = total / factor[i, i]


@njit
def solve_upper(factor, n, x):
    """Solve factor' x = b in place."""
    for i in range(n - 1, -1, -1):
        x[i] /= factor[i, i]
        for k in range(i):
            x[k] -= factor[i, k] * x[i]


@njit
def solve(slots, room):
    """Sigma_OO^-1 z_O."""
    n = len(slots)
    for k in range(n):
        room.solved[k] = room.z[slots[k]]
    solve_lower(room.factor, n, room.solved)
    solve_upper(room.factor, n, room.solved)


@njit
def conditional_precision(k, n, room):
    """Entry k of the diagonal of Sigma_OO^-1: the squares of column k of the inverse factor."""
    total = 0.0
    for i in range(k, n):
        entry = 1.0 if i == k else 0.0
        for j in range(k, i):
            entry -= room.factor[i, j] * room.inverse[j]
        room.inverse[i] = entry / room.factor[i, i]
        total += room.inverse[i] * room.inverse[i]
    return total
