"""Level ``sample``: a fixed random set of elements, the same for every layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from assay.difftest.shards import Index

SAMPLE = 1024


def sample_indices(shape: Iterable[int]) -> np.ndarray:
    """The global flat indices that level ``sample`` keeps, a function of the number of elements.

    >>> len(sample_indices((100, 100))), len(sample_indices((3, 4)))
    (1024, 12)
    """
    return _sampled(math.prod(tuple(shape)))


@lru_cache(maxsize=4096)
def _sampled(total: int) -> np.ndarray:
    from assay.difftest.tensors import random_values

    if total <= SAMPLE:
        return np.arange(total)
    drawn = (random_values("sample", np.arange(2 * SAMPLE), kind="uniform") * total).astype(np.int64)
    _, first = np.unique(drawn, return_index=True)
    return np.sort(drawn[np.sort(first)][:SAMPLE])


def held_samples(index: Index) -> tuple[np.ndarray, np.ndarray]:
    """Which of the sampled elements a rank holds: their places in its tensor, and their global flat indices.

    >>> from assay.difftest.shards import ShardSpec
    >>> at, wanted = held_samples(ShardSpec.parse("a b[tp]").index((4, 4), {"tp": (1, 2)}))
    >>> at.tolist(), wanted.tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [2, 3, 6, 7, 10, 11, 14, 15])
    """
    wanted = sample_indices(index.shape)
    if index.whole:
        return wanted, wanted
    if index.flat is not None:
        start, stop, _ = index.flat
        inside = np.arange(math.prod(index.shape)) if index.uncut else index.region.flat_indices()
        held = inside[start:stop]
        order = np.argsort(held, kind="stable")
        at = np.minimum(np.searchsorted(held, wanted, sorter=order), max(len(held) - 1, 0))
        there = held[order[at]] == wanted if len(held) else np.zeros(len(wanted), bool)
        return order[at[there]], wanted[there]
    position = np.zeros(len(wanted), np.int64)
    there = np.ones(len(wanted), bool)
    for axis, size, vector in zip(np.unravel_index(wanted, index.shape), index.shape, index.vectors):
        inverse = np.full(size, -1, np.int64)
        kept = np.flatnonzero(vector >= 0)
        inverse[vector[kept]] = kept
        found = inverse[axis]
        there &= found >= 0
        position = position * len(vector) + np.maximum(found, 0)
    return position[there], wanted[there]
