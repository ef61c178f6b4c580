"""One pass over memory, compiled: sums of a digest, sums of a comparison. Imported by `kernels` alone.

Loops run over slices of fixed length, so that no index may be negative and nothing is checked: only then do they become
vector code. Sums may be reordered (``reassoc``), but a NaN stays one, which is how callers learn of it.
"""

from __future__ import annotations

import struct
from typing import Any

import numba
import numpy as np

from assay.difftest.kernels import BLOCK, BUCKETS, STRETCH, TURN

_FLAGS = {"reassoc", "contract", "nsz"}
_CHUNK = 2048


def _njit(function: Any) -> Any:
    return numba.njit(function, cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")


@_njit
def gaps(x: Any, y: Any) -> tuple[float, float, float, float, float]:
    """Squares of ``y - x``, x and y, their product, the largest difference; in float32, sums of chunks in float64."""
    error: Any = 0.0
    square = other = dot = error
    gap = np.empty(_CHUNK, np.float32)
    # magnitudes are ordered as their bits are, and a maximum of integers is vector code where one of floats is not
    bits = gap.view(np.int32)
    largest = np.int32(0)
    for start in range(0, x.size, _CHUNK):
        a, b = x[start : start + _CHUNK], y[start : start + _CHUNK]
        e = s = o = d = np.float32(0)
        for i in range(a.size):
            u, v = a[i], b[i]
            g = v - u
            gap[i] = abs(g)
            e += g * g
            s += u * u
            o += v * v
            d += u * v
        most = np.int32(0)
        for i in range(a.size):
            most = max(most, bits[i])
        largest = max(largest, most)
        error += e
        square += s
        other += o
        dot += d
    bits[0] = largest
    return error, square, other, dot, np.float64(gap[0])


@_njit
def sketch_run(
    x: Any, bits: Any, patterns: Any, start: int, stretches: Any, rows: Any, turns: Any, places_a: Any, places_b: Any,
    sketch: Any,
) -> tuple[float, float, Any, Any, Any]:  # fmt: skip
    """Both sketches, of [2, 256] zeros, for elements that follow each other from ``start`` on.

    ``stretches`` and ``turns`` are the signs from the first block and from the first turn on, the others those of all
    rows and places. ``bits`` and ``patterns`` are x as int32 and as uint32 (or empty). Gives the sum of squares, the
    sum, and what `extremes` makes minimum and maximum of.
    """
    square = total = 0.0
    most, least, pattern = np.int32(-(2**31)), np.int32(2**31 - 1), np.uint32(0)
    held, blocks, sums = np.zeros(BUCKETS), np.zeros(BLOCK), np.zeros(TURN)
    first = now = start // BLOCK
    first_turn = first * BUCKETS // TURN
    position = seen = 0
    while position < x.size:
        b, at = divmod(start + position, BLOCK)
        if b != now:
            _empty(held, now * BUCKETS, first_turn, turns, sums)
            now = b
        size = min(STRETCH - at % STRETCH, x.size - position)
        while seen < min(position + size, bits.size):
            most, least, pattern = _ordered(
                bits[seen : seen + _CHUNK], patterns[seen : seen + _CHUNK], most, least, pattern
            )
            seen += _CHUNK
        a = stretches[(b - first) * (BLOCK // STRETCH) + at // STRETCH]
        r = rows[at // BUCKETS]
        column = at % BUCKETS
        piece, to, into = x[position : position + size], blocks[at : at + size], held[column : column + size]
        for i in range(size):
            v = np.float64(piece[i])
            to[i] += a * v
            into[i] += r * v
            square += v * v
            total += v
        position += size
    _empty(held, now * BUCKETS, first_turn, turns, sums)
    _columns(blocks, places_a, sketch[0])
    _columns(sums, places_b, sketch[1])
    return square, total, most, least, pattern


@_njit
def _ordered(bits: Any, patterns: Any, most: Any, least: Any, pattern: Any) -> Any:
    """Largest and smallest int32 and largest uint32, so far. Vector code, which a minimum of floats is not."""
    a, b, c = np.int32(-(2**31)), np.int32(2**31 - 1), np.uint32(0)
    for i in range(bits.size):
        a = max(a, bits[i])
        b = min(b, bits[i])
        c = max(c, patterns[i])
    return max(a, most), min(b, least), max(c, pattern)


@_njit
def _empty(held: Any, position: int, first: int, turns: Any, sums: Any) -> None:
    t, at = divmod(position, TURN)
    for i in range(held.size):
        if at == TURN:
            t, at = t + 1, 0
        sums[at] += turns[t - first] * held[i]
        held[i] = 0.0
        at += 1


@_njit
def _columns(sums: Any, signs: Any, out: Any) -> None:
    """Second level: rows of signed sums added up; the last column belongs to the first bucket."""
    for row in range(signs.shape[0]):
        start = row * signs.shape[1]
        own, values = signs[row, : out.size], sums[start : start + out.size]
        for i in range(values.size):
            out[i] += own[i] * values[i]
        last = start + out.size
        if last < sums.size:
            out[0] += signs[row, out.size] * sums[last]


@_njit
def scatter(x: Any, a: Any, b: Any, signed: Any) -> tuple[float, float]:
    """Adds each element to its place in both rows; gives squares and sum."""
    square = total = 0.0
    for i in range(x.size):
        v = np.float64(x[i])
        signed[0, a[i]] += v
        signed[1, b[i]] += v
        square += v * v
        total += v
    return square, total


def extremes(most: int, least: int, pattern: int) -> tuple[float, float]:
    """Minimum and maximum of float32 numbers from the order of their bits.

    Positive numbers are ordered as integers. Negative ones come before them as int32 and after them as uint32, in each
    case the larger the magnitude the larger the integer.
    """
    low = pattern if pattern >= 2**31 else least
    high = most if most >= 0 else least % 2**32
    return struct.unpack("=2f", struct.pack("=2I", low, high))
