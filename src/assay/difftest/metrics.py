"""How far two tensors are apart: one pass in blocks, differences in FP32, sums of block sums in FP64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from assay.difftest.kernels import compiled

_BLOCK = 65_536
EPS = {
    "float64": 2.0**-52, "float32": 2.0**-23, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip


def eps_of(dtype: torch.dtype | str) -> float:
    """Machine epsilon of a storage type (2^-23 for FP32, 2^-7 for BF16); 0 for integers.

    >>> eps_of(torch.bfloat16)
    0.0078125
    """
    return EPS.get(str(dtype).removeprefix("torch."), 0.0)


@dataclass(frozen=True)
class Distance:
    """Difference of a candidate from a reference.

    Attributes
    ----------
    error, reference, candidate : float
        Frobenius norms of the difference and of both sides.
    dot : float
        Inner product of the two.
    largest : float
        Largest absolute difference.
    bad : int
        Elements that are finite on one side only.
    both_bad : int
        Elements that are finite on neither side.
    """

    error: float
    reference: float
    candidate: float
    dot: float
    largest: float
    bad: int = 0
    both_bad: int = 0

    @property
    def relative(self) -> float:
        """``||candidate - reference|| / ||reference||``; infinite where only the reference is zero."""
        if self.bad:
            return math.inf
        if self.reference == 0.0:
            return 0.0 if self.error == 0.0 else math.inf
        return self.error / self.reference

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two."""
        norms = self.reference * self.candidate
        return self.dot / norms if norms else (1.0 if self.error == 0.0 else 0.0)

    @property
    def scale(self) -> float:
        """The factor a that minimises ``||candidate - a reference||``."""
        return self.dot / self.reference**2 if self.reference else math.nan


def distance(reference: Shaped[Tensor, "*shape"], candidate: Shaped[Tensor, "*shape"]) -> Distance:
    """Compare two tensors of one shape.

    The subtraction is done in FP32 (exact where the two are within a factor of two), in FP64 where one side is FP64.

    Examples
    --------
    >>> d = distance(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    >>> d.relative, d.largest
    (0.1, 0.5)
    """
    wide = torch.float64 if torch.float64 in (reference.dtype, candidate.dtype) else torch.float32
    if not (reference.is_floating_point() and candidate.is_floating_point()):
        wide = torch.float64
    a, b = reference.detach().reshape(-1), candidate.detach().reshape(-1)
    n = a.numel()
    kernels = compiled() if wide == torch.float32 and a.device.type == b.device.type == "cpu" else None
    if kernels is not None:
        return _in_one_pass(kernels, a, b)
    parts: list[Tensor] = []
    plain = a.dtype == b.dtype == wide
    scratch = torch.empty(min(n, _BLOCK), dtype=wide, device=a.device)
    for start in range(0, n, _BLOCK):
        x, y = a[start : start + _BLOCK], b[start : start + _BLOCK]
        if not plain:
            x, y = x.to(wide), y.to(wide)
        gap = torch.sub(y, x, out=scratch[: x.numel()])
        low, high = torch.aminmax(gap)  # much faster than a norm of infinite order
        parts += [torch.dot(gap, gap), torch.dot(x, x), torch.dot(x, y), high, low]
    if not parts:
        return Distance(0.0, 0.0, 0.0, 0.0, 0.0)
    table = torch.stack(parts).view(-1, 5).double()
    error, square, dot = (float(v) for v in table[:, :3].sum(0))
    largest = max(float(table[:, 3].max()), -float(table[:, 4].min()))
    if not (math.isfinite(error) and math.isfinite(square) and math.isfinite(dot)):
        return _careful(a, b)
    # ||y||^2 = ||x||^2 + 2 <x, y - x> + ||y - x||^2, with <x, y - x> = dot - square
    other = max(square + 2 * (dot - square) + error, 0.0)
    return Distance(math.sqrt(error), math.sqrt(square), math.sqrt(other), dot, largest)


def _in_one_pass(kernels: Any, a: Tensor, b: Tensor) -> Distance:
    """On the CPU, in FP32: all sums from one reading of both sides."""
    n = a.numel()
    error = square = other = dot = largest = 0.0
    plain = a.dtype == b.dtype == torch.float32
    block = n if plain else _BLOCK
    rooms = [] if plain else [torch.empty(min(n, _BLOCK)) for _ in range(2)]
    for start in range(0, n, max(block, 1)):
        sides = [t[start : start + block] for t in (a, b)]
        if rooms:
            sides = [room[: side.numel()].copy_(side) for room, side in zip(rooms, sides)]
        sums = kernels.gaps(*(side.contiguous().numpy() for side in sides))
        error, square, other, dot = error + sums[0], square + sums[1], other + sums[2], dot + sums[3]
        largest = max(largest, sums[4])
    if not all(map(math.isfinite, (error, square, other, dot))):
        return _careful(a, b)
    return Distance(math.sqrt(error), math.sqrt(square), math.sqrt(other), dot, largest)


def _careful(a: Tensor, b: Tensor) -> Distance:
    """With elements that are not finite, or squares that overflow FP32."""
    x, y = a.double(), b.double()
    good_x, good_y = torch.isfinite(x), torch.isfinite(y)
    good = good_x & good_y
    x, y = torch.where(good, x, 0.0), torch.where(good, y, 0.0)
    gap = y - x
    norm = torch.linalg.vector_norm
    return Distance(
        float(norm(gap)), float(norm(x)), float(norm(y)), float(torch.dot(x, y)), float(gap.abs().max()),
        int((good_x != good_y).sum()), int((~good_x & ~good_y).sum()),
    )  # fmt: skip


def block_errors(reference: Tensor, candidate: Tensor, dim: int) -> Tensor:
    """Relative error of each slice along a dimension (float64); where only the reference's slice is zero, infinite.

    >>> block_errors(torch.ones(2, 3), torch.tensor([[1.0, 1, 1], [2, 2, 2]]), 0).tolist()
    [0.0, 1.0]
    """
    a = reference.double().movedim(dim, 0).reshape(reference.shape[dim], -1)
    gap = torch.linalg.vector_norm(candidate.double().movedim(dim, 0).reshape(a.shape) - a, dim=1)
    norm = torch.linalg.vector_norm(a, dim=1)
    return torch.where(norm > 0, gap / norm, torch.where(gap > 0, torch.inf, 0.0))


def rank_correlation(reference: Tensor, candidate: Tensor, *, limit: int = 20_000) -> float:
    """Spearman's correlation (of evenly spaced elements, where there are more than ``limit``).

    >>> rank_correlation(torch.arange(5.0), torch.tensor([0.0, 2, 1, 3, 4]))
    0.9
    """
    from scipy.stats import spearmanr

    step = max(1, reference.numel() // limit)
    a = reference.detach().reshape(-1)[::step].double().cpu().numpy()
    b = candidate.detach().reshape(-1)[::step].double().cpu().numpy()
    if len(a) < 2:
        return 1.0
    value = float(spearmanr(a, b).statistic)
    return round(value, 12) if math.isfinite(value) else 0.0
