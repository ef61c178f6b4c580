"""Many methods over many tasks: ranks, the Friedman test, critical differences, adjusted p-values."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.compare.intervals import Floats
from assay.core.errors import AssayError


def holm(p: ArrayLike) -> Floats:
    """P-values of several tests, adjusted so that the chance of any false alarm stays below the level.

    Parameters
    ----------
    p : array, shape (tests,)
        NaN (no test) stays NaN and does not count.

    References
    ----------
    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    raw = np.asarray(p, dtype=np.float64)
    adjusted = np.full(len(raw), np.nan)
    known = np.flatnonzero(~np.isnan(raw))
    order = known[np.argsort(raw[known], kind="stable")]
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(raw[order] * np.arange(len(order), 0, -1)))
    return adjusted


def rank_rows(scores: ArrayLike, higher_is_better: bool = True) -> Floats:
    """Ranks within each row, 1 the best, ties averaged, NaN left out.

    Parameters
    ----------
    scores : array, shape (tasks, methods)

    Examples
    --------
    >>> rank_rows([[0.9, 0.8, 0.9], [0.2, np.nan, 0.1]]).tolist()
    [[1.5, 3.0, 1.5], [1.0, nan, 2.0]]
    """
    s = np.asarray(scores, dtype=np.float64)
    s = s if higher_is_better else -s
    ranks = np.empty_like(s)
    for i, row in enumerate(s):
        better = np.count_nonzero(row[:, None] > row, axis=0)
        equal = np.count_nonzero(row[:, None] == row, axis=0)
        ranks[i] = np.where(np.isnan(row), np.nan, better + (equal + 1) / 2)
    return ranks


@dataclass(frozen=True)
class Friedman:
    """Result of `friedman`.

    Attributes
    ----------
    mean_ranks : float array, shape (methods,)
    chi_square, p_chi_square : float
        Friedman's statistic, with methods - 1 degrees of freedom.
    f, p_f : float
        Iman and Davenport's, less conservative.
    tasks, methods : int
    """

    mean_ranks: Floats
    chi_square: float
    p_chi_square: float
    f: float
    p_f: float
    tasks: int
    methods: int


def friedman(scores: ArrayLike, higher_is_better: bool = True, *, correct_ties: bool = True) -> Friedman:
    """Test whether several methods rank alike over several tasks.

    Parameters
    ----------
    scores : array, shape (tasks, methods)
        At least two of each, all known.
    correct_ties : bool
        Divide by Conover's correction for ties (as SciPy does); Demsar's formulas do without.

    Raises
    ------
    AssayError
        If there are too few tasks or methods, or a score is NaN.

    References
    ----------
    Friedman, "The use of ranks to avoid the assumption of normality", JASA 32 (1937); Iman and Davenport,
    "Approximations of the critical region of the Friedman statistic", Communications in Statistics 9 (1980); Demsar,
    "Statistical comparisons of classifiers over multiple data sets", JMLR 7 (2006), section 3.2.2.

    Examples
    --------
    >>> found = friedman([[3, 2, 1], [3, 1, 2], [3, 2, 1], [3, 2, 1]])
    >>> found.mean_ranks.tolist(), found.chi_square, round(found.p_f, 4)
    ([1.0, 2.25, 2.75], 6.5, 0.0066)
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim != 2 or min(s.shape) < 2:
        raise AssayError(f"ranks need scores of at least two tasks and two methods, not {list(s.shape)}")
    if np.isnan(s).any():
        raise AssayError("ranks need a score of every method on every task; leave out tasks or methods that lack one")
    n, k = s.shape
    ranks = rank_rows(s, higher_is_better)
    mean_ranks = ranks.mean(axis=0)
    chi = 12 * n / (k * (k + 1)) * (np.sum(mean_ranks**2) - k * (k + 1) ** 2 / 4)
    if correct_ties:
        ties = sum(np.sum(c**3 - c) for c in (np.unique(row, return_counts=True)[1] for row in ranks))
        share = 1 - ties / (n * (k**3 - k))
        chi = chi / share if share > 0 else 0.0
    room = n * (k - 1) - chi
    f = (n - 1) * chi / room if room > 1e-9 else math.inf
    from scipy.special import chdtrc, fdtrc

    p_f = float(fdtrc(k - 1, (k - 1) * (n - 1), f)) if math.isfinite(f) else 0.0
    return Friedman(mean_ranks, float(chi), float(chdtrc(k - 1, max(chi, 0.0))), float(f), p_f, n, k)


@functools.lru_cache(maxsize=256)
def critical_difference(methods: int, tasks: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks: two methods whose mean ranks are closer cannot be told apart.

    CD = q sqrt(k (k + 1) / 6 N), with q the quantile of the studentised range over sqrt(2).

    Raises
    ------
    AssayError
        If there are fewer than two methods, or no task.

    References
    ----------
    Nemenyi, "Distribution-free multiple comparisons" (1963); Demsar (2006), section 3.2.2.

    Examples
    --------
    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    if methods < 2 or tasks < 1:
        raise AssayError(f"a critical difference needs two methods and a task, not {methods} and {tasks}")
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tasks))


def cliques(mean_ranks: ArrayLike, difference: float) -> list[list[int]]:
    """The largest sets of methods that cannot be told apart: first and last rank differ by less than ``difference``.

    Returns
    -------
    list of lists of int
        Positions in ``mean_ranks``, best first; sets of one are left out.

    Examples
    --------
    >>> cliques([3.143, 2.000, 2.893, 1.964], 1.1)
    [[3, 1, 2], [2, 0]]
    """
    ranks = np.asarray(mean_ranks, dtype=np.float64)
    order = np.argsort(ranks, kind="stable")
    found: list[list[int]] = []
    reached = 0
    for i in range(len(order)):
        end = i + 1
        while end < len(order) and ranks[order[end]] - ranks[order[i]] < difference:
            end += 1
        if end - i > 1 and end > reached:
            found.append([int(j) for j in order[i:end]])
            reached = end
    return found


def win_tie_loss(scores: ArrayLike, higher_is_better: bool = True, *, tie: float = 0.0) -> NDArray[np.int64]:
    """On how many tasks each method is better than, as good as and worse than each other one.

    Parameters
    ----------
    scores : array, shape (tasks, methods)
        Tasks where one of the two is NaN do not count for them.
    tie : float
        Scores that differ by no more are as good.

    Returns
    -------
    int array, shape (methods, methods, 3)
        ``[i, j]`` holds wins, ties and losses of i against j; zeros on the diagonal.

    Examples
    --------
    >>> win_tie_loss([[0.9, 0.8], [0.7, 0.7], [0.6, 0.5]])[0, 1].tolist()
    [2, 1, 0]
    """
    s = np.asarray(scores, dtype=np.float64)
    s = s if higher_is_better else -s
    k = s.shape[1]
    table = np.zeros((k, k, 3), dtype=np.int64)
    for i in range(k):
        d = s[:, [i]] - s
        table[i, :, 0] = np.count_nonzero(d > tie, axis=0)
        table[i, :, 1] = np.count_nonzero(np.abs(d) <= tie, axis=0)
        table[i, :, 2] = np.count_nonzero(d < -tie, axis=0)
        table[i, i] = 0
    return table
