"""Quantile of unsorted values by selection."""

from __future__ import annotations

from assay.streams.jit import njit


@njit
def quantile(values, n, q, spare):
    """Quantile of the first n values with linear interpolation, as numpy's default; ``spare`` is scratch."""
    for i in range(n):
        spare[i] = values[i]
    position = q * (n - 1)
    k = min(int(position), n - 1)
    # Hoare's selection: afterwards spare[k] is in its place, and nothing right of it is smaller
    first = 0
    last = n - 1
    while first < last:
        pivot = spare[k]
        i = first
        j = last
        while i <= j:
            while spare[i] < pivot:
                i += 1
            while spare[j] > pivot:
                j -= 1
            if i <= j:
                swap = spare[i]
                spare[i] = spare[j]
                spare[j] = swap
                i += 1
                j -= 1
        if j < k:
            first = i
        if k < i:
            last = j
    value = spare[k]
    if k == n - 1:
        return value
    above = spare[k + 1]
    for i in range(k + 2, n):
        above = min(above, spare[i])
    return value + (above - value) * (position - k)
