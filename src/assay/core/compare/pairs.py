"""Paired tests between two methods."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from assay.core.compare.intervals import Floats, blocks, mean_intervals
from assay.core.errors import AssayError

EXACT_PAIRS = 14


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
    for block in blocks(np.arange(resamples), n):
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
