"""Intervals of means over seeds and of statistics over test rows, by resampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import AssayError

Floats = NDArray[np.float64]

_BLOCK = 4_000_000  # floats held at once
_SHIFT = 617  # a prime


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Intervals:
    """Means of several groups with their intervals.

    Attributes
    ----------
    mean, low, high : float arrays, shape (groups,)
        NaN where a group is empty; ``low`` and ``high`` are NaN too where an interval cannot be known.
    n : int array, shape (groups,)
        Values in the group.
    """

    mean: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]

    def within(self, bounds: tuple[float, float]) -> Intervals:
        """The same intervals, ended where the figure cannot lie.

        >>> of = Intervals(np.array([0.9]), np.array([0.7]), np.array([1.1]), np.array([2])).within((0, 1))
        >>> float(of.low[0]), float(of.high[0])
        (0.7, 1.0)
        """
        return replace(self, low=np.clip(self.low, *bounds), high=np.clip(self.high, *bounds))


def mean_intervals(
    values: ArrayLike,
    cells: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Intervals:
    """Means with bootstrap intervals, all groups at once.

    The mean of a group is the mean of the means of its cells, and values are resampled within cells: with a cell a
    (task, method) pair and a group a method, seeds are resampled within each task. Deviations of resampled means are
    widened by sqrt(n / (n - 1)), and the quantiles taken are Phi(-t) and Phi(t), with t of Student's distribution at
    the Satterthwaite degrees of freedom, so that intervals over five seeds are not too short. Without both, the
    percentile interval of five normal values covers its mean 83 times in 100 instead of 95.

    - A cell of one value has no known spread: the group it belongs to has no interval (NaN).
    - Fewer than four degrees of freedom (one cell of two, three or four values, say): resampling cannot reach outside
      the values, so the interval is Student's.
    - No spread at all: the interval is the mean itself.

    Parameters
    ----------
    values : array, shape (n,)
        NaN is left out.
    cells : int array, shape (n,)
        Cell of each value, 0 to the number of cells - 1.
    groups : int array, shape (cells,), optional
        Group of each cell; by default each cell is a group of its own.
    confidence : float
        In (0, 1).
    resamples : int
    seed : int
        Cells of one size share their resampled counts, so an interval does not depend on what else is in the table of
        the same sizes. Cells of one group are resampled independently of each other.

    Returns
    -------
    Intervals

    Raises
    ------
    AssayError
        If shapes do not fit, or ``confidence`` or ``resamples`` is out of range.

    References
    ----------
    Hesterberg, "What teachers should know about the bootstrap", The American Statistician 69 (2015) (expanded
    percentile interval); Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics
    Bulletin 2 (1946).

    Examples
    --------
    >>> of = mean_intervals([0.81, 0.83, 0.80, 0.84, 0.82, 0.70], [0, 0, 0, 0, 0, 1])
    >>> [round(float(x), 3) for x in (of.mean[0], of.low[0], of.high[0], of.low[1])]
    [0.82, 0.802, 0.838, nan]
    """
    if not 0 < confidence < 1:
        raise AssayError(f"confidence must lie between 0 and 1, not {confidence}")
    if resamples < 100:
        raise AssayError(f"resamples must be at least 100, not {resamples}")
    x = np.asarray(values, dtype=np.float64)
    cell = np.asarray(cells, dtype=np.int64)
    if x.ndim != 1 or x.shape != cell.shape:
        raise AssayError(f"values and cells must be of one length, not {list(x.shape)} and {list(cell.shape)}")
    count = int(cell.max()) + 1 if len(cell) else 0
    group = np.arange(count) if groups is None else np.asarray(groups, dtype=np.int64)
    if len(group) < count:
        raise AssayError(f"cell {count - 1} has no group: groups has length {len(group)}")
    keep = ~np.isnan(x)
    x, cell = x[keep], cell[keep]
    order = np.argsort(cell, kind="stable")
    x, cell = x[order], cell[order]

    n_cells, n_groups = len(group), int(group.max()) + 1 if len(group) else 0
    n = np.bincount(cell, minlength=n_cells)
    filled = n > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        cell_mean = np.bincount(cell, weights=x, minlength=n_cells) / n
        # Identical values have spread 0, not the rounding error of their mean.
        first = x[np.minimum(np.cumsum(n) - n, max(len(x) - 1, 0))] if len(x) else np.zeros(n_cells)
        same = np.bincount(cell, weights=x != first[cell], minlength=n_cells) == 0
        cell_mean = np.where(same & filled, first, cell_mean)
        centred = x - cell_mean[cell]
        variance = np.bincount(cell, weights=centred**2, minlength=n_cells) / (n - 1) / n
        k = np.bincount(group[filled], minlength=n_groups)
        mean = np.bincount(group[filled], weights=cell_mean[filled], minlength=n_groups) / k
        of_means = np.bincount(group[filled], weights=variance[filled], minlength=n_groups)
        freedom = of_means**2 / np.bincount(
            group[filled], weights=(variance**2 / (n - 1))[filled], minlength=n_groups
        )  # fmt: skip
        t = -_student(freedom, (1 - confidence) / 2)
        half = t * np.sqrt(of_means) / k
    low, high = mean - half, mean + half
    still = of_means == 0
    low[still], high[still] = mean[still], mean[still]

    # Equal sizes give a whole number of degrees of freedom only up to rounding.
    for chosen in blocks(np.flatnonzero(freedom > 4 - 1e-9), resamples):
        deviations = _deviations(centred, cell, n, group, chosen, resamples, seed) / k[chosen, None]
        deviations.sort(axis=1)
        tail = _normal_cdf(-t[chosen])
        low[chosen] = mean[chosen] + _quantile(deviations, tail)
        high[chosen] = mean[chosen] + _quantile(deviations, 1 - tail)
    return Intervals(mean, low, high, np.bincount(group, weights=n, minlength=n_groups).astype(np.int64))


def _deviations(
    centred: Floats, cell: NDArray[np.int64], n: NDArray[np.int64], group: NDArray[np.int64],
    chosen: NDArray[np.int64], resamples: int, seed: int,
) -> Floats:  # fmt: skip
    """Resampled means less the mean, summed over the cells of each chosen group: shape (chosen, resamples)."""
    total = np.zeros((len(chosen), resamples))
    start = np.cumsum(n) - n
    row = np.full(int(group.max()) + 1, -1)
    row[chosen] = np.arange(len(chosen))
    mine = np.flatnonzero((row[group] >= 0) & (n > 1))
    mine = mine[np.argsort(group[mine], kind="stable")]
    position = np.arange(len(mine)) - np.searchsorted(group[mine], group[mine])  # of the cell within its group
    for size in np.unique(n[mine]):
        counts = _resampled_counts(int(size), resamples, seed)
        for block in blocks(np.flatnonzero(n[mine] == size), resamples):
            block = block[np.argsort(position[block], kind="stable")]
            cells = mine[block]
            values = centred[start[cells][:, None] + np.arange(size)]
            deviations = values @ counts.T / math.sqrt(size * (size - 1))
            for p, first, many in zip(*np.unique(position[block], return_index=True, return_counts=True)):
                # Cells of one group must not use the same draws. Draws are independent of each other, so shifting them
                # by another amount for each cell is as good as drawing again.
                here = slice(first, first + many)
                total[row[group[cells[here]]]] += np.roll(deviations[here], p * _SHIFT, axis=1)
    return total


def _resampled_counts(n: int, resamples: int, seed: int) -> Floats:
    """How often each of n values is drawn, for each resample: shape (resamples, n)."""
    drawn = np.random.default_rng([seed, n]).integers(n, size=(resamples, n))
    drawn += np.arange(resamples)[:, None] * n
    return np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def blocks(indices: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
    """Indices in pieces, so that a table of piece x width floats is of bounded size."""
    step = max(1, _BLOCK // width)
    return [indices[i : i + step] for i in range(0, len(indices), step)]


def _quantile(ordered: Floats, level: Floats) -> Floats:
    """Quantile of each row of a sorted table, at a level of its own."""
    position = level * (ordered.shape[1] - 1)
    below = np.floor(position).astype(int)
    above = np.minimum(below + 1, ordered.shape[1] - 1)
    rows = np.arange(len(ordered))
    share = position - below
    return (1 - share) * ordered[rows, below] + share * ordered[rows, above]


def _student(freedom: Floats, level: float) -> Floats:
    from scipy.special import stdtrit

    return stdtrit(freedom, level)


def _normal_cdf(x: Floats) -> Floats:
    from scipy.special import ndtr

    return ndtr(x)


def row_interval(
    *rows: ArrayLike,
    statistic: Callable[..., float] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap over test rows.

    Several arrays are resampled together (row i of one stays with row i of the others), which makes the interval of a
    difference between two methods a paired one.

    Parameters
    ----------
    *rows : arrays, each of shape (rows,) or (rows, ...)
    statistic : callable, optional
        Takes the arrays, gives a float. Default: the mean of one array, the difference of the means of two. Resamples
        on which it gives NaN (one class only, say) are left out.

    Raises
    ------
    AssayError
        If there are fewer than two rows, lengths differ, or the statistic is NaN on more than half of the resamples.

    References
    ----------
    Efron and Tibshirani, "An introduction to the bootstrap" (1993), section 13.3.

    Examples
    --------
    >>> a, b = np.arange(100) % 10 < 8, np.arange(100) % 10 < 7
    >>> found = row_interval(a, b)
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (0.1, 0.04, 0.16)
    """
    arrays = [np.asarray(r) for r in rows]
    if not arrays or len({len(a) for a in arrays}) != 1 or len(arrays[0]) < 2:
        raise AssayError(f"row values must be of one length, at least 2, not {[len(a) for a in arrays]}")
    if statistic is None and (len(arrays) > 2 or any(a.ndim != 1 for a in arrays)):
        raise AssayError("without a statistic, give one or two arrays of one dimension")
    n = len(arrays[0])
    rng = np.random.default_rng(seed)
    if statistic is None:
        x = arrays[0].astype(np.float64) - (arrays[1] if len(arrays) == 2 else 0.0)
        value = float(x.mean())
        distinct, counts = np.unique(x, return_counts=True)
        if 10 * len(distinct) < n:  # correct or not, say: drawing how often each value occurs is the same and faster
            drawn = rng.multinomial(n, counts / n, size=resamples) @ distinct / n
        else:
            parts = blocks(np.arange(resamples), n)
            drawn = np.concatenate([x[rng.integers(n, size=(len(part), n))].mean(axis=1) for part in parts])
    else:
        value = float(statistic(*arrays))
        drawn = np.empty(resamples)
        for i in range(resamples):
            index = rng.integers(n, size=n)
            drawn[i] = statistic(*(a[index] for a in arrays))
    drawn = drawn[~np.isnan(drawn)]
    if 2 * len(drawn) < resamples:
        raise AssayError(f"the statistic is NaN on {resamples - len(drawn)} of {resamples} resamples of the rows")
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))
