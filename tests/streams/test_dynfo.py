"""DynFo against a plain version of itself, scikit-learn's stumps and the defects of its predecessors."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.draws import below, draw_state, draw_to_front, uniform
from assay.streams.models.dynfo import DynFo
from assay.streams.models.dynfo.quantile import quantile
from assay.streams.models.dynfo.stumps import find_split
from assay.streams.rows import Row

SMALL = {"M": 20, "N": 200, "delta": 0.1}


def plain_dynfo(X, y, M, N, delta, alpha=0.5, beta=0.3, epsilon=0.001, gamma=0.7, theta1=0.05, theta2=0.6, seed=0):
    """Two classes, a list of stumps, a list of rows, and a search over all thresholds; same draws."""
    draws, order, stumps, buffer, wrongs = draw_state(seed), [], [], [], []
    counts = np.zeros(2)

    def shares(labels):
        return np.bincount(labels, minlength=2) / len(labels)

    def purity(labels):
        return np.sum(np.bincount(labels, minlength=2) ** 2) / len(labels)

    def fit():
        pool = np.array(order)
        count = max(1, int(delta * len(order) + 1e-9))
        draw_to_front(draws, pool, count, len(pool))
        order[:] = pool.tolist()
        best = (np.inf, None)
        for f in order[:count]:
            have = [(r[f], label) for r, label in buffer if f in r]
            if not have:
                continue
            x, labels = np.array([h[0] for h in have]), np.array([h[1] for h in have])
            cuts = np.unique(x)
            most, found = purity(labels), (f, x.max(), shares(labels), shares(labels))
            for low, high in itertools.pairwise(cuts):
                left, right = labels[x <= low], labels[x > low]
                if purity(left) + purity(right) > most:
                    most = purity(left) + purity(right)
                    found = (f, low + 0.5 * (high - low), shares(left), shares(right))
            if 1 - most / len(x) < best[0]:
                best = (1 - most / len(x), found)
        return best[1]

    def vote(row):
        total, votes = 0.0, np.zeros(2)
        for (f, threshold, left, right), w in stumps:
            if f in row:
                votes += w * (left if row[f] <= threshold else right)
                total += w
        if total:
            return votes / total
        return counts / counts.sum() if counts.sum() else votes

    scores = []
    for t in range(len(X)):
        row = {f: X[t, f] for f in range(X.shape[1]) if not np.isnan(X[t, f])}
        votes = vote(row)
        scores.append(votes[1] - votes[0])
        wrongs = [*wrongs, np.argmax(votes) != y[t]][-N:]
        buffer = [*buffer, (row, y[t])][-N:]
        order.extend(f for f in row if f not in order)
        counts[y[t]] += 1
        if not stumps:
            stumps = [(fit(), 1.0) for _ in range(M)]
        elif sum(wrongs) > gamma * len(wrongs) and len(stumps) < 2 * M:
            stumps.append((fit(), 1.0))
        for j, (stump, w) in enumerate(stumps):
            f, threshold, left, right = stump
            if f in row:
                correct = np.argmax(left if row[f] <= threshold else right) == y[t]
                stumps[j] = (stump, (2 * alpha * correct + w) / (1 + alpha))
            else:
                stumps[j] = (stump, w - epsilon)
        weights = np.array([w for _, w in stumps])
        weak = np.flatnonzero((weights >= theta1) & (weights < np.quantile(weights, theta2)))
        if not len(weak):
            weak = np.flatnonzero((weights >= theta1) & (weights <= np.quantile(weights, theta2)))
        count = int((1 - beta) * len(weak) + 1e-9)
        draw_to_front(draws, weak, count, len(weak))
        for j in weak[:count]:
            stumps[j] = (fit(), 1.0)
        stumps = [(s, w) for s, w in stumps if w >= theta1] or [(fit(), 1.0) for _ in range(M)]
    return np.array(scores)


@pytest.mark.parametrize(
    "params", [{"M": 8, "N": 30, "delta": 0.4}, {"M": 3, "N": 10, "delta": 1.0, "gamma": 0.2, "alpha": 2.0}]
)
def test_equals_a_plain_version(params):
    rng = np.random.default_rng(5)
    X = np.round(rng.standard_normal((150, 4)), 1)
    y = ((X[:, 0] + 0.5 * rng.standard_normal(150)) > 0).astype(np.int64)
    X[rng.random(X.shape) < 0.5] = np.nan
    np.testing.assert_allclose(
        DynFo(seed=3, **params).run_arrays(X, y), plain_dynfo(X, y, seed=3, **params), atol=1e-12
    )


@pytest.mark.parametrize("params", [SMALL, {"M": 6, "N": 12, "delta": 0.7, "gamma": 0.1, "beta": 0.0, "theta1": 0.5}])
def test_holds_the_contract(params):
    check_model(lambda: DynFo(**params), auroc=0.95, rows=120)


def test_check_9_auroc_on_wdbc():
    for seed in range(5):
        result = run(DynFo(**SMALL), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] >= 0.90


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_best_split_is_that_of_a_scikit_learn_stump(task):
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal(300), 1)
    y = (x + rng.standard_normal(300) > 0.5).astype(np.int64) if task == "classification" else x**2 + 1000
    model = DynFo(M=1, N=120, delta=1.0, task=task)
    model.run_arrays(x[:, None], y)
    find_split(0, 299, model._forest(), model._settings())
    kind = DecisionTreeClassifier if task == "classification" else DecisionTreeRegressor
    stump = kind(max_depth=1).fit(x[-120:, None], y[-120:])
    impurity = stump.tree_.impurity[1:] @ stump.tree_.weighted_n_node_samples[1:] / 120
    assert model._split[0, 0] == pytest.approx(impurity, abs=1e-9)
    assert model._split[0, 1] == pytest.approx(stump.tree_.threshold[0], abs=1e-6)
    np.testing.assert_allclose(model._split_left[0], stump.tree_.value[1].ravel(), atol=1e-9)
    np.testing.assert_allclose(model._split_right[0], stump.tree_.value[2].ravel(), atol=1e-9)


def test_weights_follow_the_formula():
    model = DynFo(M=1, N=50, delta=1.0, alpha=0.5, epsilon=0.01)
    rows = np.array([[-1.0], [1.0], [-1.0]])
    model.run_arrays(rows, [0, 0, 0])  # one class: always right; w = (1 + w) / 1.5 from 1
    w = 1.0
    for _ in range(3):
        w = (2 * 0.5 + w) / 1.5
    assert model._weight[0] == pytest.approx(w, abs=1e-15)
    model.learn_one(Row.from_dict({0: 1.0}), 1)
    assert model._weight[0] == pytest.approx(w / 1.5, abs=1e-15)
    model.learn_one(Row.from_dict({"other": 1.0}), 1)
    assert model._weight[0] == pytest.approx(w / 1.5 - 0.01, abs=1e-15)


def test_score_is_a_difference_of_shares():
    """haphazard 1.0.4 returned the larger vote, so that the score did not say which class it was for."""
    X, y = easy_stream(600)
    scores = DynFo(**SMALL).run_arrays(X, y)
    assert np.abs(scores).max() <= 1.0
    assert np.mean(scores[300:][y[300:] == 0] < 0) > 0.65
    assert np.mean(scores[300:][y[300:] == 1] > 0) > 0.65


@pytest.mark.parametrize("M", [1, 4])
def test_a_forest_that_would_be_dropped_starts_anew(M):
    """haphazard 1.0.5 crashed when the last learner was to be dropped."""
    model = DynFo(M=M, N=20, delta=1.0, epsilon=0.7, theta1=0.4, gamma=1.0)
    model.learn_one(Row.from_dict({"a": 1.0}), 1)
    for t in range(50):
        model.learn_one(Row.from_dict({"b": float(t)}), t % 2)
        n = model._clock[2]
        assert 1 <= n <= M
        assert model._weight[:n].min() >= 0.4
        assert np.isfinite(model.score_one(Row.from_dict({"b": 1.0})))


def test_equal_weights_do_not_freeze_the_forest():
    """All stumps are the same after the first row; with "weight < quantile" alone none would ever be relearned."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    y = (X[:, 4] > 0).astype(np.int64)
    model = DynFo(M=30, N=100, delta=0.2)
    scores = model.run_arrays(X, y)
    assert model._clock[2] >= 20
    assert np.mean(model._feature[: model._clock[2]] == 4) > 0.35
    assert np.mean((scores > 0)[100:] == y[100:]) > 0.9


def test_number_of_stumps_stays_within_twice_m():
    rng = np.random.default_rng(0)
    model = DynFo(M=10, N=50, delta=1.0, gamma=0.2)
    model.run_arrays(rng.standard_normal((400, 3)), rng.integers(0, 2, 400))
    assert 10 < model._clock[2] <= 20


def test_a_feature_that_left_the_buffer_is_not_split_on():
    model = DynFo(M=10, N=20, delta=1.0, epsilon=0.0)
    rng = np.random.default_rng(0)
    for t in range(30):
        model.learn_one(Row.from_dict({"gone": rng.standard_normal(), "stays": rng.standard_normal()}), t % 2)
    for t in range(60):
        model.learn_one(Row.from_dict({"stays": rng.standard_normal()}), t % 2)
    assert model._length[0] == 0 or model._rows[0, : model._length[0]].max() <= 30
    find_split(0, 89, model._forest(), model._settings())
    assert model._split[0, 0] == np.inf


def test_three_classes_and_one_that_is_never_met():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 1500)
    X = rng.standard_normal((1500, 4)) + 2.0 * codes[:, None]
    X[rng.random(X.shape) < 0.4] = np.nan
    labels = np.array(["a", "b", "c"])[codes]
    model = DynFo(M=60, N=200, delta=0.5, classes=["a", "b", "c", "never"])
    scores = model.run_arrays(X, labels)
    assert scores.shape == (1500, 4)
    assert np.all(scores[0] == 0)
    assert np.all(scores[:, 3] == 0)
    np.testing.assert_allclose(scores[1:].sum(axis=1), 1.0)
    assert np.mean(scores[700:].argmax(axis=1) == codes[700:]) > 0.6
    in_order = list(dict.fromkeys(labels.tolist()))
    grown = DynFo(M=60, N=200, delta=0.5).run_arrays(X[:60], labels[:60])
    declared = DynFo(M=60, N=200, delta=0.5, classes=in_order).run_arrays(X[:60], labels[:60])
    np.testing.assert_array_equal(grown, declared)


def test_regression():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3))
    y = 1000 + 3 * np.sign(X[:, 0]) + 0.1 * rng.standard_normal(3000)
    X[rng.random(X.shape) < 0.3] = np.nan
    make = lambda: DynFo(M=30, N=200, delta=0.5, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    assert scores[0] == 0
    here = ~np.isnan(X[:, 0]) & (np.arange(3000) > 500)
    assert 1 - np.mean((scores - y)[here] ** 2) / np.var(y[here]) > 0.6
    np.testing.assert_array_equal(scores_by_row(make(), X[:150], y[:150]), scores[:150])


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(400)
    for task in ("classification", "regression"):
        model = DynFo(**SMALL, task=task)
        model.run_arrays(X, y)
        row = Row.from_dict({0: -1.2, 2: 0.3, 3: 1.0, "new": 1.0})
        parts = model.explain_one(row)
        assert set(parts) == {0, 2, 3}
        assert sum(parts.values()) == pytest.approx(model.score_one(row), abs=1e-12)
        assert min(parts, key=parts.get) == 0


def test_seed_decides():
    X, y = easy_stream(300)
    a, b, c = (DynFo(**SMALL, seed=s).run_arrays(X, y) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"M": 0}, "M is a whole number of at least 1"),
        ({"N": 2.5}, "N is a whole number of at least 1"),
        ({"alpha": 0}, "alpha is a number above 0"),
        ({"beta": 1.1}, "beta is a number"),
        ({"delta": 0.0}, "delta is a number above 0"),
        ({"epsilon": -1}, "epsilon is a number"),
        ({"gamma": 2}, "gamma is a number"),
        ({"theta1": -0.1}, "theta1 is a number"),
        ({"theta2": 1.5}, "theta2 is a number"),
        ({"task": "ranking"}, "does not do task='ranking'"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        DynFo(**params)


def test_quantile_is_that_of_numpy():
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 57):
        values = np.round(rng.standard_normal(n), 1)
        for q in (0.0, 0.31, 0.6, 1.0):
            assert quantile(values, n, q, np.empty(n)) == pytest.approx(np.quantile(values, q), abs=1e-12)


def test_draws_are_uniform_and_without_replacement():
    state = draw_state(7)
    u = np.array([uniform(state) for _ in range(20_000)])
    assert 0 < u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / 20_000)
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(20_000)
    counts = np.bincount([below(state, 10) for _ in range(20_000)], minlength=10)
    assert np.sum((counts - 2000) ** 2 / 2000) < 27.9  # chi-square, 9 degrees of freedom, p = .001
    items = np.arange(12)
    draw_to_front(state, items, 5, 12)
    assert sorted(items.tolist()) == list(range(12))


def test_same_without_compilation():
    code = (
        "from assay.streams.contract import easy_stream; from assay.streams.models.dynfo import DynFo;"
        "X, y = easy_stream(50); print(DynFo(M=6, N=20, delta=.4).run_arrays(X, y).tolist())"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ASSAY_STREAMS_JIT": "0"}, capture_output=True, check=True
    )
    X, y = easy_stream(50)
    compiled = DynFo(M=6, N=20, delta=0.4).run_arrays(X, y).tolist()
    np.testing.assert_allclose(compiled, eval(plain.stdout), atol=1e-12)
