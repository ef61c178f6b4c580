"""Real text that every Python has: the help topics, as bytes and frequent pairs of bytes."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=4)
def text_tokens(vocab: int, limit: int = 200_000) -> np.ndarray:
    """Token ids of the help topics.

    Ids below 128 are bytes, the others the most frequent pairs, taken greedily from left to right.

    Parameters
    ----------
    vocab : int
        At least 129.
    limit : int
        Bytes of text.

    Examples
    --------
    >>> tokens = text_tokens(512)
    >>> len(tokens) > 100_000, int(tokens.max()) < 512
    (True, True)
    """
    from pydoc_data.topics import topics

    raw = "\n".join(topics[k] for k in sorted(topics)).encode("ascii", "ignore")[:limit]
    pairs = Counter(itertools.pairwise(raw))
    ids = {
        pair: 128 + i for i, (pair, _) in enumerate(sorted(pairs.items(), key=lambda p: (-p[1], p[0]))[: vocab - 128])
    }
    out, i = [], 0
    while i < len(raw):
        pair = ids.get((raw[i], raw[i + 1])) if i + 1 < len(raw) else None
        out.append(raw[i] if pair is None else pair)
        i += 1 if pair is None else 2
    return np.array(out, np.int64)
