"""The cut that keeps the k largest."""

from __future__ import annotations

import numpy as np

from assay.streams.jit import njit


@njit
def kth_largest(values, k):
    """The k-th largest value; keep what is ``>=`` it, so that all that are tied at the cut stay."""
    at = len(values) - k
    return np.partition(values, at)[at]
