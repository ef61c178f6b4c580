"""Checks of constructor arguments that are numbers."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from assay.streams.errors import StreamError


def check_range(name: str, value: Any, low: float, high: float = math.inf, *, above: bool = False) -> None:
    """Raise `StreamError`, naming the argument, unless ``low <= value <= high`` (``above``: ``low < value``)."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and low <= value <= high and not (above and value == low):
        return
    allowed = f"above {low:g}" if above else f"at least {low:g}"
    if not math.isinf(high):
        allowed += f" and at most {high:g}"
    raise StreamError(f"{name} is a number {allowed}, not {value!r}")


def check_whole(name: str, value: Any, low: int) -> None:
    """Raise `StreamError`, naming the argument, unless the value is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise StreamError(f"{name} is a whole number of at least {low}, not {value!r}")
