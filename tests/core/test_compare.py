"""The statistics against SciPy and published values, and on the cases where they must say that they do not know."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.core import compare
from assay.core.errors import AssayError

# Areas under the ROC curve of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets: table 6 of Demsar (2006).
# In the row before the last it prints 0.975 twice but ranks them 2 and 3, by digits that it does not show.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)


# -- published values ------------------------------------------------------------------------------------------------


def test_demsar_friedman() -> None:
    found = compare.friedman(DEMSAR, correct_ties=False)
    np.testing.assert_allclose(found.mean_ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    assert found.chi_square == pytest.approx(9.28, abs=0.01)
    assert found.f == pytest.approx(3.69, abs=0.01)
    assert found.p_f < 0.05  # above the critical value 2.85 of F(3, 39), as the paper says


def test_demsar_critical_difference() -> None:
    assert compare.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert compare.critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)


@pytest.mark.parametrize(
    ("k", "q05", "q10"),
    [(2, 1.960, 1.645), (3, 2.343, 2.052), (4, 2.569, 2.291), (5, 2.728, 2.459), (7, 2.949, 2.693), (10, 3.164, 2.920)],
)
def test_demsar_table_of_critical_values(k: int, q05: float, q10: float) -> None:
    """Table 5(a); its three digits were rounded from printed tables of the studentised range."""
    scale = math.sqrt(k * (k + 1) / 6)
    assert compare.critical_difference(k, 1, 0.05) / scale == pytest.approx(q05, abs=1.1e-3)
    assert compare.critical_difference(k, 1, 0.10) / scale == pytest.approx(q10, abs=1.1e-3)


def test_demsar_cliques_at_ten_percent() -> None:
    """Figure 1(a): at 0.10, C4.5 (3.143) falls apart from C4.5+m and C4.5+m+cf; C4.5+cf (2.893) from neither side."""
    ranks = compare.friedman(DEMSAR).mean_ranks
    assert compare.cliques(ranks, compare.critical_difference(4, 14, 0.10)) == [[3, 1, 2], [2, 0]]
    assert compare.cliques(ranks, compare.critical_difference(4, 14, 0.05)) == [[3, 1, 2, 0]]


def test_holm_by_hand() -> None:
    """The smallest of five is multiplied by five, the next by four, and so on; none may fall below the one before."""
    np.testing.assert_allclose(compare.holm([0.13, 0.011, 0.019, 0.005, 0.04]), [0.13, 0.044, 0.057, 0.025, 0.08])


def test_fisher_darwin_maize() -> None:
    """Darwin's 15 pairs of plants, in eighths of an inch: Fisher (1935) counts 1726 of 32768 sums as extreme."""
    d = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)
    assert compare.student_test(d) == pytest.approx(0.0497, abs=1e-4)
    assert compare.sign_flip_test(d[:, None], resamples=200_000)[0] == pytest.approx(1726 / 32768, abs=0.003)


# -- against SciPy ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.integers(2, 12), st.integers(3, 8), st.booleans())
def test_friedman_is_scipys(seed: int, tasks: int, methods: int, ties: bool) -> None:
    scores = np.random.default_rng(seed).normal(size=(tasks, methods))
    scores = scores.round(0) if ties else scores
    if all(len(set(row)) == 1 for row in scores.tolist()):
        return
    found = compare.friedman(scores)
    expected = stats.friedmanchisquare(*scores.T)
    assert found.chi_square == pytest.approx(expected.statistic, abs=1e-9)
    assert found.p_chi_square == pytest.approx(expected.pvalue, abs=1e-9)


@given(st.integers(0, 2**31), st.booleans())
def test_ranks_are_scipys(seed: int, higher: bool) -> None:
    scores = np.random.default_rng(seed).integers(0, 5, size=(6, 7)).astype(float)
    scores[scores == 4] = np.nan
    expected = stats.rankdata(-scores if higher else scores, axis=1, nan_policy="omit")
    np.testing.assert_array_equal(compare.rank_rows(scores, higher), expected)


@pytest.mark.parametrize("n", [2, 5, 9, 14])
def test_sign_flip_is_scipys_exact(n: int) -> None:
    d = np.random.default_rng(n).normal(0.5, 1, size=(n, 3))
    expected = [
        stats.permutation_test((c,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue for c in d.T
    ]
    np.testing.assert_allclose(compare.sign_flip_test(d), expected, rtol=1e-12)


def test_sign_flip_above_fourteen_is_monte_carlo() -> None:
    d = np.random.default_rng(1).normal(0.2, 1, size=(20, 1))
    expected = stats.permutation_test(
        (d[:, 0],), np.mean, permutation_type="samples", n_resamples=50_000, rng=np.random.default_rng(5)
    ).pvalue
    p = compare.sign_flip_test(d, resamples=50_000)[0]
    assert 0.01 < p < 0.5
    assert p == pytest.approx(expected, abs=4 * math.sqrt(2 * p * (1 - p) / 50_000))
    assert compare.sign_flip_test(d, seed=3)[0] == compare.sign_flip_test(d, seed=3)[0]
    assert compare.sign_flip_test(d, seed=3)[0] != compare.sign_flip_test(d, seed=4)[0]


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30))
def test_student_is_scipys(values: list[float]) -> None:
    d = np.array(values)
    if np.ptp(d) < 1e-6:
        return
    assert compare.student_test(d) == pytest.approx(stats.ttest_rel(d, np.zeros_like(d)).pvalue, abs=1e-9)


def test_wilcoxon_is_scipys_without_zeros() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 12))
    b[3] = a[3]
    found = compare.paired_tests(a, b)
    assert found.wilcoxon == stats.wilcoxon(a, b).pvalue
    assert found.student == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_interval_is_scipys_bootstrap_but_for_the_small_sample_correction() -> None:
    """With many values the correction vanishes and the interval is the percentile interval."""
    x = np.random.default_rng(0).exponential(size=400)
    found = compare.mean_intervals(x, np.zeros(400, dtype=int), resamples=20_000)
    expected = stats.bootstrap((x,), np.mean, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    width = expected.high - expected.low
    assert found.low[0] == pytest.approx(expected.low, abs=0.02 * width)
    assert found.high[0] == pytest.approx(expected.high, abs=0.02 * width)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_interval_of_two_to_four_values_is_students(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    found = compare.mean_intervals(x, np.zeros(n, dtype=int))
    expected = stats.ttest_1samp(x, 0).confidence_interval()
    assert found.low[0] == pytest.approx(expected.low)
    assert found.high[0] == pytest.approx(expected.high)


def test_row_interval_is_scipys_bootstrap() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.3, 1, 300), rng.normal(0, 1, 300)
    found = compare.row_interval(a, b, resamples=10_000)
    expected = stats.bootstrap(
        (a, b),
        lambda x, y: np.mean(x - y),
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=10_000,
        rng=1,
    ).confidence_interval
    width = expected.high - expected.low
    assert found.low == pytest.approx(expected.low, abs=0.04 * width)
    assert found.high == pytest.approx(expected.high, abs=0.04 * width)


def test_row_interval_of_right_and_wrong_draws_counts() -> None:
    a = np.arange(2000) % 5 < 4
    found = compare.row_interval(a, resamples=20_000)
    spread = math.sqrt(0.8 * 0.2 / 2000)
    assert found.value == pytest.approx(0.8)
    assert found.low == pytest.approx(0.8 - 1.96 * spread, abs=0.1 * spread)
    assert found.high == pytest.approx(0.8 + 1.96 * spread, abs=0.1 * spread)


# -- what the intervals are worth ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "seeds", "least"),
    [(1, 2, 0.94), (1, 3, 0.935), (1, 5, 0.915), (1, 10, 0.93), (3, 5, 0.925), (10, 2, 0.94)],
)
def test_intervals_cover_the_mean(tasks: int, seeds: int, least: float) -> None:
    """Normal values whose spread grows with the task: at least about 95 intervals in 100 hold the mean."""
    rng = np.random.default_rng(0)
    groups = 3000
    x = rng.normal(size=(groups, tasks, seeds)) * np.arange(1, tasks + 1)[None, :, None]
    cells = np.repeat(np.arange(groups * tasks), seeds)
    found = compare.mean_intervals(x.ravel(), cells, np.repeat(np.arange(groups), tasks))
    share = np.mean((found.low <= 0) & (found.high >= 0))
    assert least < share < 0.985


def test_resampling_is_independent_between_tasks() -> None:
    """The interval of a mean over 16 tasks is a quarter as wide as that of one, whatever the order of seeds."""
    rng = np.random.default_rng(0)
    x = np.sort(
        rng.normal(size=(16, 50)), axis=1
    )  # sorted: resampling all tasks with the same counts would keep the width
    one = compare.mean_intervals(x[0], np.zeros(50, dtype=int))
    all_ = compare.mean_intervals(x.ravel(), np.repeat(np.arange(16), 50), np.zeros(16, dtype=int))
    ratio = (all_.high[0] - all_.low[0]) / (one.high[0] - one.low[0])
    assert 0.2 < ratio < 0.3


def test_a_thousand_groups_of_a_hundred_within_a_third_of_a_second() -> None:
    x = np.random.default_rng(0).normal(size=100_000)
    cells = np.repeat(np.arange(1000), 100)
    compare.mean_intervals(x[:1000], cells[:1000])
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        compare.mean_intervals(x, cells)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


def test_intervals_are_seeded_and_do_not_depend_on_other_groups() -> None:
    x = np.random.default_rng(0).normal(size=60)
    cells = np.repeat([0, 1, 2], 20)
    together = compare.mean_intervals(x, cells)
    alone = compare.mean_intervals(x[20:40], np.zeros(20, dtype=int))
    assert (together.low[1], together.high[1]) == pytest.approx((alone.low[0], alone.high[0]), rel=1e-12)
    assert compare.mean_intervals(x, cells, seed=1).low[0] != together.low[0]
    shuffled = np.random.default_rng(3).permutation(60)
    np.testing.assert_allclose(compare.mean_intervals(x[shuffled], cells[shuffled]).mean, together.mean)


def test_nothing_is_known_of_the_spread_of_one_value() -> None:
    found = compare.mean_intervals([1.0, 2.0, 3.0, np.nan], [0, 1, 1, 3])
    np.testing.assert_array_equal(found.n, [1, 2, 0, 0])
    np.testing.assert_array_equal(np.isnan(found.mean), [False, False, True, True])
    np.testing.assert_array_equal(np.isnan(found.low), [True, False, True, True])
    two_tasks = compare.mean_intervals([1.0, 2.0, 3.0], [0, 1, 1], [0, 0])
    assert two_tasks.mean[0] == pytest.approx(1.75)
    assert math.isnan(two_tasks.low[0])


def test_equal_values_give_an_interval_of_no_width() -> None:
    found = compare.mean_intervals([0.1] * 7, [0] * 7)
    assert found.mean[0] == found.low[0] == found.high[0] == 0.1


def test_more_than_a_block_of_groups() -> None:
    x = np.random.default_rng(0).normal(size=(2500, 6))
    found = compare.mean_intervals(x.ravel(), np.repeat(np.arange(2500), 6))
    alone = compare.mean_intervals(x[2400], np.zeros(6, dtype=int))
    assert found.low[2400] == pytest.approx(alone.low[0])


def test_intervals_of_nothing() -> None:
    assert len(compare.mean_intervals([], []).mean) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compare.mean_intervals([1.0], [0, 1]), "one length"),
        (lambda: compare.mean_intervals([1.0], [0], confidence=95), "between 0 and 1"),
        (lambda: compare.mean_intervals([1.0], [0], resamples=5), "at least 100"),
        (lambda: compare.mean_intervals([1.0, 2.0], [0, 1], [0]), "has no group"),
        (lambda: compare.row_interval([1.0, 2.0], [1.0]), "one length"),
        (lambda: compare.row_interval([1.0]), "at least 2"),
        (lambda: compare.row_interval([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]), "without a statistic"),
        (lambda: compare.row_interval([0, 0], statistic=lambda x: math.nan), "NaN on 2000 of 2000"),
        (lambda: compare.paired_tests([1.0], [1.0, 2.0]), "one length"),
        (lambda: compare.friedman([[1.0, 2.0]]), "at least two tasks"),
        (lambda: compare.friedman([[1.0, 2.0], [1.0, np.nan]]), "every method on every task"),
        (lambda: compare.critical_difference(1, 5), "two methods"),
    ],
)
def test_wrong_input_is_named(call, words: str) -> None:
    with pytest.raises(AssayError, match=words):
        call()


# -- pairs -----------------------------------------------------------------------------------------------------------


def test_the_difference_weighs_tasks_equally() -> None:
    a = np.array([1.0, 1.0, 1.0, 1.0, 5.0, 5.0])
    found = compare.paired_tests(a, np.zeros(6), [0, 0, 0, 0, 7, 7])
    assert found.difference == pytest.approx(3.0)


def test_pairs_with_a_missing_side_do_not_count() -> None:
    found = compare.paired_tests([1.0, 2.0, np.nan, 2.5], [0.0, 0.5, 1.0, np.nan], ["a", "a", "a", "b"])
    assert found.n == 2
    assert found.difference == pytest.approx(1.25)
    nothing = compare.paired_tests([np.nan], [1.0])
    assert nothing.n == 0
    assert math.isnan(nothing.permutation)


def test_one_pair_and_equal_methods_say_nothing() -> None:
    for a, b in (([1.0], [0.5]), ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])):
        found = compare.paired_tests(a, b)
        assert found.permutation == 1
        assert math.isnan(found.student)
        assert math.isnan(found.wilcoxon)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 8])
def test_least_p_is_what_the_tests_give_at_best(n: int) -> None:
    d = np.arange(1.0, n + 1)
    assert compare.sign_flip_test(d[:, None])[0] == compare.least_p(n)
    if n > 1:
        assert compare.wilcoxon_test(d) == compare.least_p(n)
    assert (compare.least_p(n) <= 0.05) == (n >= compare.pairs_needed(0.05))


def test_a_pair_that_a_column_lacks_may_be_zero() -> None:
    d = np.random.default_rng(0).normal(0.4, 1, size=8)
    with_gap = np.stack([d, np.where(np.arange(8) < 2, 0.0, d)], axis=1)
    assert compare.sign_flip_test(with_gap)[1] == compare.sign_flip_test(d[2:, None])[0]


@given(st.integers(0, 2**31))
def test_sign_flip_holds_its_level_under_no_difference(seed: int) -> None:
    p = compare.sign_flip_test(np.random.default_rng(seed).standard_t(2, size=(8, 400)))
    assert np.mean(p <= 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


# -- many ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_properties(raw: list[float]) -> None:
    adjusted = compare.holm(raw)
    assert np.all(adjusted >= np.array(raw))
    assert np.all(adjusted <= np.minimum(1, np.array(raw) * len(raw)) + 1e-12)
    order = np.argsort(raw, kind="stable")
    assert np.all(np.diff(adjusted[order]) >= 0)


def test_holm_leaves_out_what_was_not_tested() -> None:
    np.testing.assert_allclose(compare.holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])


def test_all_methods_equal_everywhere() -> None:
    found = compare.friedman(np.ones((5, 3)))
    assert found.chi_square == 0
    assert found.p_chi_square == 1


def test_the_same_order_on_every_task() -> None:
    found = compare.friedman(np.tile([1.0, 2.0, 3.0], (6, 1)), higher_is_better=False)
    np.testing.assert_array_equal(found.mean_ranks, [1, 2, 3])
    assert found.chi_square == pytest.approx(12)
    assert found.f == math.inf
    assert found.p_f == 0


def test_cliques_are_the_largest_sets() -> None:
    assert compare.cliques([1.0, 1.5, 2.0, 4.0], 1.0) == [[0, 1], [1, 2]]
    assert compare.cliques([1.0, 3.0, 5.0], 1.0) == []
    assert compare.cliques([2.0, 1.0, 1.5], 9.0) == [[1, 2, 0]]


def test_wins_are_the_losses_of_the_other() -> None:
    scores = np.random.default_rng(0).integers(0, 4, size=(9, 5)).astype(float)
    scores[0, 0] = np.nan
    table = compare.win_tie_loss(scores)
    np.testing.assert_array_equal(table[:, :, 0], table[:, :, 2].T)
    np.testing.assert_array_equal(table[:, :, 1], table[:, :, 1].T)
    assert table[0, 1].sum() == 8
    assert table[1, 2].sum() == 9
    np.testing.assert_array_equal(compare.win_tie_loss(scores, False)[:, :, 0], table[:, :, 2])
    assert compare.win_tie_loss([[1.0, 1.05]], tie=0.1)[0, 1].tolist() == [0, 1, 0]
