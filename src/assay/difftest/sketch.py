"""Linear sketches: 4 KB that stand for a tensor, add up over shards, and whose difference is the error.

A count sketch of 256 buckets (Charikar, Chen and Farach-Colton, 2002) of the *global* index. Two levels make it cheap
(sums of many elements first, signs and buckets for the few sums after); the pair of sketches is our design. Both cut
the flat tensor into blocks of 8192 elements, and both first-level sums are matrix products over one FP64 copy of a
cache-sized piece, without a table of signs to read for every element:

* ``A`` adds blocks up. Each stretch of 128 elements of each block has a sign of its own, so that what repeats in every
  block (a constant offset, a missing bias) meets 64 independent sums of signs, which do not all vanish. What sits in
  one and the same stretch of all blocks may.
* ``B`` sees that. It looks at a block as 32 rows of 256 and adds the rows up with fixed signs, whose sum is 6 (that of
  32 random ones is 5.7 in the mean square): an error that repeats in every row, whatever its form, shows at 1.06 times
  its size. The 256 sums of each block have signs of their own.

The sums of both have a random sign and a bucket each: the column in rows of 257, so that no gather is needed and what
repeats every 256 places comes to lie in different buckets.

The larger of the two estimates counts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from assay.difftest.kernels import BLOCK, BUCKETS, STRETCH, TURN, compiled
from assay.difftest.shards import Index
from assay.difftest.tensors import philox

ROWS = BLOCK // BUCKETS  # B: rows of a block
WIDE = BUCKETS + 1  # what repeats every 256 places goes to different buckets in rows of 257
_PIECE = 16 * BLOCK
_LEAST = 4 * BLOCK  # below this, matrix products are slower than for a piece filled up with zeros
_TABLE = 1 << 16


@lru_cache(maxsize=1)
def _table() -> np.ndarray:
    return philox(np.arange(_TABLE, dtype=np.uint64), (0x5EED, 0xA55A)).astype(np.int64)


def _signs(which: int, row: int, start: int, n: int) -> np.ndarray:
    """+1 and -1 for ``start`` to ``start + n``."""
    at = (np.arange(start, start + n) + 3989 * which + 997 * row) % _TABLE
    return 1.0 - 2.0 * ((_table()[row % 4][at] >> (which % 7)) & 1)


@lru_cache(maxsize=4096)
def _stretch_signs(which: int, first: int, blocks: int) -> Tensor:
    """Signs of A for a run of blocks. [stretches, 1, blocks]"""
    each = BLOCK // STRETCH
    signs = _signs(which, 0, first * each, blocks * each).reshape(blocks, each).T
    return torch.from_numpy(np.ascontiguousarray(signs)[:, None, :])


@lru_cache(maxsize=64)
def _row_signs(which: int) -> Tensor:
    """Signs of B's rows: 19 of 32 are positive, 9 of the even and 10 of the odd ones, so no half cancels. [1, rows]"""
    signs = np.ones(ROWS)
    order = np.argsort(_table()[2][(np.arange(ROWS) + 61 * which) % _TABLE], kind="stable")
    for parity, negative in ((0, 7), (1, 6)):
        signs[[k for k in order if k % 2 == parity][:negative]] = -1.0
    return torch.from_numpy(signs[None])


@lru_cache(maxsize=64)
def _place_signs(which: int, row: int) -> Tensor:
    """Signs of the first level's sums, zero for what fills up the last row. [rows, WIDE]"""
    n = (BLOCK, TURN)[row]
    signs = np.zeros(-(-n // WIDE) * WIDE)
    signs[:n] = _signs(which, 16 + row, 0, n)
    return torch.from_numpy(signs.reshape(-1, WIDE))


def _bucket(place: np.ndarray) -> np.ndarray:
    """Bucket of a place among the sums: its column in rows of 257, the last of which shares the first bucket."""
    return place % WIDE % BUCKETS


@dataclass
class Digest:
    """What is kept of a tensor at level ``digest``.

    Attributes
    ----------
    sketch : float64 [2, 256]
    square : float
        Sum of squares.
    total, low, high : float
        Sum, minimum and maximum.
    bad : int
        Elements that are not finite.
    count : int
    """

    sketch: Tensor
    square: float
    total: float
    low: float
    high: float
    bad: int
    count: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(
            self.sketch + other.sketch, self.square + other.square, self.total + other.total, min(self.low, other.low),
            max(self.high, other.high), self.bad + other.bad, self.count + other.count,
        )  # fmt: skip

    @property
    def norm(self) -> float:
        """Frobenius norm."""
        return float(np.sqrt(self.square))

    def distance(self, other: Digest) -> float:
        """Estimate of ``||a - b||_F`` (relative deviation about 4.4 %, of its square 8.8 %)."""
        return estimate(self.sketch - other.sketch)

    def stats(self) -> dict[str, float]:
        """The figures besides the sketch."""
        return {k: float(getattr(self, k)) for k in ("square", "total", "low", "high", "bad", "count")}

    @classmethod
    def of(cls, sketch: Tensor, stats: Mapping[str, float]) -> Digest:
        """From what `stats` gave."""
        return cls(
            sketch, stats["square"], stats["total"], stats["low"], stats["high"], int(stats["bad"]), int(stats["count"])
        )


def estimate(sketch: Float[Tensor, "two buckets"]) -> float:
    """Norm of the tensor behind a sketch: the larger of the two estimates."""
    return float(torch.linalg.vector_norm(sketch, dim=1).max())


class _Accumulator:
    """First level of both sketches, for runs of elements whose global flat indices follow each other."""

    def __init__(self, which: int, device: torch.device) -> None:
        self.which, self.device = which, device
        self.sums = [_scratch(device, f"sums {row}", _place_signs(which, row).numel()).zero_() for row in range(2)]
        self.a = self.sums[0][:BLOCK].view(BLOCK // STRETCH, 1, STRETCH)
        self.rows = _row_signs(which).to(device)

    def add(self, wide: Tensor, block: int) -> None:
        """Whole blocks from the global block number ``block`` on; ``wide`` is float64."""
        blocks = wide.numel() // BLOCK
        signs = _stretch_signs(self.which, block, blocks).to(self.device)
        self.a.baddbmm_(signs, wide.view(blocks, -1, STRETCH).transpose(0, 1))
        sums = torch.bmm(self.rows.expand(blocks, 1, ROWS), wide.view(blocks, ROWS, BUCKETS)).view(-1)
        position, n = 0, sums.numel()
        while position < n:
            turn, at = divmod(block * BUCKETS + position, TURN)
            size = min(TURN - at, n - position)
            self.sums[1][at : at + size].add_(sums[position : position + size], alpha=_turn_sign(self.which, turn))
            position += size

    def result(self) -> Tensor:
        made = []
        for row, sums in enumerate(self.sums):
            columns = sums.view(-1, WIDE).mul_(_place_signs(self.which, row).to(self.device)).sum(0)
            columns[0] += columns[BUCKETS]
            made.append(columns[:BUCKETS])
        return torch.stack(made).cpu()


@lru_cache(maxsize=4096)
def _turn_sign(which: int, turn: int) -> float:
    return float(_signs(which, 5, turn, 1)[0])


@lru_cache(maxsize=64)
def _places(which: int, index: Index) -> list[Tensor]:
    """For a shard whose global indices do not follow each other: where each element goes, made once a layout.

    Bucket of A and of B for each element, 256 more where its sign is negative.
    """
    flat = index.flat_indices()
    block, at = np.divmod(flat[flat >= 0], BLOCK)
    count = int(block.max()) + 1 if len(block) else 1
    own = (
        _signs(which, 16, 0, BLOCK)[at]
        * _signs(which, 0, 0, count * (BLOCK // STRETCH))[block * (BLOCK // STRETCH) + at // STRETCH]
    )
    made = [torch.from_numpy(_bucket(at) + BUCKETS * (own < 0))]
    turn, place = np.divmod(block * BUCKETS + at % BUCKETS, TURN)
    own = _row_signs(which)[0].numpy()[at // BUCKETS] * _signs(which, 17, 0, TURN)[place]
    own *= _signs(which, 5, 0, int(turn.max(initial=0)) + 1)[turn]
    made.append(torch.from_numpy(_bucket(place) + BUCKETS * (own < 0)))
    return [m.to(torch.int32) for m in made]


_local = threading.local()


def _scratch(device: torch.device, what: str, n: int) -> Tensor:
    """Room for so many numbers, of this thread."""
    held: dict[Any, Tensor] = _local.__dict__.setdefault("held", {})
    if (device, what) not in held:
        held[device, what] = torch.empty(n, dtype=torch.float64, device=device)
    return held[device, what]


def digest(tensor: Tensor, index: Index | None = None, *, seed: int = 0) -> Digest:
    """Sketches and statistics of a shard, in one pass over cache-sized pieces.

    Parameters
    ----------
    tensor : Tensor
        The local tensor, any real dtype.
    index : Index, optional
        Where it lies in the whole tensor (`ShardSpec.index`); default: it is the whole one.
    seed : int
        Of the hashes; both sides must use one. It is the same for all tensors of a trace, since one memory may be
        traced under several names.

    Returns
    -------
    Digest

    Examples
    --------
    >>> from assay.difftest.shards import ShardSpec
    >>> x = torch.arange(10_000.0).reshape(100, 100)
    >>> spec = ShardSpec.parse("a b[tp]")
    >>> parts = [spec.cut(x, {"tp": (r, 2)}) for r in range(2)]
    >>> a, b = (digest(p, spec.index((100, 100), {"tp": (r, 2)})) for r, p in enumerate(parts))
    >>> (a + b).distance(digest(x)) < 1e-12 * digest(x).norm
    True
    """
    tensor = tensor.detach()
    flat = tensor.reshape(-1)
    if index is not None and index.flat is not None:
        flat = flat[: index.flat[1] - index.flat[0]]
    elif index is not None and index.count != flat.numel():
        flat = flat[torch.from_numpy(index.flat_indices() >= 0).to(flat.device)]
    n = flat.numel()
    if n == 0:
        return Digest(torch.zeros(2, BUCKETS, dtype=torch.float64), 0.0, 0.0, float("inf"), float("-inf"), 0, 0)
    if flat.dtype == torch.bool or not flat.is_floating_point():
        flat = flat.to(torch.float64)
    elif flat.element_size() == 1:  # FP8 has no arithmetic
        flat = flat.float()
    start, runs = _contiguous(index)
    kernels = compiled() if flat.device.type == "cpu" else None
    if kernels is not None:
        made = _in_one_pass(kernels, flat, index if not runs else None, start, seed)
        if made is not None:
            return made
    box = _Accumulator(seed, flat.device) if runs else None
    places = [] if runs or index is None else _places(seed, index)
    signed = torch.zeros(2, 2 * BUCKETS, dtype=torch.float64, device=flat.device)
    scratch = _scratch(flat.device, "piece", _PIECE)
    square = total = 0.0
    low, high = float("inf"), float("-inf")
    position = 0
    while position < n:
        # a piece ends at the end of a block of the whole tensor
        block, before = divmod(start + position, BLOCK) if runs else (0, 0)
        size = min(_PIECE - before, n - position)
        piece = flat[position : position + size]
        wide = scratch[before : before + size].copy_(piece)
        a, b = (float(v) for v in torch.aminmax(piece if piece.dtype == torch.float32 else wide))
        low, high = min(low, a), max(high, b)
        if not (math.isfinite(a) and math.isfinite(b)):
            low, high = float("nan"), float("nan")
            break
        square += float(torch.dot(wide, wide))
        total += float(wide.sum())
        if box is not None:
            used = max(-(-(before + size) // BLOCK) * BLOCK, _LEAST)
            scratch[:before].zero_()
            scratch[before + size : used].zero_()
            box.add(scratch[:used], block)
        for row, place in enumerate(places):
            signed[row].index_add_(0, place[position : position + size].to(flat.device), wide)
        position += size
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = torch.isfinite(flat)
        bad = int((~finite).sum())
        # the sketch of the finite part, so that what is finite can still be compared
        kept = digest(
            torch.where(finite, flat, 0).reshape(tensor.shape) if n == tensor.numel() else flat.nan_to_num(0, 0, 0),
            index,
        )
        return Digest(kept.sketch, kept.square, kept.total, kept.low, kept.high, bad, n)
    sketch = box.result() if box is not None else (signed[:, :BUCKETS] - signed[:, BUCKETS:]).cpu()
    return Digest(sketch, square, total, low, high, 0, n)


@lru_cache(maxsize=4096)
def _run_signs(which: int, first: int, blocks: int) -> tuple[np.ndarray, ...]:
    """Signs for a run of blocks: of A's stretches, of B's rows, of B's turns, of the places of both."""
    each = BLOCK // STRETCH
    turn, end = first * BUCKETS // TURN, ((first + blocks) * BUCKETS - 1) // TURN + 1
    places = (_place_signs(which, row).numpy() for row in range(2))
    return (
        _signs(which, 0, first * each, blocks * each), _row_signs(which)[0].numpy(),
        _signs(which, 5, turn, end - turn), *places,
    )  # fmt: skip


def _in_one_pass(kernels: Any, flat: Tensor, index: Index | None, start: int, which: int) -> Digest | None:
    """On the CPU: sketches and statistics from one reading. None where an element is not finite."""
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.float()
    x = flat.numpy() if flat.is_contiguous() else flat.contiguous().numpy()
    order: list[int] = []
    if index is None:
        first = start // BLOCK
        signs = _run_signs(which, first, (start + x.size - 1) // BLOCK + 1 - first)
        bits = x if x.dtype == np.float32 else _NO_FLOATS
        made = np.zeros((2, BUCKETS))
        square, total, *order = kernels.sketch_run(x, bits.view(np.int32), bits.view(np.uint32), start, *signs, made)
    else:
        signed = np.zeros((2, 2 * BUCKETS))
        square, total = kernels.scatter(x, *(p.numpy() for p in _places(which, index)), signed)
        made = signed[:, :BUCKETS] - signed[:, BUCKETS:]
    if not math.isfinite(square):
        return None
    if order and x.dtype == np.float32:
        low, high = kernels.extremes(*order)
    else:
        low, high = (float(v) for v in torch.aminmax(flat))
    return Digest(torch.from_numpy(made), square, total, low, high, 0, x.size)


_NO_FLOATS = np.empty(0, np.float32)


def _contiguous(index: Index | None) -> tuple[int, bool]:
    """Global start of the local elements, and whether they are one run of global flat indices."""
    if index is None:
        return 0, True
    if index.flat is not None:
        return index.flat[0], index.uncut
    start, stride, partial = 0, 1, False
    for runs, n in zip(reversed(index.runs), reversed(index.shape)):
        if len(runs) != 1:
            return 0, False
        at, _, length = runs[0]
        if partial and length != 1:
            return 0, False
        partial = partial or length != n
        start += at * stride
        stride *= n
    return start, True
