"""Per-row gradients of a batch, layer by layer, in the cheapest form that the layer allows.

A linear layer's gradient for one row is the outer product of its output gradient ``d`` and its input ``a``, so the
inner product of two rows' gradients is ``(a . a')(d . d')``, and the P-vector is never built. A bias is a further input
that is always 1. Convolutions and layers over sequences have ``sum_l d_l a_l'``; there the cheaper of the factored and
the flat form is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass
class Factor:
    """Inputs ``a`` (rows, inputs) and output gradients ``d`` (rows, outputs), both with a position axis for sequences.

    ``a`` ends with a column of ones where the layer has a bias.
    """

    a: Tensor
    d: Tensor

    @property
    def width(self) -> int:
        """Numbers in the flat gradient of a row."""
        return self.a.shape[-1] * self.d.shape[-1]

    def dot(self, other: Factor | Flat) -> Tensor:
        """Inner products (rows, rows of the other)."""
        if isinstance(other, Flat):
            return other.dot(self).T
        a, d, b, e = self.a, self.d, other.a, other.d
        if a.ndim == 2:
            return (a @ b.T).mul_(d @ e.T)
        factored = a.shape[1] * b.shape[1] * (a.shape[2] + d.shape[2])
        if factored < self.width:
            return _blocked(a, d, b, e)
        return flat_product(self.flat(), other)

    def squares(self) -> Tensor:
        """Squared norm of each row's gradient."""
        if self.a.ndim == 2:
            return (self.a**2).sum(1) * (self.d**2).sum(1)
        if self.a.shape[1] * (self.a.shape[2] + self.d.shape[2]) < self.width:
            return ((self.a @ self.a.transpose(1, 2)) * (self.d @ self.d.transpose(1, 2))).sum((1, 2))
        return (self.matrix() ** 2).sum((1, 2))

    def matrix(self) -> Tensor:
        """Gradient (rows, outputs, inputs)."""
        if self.a.ndim == 2:
            return self.d.unsqueeze(2) * self.a.unsqueeze(1)
        return self.d.transpose(1, 2) @ self.a

    def flat(self) -> Tensor:
        """Gradient (rows, outputs * inputs)."""
        return self.matrix().flatten(1)

    def total(self) -> Flat:
        """The sum over rows, as one row."""
        d, a = self.d.flatten(0, -2), self.a.flatten(0, -2)
        return Flat((d.T @ a).reshape(1, -1))

    def scaled(self, weight: Tensor) -> Factor:
        """Each row times a number."""
        return Factor(self.a, self.d * weight.reshape(-1, *[1] * (self.d.ndim - 1)))

    def part(self, rows: slice | Tensor) -> Factor:
        """Some rows."""
        return Factor(self.a[rows], self.d[rows])

    def to(self, dtype: torch.dtype) -> Factor:
        """In another precision."""
        return Factor(self.a.to(dtype), self.d.to(dtype))


@dataclass
class Flat:
    """Gradients as they are, ``g`` (rows, numbers)."""

    g: Tensor

    @property
    def width(self) -> int:
        """Numbers in the flat gradient of a row."""
        return self.g.shape[1]

    def dot(self, other: Factor | Flat) -> Tensor:
        """Inner products (rows, rows of the other)."""
        if isinstance(other, Flat):
            return self.g @ other.g.T
        if len(self.g) <= 4 and other.a.ndim == 2:  # a summed gradient: d' M a, without the others' flat form
            m = self.g.reshape(len(self.g), other.d.shape[1], other.a.shape[1])
            return torch.stack([((other.d @ one) * other.a).sum(1) for one in m])
        return flat_product(self.g, other)

    def squares(self) -> Tensor:
        """Squared norm of each row."""
        return (self.g**2).sum(1)

    def flat(self) -> Tensor:
        """The gradients."""
        return self.g

    def total(self) -> Flat:
        """The sum over rows, as one row."""
        return Flat(self.g.sum(0, keepdim=True))

    def scaled(self, weight: Tensor) -> Flat:
        """Each row times a number."""
        return Flat(self.g * weight.unsqueeze(1))

    def part(self, rows: slice | Tensor) -> Flat:
        """Some rows."""
        return Flat(self.g[rows])

    def to(self, dtype: torch.dtype) -> Flat:
        """In another precision."""
        return Flat(self.g.to(dtype))


def flat_product(g: Tensor, factor: Factor) -> Tensor:
    """``g F'`` with the flat form F of many rows, of which only about 16 MB are made at a time."""
    rows = len(factor.a)
    out = torch.empty(len(g), rows, dtype=g.dtype, device=g.device)
    step = max(1, (1 << 22) // factor.width)
    for low in range(0, rows, step):
        part = slice(low, low + step)
        out[:, part] = g @ factor.part(part).flat().T
    return out


def _blocked(a: Tensor, d: Tensor, b: Tensor, e: Tensor) -> Tensor:
    """Sum over positions of products of inner products, a few rows at a time so that the 4-d array stays small."""
    out = torch.empty(len(a), len(b), dtype=a.dtype, device=a.device)
    step = max(1, 4_000_000 // max(1, a.shape[1] * b.shape[1] * len(b)))
    for low in range(0, len(a), step):
        part = slice(low, low + step)
        ab = torch.einsum("ilk,jmk->ijlm", a[part], b)
        out[part] = (ab * torch.einsum("ilo,jmo->ijlm", d[part], e)).sum((2, 3))
    return out


def _factored(mine: Sequence[Factor], theirs: Sequence[Factor]) -> Tensor:
    """``sum over layers of (a b')(d e')``, tile by tile, with buffers that stay in the cache.

    Whole temporaries of the size of the answer would be fresh pages each time, and read and written in main memory.
    """
    rows, columns = len(mine[0].a), len(theirs[0].a)
    out = torch.empty(rows, columns, dtype=mine[0].a.dtype, device=mine[0].a.device)
    high = min(rows, 180)
    wide = min(columns, max(720, (1 << 17) // max(high, 1)))
    left, right = out.new_empty(high * wide), out.new_empty(high * wide)
    for c in range(0, columns, wide):
        across = [(y.a[c : c + wide].T, y.d[c : c + wide].T) for y in theirs]
        for r in range(0, rows, high):
            tile = out[r : r + high, c : c + wide]
            one, two = (buffer[: tile.numel()].view(tile.shape) for buffer in (left, right))
            for k, (x, (b, e)) in enumerate(zip(mine, across, strict=True)):
                torch.mm(x.d[r : r + high], e, out=two)
                if k:
                    tile.addcmul_(torch.mm(x.a[r : r + high], b, out=one), two)
                else:
                    torch.mm(x.a[r : r + high], b, out=tile).mul_(two)
    return out


class Gradients:
    """Gradients of a batch: one `Factor` or `Flat` a layer.

    Examples
    --------
    >>> a, d = torch.tensor([[1.0, 2.0, 1.0]]), torch.tensor([[3.0, -1.0]])
    >>> g = Gradients([Factor(a, d)])
    >>> g.flat().tolist(), float(g.squares()), float(g.dot(g))
    ([[3.0, 6.0, 3.0, -1.0, -2.0, -1.0]], 60.0, 60.0)
    """

    def __init__(self, layers: Sequence[Factor | Flat]) -> None:
        self.layers = list(layers)

    def __len__(self) -> int:
        first = self.layers[0]
        return len(first.a if isinstance(first, Factor) else first.g)

    @property
    def width(self) -> int:
        """Numbers in the flat gradient of a row (P)."""
        return sum(layer.width for layer in self.layers)

    @property
    def row_bytes(self) -> int:
        """Memory that the factors of a row take."""
        tensors = [t for x in self.layers for t in ((x.a, x.d) if isinstance(x, Factor) else (x.g,))]
        return max(1, sum(t.numel() * t.element_size() for t in tensors) // len(self))

    def dot(self, other: Gradients) -> Float[Tensor, "rows others"]:
        """Inner products of all pairs."""
        if all(isinstance(x, Factor) and x.a.ndim == 2 for x in (*self.layers, *other.layers)):
            return _factored(self.layers, other.layers)  # type: ignore[arg-type]
        out = self.layers[0].dot(other.layers[0])
        for mine, theirs in zip(self.layers[1:], other.layers[1:], strict=True):
            out += mine.dot(theirs)
        return out

    def squares(self) -> Float[Tensor, " rows"]:
        """Squared norms."""
        return sum(layer.squares() for layer in self.layers)  # type: ignore[return-value]

    def flat(self) -> Float[Tensor, "rows numbers"]:
        """Flat gradients."""
        return torch.cat([layer.flat() for layer in self.layers], 1)

    def total(self) -> Gradients:
        """The sum over rows, as one row."""
        return Gradients([layer.total() for layer in self.layers])

    def scaled(self, weight: Tensor) -> Gradients:
        """Each row times a number."""
        return Gradients([layer.scaled(weight) for layer in self.layers])

    def part(self, rows: slice | Tensor) -> Gradients:
        """Some rows."""
        return Gradients([layer.part(rows) for layer in self.layers])

    def to(self, dtype: torch.dtype) -> Gradients:
        """In another precision."""
        return Gradients([layer.to(dtype) for layer in self.layers])

    @staticmethod
    def join(parts: Sequence[Gradients]) -> Gradients:
        """One batch after the other."""
        if len(parts) == 1:
            return parts[0]
        layers: list[Factor | Flat] = []
        for same in zip(*(p.layers for p in parts), strict=True):
            if all(isinstance(x, Factor) for x in same):
                layers.append(Factor(torch.cat([x.a for x in same]), torch.cat([x.d for x in same])))
            else:
                layers.append(Flat(torch.cat([x.flat() for x in same])))
        return Gradients(layers)


Rows = Callable[[slice], Gradients]
