"""One decorator between the kernels and numba, so that every kernel also runs as plain Python over NumPy arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    if os.environ.get("ASSAY_STREAMS_JIT", "1") == "0":
        raise ImportError
    import numba
except ImportError:
    COMPILED = False

    def njit(function: F) -> F:
        return function

else:
    COMPILED = True

    def njit(function: F) -> F:
        # No fastmath: the row-by-row path and the array path must add the same numbers in the same order.
        compiled: Any = numba.njit(function, cache=True, nogil=True, error_model="numpy")
        return compiled


njit.__doc__ = (
    """Compile with numba where it is installed (and ``ASSAY_STREAMS_JIT`` is not ``0``), else leave as it is."""
)
