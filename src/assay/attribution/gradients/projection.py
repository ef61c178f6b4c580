"""Random projections of gradients that are never stored whole: Rademacher, normal and sparse sign (SJLT).

The matrix is drawn again, block by block, from its seed whenever it is needed. Before first use a projection is tried
on random vectors: norms must be kept to within ``5 / sqrt(2 d)`` (a projector that returns zeros is found out there).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.attribution.errors import AttributionError

KINDS = ("rademacher", "normal", "sparse")
BLOCK = 2048


class Projection:
    """A linear map from P to ``dim`` numbers with ``E <Pu, Pv> = <u, v>``.

    Parameters
    ----------
    size : int
        P.
    dim : int
        d; the error of an inner product in units of ``|u||v|`` has root mean square about ``1 / sqrt(d)``.
    kind : {"rademacher", "normal", "sparse"}
        "sparse" puts each number, with random signs, into ``copies`` of the d places: work ``O(P copies)`` a row.
    seed : int
        Same seed, same bits.
    cache : int
        Bytes up to which blocks of the matrix are kept between calls.

    Raises
    ------
    AttributionError
        If a setting is out of range, or norms are not kept.

    Examples
    --------
    >>> u = torch.ones(1, 3000)
    >>> float((Projection(3000, 4096, "sparse", seed=1)(u) ** 2).sum()) / 3000 > 0.9
    True
    """

    def __init__(
        self, size: int, dim: int, kind: str = "rademacher", seed: int = 0, *, copies: int = 4, cache: int = 1 << 28,
        dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu",
    ) -> None:  # fmt: skip
        if kind not in KINDS:
            raise AttributionError(f"projection is one of {', '.join(KINDS)}, not {kind!r}")
        if dim < 1 or size < 1:
            raise AttributionError(f"a projection needs at least one number on each side, not {size} and {dim}")
        self.size, self.dim, self.kind, self.seed = size, dim, kind, seed
        self.copies = min(copies, dim)
        self.dtype, self.device = dtype, torch.device(device)
        self._keep = size * dim * 4 <= cache if kind != "sparse" else size * self.copies * 12 <= cache
        self._blocks: dict[int, tuple[Tensor, ...]] = {}
        self.check()

    def _block(self, low: int) -> tuple[Tensor, ...]:
        if low in self._blocks:
            return self._blocks[low]
        rows = min(BLOCK, self.size - low)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + low) % (1 << 62))
        if self.kind == "sparse":
            # each copy has its own share of the places, so that no two copies of a number fall together
            share = self.dim // self.copies
            place = torch.randint(0, share, (self.copies, rows), generator=generator)
            place += share * torch.arange(self.copies).unsqueeze(1)
            sign = torch.randint(0, 2, (self.copies, rows), generator=generator, dtype=torch.int8)
            signs = (2.0 * sign - 1).to(self.dtype) / self.copies**0.5
            block: tuple[Tensor, ...] = (place.to(self.device), signs.to(self.device))
        elif self.kind == "normal":
            block = (torch.randn(rows, self.dim, generator=generator).to(self.device, self.dtype) / self.dim**0.5,)
        else:
            bits = torch.randint(0, 2, (rows, self.dim), generator=generator, dtype=torch.int8)
            block = ((2 * bits.to(self.device, self.dtype) - 1) / self.dim**0.5,)
        if self._keep:
            self._blocks[low] = block
        return block

    def __call__(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows dim"]:
        """Projected rows."""
        if x.shape[1] != self.size:
            raise AttributionError(f"this projection takes {self.size} numbers a row, not {x.shape[1]}")
        if self.kind == "sparse":
            return self._scattered(x)
        out = torch.zeros(len(x), self.dim, dtype=x.dtype, device=x.device)
        for low in range(0, self.size, BLOCK):
            out.addmm_(x[:, low : low + BLOCK], self._block(low)[0].to(x.dtype))
        return out

    def _scattered(self, x: Tensor) -> Tensor:
        """The sparse kind, on the transpose, so that what is added lies side by side."""
        out = torch.zeros(self.dim, len(x), dtype=x.dtype, device=x.device)
        for low in range(0, self.size, BLOCK):
            part = x[:, low : low + BLOCK].T.contiguous()
            for place, sign in zip(*self._block(low), strict=True):
                out.index_add_(0, place, part * sign.to(x.dtype).unsqueeze(1))
        return out.T.contiguous()

    def check(self) -> None:
        """Raise if norms of random vectors are not kept.

        Raises
        ------
        AttributionError
        """
        generator = torch.Generator().manual_seed(self.seed + 17)
        x = torch.randn(8, self.size, generator=generator).to(self.device, self.dtype)
        ratio = self(x).norm(dim=1) / x.norm(dim=1)
        # the mean of 8: a single one may be out by more than the bound once in a while
        gap = abs(float((ratio**2).mean().sqrt()) - 1)
        if not gap <= 5 / (2 * self.dim) ** 0.5:
            raise AttributionError(
                f"the {self.kind} projection to {self.dim} changes norms by {gap:.1%}; the random "
                f"number generator or a "
                f"kernel of this device is at fault; try another kind or the CPU"
            )
