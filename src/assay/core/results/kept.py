"""What runs keep beside their metrics: curves and values of test rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core import compare
from assay.core.results.outcomes import Band, Floats


def read_curves(folder: Path) -> dict[str, Any]:
    """Curves of a run: ``{name: {"x": [...], "y": [...], "x_label": ...}}``, empty if it kept none."""
    try:
        found: dict[str, Any] = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def read_rows(folder: Path) -> dict[str, NDArray[Any]]:
    """Row values of a run by name, empty if it kept none."""
    path = folder / "rows.npz"
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def ordered(x: Sequence[float], y: Sequence[float]) -> tuple[Floats, Floats]:
    """A curve by increasing x, the last of several values at one x, without NaN.

    >>> ordered([2, 1, 2], [5.0, 3.0, 6.0])
    (array([1., 2.]), array([3., 6.]))
    """
    xs, ys = np.asarray(x, dtype=np.float64)[::-1], np.asarray(y, dtype=np.float64)[::-1]
    keep = np.isfinite(xs) & np.isfinite(ys)
    xs, last = np.unique(xs[keep], return_index=True)
    return xs, ys[keep][last]


def thinned(x: Floats, points: int) -> NDArray[np.int64]:
    """Positions of at most so many points, even by position, the first and the last among them.

    >>> thinned(np.arange(10.0), 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, len(x) - 1, min(points, len(x))).round().astype(np.int64))


def band(drawn: Sequence[tuple[Floats, Floats]], points: int) -> Band:
    """Mean of several curves with its interval at each x.

    Where all have the same x those are kept (thinned to ``points``), else values are interpolated on an even grid.
    Beyond its last point a curve no longer counts.

    >>> of = band([(np.array([0.0, 1.0]), np.array([0.0, 1.0])), (np.array([0.0, 2.0]), np.array([1.0, 1.0]))], 3)
    >>> of.mean.tolist(), of.runs
    ([0.5, 1.0, 1.0], 2)
    """
    x = drawn[0][0]
    if all(np.array_equal(x, other) for other, _ in drawn[1:]):
        x = x[thinned(x, points)]
    else:
        x = np.linspace(min(xs[0] for xs, _ in drawn), max(xs[-1] for xs, _ in drawn), points)
    values = np.stack([np.interp(x, xs, ys, left=np.nan, right=np.nan) for xs, ys in drawn])
    of = compare.mean_intervals(
        values.ravel(), np.tile(np.arange(len(x)), len(drawn)), np.arange(len(x)), resamples=500
    )
    return Band(x, of.mean, of.low, of.high, len(drawn))
