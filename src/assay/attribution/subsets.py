"""Which rows each retrained model is given: random halves, coin flips, bootstrap samples, all but a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from assay.attribution.errors import AttributionError, ShapeMismatch


def random_subsets(n: int, m: int, alpha: float, seed: int) -> Int[np.ndarray, "m k"]:
    """``m`` subsets of ``int(alpha n)`` rows without replacement, drawn in turn from one generator.

    >>> random_subsets(4, 2, 0.5, seed=0).shape
    (2, 2)
    """
    size = int(alpha * n)
    if not 0 < size <= n:
        raise AttributionError(f"alpha={alpha} of {n} rows is {size} rows; a subset needs at least 1 and at most {n}")
    generator = torch.Generator().manual_seed(seed)
    return np.stack([torch.randperm(n, generator=generator)[:size].numpy() for _ in range(m)]).astype(np.int32)


def coin_subsets(n: int, m: int, seed: int) -> Int[np.ndarray, "m k"]:
    """``m`` subsets that hold each row with probability one half (never none), padded with -1."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(m, n, generator=generator) < 0.5
    coins[~coins.any(1), 0] = True
    out = np.full((m, int(coins.sum(1).max())), -1, dtype=np.int32)
    for j, row in enumerate(coins):
        chosen = torch.nonzero(row).flatten().numpy()
        out[j, : len(chosen)] = chosen
    return out


def leave_out(n: int, groups: Sequence[Sequence[int]]) -> Int[np.ndarray, "m k"]:
    """All rows but those of a group, for each group; padded with -1 where groups differ in size."""
    out = np.full((len(groups), n - min(len(g) for g in groups)), -1, dtype=np.int32)
    for j, group in enumerate(groups):
        keep = np.setdiff1d(np.arange(n), np.asarray(group))
        out[j, : len(keep)] = keep
    return out


def bootstrap_subsets(n: int, m: int, seed: int) -> Int[np.ndarray, "m n"]:
    """``m`` samples of ``n`` rows with replacement."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, n, (m, n), generator=generator).numpy().astype(np.int32)


def checked_subsets(subsets: Any, n: int) -> np.ndarray:
    """Subsets that a caller gives, as an array.

    Raises
    ------
    ShapeMismatch
        If a row does not exist, or a subset is empty.
    """
    array = np.asarray(subsets)
    if array.ndim != 2 or array.dtype.kind not in "iu" or not len(array):
        raise ShapeMismatch(f"subsets are whole numbers (models, rows), not {array.dtype} of shape {array.shape}")
    if array.max() >= n or array.min() < -1:
        raise ShapeMismatch(
            f"a subset names row {array.max() if array.max() >= n else array.min()}, there are {n} rows"
        )
    empty = np.flatnonzero((array < 0).all(1))
    if len(empty):
        raise ShapeMismatch(f"subset {empty[0]} has no row")
    return array
