"""Compiled kernels where numba is installed; without it (or with ``ASSAY_DIFFTEST_JIT=0``) torch does the same."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

# of the sketches; compiled code has them as constants, since it would divide by them for every 128 elements
BUCKETS = 256
BLOCK = 8192
STRETCH = 128  # A: elements under one sign
TURN = 7919  # B: so many sums are held; the following ones are added to them with another sign


@lru_cache(maxsize=1)
def compiled() -> Any:
    """The module of compiled kernels, imported at the first call, or None."""
    if os.environ.get("ASSAY_DIFFTEST_JIT", "1") == "0":
        return None
    try:
        from assay.difftest import jit
    except ImportError:
        return None
    return jit
