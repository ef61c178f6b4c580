"""The last values of each feature, kept sorted too, for the rank of a value among them."""

from __future__ import annotations

from assay.streams.jit import njit


@njit
def at_or_below(ascending, n, x, strictly):
    """How many of the first n values are at or below x, or strictly below it."""
    lo = 0
    hi = n
    while lo < hi:
        middle = (lo + hi) // 2
        if ascending[middle] < x or (not strictly and ascending[middle] == x):
            lo = middle + 1
        else:
            hi = middle
    return lo


@njit
def remember(f, x, state):
    """Put a value into the window of a feature, in place of the oldest when it is full."""
    window = state.recent.shape[1]
    ascending = state.ascending[f]
    at = state.seen_values[f] % window
    size = min(state.seen_values[f], window)
    if size == window:
        k = at_or_below(ascending, size, state.recent[f, at], True)
        if not _repeated(ascending, size, k):
            state.distinct[f] -= 1
        for i in range(k, size - 1):
            ascending[i] = ascending[i + 1]
        size -= 1
    k = at_or_below(ascending, size, x, False)
    if k == 0 or ascending[k - 1] != x:
        state.distinct[f] += 1
    for i in range(size, k, -1):
        ascending[i] = ascending[i - 1]
    ascending[k] = x
    state.recent[f, at] = x
    state.seen_values[f] += 1


@njit
def _repeated(ascending, size, k):
    return (k > 0 and ascending[k - 1] == ascending[k]) or (k < size - 1 and ascending[k + 1] == ascending[k])
