"""Products with sparse matrices whose values change and whose places stay: memory is a few numbers an edge.

``torch.sparse.mm`` sorts a COO matrix at every step and keeps edges x dim numbers for the gradient of the values;
gather and scatter keep them too. Here the sorted places are made once, the transposed product has places of its own,
and the gradient of the values is taken in blocks of edges.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

with warnings.catch_warnings():  # the first compressed matrix of a process says that they are in beta
    warnings.simplefilter("ignore")
    torch.eye(1).to_sparse_csr()
AT_ONCE = 1 << 18  # numbers (edges x dim) of a block of the values' gradient


class Pattern:
    """Places of a sparse matrix ``[n, m]`` in compressed rows, and of its transpose.

    Parameters
    ----------
    row, column : int64[edges]
        Every place once, in any order; values are given in this order.
    shape : (int, int)

    Attributes
    ----------
    row, column : int64[edges]
        As given.
    """

    def __init__(self, row: Int[Tensor, " edges"], column: Int[Tensor, " edges"], shape: tuple[int, int]) -> None:
        self.row, self.column, self.shape = row, column, shape
        self._forward = _compressed(row, column, *shape)
        self._backward = _compressed(column, row, shape[1], shape[0])

    def __len__(self) -> int:
        return len(self.row)

    def product(self, value: Float[Tensor, " edges"], x: Float[Tensor, "m dim"]) -> Float[Tensor, "n dim"]:
        """The matrix with these values times ``x``; both may need gradients.

        >>> pattern = Pattern(torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), (2, 2))
        >>> pattern.product(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([[1.0], [10.0]])).tolist()
        [[10.0], [23.0]]
        """
        out: Tensor = _Product.apply(value, x, self)
        return out

    def multiply(self, value: Tensor, x: Tensor, *, transposed: bool = False) -> Tensor:
        """The product alone, or that with the transpose; no gradients."""
        (start, other, order), shape = (self._backward, self.shape[::-1]) if transposed else (self._forward, self.shape)
        if value.device.type == "cpu" and not torch.backends.mkl.is_available():
            return _by_blocks(self, value, x, transposed)
        matrix = torch.sparse_csr_tensor(start, other, value[order], size=shape, check_invariants=False)
        return matrix @ x


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, x: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(value, x)
        ctx.pattern = pattern
        return pattern.multiply(value, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        value, x = ctx.saved_tensors
        pattern, grad = ctx.pattern, grads[0].contiguous()
        of_value = of_x = None
        if ctx.needs_input_grad[0]:
            of_value = torch.empty_like(value)
            step = max(1, AT_ONCE // max(1, x.shape[1]))
            for start in range(0, len(value), step):
                part = slice(start, start + step)
                at, of = pattern.row[part], pattern.column[part]
                of_value[part] = (grad.index_select(0, at) * x.index_select(0, of)).sum(1)
        if ctx.needs_input_grad[1]:
            of_x = pattern.multiply(value, grad, transposed=True)
        return of_value, of_x, None


def _compressed(row: Tensor, column: Tensor, n: int, m: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row starts, columns, and the order in which values stand there."""
    order = torch.argsort(row * m + column)
    start = torch.zeros(n + 1, dtype=torch.int64, device=row.device)
    torch.cumsum(torch.bincount(row, minlength=n), 0, out=start[1:])
    return start, column[order], order


def _by_blocks(pattern: Pattern, value: Tensor, x: Tensor, transposed: bool) -> Tensor:
    """The same by gather and scatter, where compressed products are not built in."""
    to, of = (pattern.column, pattern.row) if transposed else (pattern.row, pattern.column)
    out = torch.zeros(pattern.shape[1 if transposed else 0], x.shape[1], dtype=x.dtype, device=x.device)
    step = max(1, AT_ONCE // max(1, x.shape[1]))
    for start in range(0, len(value), step):
        part = slice(start, start + step)
        out.index_add_(0, to[part], value[part, None] * x[of[part]])
    return out
