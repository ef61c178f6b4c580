"""Statistics of comparisons: pure functions, arrays in.

Intervals of means over seeds and over test rows, paired tests between two methods, ranks of many methods over many
tasks. Nothing here knows of benchmarks or files; `assay.core.results` feeds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.core.errors import AssayError

Floats = NDArray[np.float64]

EXACT_PAIRS = 14
_BLOCK = 4_000_000  # floats held at once
_SHIFT = 617  # a prime


# -- intervals -------------------------------------------------------------------------------------------------------


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
    for chosen in _blocks(np.flatnonzero(freedom > 4 - 1e-9), resamples):
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
        for block in _blocks(np.flatnonzero(n[mine] == size), resamples):
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


def _blocks(indices: NDArray[np.int64], width: int) -> list[NDArray[np.int64]]:
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
            blocks = _blocks(np.arange(resamples), n)
            drawn = np.concatenate([x[rng.integers(n, size=(len(block), n))].mean(axis=1) for block in blocks])
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


# -- two methods -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedTests:
    """Two methods on the same (task, seed) pairs.

    Attributes
    ----------
    n : int
        Pairs.
    difference, low, high : float
        Mean over tasks of the mean difference in each, with its bootstrap interval over seeds.
    permutation, student, wilcoxon : float
        Two-sided p-values; NaN where there is no test (no pair; for the latter two also one pair, or no spread).
    exact : bool
        The permutation test went through all signs.
    least : float
        The smallest p that the permutation test can give with so many pairs.
    """

    n: int
    difference: float
    low: float
    high: float
    permutation: float
    student: float
    wilcoxon: float
    exact: bool
    least: float


def paired_tests(
    a: ArrayLike,
    b: ArrayLike,
    tasks: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedTests:
    """Test whether two methods differ, over pairs of runs with the same task and seed.

    Three two-sided tests of a mean difference of zero: sign-flip permutation, Student's t, Wilcoxon's signed ranks. The
    first needs only that, were the methods equal, a difference would be as likely as its negative.

    Parameters
    ----------
    a, b : arrays, shape (pairs,)
        Pairs with NaN are left out.
    tasks : int array, shape (pairs,), optional
        Task of each pair. The difference weighs tasks equally; default: one task.

    Raises
    ------
    AssayError
        If shapes differ.

    Examples
    --------
    >>> found = paired_tests([0.81, 0.84, 0.79, 0.83, 0.80, 0.82], [0.78, 0.80, 0.78, 0.81, 0.75, 0.80])
    >>> round(found.difference, 4), found.permutation, found.wilcoxon, round(found.student, 4)
    (0.0283, 0.03125, 0.03125, 0.0053)
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise AssayError(f"paired values must be of one length, not {list(x.shape)} and {list(y.shape)}")
    task = np.zeros(len(x), dtype=np.int64) if tasks is None else np.unique(np.asarray(tasks), return_inverse=True)[1]
    d = x - y
    keep = ~np.isnan(d)
    d, task = d[keep], np.unique(task[keep], return_inverse=True)[1]
    n = len(d)
    if n == 0:
        nan = math.nan
        return PairedTests(0, nan, nan, nan, nan, nan, nan, True, 1.0)
    interval = mean_intervals(d, task, np.zeros(int(task.max()) + 1, dtype=np.int64), confidence=confidence, seed=seed)
    weights = 1.0 / (np.bincount(task)[task] * (task.max() + 1))
    permutation = sign_flip_test((d * weights)[:, None], resamples=resamples, seed=seed)[0]
    return PairedTests(
        n, float(interval.mean[0]), float(interval.low[0]), float(interval.high[0]),
        float(permutation), student_test(d), wilcoxon_test(d), n <= EXACT_PAIRS, least_p(n),
    )  # fmt: skip


def sign_flip_test(differences: ArrayLike, *, resamples: int = 10_000, seed: int = 0) -> Floats:
    """Two-sided sign-flip permutation test of sums of zero, one for each column.

    All 2**n sign patterns are gone through for n <= 14 rows; above, ``resamples`` random ones, and the p-value is
    (1 + as extreme) / (1 + resamples), which is never zero. Zeros change nothing, so a pair that a column lacks may be
    0 in it.

    Parameters
    ----------
    differences : array, shape (pairs, columns)
        Multiply by weights first for a weighted mean.

    Returns
    -------
    float array, shape (columns,)
        1 where all rows are zero; NaN without rows.

    References
    ----------
    Fisher, "The design of experiments" (1935), section 21; Phipson and Smyth, "Permutation p-values should never be
    zero", Statistical Applications in Genetics and Molecular Biology 9 (2010).

    Examples
    --------
    >>> sign_flip_test(np.array([[0.3], [0.1], [0.2], [0.4], [0.1], [-0.1]])).tolist()
    [0.125]
    """
    d = np.asarray(differences, dtype=np.float64)
    n, columns = d.shape
    if n == 0:
        return np.full(columns, np.nan)
    # Rounding must not decide whether a sum is as extreme as the observed one.
    total = d.sum(axis=0)
    bound = np.abs(total) - 1e-12 * np.abs(d).sum(axis=0)
    if n <= EXACT_PAIRS:
        patterns = np.arange(2 ** (n - 1))  # the other half are their negatives
        signs = 1.0 - 2.0 * ((patterns[:, None] >> np.arange(n)) & 1)
        return np.mean(np.abs(signs @ d) >= bound, axis=0)
    rng = np.random.default_rng(seed)
    extreme = np.zeros(columns)
    for block in _blocks(np.arange(resamples), n):
        bits = np.unpackbits(rng.integers(256, size=(len(block), -(-n // 8)), dtype=np.uint8), axis=1)[:, :n]
        extreme += np.count_nonzero(np.abs(total - 2.0 * (bits.astype(np.float64) @ d)) >= bound, axis=0)
    return (1 + extreme) / (1 + resamples)


def student_test(differences: ArrayLike) -> float:
    """Two-sided p of the paired t-test; NaN with fewer than two pairs or no spread.

    Assumes normal differences. Student, "The probable error of a mean", Biometrika 6 (1908).

    >>> round(student_test([0.03, 0.04, 0.01, 0.02, 0.05]), 4)
    0.0132
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2 or np.ptp(d) == 0:
        return math.nan
    t = d.mean() / (d.std(ddof=1) / math.sqrt(len(d)))
    return float(2 * _student_cdf(-abs(t), len(d) - 1))


def _student_cdf(t: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


def wilcoxon_test(differences: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test, zeros left out; NaN where fewer than two are left.

    Exact for few pairs, else by the normal approximation (SciPy's choice). Wilcoxon, "Individual comparisons
    by ranking methods", Biometrics Bulletin 1 (1945).

    >>> wilcoxon_test([0.03, 0.04, 0.01, 0.02, 0.05, 0.06])
    0.03125
    """
    from scipy.stats import wilcoxon

    d = np.asarray(differences, dtype=np.float64)
    d = d[d != 0]
    return float(wilcoxon(d).pvalue) if len(d) > 1 else math.nan


def least_p(pairs: int) -> float:
    """The smallest two-sided p that a sign-flip or signed-rank test can give.

    >>> least_p(5), least_p(6)
    (0.0625, 0.03125)
    """
    return min(1.0, 2.0 ** (1 - pairs))


def pairs_needed(alpha: float = 0.05) -> int:
    """The fewest pairs with which a sign-flip or signed-rank test can reach ``alpha``.

    >>> pairs_needed(0.05), pairs_needed(0.001)
    (6, 11)
    """
    return math.ceil(math.log2(1 / alpha)) + 1


# -- many methods ----------------------------------------------------------------------------------------------------


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
