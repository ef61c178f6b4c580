"""Quantiles of a stream in constant memory: merging t-digests, many of them in one two-dimensional array.

The digest is the one of Dunning and Ertl, "Computing extremely accurate quantiles using t-digests" (arXiv 1902.04023,
2019), with their scale function k1. What differs from their merging digest:

1. There is no buffer of unmerged points. A point goes to its place among the sorted centroids at once and only a full
   row is compressed, so a digest can be asked between any two points without changing it.
2. The size limit of a centroid is found with one square root (addition theorem of the sine), not with asin and sin.
3. A digest is one row of a float array, and zeros are an empty digest: a bank of digests grows, is copied and is saved
   as any array. Columns: number of centroids, smallest value, largest value, total weight, then means, then weights.

The kernels `update`, `quantile` and `cdf` take (bank, row, ...), so that other kernels can call them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.streams.errors import StreamError
from assay.streams.jit import njit

SIZE, MIN, MAX, TOTAL, MEANS = 0, 1, 2, 3, 4


class TDigest:
    """A sketch of a distribution that answers quantiles and ranks, most exactly in the tails.

    Until ``2 * compression`` values have come the answers are exact: `quantile` is ``numpy.quantile(...,
    method="hazen")`` and `cdf` the mid-rank. After that a centroid near rank q holds at most a share
    ``(2 pi / compression) * sqrt(q (1 - q))`` of the weight (.031 at the median and .0063 at q = .01 for the default),
    and an answer is off by about half of that in rank at worst (by all of it where a centroid spans two tied values).

    Parameters
    ----------
    compression : int
        At most this many centroids (plus one) are left by a compression; memory is ``8 * (4 + 4 * compression)`` bytes.

    Raises
    ------
    StreamError
        If ``compression`` is below 10, or a value or weight is not finite.

    Examples
    --------
    >>> digest = TDigest().update_many(np.random.default_rng(0).exponential(size=100_000))
    >>> round(digest.quantile(0.5), 2), round(digest.cdf(math.log(2)), 2), digest.count
    (0.69, 0.5, 100000.0)
    """

    def __init__(self, compression: int = 100) -> None:
        self.compression = compression
        self._bank = empty_bank(1, compression)

    def update(self, value: float, weight: float = 1.0) -> TDigest:
        """Add one value."""
        return self.update_many(np.array([value], dtype=np.float64), np.array([weight], dtype=np.float64))

    def update_many(self, values: ArrayLike, weights: ArrayLike | None = None) -> TDigest:
        """Add values (float64[n]), each with a positive weight (default 1)."""
        x = np.asarray(values, dtype=np.float64).ravel()
        w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
        if len(x) != len(w):
            raise StreamError(f"{len(x)} values but {len(w)} weights")
        if not (np.isfinite(x).all() and np.isfinite(w).all() and (w > 0).all()):
            raise StreamError("a digest takes finite values with finite weights above 0")
        _update_many(self._bank, 0, x, w)
        return self

    def merge(self, other: TDigest) -> TDigest:
        """Add all that another digest holds."""
        merge(self._bank, 0, other._bank, 0)
        return self

    def quantile(self, q: float) -> float:
        """Value at rank q in [0, 1]; NaN when the digest is empty.

        Raises
        ------
        StreamError
            If q is outside [0, 1].
        """
        if not 0.0 <= q <= 1.0:
            raise StreamError(f"q is in [0, 1], not {q!r}")
        return float(quantile(self._bank, 0, float(q)))

    def cdf(self, value: float) -> float:
        """Share of the weight below a value, half of the weight at the value included; NaN when the digest is empty."""
        return float(cdf(self._bank, 0, float(value)))

    @property
    def count(self) -> float:
        """Total weight."""
        return float(self._bank[0, TOTAL])

    @property
    def minimum(self) -> float:
        """Smallest value (exact); NaN when the digest is empty."""
        return float(self._bank[0, MIN]) if self.count else math.nan

    @property
    def maximum(self) -> float:
        """Largest value (exact); NaN when the digest is empty."""
        return float(self._bank[0, MAX]) if self.count else math.nan

    @property
    def centroids(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and weights of the centroids, in order."""
        size, width = int(self._bank[0, SIZE]), (self._bank.shape[1] - MEANS) // 2
        return self._bank[0, MEANS : MEANS + size].copy(), self._bank[0, MEANS + width : MEANS + width + size].copy()

    def __repr__(self) -> str:
        return f"TDigest(compression={self.compression}, count={self.count:g})"


def empty_bank(rows: int, compression: int = 100) -> NDArray[np.float64]:
    """Array of that many empty digests.

    Raises
    ------
    StreamError
        If ``compression`` is below 10.
    """
    if compression < 10:
        raise StreamError(f"compression is 10 or more, not {compression!r}")
    return np.zeros((rows, MEANS + 4 * int(compression)))


@njit
def update(bank, row, value, weight):
    """Add a finite value of positive weight to the digest in this row."""
    width = (bank.shape[1] - MEANS) // 2
    digest = bank[row]
    size = int(digest[SIZE])
    if size == 0:
        digest[MIN] = value
        digest[MAX] = value
    else:
        digest[MIN] = min(digest[MIN], value)
        digest[MAX] = max(digest[MAX], value)
    if size == width:
        size = _compress(digest, width)
    place = _above(digest, size, value)
    for k in range(size, place, -1):
        digest[MEANS + k] = digest[MEANS + k - 1]
        digest[MEANS + width + k] = digest[MEANS + width + k - 1]
    digest[MEANS + place] = value
    digest[MEANS + width + place] = weight
    digest[SIZE] = size + 1
    digest[TOTAL] += weight


@njit
def quantile(bank, row, q):
    """Value at rank q of the digest in this row: linear between the middles of the centroids; NaN when empty."""
    digest = bank[row]
    width = (bank.shape[1] - MEANS) // 2
    size = int(digest[SIZE])
    if size == 0:
        return np.nan
    target = q * digest[TOTAL]
    left_rank = 0.0
    left = digest[MIN]
    below = 0.0
    for k in range(size):
        weight = digest[MEANS + width + k]
        rank = below + 0.5 * weight
        right = digest[MEANS + k]
        if target <= rank:
            return left + (right - left) * (target - left_rank) / (rank - left_rank)
        left_rank = rank
        left = right
        below += weight
    right = digest[MAX]
    share = (target - left_rank) / (digest[TOTAL] - left_rank)
    return right if share >= 1.0 else left + (right - left) * share


@njit
def cdf(bank, row, value):
    """Share of weight below the value (plus half of that at it) of the digest in this row; NaN when empty."""
    digest = bank[row]
    width = (bank.shape[1] - MEANS) // 2
    size = int(digest[SIZE])
    if size == 0:
        return np.nan
    if value < digest[MIN]:
        return 0.0
    if value > digest[MAX]:
        return 1.0
    after = _above(digest, size, value)
    first = after
    while first > 0 and digest[MEANS + first - 1] == value:
        first -= 1
    below = 0.0
    for k in range(first):
        below += digest[MEANS + width + k]
    if first < after:
        equal = 0.0
        for k in range(first, after):
            equal += digest[MEANS + width + k]
        return (below + 0.5 * equal) / digest[TOTAL]
    # between two centroids, or between one and an end
    left = digest[MIN]
    left_rank = 0.0
    if first > 0:
        left = digest[MEANS + first - 1]
        left_rank = below - 0.5 * digest[MEANS + width + first - 1]
    right = digest[MAX]
    right_rank = digest[TOTAL]
    if first < size:
        right = digest[MEANS + first]
        right_rank = below + 0.5 * digest[MEANS + width + first]
    rank = left_rank
    if right > left:
        rank += (right_rank - left_rank) * (value - left) / (right - left)
    return min(rank / digest[TOTAL], 1.0)


@njit
def clear(bank, row):
    """Empty the digest in this row."""
    for k in range(bank.shape[1]):
        bank[row, k] = 0.0


@njit
def merge(bank, row, other, other_row):
    """Add the centroids of a digest of another bank; smallest and largest value stay exact."""
    width = (other.shape[1] - MEANS) // 2
    if other[other_row, SIZE] == 0.0:
        return
    smallest = other[other_row, MIN]
    largest = other[other_row, MAX]
    if bank[row, SIZE] > 0.0:
        smallest = min(smallest, bank[row, MIN])
        largest = max(largest, bank[row, MAX])
    for k in range(int(other[other_row, SIZE])):
        update(bank, row, other[other_row, MEANS + k], other[other_row, MEANS + width + k])
    bank[row, MIN] = smallest
    bank[row, MAX] = largest


@njit
def _update_many(bank, row, values, weights):
    for k in range(len(values)):
        update(bank, row, values[k], weights[k])


@njit
def _above(digest, size, value):
    """Index of the first centroid whose mean is above the value."""
    lo = 0
    hi = size
    while lo < hi:
        middle = (lo + hi) // 2
        if digest[MEANS + middle] <= value:
            lo = middle + 1
        else:
            hi = middle
    return lo


@njit
def _compress(digest, width):
    """Merge neighbours from the left as long as a centroid spans at most one unit of k1; returns the new size.

    k1(q) = compression / (2 pi) * asin(2 q - 1) has a range of compression / 2, and two neighbours span more than one
    unit together, so at most compression + 1 centroids are left.
    """
    step = 4.0 * math.pi / width  # 2 pi / compression
    cosine = math.cos(step)
    sine = math.sin(step)
    size = int(digest[SIZE])
    total = 0.0
    for k in range(size):
        total += digest[MEANS + width + k]
    out = 0
    mean = digest[MEANS]
    weight = digest[MEANS + width]
    below = 0.0
    limit = _next_limit(0.0, cosine, sine)
    for k in range(1, size):
        w = digest[MEANS + width + k]
        if below + weight + w <= limit * total:
            weight += w
            mean += (digest[MEANS + k] - mean) * w / weight
        else:
            digest[MEANS + out] = mean
            digest[MEANS + width + out] = weight
            out += 1
            below += weight
            limit = _next_limit(min(below / total, 1.0), cosine, sine)
            mean = digest[MEANS + k]
            weight = w
    digest[MEANS + out] = mean
    digest[MEANS + width + out] = weight
    return out + 1


@njit
def _next_limit(q, cosine, sine):
    """Rank one unit of k1 to the right of q."""
    s = 2.0 * q - 1.0
    if s >= cosine:
        return 1.0
    return 0.5 * (1.0 + s * cosine + 2.0 * math.sqrt(q * (1.0 - q)) * sine)
