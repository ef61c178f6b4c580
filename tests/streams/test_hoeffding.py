"""The Hoeffding tree: bound, gains, routing of absent values, leaves and observers, each against other sources."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import entropy, norm
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.hoeffding import MaskedHoeffdingTree
from assay.streams.models.hoeffding.merit import find_threshold, gain_of_split
from assay.streams.models.hoeffding.observers import observe_gaussian, observe_histogram, totals
from assay.streams.rows import Row

Tree = MaskedHoeffdingTree


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"observer": "histogram", "leaf": "bayes", "grace_period": 10, "tau": 1.0},
        {"missing": "majority", "leaf": "shares", "grace_period": 12.5, "tau": 1.0},
    ],
)
def test_holds_the_contract(params):
    check_model(lambda: Tree(**params), auroc=0.95, rows=150)


def test_auroc_on_wdbc():
    for seed in range(5):
        result = run(Tree(), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] >= 0.95
        assert result.metrics["balanced_accuracy"] >= 0.88


@pytest.mark.parametrize("observer", ["gaussian", "histogram"])
def test_splits_when_the_bound_allows_it(observer):
    """With gain near 1 bit against no split: sqrt(ln(1e7) / 400) = .2007 after 200 rows, .898 after 10 rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 400)
    x[np.abs(x) < 0.2] += 0.4
    y = (x > 0).astype(np.int64)
    tree = Tree(observer=observer, delta=1e-7, tau=0.0)
    tree.run_arrays(x[:199, None], y[:199])
    assert tree.n_leaves == 1
    tree.run_arrays(x[199:200, None], y[199:200])
    assert tree.n_leaves == 2
    assert -0.25 < tree._threshold[0] < 0.25
    never = Tree(observer=observer, delta=1e-300, tau=0.0)  # the bound is 1.3 after 200 rows
    never.run_arrays(x[:399, None], y[:399])
    assert never.n_leaves == 1
    tie = Tree(observer=observer, delta=1e-300, tau=1.4)
    tie.run_arrays(x[:200, None], y[:200])
    assert tie.n_leaves == 2


def test_gain_is_that_of_scipy():
    whole, left = np.array([30.0, 10.0, 5.0]), np.array([20.0, 1.0, 0.0])
    settings = Tree()._settings()
    expected = entropy(whole, base=2) - 21 / 45 * entropy(left, base=2) - 24 / 45 * entropy(whole - left, base=2)
    assert gain_of_split(whole, left, 45.0, 21.0, settings) == pytest.approx(expected, abs=1e-12)


def test_variance_share_is_that_of_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 30), rng.normal(2, 1, 50)
    both = np.r_[a, b]
    sums = [np.array([len(v), v.sum(), (v**2).sum()]) for v in (both, a)]
    settings = Tree(task="regression")._settings()
    expected = 1 - (30 * a.var() + 50 * b.var()) / (80 * both.var())
    assert gain_of_split(*sums, 80.0, 30.0, settings) == pytest.approx(expected, abs=1e-12)


def test_merit_counts_by_the_share_of_rows_that_have_the_feature():
    """ "rare" separates the classes entirely but is seldom there; "common" is right in 90 % of rows."""
    rng = np.random.default_rng(0)
    for share, chosen in [(0.3, "common"), (1.0, "rare")]:
        tree = Tree(tau=1.0)
        for _ in range(200):
            y = int(rng.integers(2))
            features = {"common": (2.0 * y - 1) * (1 if rng.random() < 0.9 else -1) + 0.1 * rng.standard_normal()}
            if rng.random() < share:
                features["rare"] = 2.0 * y - 1 + 0.1 * rng.standard_normal()
            tree.learn_one(Row.from_dict(features), y)
        assert tree.n_leaves == 2
        assert tree.features_[tree._feature[0]] == chosen


def grown_tree(missing):
    rng = np.random.default_rng(0)
    tree = Tree(leaf="shares", missing=missing, tau=1.0, observer="histogram")
    for _ in range(200):
        x = rng.uniform(-1, 1) if rng.random() < 0.3 else rng.uniform(0.1, 1)
        y = int(rng.random() < (0.9 if x > 0 else 0.2))
        tree.learn_one(Row.from_dict({"x": x}), y)
    assert tree.n_leaves == 2
    return tree


def test_rows_without_the_feature_go_down_both_branches_by_weight():
    tree = grown_tree("branches")
    low, high, absent = (tree.score_one(Row.from_dict(f)) for f in ({"x": -0.9}, {"x": 0.9}, {}))
    left, right = tree._observed[0]
    assert left + right == pytest.approx(200)
    assert absent == pytest.approx((left * low + right * high) / (left + right), abs=1e-12)
    before = tree._stats[:2].copy()
    tree.learn_one(Row.from_dict({"other": 1.0}), 1)
    share = left / (left + right)
    np.testing.assert_allclose(tree._stats[:2] - before, [[0, share], [0, 1 - share]], atol=1e-12)
    tree.learn_one(Row.from_dict({"x": -0.9}), 0)
    np.testing.assert_allclose(tree._observed[0], [left + 1, right])


def test_or_down_the_branch_that_more_rows_took():
    tree = grown_tree("majority")
    high, absent = (tree.score_one(Row.from_dict(f)) for f in ({"x": 0.9}, {"other": 1.0}))
    assert tree._observed[0, 1] > tree._observed[0, 0]
    assert absent == high


def test_a_split_keeps_the_weight_of_the_leaf():
    X, y = easy_stream(1500)
    for params in ({}, {"observer": "histogram"}, {"missing": "majority"}):
        tree = Tree(grace_period=50, tau=1.0, **params)
        tree.run_arrays(X, y)
        n = tree.n_leaves
        assert n > 3
        assert tree._stats[:n].sum() == pytest.approx(1500)
        np.testing.assert_allclose(tree._stats[:n].sum(axis=0), np.bincount(y), atol=1.0)


def test_naive_bayes_leaf_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 3000)
    X = rng.standard_normal((3000, 3)) * [1, 2, 3] + y[:, None]
    tree = Tree(leaf="bayes", max_leaves=1, classes=[0, 1, 2])
    tree.run_arrays(X, y)
    peer = GaussianNB(var_smoothing=0).fit(X, y)
    test = rng.standard_normal((50, 3)) * 2
    ours = np.array([tree.score_one(Row((0, 1, 2), x)) for x in test])
    # the pooled variance counts as one observation among 1000, hence the tolerance
    np.testing.assert_allclose(ours, peer.predict_proba(test), atol=0.005)
    part = tree.score_one(Row((1,), np.array([1.5])))
    np.testing.assert_allclose(part, GaussianNB().fit(X[:, 1:2], y).predict_proba([[1.5]])[0], atol=0.005)


def test_gaussian_observer_is_mean_and_variance():
    cells = np.zeros(2 + 3 * 2)
    rng = np.random.default_rng(0)
    x, w = rng.normal(100, 1, 50), rng.uniform(0.1, 1, 50)
    for value, weight in zip(x, w):
        observe_gaussian(cells, value, 1, weight)
    mean = np.average(x, weights=w)
    assert (cells[0], cells[1]) == (x.min(), x.max())
    np.testing.assert_allclose(cells[5:8], [w.sum(), mean, np.sum(w * (x - mean) ** 2)], rtol=1e-10)
    assert np.all(cells[2:5] == 0)


def test_gaussian_thresholds_are_the_best_of_ten():
    tree = Tree()
    tree._grow_classes(2)
    cells = np.zeros(8)
    x, y = np.r_[-3.0, -1, 0, 0, 1, 4, 2, 6, 3], np.r_[0, 0, 0, 0, 0, 1, 1, 1, 1]
    for value, label in zip(x, y):
        observe_gaussian(cells, value, int(label), 1.0)
    merit, threshold = find_threshold(cells, 18.0, tree._settings(), tree._scratch())
    gains = []
    for t in -3 + 9 * np.arange(1, 11) / 11:
        left = np.array([np.sum(y == c) * norm.cdf(t, x[y == c].mean(), x[y == c].std()) for c in (0, 1)])
        n, m = len(x), left.sum()
        whole = np.bincount(y)
        gain = entropy(whole, base=2) - m / n * entropy(left, base=2) - (1 - m / n) * entropy(whole - left, base=2)
        gains.append((gain, t))
    assert (merit, threshold) == (pytest.approx(max(gains)[0] * 9 / 18), pytest.approx(max(gains)[1]))


def test_histogram_covers_what_comes_and_loses_nothing():
    tree = Tree(observer="histogram", bins=16, classes=[0, 1])
    rng = np.random.default_rng(0)
    for values in (
        rng.standard_normal(300),
        np.r_[1.0, 1.0, 1.0],
        np.r_[0.0, 1e-6, 1e6, -1e6],
        10.0 ** np.arange(-8, 9),
        -(10.0 ** np.arange(9)),
    ):
        cells = np.zeros(2 + 2 * 16)
        labels = rng.integers(0, 2, len(values))
        for value, label in zip(values, labels):
            observe_histogram(cells, value, float(label), 1.0, tree._settings())
        found = np.zeros(2)
        totals(cells, found, tree._settings())
        np.testing.assert_array_equal(found, np.bincount(labels, minlength=2))
        origin, width = cells[0], cells[1]
        if width:
            edges = origin + width * np.arange(17)
            assert edges[0] <= values.min() < values.max() <= edges[-1]
            if len(values) == 300:
                exact = np.histogram(values[labels == 1], edges)[0]
                assert np.abs(np.cumsum(cells[18:]) - np.cumsum(exact)).max() <= 2  # values merged at an edge
                assert (values.max() - values.min()) / width >= 4
        else:
            assert origin == 1.0


def test_memory_is_bounded_by_max_leaves():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 2))
    y = ((np.floor(3 * X[:, 0]) + np.floor(3 * X[:, 1])) % 2).astype(np.int64)
    tree = Tree(grace_period=20, tau=1.0, max_leaves=11)
    tree.run_arrays(X, y)
    assert tree.n_leaves == 11
    assert len(tree._cells) == 11


def test_learns_a_rule_of_two_features():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (6000, 2))
    y = ((X[:, 0] > 0) & (X[:, 1] > 0.2)).astype(np.int64)
    X[rng.random(X.shape) < 0.1] = np.nan
    full = ~np.isnan(X).any(axis=1) & (np.arange(6000) > 3000)
    for params in ({}, {"observer": "histogram", "leaf": "shares"}):
        scores = Tree(**params).run_arrays(X, y)
        assert np.mean((scores > 0)[full] == y[full]) > 0.97


def test_three_classes_and_one_that_is_never_met():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 1500)
    X = rng.standard_normal((1500, 4)) + 2.0 * codes[:, None]
    X[rng.random(X.shape) < 0.4] = np.nan
    labels = np.array(["a", "b", "c"])[codes]
    for params in ({}, {"observer": "histogram"}, {"leaf": "shares", "grace_period": 50, "tau": 0.3}):
        scores = Tree(classes=["a", "b", "c", "never"], **params).run_arrays(X, labels)
        assert np.all(scores[0] == 0)
        assert np.all(scores[:, 3] == 0)
        np.testing.assert_allclose(scores[1:].sum(axis=1), 1.0)
        assert roc_auc_score(codes[700:] == 1, scores[700:, 1]) > 0.75
        in_order = list(dict.fromkeys(labels.tolist()))
        grown, declared = (Tree(classes=c, **params).run_arrays(X[:80], labels[:80]) for c in (None, in_order))
        np.testing.assert_array_equal(grown, declared)


def test_regression():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (6000, 3))
    y = 1e6 + np.select([X[:, 0] > 0.3, X[:, 1] > 0], [5.0, 2.0], -3.0)
    X[rng.random(X.shape) < 0.1] = np.nan
    make = lambda: Tree(task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    assert scores[0] == 0
    np.testing.assert_allclose(scores[1:150], np.cumsum(y)[:149] / np.arange(1, 150), rtol=1e-12)  # one leaf: the mean
    late = ~np.isnan(X[:, :2]).any(axis=1) & (np.arange(6000) > 4000)
    assert 1 - np.mean((scores - y)[late] ** 2) / np.var(y[late]) > 0.9
    np.testing.assert_array_equal(scores_by_row(make(), X[:600], y[:600]), scores[:600])


def test_columns_may_come_in_any_order():
    X, y = easy_stream(600, d=6)
    order = [4, 0, 5, 2, 1, 3]
    for params in ({"grace_period": 50, "tau": 0.3}, {"observer": "histogram"}):
        a = Tree(**params).run_arrays(X, y)
        b = Tree(**params).run_arrays(X[:, order], y, columns=[f"c{j}" for j in order])
        np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"grace_period": 0}, "grace_period is a number"),
        ({"delta": 0.0}, "delta is a number above 0"),
        ({"tau": -1}, "tau is a number"),
        ({"missing": "left"}, "missing is 'branches' or 'majority', not 'left'"),
        ({"leaf": "svm"}, "leaf is 'adaptive', 'bayes' or 'shares', not 'svm'"),
        ({"observer": "kde"}, "observer is 'gaussian' or 'histogram', not 'kde'"),
        ({"observer": "gaussian", "task": "regression"}, "observer is 'histogram' in regression"),
        ({"bins": 2}, "bins is a whole number of at least 4"),
        ({"bins": 7}, "bins is an even number, not 7"),
        ({"max_leaves": 0}, "max_leaves is a whole number of at least 1"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        Tree(**params)


def test_explains_nothing_and_says_so():
    tree = Tree()
    tree.learn_one(Row.from_dict({"a": 1.0}), 1)
    with pytest.raises(StreamError, match="MaskedHoeffdingTree cannot split its score"):
        tree.explain_one(Row.from_dict({"a": 1.0}))


def test_same_without_compilation():
    tree = "Tree(grace_period=10, tau=1.0, observer=o)"
    call = f"[{tree}.run_arrays(*easy_stream(50)).tolist() for o in (None, 'histogram')]"
    code = (
        "from assay.streams.contract import easy_stream; "
        f"from assay.streams.models.hoeffding import MaskedHoeffdingTree as Tree; print({call})"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ASSAY_STREAMS_JIT": "0"}, capture_output=True, check=True
    )
    np.testing.assert_allclose(eval(call), eval(plain.stdout), atol=1e-12)
    assert math.isfinite(eval(plain.stdout)[0][-1])
