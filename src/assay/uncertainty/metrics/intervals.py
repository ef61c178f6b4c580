"""How sure a figure is: bootstrap intervals over rows, and paired tests between two methods on the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.uncertainty.errors import TargetShape

LEVEL = 0.95


def bootstrap(
    statistic: Callable[[NDArray[np.int64]], float],
    n: int,
    *,
    resamples: int = 200,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of ``statistic(rows)`` over resampled rows.

    Resamples on which it is undefined (NaN) are left out; NaN if that is more than half of them.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=400)
    >>> [round(v, 2) for v in bootstrap(lambda rows: float(x[rows].mean()), 400)]
    [-0.15, 0.06]
    """
    rng = np.random.default_rng(seed)
    values = np.array([statistic(rng.integers(0, n, n)) for _ in range(resamples)])
    values = values[~np.isnan(values)]
    if len(values) * 2 < resamples:
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Paired:
    """Difference of a figure between two methods on the same rows.

    Attributes
    ----------
    difference : float
        First minus second.
    low, high : float
        95 % bootstrap interval over rows.
    p : float
        Two-sided p-value: rows keep both methods' outcomes, or swap them, at random.
    """

    difference: float
    low: float
    high: float
    p: float


def paired_difference(
    first: NDArray[np.float64], second: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float], *,
    resamples: int = 500, seed: int = 0,
) -> Paired:  # fmt: skip
    """Test whether two methods differ, from one or more values a row.

    Parameters
    ----------
    first, second : float64[n] or float64[n, c]
        What the statistic needs of each row (a loss; or uncertainty and loss).
    statistic : callable
        From such an array to a number.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> a = rng.random(300)
    >>> found = paired_difference(a, a + 0.05 + 0.1 * rng.normal(size=300), lambda v: float(v.mean()))
    >>> round(found.difference, 2), found.p < 0.01
    (-0.05, True)
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or not len(a):
        raise TargetShape(f"rows of shape {a.shape} and {b.shape} cannot be paired")
    rng = np.random.default_rng(seed)
    n = len(a)
    observed = statistic(a) - statistic(b)
    resampled, swapped = [], []
    for _ in range(resamples):
        rows = rng.integers(0, n, n)
        resampled.append(statistic(a[rows]) - statistic(b[rows]))
        swap = (rng.random(n) < 0.5).reshape(-1, *([1] * (a.ndim - 1)))
        swapped.append(statistic(np.where(swap, b, a)) - statistic(np.where(swap, a, b)))
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    p = (1 + np.sum(np.abs(swapped) >= abs(observed) - 1e-15)) / (resamples + 1)
    return Paired(float(observed), float(low), float(high), float(p))


def wilson(hits: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson interval of a share."""
    from scipy.stats import norm

    if n == 0:
        return 0.0, 1.0
    z = float(norm.ppf((1 + level) / 2))
    p = hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(max(middle - reach, 0.0)), float(min(middle + reach, 1.0))
