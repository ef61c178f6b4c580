"""The last N rows, as a sorted window of each feature."""

from __future__ import annotations

from assay.streams.jit import njit


@njit
def expire(f, t, N, forest):
    """Take the values of rows that have left the buffer out of a feature's window; returns the oldest row in it."""
    values = forest.values[f]
    rows = forest.rows[f]
    n = 0
    oldest = t
    for k in range(forest.length[f]):
        if rows[k] > t - N:
            rows[n] = rows[k]
            values[n] = values[k]
            oldest = min(oldest, rows[k])
            n += 1
    forest.length[f] = n
    return oldest


@njit
def insert(f, x, t, N, forest):
    """Put the value of row t into a feature's window."""
    expire(f, t, N, forest)
    values = forest.values[f]
    rows = forest.rows[f]
    k = forest.length[f]
    while k > 0 and values[k - 1] > x:
        values[k] = values[k - 1]
        rows[k] = rows[k - 1]
        k -= 1
    values[k] = x
    rows[k] = t
    forest.length[f] += 1
    forest.until[f] = 0
