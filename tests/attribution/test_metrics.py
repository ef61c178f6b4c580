"""Metrics: closed forms, invariants, intervals, chance levels and ceilings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import average_precision_score

from assay.attribution import (
    FitSpec,
    GradDot,
    GroundTruth,
    Influence,
    NoEligibleSamples,
    RetrainingFarm,
    brittleness,
    class_detection,
    compare,
    duplicate_detection,
    lds,
    leave_one_out_truth,
    loo_correlation,
    mislabel_detection,
    mixed_datasets,
    model_randomization,
    mrr,
    noise_ceiling,
    paired_test,
    point_removal,
    recall_at_k,
    shortcut_detection,
    subclass_detection,
    tail_patch,
    topk_cardinality,
)
from assay.attribution.metrics.facts import _first_hit
from assay.attribution.metrics.result import bootstrap, from_rows, paired_p_values


def truth_of(outputs, subsets, n):
    repeats = np.asarray(outputs)
    return GroundTruth(subsets, repeats.mean(0), repeats, repeats, tuple(range(len(repeats))), n)


@pytest.fixture
def noisy(rng):
    """Two trainings of each of 60 subsets: a linear signal and as much noise."""
    n, m, t = 100, 60, 25
    weight = rng.normal(size=(t, n))
    subsets = np.stack([rng.permutation(n)[:50] for _ in range(m)]).astype(np.int32)
    signal = np.stack([weight[:, s].sum(1) for s in subsets])
    return weight, truth_of([signal + signal.std(0) * rng.normal(size=signal.shape) for _ in range(2)], subsets, n)


def test_lds_is_the_mean_spearman_of_scipy(noisy, rng):
    weight, truth = noisy
    A = weight + rng.normal(size=weight.shape)
    found = lds(A, truth)
    predicted = np.stack([A[:, s].sum(1) for s in truth.subsets])
    each = [spearmanr(truth.outputs[:, t], predicted[:, t]).statistic for t in range(25)]
    np.testing.assert_allclose(found.per_sample, each, atol=1e-12)
    assert found.score == pytest.approx(np.mean(each))
    tau = lds(A, truth, correlation="kendall")
    assert tau.per_sample[3] == pytest.approx(kendalltau(truth.outputs[:, 3], predicted[:, 3]).statistic)


def test_the_noise_ceiling_is_what_the_true_weights_reach(noisy):
    weight, truth = noisy
    r, ceiling = noise_ceiling(truth)
    assert 0.3 < r < 0.6  # signal and noise of equal variance: about one half
    assert lds(weight, truth).score == pytest.approx(ceiling, abs=0.05)
    assert lds(weight, truth).normalized == pytest.approx(1.0, abs=0.07)
    with pytest.raises(ValueError, match="n_seeds=2"):
        noise_ceiling(truth_of(truth.repeats[:1], truth.subsets, 100))


def test_loo_correlation_and_its_truth(small):
    data = small.data
    rows = np.array([0, 7, 30, 31, 99])
    effects, left = leave_one_out_truth(
        RetrainingFarm(small.make, FitSpec(epochs=3)), data.X_train, data.y_train, data.X_test, data.y_test, rows
    )
    assert effects.shape == (40, 5)
    assert loo_correlation(np.eye(40, 300), np.tile(np.arange(300), (40, 1))).n_used == 40
    wide = np.zeros((40, 300))
    wide[:, left] = effects
    assert loo_correlation(wide, effects, rows=left).score == pytest.approx(1.0)
    assert loo_correlation(-wide, effects, rows=left).score == pytest.approx(-1.0)


def test_brittleness_of_the_truth_is_above_chance(small):
    data = small.data
    near = -((data.X_test[:12, None] - data.X_train[None]) ** 2).sum(-1)  # nearest rows of the class
    A = near + 1e3 * (data.y_train[None] == data.y_test[:12, None])
    farm = RetrainingFarm(small.make, small.spec)
    found = brittleness(A, farm, data.X_train, data.y_train, data.X_test[:12], data.y_test[:12], k=(5, 29))
    assert found.score > found.chance
    assert found.extras["by_k"][29] >= found.extras["by_k"][5]
    assert found.extras["by_k"][29] > 0.8  # about all rows of the class are gone
    assert found.ceiling == 1.0


def test_removal_of_the_best_rows_hurts_more_than_of_random_ones(small):
    data = small.data
    farm = RetrainingFarm(small.make, small.spec)
    args = (farm, data.X_train, data.y_train, data.X_test, data.y_test)
    clean = np.ones(300)
    clean[::3] = 0.0
    labels = data.y_train.copy()
    labels[::3] = (labels[::3] + 1) % 10
    args = (farm, data.X_train, labels, data.X_test, data.y_test)
    high = point_removal(clean, *args, mode="remove_high", fractions=(0.2, 0.4))
    low = point_removal(clean, *args, mode="remove_low", fractions=(0.2, 0.33))
    assert high.direction == "lower" and high.score < high.chance and high.normalized > 0
    assert low.direction == "higher" and low.score > low.chance and low.normalized > 0
    add = point_removal(clean, *args, mode="add_high", fractions=(0.3, 0.6))
    assert add.score > add.chance
    assert [f for f, _, _ in add.extras["curve"]] == [0.3, 0.6]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 10_000))
def test_class_detection_chance_is_the_mean_over_random_attributions(n, s, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    t = rng.integers(0, 3, 5)
    s = min(s, n)
    found = class_detection(rng.normal(size=(5, n)), y, t, s=s)
    assert found.chance == pytest.approx((y[None] == t[:, None]).mean())
    # constant scores: every order is as good, so the score is the chance level itself
    assert class_detection(np.zeros((5, n)), y, t, s=s).score == pytest.approx(found.chance)
    perfect = class_detection((y[None] == t[:, None]).astype(float), y, t, s=s)
    assert perfect.score == pytest.approx(perfect.ceiling)
    assert -1e-9 <= found.score <= found.ceiling + 1e-9


def test_only_right_predictions_count_where_asked():
    A = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = class_detection(A, [0, 1], [0, 1, 1], s=1, predictions=[0, 1, 0])
    assert (found.score, found.n_used, found.n_dropped) == (1.0, 2, 1)
    sub = subclass_detection(A[:2], [5, 7], [5, 7], s=1, predictions=[0, 1], superclass_test=[0, 0])
    assert (sub.score, sub.n_used) == (1.0, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=12), st.integers(0, 10_000))
def test_mislabel_area_is_the_mean_over_orders_of_ties(values, seed):
    rng = np.random.default_rng(seed)
    suspicion = np.array(values, dtype=float)
    n = len(values)
    bad = np.zeros(n, dtype=bool)
    bad[rng.permutation(n)[: max(1, n // 3)]] = True
    found = mislabel_detection(suspicion, bad)
    scores = []
    for _ in range(300):
        order = np.lexsort((rng.random(n), -suspicion))
        scores.append(np.trapezoid(bad[order].cumsum() / bad.sum()) / n)
    assert found.score == pytest.approx(np.mean(scores), abs=0.06)
    assert mislabel_detection(bad.astype(float) + 0.1 * rng.random(n), bad).normalized == pytest.approx(1.0)


def test_mislabel_also_reports_precision(rng):
    bad = np.arange(100) < 10
    suspicion = np.where(bad, 1.0, 0.0) + rng.random(100) * 1.5
    found = mislabel_detection(suspicion, bad, at=(0.1,))
    assert found.extras["average_precision"] == pytest.approx(average_precision_score(bad, suspicion))
    top = np.argsort(-suspicion)[:10]
    assert found.extras["precision_at"][0.1] == pytest.approx(bad[top].mean())


def test_shortcut_filters_and_precision(rng):
    marked = np.array([True, True, False, False, False])
    y = np.array([0, 0, 0, 1, 1])
    A = np.array([[5, 4, 3, 2, 1], [1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [5.0, 4, 3, 2, 1]])
    found = shortcut_detection(A, marked, y, 0, [True, True, True, False], [1, 1, 0, 1], [0, 0, 0, 0])
    assert found.per_sample[0] == 1.0
    assert found.per_sample[1] == pytest.approx(average_precision_score(marked, A[1]))
    assert np.isnan(found.per_sample[2:]).all()  # of the class itself, and without the artefact
    both = shortcut_detection(A, marked, y, 0, [True] * 4, [1, 1, 0, 1], [1, 0, 0, 0], only_predicted=False)
    assert both.n_used == 3
    mixed = mixed_datasets(A[:2], marked, y, [True, True], predictions=[0, 1])
    assert (mixed.score, mixed.n_used) == (1.0, 1)


def test_duplicates_attain_the_maximum_within_tolerance():
    same = np.array([[True, False, False], [False, True, False], [False, False, False]])
    A = np.array([[1.0, 1.0 + 1e-6, 0.0], [1.0, 0.9, 0.0], [1.0, 0.0, 0.0]])
    found = duplicate_detection(A, same)
    assert (found.score, found.n_used, found.n_dropped) == (0.5, 2, 1)


def test_cardinality_chance_and_interval(rng):
    n, t, k = 50, 30, 3
    scores = [topk_cardinality(rng.normal(size=(t, n)), k=k).score for _ in range(200)]
    one = topk_cardinality(rng.normal(size=(t, n)), k=k)
    assert one.chance == pytest.approx(np.mean(scores), abs=0.01)
    assert one.ceiling == pytest.approx(50 / 90)
    assert one.ci[0] < one.score < one.ci[1]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 10_000))
def test_reciprocal_rank_chance_is_exact(n, positives, seed):
    positives = min(positives, n)
    chances = _first_hit(n, positives)
    assert chances.sum() == pytest.approx(1.0 if positives else 0.0)
    marked = np.zeros((1, n), dtype=bool)
    marked[0, :positives] = True
    found = mrr(np.zeros((1, n)), marked)
    assert found.score == pytest.approx(found.chance)  # all scores equal: every order as likely
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(1, n))
    rank = 1 + (A[0] > A[0][marked[0]].max()).sum() if positives else None
    assert mrr(A, marked).score == pytest.approx(1 / rank if rank else 0.0)
    for k in (1, 3):
        assert recall_at_k(A, marked, k=k).score == pytest.approx(float(rank is not None and rank <= k))


def test_recall_chance_is_hypergeometric():
    from math import comb

    marked = np.zeros((2, 40), dtype=bool)
    marked[:, :3] = True
    found = recall_at_k(np.zeros((2, 40)), marked, k=10)
    assert found.chance == pytest.approx(1 - comb(37, 10) / comb(40, 10))
    marked[1] = False
    with_none = recall_at_k(np.arange(80.0).reshape(2, 40), marked, k=10)
    assert with_none.ceiling == 0.5
    assert recall_at_k(np.arange(80.0).reshape(2, 40), marked, k=10, drop_without=True).n_used == 1
    with pytest.raises(NoEligibleSamples):
        mrr(np.zeros((1, 5)), np.zeros((1, 5), dtype=bool), drop_without=True)


def test_tail_patch_is_one_adamw_step_on_each_row():
    import copy

    import torch

    from assay.attribution import GPT
    from assay.attribution.metrics.facts import sequence_probability
    from assay.attribution.outputs import loss_rows

    torch.manual_seed(0)
    model = GPT(15, length=5, dim=8, layers=1, heads=2).eval()
    rng = np.random.default_rng(1)
    X, Q = rng.integers(4, 15, (6, 5)), rng.integers(4, 15, (2, 5))
    L = np.full_like(Q, -100)
    L[:, -2:] = Q[:, -2:]
    lists = np.array([[0, 3], [5, 1]])
    found = tail_patch(lists, model, X, X, Q, L, k=2, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for t in range(2):
        changes = []
        for i in lists[t]:
            twin = copy.deepcopy(model)
            optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
            row = torch.as_tensor(X[i : i + 1])
            (loss_rows(twin(row), row, "language").sum() / 4).backward()
            optimizer.step()
            q, label = torch.as_tensor(Q[t : t + 1]), torch.as_tensor(L[t : t + 1])
            changes.append(float(sequence_probability(twin, q, label) - sequence_probability(model, q, label)))
        assert found.per_sample[t] == pytest.approx(np.mean(changes), rel=1e-3, abs=1e-7)


def test_intervals_cover_at_about_their_level(rng):
    inside = 0
    for seed in range(200):
        low, high = bootstrap(rng.normal(size=60), seed=seed)
        inside += low < 0 < high
    assert 0.88 < inside / 200 < 0.99


def test_the_paired_test_sees_what_intervals_do_not(rng):
    base = rng.normal(size=100)
    a, b = from_rows("x", base, 0.0, 1.0), from_rows("x", base - 0.05 + 0.02 * rng.normal(size=100), 0.0, 1.0)
    assert a.ci[0] < b.score  # the intervals overlap
    found = paired_test(a, b)
    assert found.p_value < 0.01
    assert found.ci[0] < 0.05 < found.ci[1]
    # under no difference p is small about as often as it says
    small = [
        paired_test(
            from_rows("x", rng.normal(size=50), 0.0, 1.0), from_rows("x", rng.normal(size=50), 0.0, 1.0), replicates=500
        ).p_value < 0.1
        for _ in range(150)
    ]  # fmt: skip
    assert 0.03 < np.mean(small) < 0.2


def test_comparison_ranks_tests_and_tables(rng):
    base = rng.random(40)
    results = {
        "a": {
            "lds": from_rows("lds", base + 0.3, 0.0, 1.0),
            "low": from_rows("low", base, 1.0, 0.0, direction="lower"),
        },
        "b": {
            "lds": from_rows("lds", base, 0.0, 1.0),
            "low": from_rows("low", base - 0.2, 1.0, 0.0, direction="lower"),
        },
        "c": {"lds": from_rows("lds", base + 1e-9 * rng.normal(size=40), 0.0, 1.0)},
    }
    found = compare(results)
    assert found.winners() == {"lds": "a", "low": "b"}
    assert found.test("lds", "a", "b").p_value <= 0.001
    assert found.indistinct("lds") == ["a"]
    assert "| a | **" in found.table()
    assert found.mean_rank()["a"] == 1.5


def test_p_values_of_all_pairs_are_those_of_the_paired_test(rng):
    base = rng.normal(size=80)
    rows = [
        base,
        base - 0.03 + 0.1 * rng.normal(size=80),
        rng.normal(size=80),
        np.where(np.arange(80) < 9, np.nan, base),
    ]
    results = [from_rows("x", values, 0.0, 1.0) for values in rows]
    together = paired_p_values(results)
    assert set(together) == {(i, j) for i in range(4) for j in range(i + 1, 4)}
    for (i, j), p in together.items():
        assert abs(p - paired_test(results[i], results[j]).p_value) < 0.015, (i, j)


def test_the_best_of_many_equal_methods_is_told_from_none_of_them(rng):
    """Eight methods of one true score: the best of them on these rows beats the worst at a plain 5 % in most draws.

    With the correction, some method is called worse in at most 5 % of draws; of 60 draws more than 8 would have a
    chance of 0.3 % (binomial) even at exactly 5 %.
    """
    plain = wrong = 0
    for _ in range(60):
        results = {f"m{k}": {"x": from_rows("x", rng.normal(size=60), 0.0, 1.0)} for k in range(8)}
        found = compare(results)
        best = found.winners()["x"]
        have = list(results)
        p = paired_p_values([results[m]["x"] for m in have], 2000)
        plain += any(v <= 0.05 for (i, j), v in p.items() if best in (have[i], have[j]))
        wrong += len(found.indistinct("x")) < 8
    assert plain > 20
    assert wrong <= 8


def test_metrics_take_an_attributor_or_its_matrix(small):
    data = small.data
    method = Influence().fit(small.model, data.X_train, data.y_train)
    A = method.attribute(data.X_test, data.y_test)
    one = class_detection(method, data.y_train, data.y_test, X_test=data.X_test)
    assert one.score == class_detection(A, data.y_train, data.y_test).score
    assert mislabel_detection(method, np.arange(300) < 5).n_used == 5
    assert topk_cardinality(method, k=5, X_test=data.X_test).n_used == 40
    common = {
        "model": small.model,
        "X_train": data.X_train,
        "y_train": data.y_train,
        "X_test": data.X_test,
        "targets": data.y_test,
    }
    found = model_randomization(GradDot().fit(small.model, data.X_train, data.y_train), **common)
    assert found.direction == "lower"
    assert found.normalized == pytest.approx(1 - found.score)
