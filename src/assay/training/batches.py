"""Batches of tensors in memory, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batches:
    """Called with a generator, gives the batches of one epoch; `len` is their number."""

    tensors: tuple[Tensor, ...]
    batch_size: int
    shuffle: bool = True

    def __len__(self) -> int:
        return -(-len(self.tensors[0]) // self.batch_size)

    def __call__(self, generator: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        n = len(self.tensors[0])
        order = torch.randperm(n, generator=generator) if self.shuffle else torch.arange(n)
        for low in range(0, n, self.batch_size):
            part = order[low : low + self.batch_size]
            yield tuple(t[part.to(t.device)] for t in self.tensors)


def tensor_batches(*tensors: Tensor, batch_size: int = 128, shuffle: bool = True) -> Batches:
    """Batches of tensors with the same number of rows.

    Raises
    ------
    ValueError
        If there is no row, or tensors have different numbers of rows.

    Examples
    --------
    >>> batches = tensor_batches(torch.arange(5), batch_size=2, shuffle=False)
    >>> [b[0].tolist() for b in batches(torch.Generator())]
    [[0, 1], [2, 3], [4]]
    """
    lengths = {len(t) for t in tensors}
    if len(lengths) != 1 or lengths == {0} or batch_size < 1:
        raise ValueError(
            f"tensors need one and the same number of rows, at least 1, and a batch size of 1; rows: {sorted(lengths)}"
        )
    return Batches(tensors, batch_size, shuffle)


BatchSource = Callable[[torch.Generator], Iterator[tuple[Tensor, ...]]]
