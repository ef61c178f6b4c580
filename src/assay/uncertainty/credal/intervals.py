"""Entropy over probability intervals, exactly: arrays ``lower, upper (n, K)``, reachable or not."""

from __future__ import annotations

import heapq
import itertools
import warnings

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from assay.uncertainty.measures.sample import shannon
from assay.uncertainty.simplex import blocks

Bounds = Float[np.ndarray, "rows classes"]
Rows = Float[np.ndarray, " rows"]
ENUMERATED = 12
NODES = 200_000
_TINY = 1e-300


def water_level(lower: Bounds, upper: Bounds) -> Rows:
    """The level c with ``sum_k clip(c, l_k, u_k) = 1``, from the sorted 2K ends (no iteration)."""
    n, k = lower.shape
    # The lowest bit of an end says which it is, so that a plain sort carries it along (a change of 1e-16).
    ends = np.concatenate([lower, upper], axis=1)
    bits = ends.view(np.int64)
    bits[:, :k] &= ~np.int64(1)
    bits[:, k:] |= 1
    ends.sort(axis=1)
    slope = np.cumsum(1 - 2 * (ends.view(np.int64) & 1), axis=1)[:, :-1]
    rise = np.cumsum(slope * np.diff(ends, axis=1), axis=1)
    need = 1 - lower.sum(axis=1)
    at = np.minimum((rise < need[:, None]).sum(axis=1), 2 * k - 2)
    rows = np.arange(n)
    before = np.where(at > 0, rise[rows, np.maximum(at - 1, 0)], 0.0)
    steep = slope[rows, at]
    step = np.where(steep > 0, (need - before) / np.maximum(steep, 1), 0.0)
    return np.asarray(np.clip(ends[rows, at] + step, ends[rows, at], ends[rows, at + 1]))


def upper_point(lower: Bounds, upper: Bounds) -> Bounds:
    """The distribution of largest entropy: every class at one common level, as far as its bounds allow.

    >>> upper_point(np.array([[0.1, 0.2, 0.6]]), np.array([[0.3, 0.4, 0.9]])).round(6).tolist()
    [[0.2, 0.2, 0.6]]
    """
    return np.clip(water_level(lower, upper)[:, None], lower, upper)


def upper_entropy_intervals(lower: Bounds, upper: Bounds, chunk: int | None = None) -> Rows:
    """Largest Shannon entropy in nats (water filling)."""
    out = np.empty(len(lower))
    for part in blocks(len(lower), 8 * lower.shape[1], chunk):
        out[part] = shannon(upper_point(np.ascontiguousarray(lower[part]), np.ascontiguousarray(upper[part])))
    return out


def lower_entropy_intervals(lower: Bounds, upper: Bounds) -> Rows:
    """Smallest Shannon entropy in nats; it lies at an extreme point, where all classes but one are at a bound.

    Up to 12 classes all extreme points are compared; above, branch and bound on the interval of the one class whose
    chord is not exact, to a gap of 1e-12.

    >>> lower_entropy_intervals(np.array([[0.1, 0.2, 0.3]]), np.array([[0.3, 0.4, 0.5]])).round(6).tolist()
    [0.943348]
    """
    lower, upper = reach(lower, upper)
    if lower.shape[1] <= ENUMERATED:
        return _enumerated(lower, upper)
    return np.array([branch_and_bound(l, u) for l, u in zip(lower, upper, strict=True)])


def reach(lower: Bounds, upper: Bounds) -> tuple[Bounds, Bounds]:
    """The tightest bounds of the same set."""
    low = np.maximum(lower, 1 - (upper.sum(1, keepdims=True) - upper))
    high = np.minimum(upper, 1 - (lower.sum(1, keepdims=True) - lower))
    high = np.clip(high, 0, 1)
    return np.minimum(np.clip(low, 0, 1), high), high


def _h(p: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-p * np.log(np.maximum(p, _TINY)))


def _enumerated(lower: Bounds, upper: Bounds) -> Rows:
    n, k = lower.shape
    sets = (np.arange(2**k)[:, None] >> np.arange(k)) & 1
    sets = sets.astype(np.float64)
    out = np.full(n, np.inf)
    for part in blocks(n, 2**k * 4, None):
        l, u = lower[part], upper[part]
        width = u - l
        left = (1 - l.sum(1))[
            :, None
        ] - width @ sets.T  # what remains when the classes of a set are at their upper ends
        ends = _h(l).sum(1)[:, None] + (_h(u) - _h(l)) @ sets.T
        best = np.full(len(l), np.inf)
        for j in range(k):
            out_of = sets[:, j] == 0
            fits = (left[:, out_of] >= -1e-12) & (left[:, out_of] <= width[:, j, None] + 1e-12)
            row, which = np.nonzero(fits)
            if not len(row):
                continue
            columns = np.flatnonzero(out_of)[which]
            rest = np.clip(left[row, columns], 0, width[row, j])
            value = ends[row, columns] - _h(l[row, j]) + _h(l[row, j] + rest)
            np.minimum.at(best, row, value)
        out[part] = best
    return np.maximum(out, 0.0)


def branch_and_bound(
    lower: Float[np.ndarray, " classes"], upper: Float[np.ndarray, " classes"], *, nodes: int = NODES
) -> float:
    """Smallest entropy of one row by best-first branch and bound.

    The bound of a node replaces ``-p log p`` by its chord on the node's interval: a linear program with one constraint,
    solved by sorting slopes. Its solution has at most one class inside its interval; the node is split there, where the
    chord then is exact. A warning names the remaining gap if ``nodes`` do not suffice.
    """
    order = itertools.count()
    best = np.inf

    def solve(l: NDArray[np.float64], u: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], int]:
        width = u - l
        room = 1 - l.sum()
        hl = _h(l)
        slope = np.where(width > 1e-15, (_h(u) - hl) / np.where(width > 1e-15, width, 1), 0.0)
        taken = np.zeros_like(l)
        inside = -1
        for i in np.argsort(slope, kind="stable"):
            if room <= 0:
                break
            taken[i] = min(width[i], room)
            if taken[i] < width[i]:
                inside = int(i)
            room -= taken[i]
        return float(hl.sum() + slope @ taken), l + taken, inside

    bound, p, inside = solve(lower, upper)
    heap = [(bound, next(order), lower, upper, p, inside)]
    seen = 0
    while heap:
        bound, _, l, u, p, inside = heapq.heappop(heap)
        best = min(best, float(_h(p).sum()))
        if bound >= best - 1e-12 or inside < 0:
            if bound >= best - 1e-12:
                break
            continue
        seen += 1
        if seen > nodes:
            warnings.warn(
                f"lower entropy: after {nodes} nodes the value {best:.9g} is within {best - bound:.2g} of the minimum",
                stacklevel=2,
            )
            break
        for l2, u2 in (
            (l, np.where(np.arange(len(u)) == inside, p, u)),
            (np.where(np.arange(len(l)) == inside, p, l), u),
        ):
            if l2.sum() <= 1 + 1e-12 and u2.sum() >= 1 - 1e-12:
                b2, p2, i2 = solve(l2, u2)
                best = min(best, float(_h(p2).sum()))
                if b2 < best - 1e-12:
                    heapq.heappush(heap, (b2, next(order), l2, u2, p2, i2))
    return max(best, 0.0)
