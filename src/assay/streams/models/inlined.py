"""Kernels that become part of the kernels that call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from assay.streams.jit import COMPILED

F = TypeVar("F", bound=Callable[..., Any])


def inlined(function: F) -> F:
    """As `njit`, for what is called once a row or once a cell.

    LLVM leaves a callee with many array arguments outside its caller, and passing the arrays then costs 40 to 100 ns a
    call, more than most rows need.
    """
    if not COMPILED:
        return function
    import numba

    compiled: Any = numba.njit(function, cache=True, nogil=True, error_model="numpy", forceinline=True)
    return compiled
