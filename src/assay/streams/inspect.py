"""A look at a stream before anything is learned: when is each feature there, and what kind of stream is that?"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.streams.rows import FeatureIndex
from assay.streams.stream import HaphazardStream


@dataclass
class FeatureAvailability:
    """When a feature is there.

    Attributes
    ----------
    share : float
        Share of all rows that have it.
    first, last : int
        First and last row that has it.
    mean_run, mean_gap : float
        Mean length of the stretches with and without it, between its first and its last row; NaN without a gap.
    over_time : float64[bins]
        Share of the rows that have it, in equal parts of the stream.
    """

    name: Hashable
    share: float
    first: int
    last: int
    mean_run: float
    mean_gap: float
    over_time: NDArray[np.float64]


@dataclass
class StreamInspection:
    """What `inspect_stream` found.

    Attributes
    ----------
    rows, empty_rows : int
    labels : dict
        Rows of each label (regression: none); ``None`` for a missing one.
    features : list of FeatureAvailability
        In order of first sight.
    per_row : tuple
        Fewest, mean and most features in a row.
    regime, reason : str
        The regime that this looks like, and why.
    """

    rows: int
    empty_rows: int
    labels: dict[Hashable, int]
    features: list[FeatureAvailability]
    per_row: tuple[int, float, int]
    regime: str
    reason: str


def inspect_stream(stream: HaphazardStream, *, bins: int = 40, limit: int = 2_000_000) -> StreamInspection:
    """Availability of each feature over time, and the regime that it looks like.

    Parameters
    ----------
    bins : int
        Parts of the stream in ``over_time``.
    limit : int
        Rows to look at, at most.

    Examples
    --------
    >>> from assay.streams import load
    >>> inspect_stream(load("wdbc").masked("sudden")).regime
    'sudden'
    """
    index = FeatureIndex()
    rows_of: list[NDArray[np.int64]] = []
    slots_of: list[NDArray[np.int64]] = []
    sizes: list[NDArray[np.int64]] = []
    labels: dict[Hashable, int] = {}
    start = 0
    for block, y in stream.blocks():
        slots_of.append(index.register_block(block))
        lengths = np.diff(block.indptr)
        rows_of.append(start + np.repeat(np.arange(len(block)), lengths))
        sizes.append(lengths)
        if stream.task == "classification":
            for label in y.tolist() if isinstance(y, np.ndarray) else y:
                label = None if label is None or label != label else label
                labels[label] = labels.get(label, 0) + 1
        start += len(block)
        if start >= limit:
            break
    n = start
    rows = np.concatenate(rows_of) if rows_of else np.empty(0, np.int64)
    slots = np.concatenate(slots_of) if slots_of else np.empty(0, np.int64)
    counts = np.concatenate(sizes) if sizes else np.empty(0, np.int64)
    order = np.argsort(slots, kind="stable")
    bounds = np.searchsorted(slots[order], np.arange(len(index) + 1))
    edges = np.linspace(0, n, min(bins, max(n, 1)) + 1).astype(int)
    features = [
        _availability(index.ids[s], rows[order[bounds[s] : bounds[s + 1]]], n, edges) for s in range(len(index))
    ]
    regime, reason = _guess(features, n)
    span = (int(counts.min()), float(counts.mean()), int(counts.max())) if n else (0, 0.0, 0)
    return StreamInspection(n, int((counts == 0).sum()), labels, features, span, regime, reason)


def _availability(name: Hashable, rows: NDArray[np.int64], n: int, edges: NDArray[np.int64]) -> FeatureAvailability:
    breaks = np.flatnonzero(np.diff(rows) > 1)
    gaps = np.diff(rows)[breaks] - 1
    runs = len(rows) / (len(breaks) + 1)
    per_bin = np.histogram(rows, edges)[0] / np.maximum(np.diff(edges), 1)
    return FeatureAvailability(
        name,
        len(rows) / n,
        int(rows[0]),
        int(rows[-1]),
        runs,
        float(gaps.mean()) if len(gaps) else float("nan"),
        per_bin,
    )


def _guess(features: list[FeatureAvailability], n: int) -> tuple[str, str]:
    if not features:
        return "intrinsic", "there is no feature at all"
    first = np.array([f.first for f in features])
    last = np.array([f.last for f in features])
    share = np.array([f.share for f in features])
    solid = np.array([f.share * n >= 0.999 * (f.last - f.first + 1) for f in features])  # no gaps while it lives
    edge = max(2, n // 50)
    if (share > 0.999).all():
        return "intrinsic", "every feature is in every row"
    if solid.mean() > 0.95:
        births, deaths = np.unique(first[first > edge]), np.unique(last[last < n - 1 - edge])
        if len(births) and len(deaths):
            return "evolvable", "features are there without gaps; some appear and some stop for good"
        if len(births):
            grouped = len(births) <= max(8, len(features) // 3)
            return ("sudden", f"features only appear, in {len(births)} groups") if grouped else (
                "trapezoidal", "features only appear, one by one"
            )  # fmt: skip
        if len(deaths):
            return "obsolete", "features only stop for good"
    run = np.array([f.mean_run for f in features])
    gap = np.nanmean([f.mean_gap for f in features])
    expected = 1.0 / np.clip(1.0 - share, 1e-6, None)  # mean run if cells were kept independently
    if np.median(run / expected) > 3:
        big = gap > n / 20
        return ("reappearing", f"features come and go in long stretches (mean gap {gap:.0f} rows)") if big else (
            "bursts", f"features come and go in stretches (mean run {np.median(run):.0f} rows, mean gap {gap:.0f})"
        )  # fmt: skip
    spread = share.std()
    noise = np.sqrt(np.mean(share * (1 - share)) / n)
    if spread > max(0.05, 5 * noise):
        return (
            "capricious",
            f"cells are missing at random, by a rate of each feature's own ({share.min():.0%} to {share.max():.0%})",
        )
    return "probabilistic", f"cells are missing at random; {share.mean():.0%} are there"
