"""A row drawn as a picture, with array operations: bars, bars with crosses at absent features, or a pie.

Pictures are float32[3, size, size] in [0, 1] on white; a feature keeps its colour for good.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.float32]

_GAP = 0.3  # between bars, in bar widths
_RED = np.array([1.0, 0.0, 0.0], dtype=np.float32)
_RADIUS = 0.45


def bars(values: NDArray[np.float64], colours: NDArray[np.float32], size: int, limit: float = 3.0) -> Picture:
    """A bar a feature present, side by side, up or down from a black line in the middle.

    Parameters
    ----------
    values : float64[k]
        Cut to [-limit, limit], which fills the height.
    colours : float32[k, 3]
    size : int
        Pixels of a side.

    Examples
    --------
    >>> picture = bars(np.array([3.0]), np.zeros((1, 3), np.float32), size=8)
    >>> (picture[0] == 0).sum(axis=0).tolist()  # black pixels in each column: the bar, and the line that all have
    [1, 5, 5, 5, 5, 5, 5, 1]
    """
    return _bars(values, np.ones(len(values), dtype=bool), colours, size, limit)


def crossed_bars(
    values: NDArray[np.float64], present: NDArray[np.bool_], colours: NDArray[np.float32], size: int, limit: float = 3.0
) -> Picture:
    """As `bars`, with a place for every known feature and a red cross in the places of the absent ones.

    Parameters
    ----------
    values : float64[d]
        Those of absent features are ignored.
    present : bool[d]
    colours : float32[d, 3]
    """
    return _bars(values, present, colours, size, limit)


def pie(values: NDArray[np.float64], colours: NDArray[np.float32], size: int) -> Picture:
    """A sector a feature present, as wide as its value above the smallest one (or above 0 if none is negative).

    Equal values give equal sectors; a feature at the bottom gets none.

    Parameters
    ----------
    values : float64[k]
    colours : float32[k, 3]

    Examples
    --------
    >>> picture = pie(np.array([1.0, 1.0]), np.array([[0, 0, 0], [1, 0, 0]], np.float32), size=64)
    >>> bool((picture[:, 40, 32] == 0).all()), picture[:, 20, 32].tolist()  # one half below, the other above
    (True, [1.0, 0.0, 0.0])
    """
    picture = np.ones((3, size, size), dtype=np.float32)
    if len(values):
        shares = values - min(0.0, values.min())
        if shares.sum() <= 0.0:
            shares = np.ones(len(values))
        edges = np.cumsum(shares) / shares.sum()
        turn, inside = _disc(size)
        sector = np.minimum(np.searchsorted(edges, turn[inside], side="right"), len(values) - 1)
        picture[:, inside] = colours[sector].T
    return picture


def _bars(
    values: NDArray[np.float64], present: NDArray[np.bool_], colours: NDArray[np.float32], size: int, limit: float
) -> Picture:
    middle = size // 2
    n = len(values)
    if n == 0:
        picture = np.ones((3, size, size), dtype=np.float32)
        return _with_line(picture, middle)
    # Bars thinner than two pixels are drawn on a wider sheet that is averaged down, so that none gets lost.
    over = max(1, -(-2 * n // size))
    bar, offset, width = _columns(n, size * over)
    y = np.arange(size)[:, None] - middle
    height = np.where(present, np.rint(np.clip(values, -limit, limit) / limit * middle), 0.0)[bar]
    inside = np.abs(offset) <= 0.5
    filled = inside & ((y >= -height) & (y < 0) | (y >= 0) & (y < -height))
    ink = colours[bar].T[:, None, :]
    picture = np.where(filled, ink, np.float32(1.0))
    if not present.all():
        arm = min(0.5 * width, size / 16)
        x = offset * width
        thick = max(0.75, arm / 6)
        cross = (np.abs(x) <= arm) & (np.abs(y + 0.5) <= arm) & (np.abs(np.abs(x) - np.abs(y + 0.5)) <= thick)
        picture = np.where(cross & ~present[bar], _RED[:, None, None], picture)
    picture = picture.reshape(3, size, size, over).mean(axis=3, dtype=np.float32)
    return _with_line(picture, middle)


def _with_line(picture: Picture, middle: int) -> Picture:
    picture[:, middle] = 0.0
    return picture


@lru_cache(maxsize=64)
def _columns(n: int, pixels: int) -> tuple[Any, Any, float]:
    """Bar that each pixel column is nearest to, its offset from the middle of that bar in bar widths, and the width."""
    unit = pixels / (n + (n + 1) * _GAP)
    at = (np.arange(pixels) + 0.5) / unit
    bar = np.clip(np.floor((at - 0.5 * _GAP) / (1.0 + _GAP)), 0, n - 1).astype(np.int64)
    offset = at - (_GAP + 0.5 + bar * (1.0 + _GAP))
    return bar, offset, unit


@lru_cache(maxsize=8)
def _disc(size: int) -> tuple[Any, Any]:
    """Angle of each pixel as a share of the turn, clockwise from the right, and whether it lies on the disc."""
    at = np.arange(size) + 0.5 - size / 2
    x, y = at[None, :], at[:, None]
    return np.arctan2(y, x) / (2.0 * np.pi) % 1.0, np.hypot(x, y) <= _RADIUS * size
