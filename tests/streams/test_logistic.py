import math

import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.logistic import MaskedLogistic
from assay.streams.rows import Row


@pytest.mark.parametrize(
    "params",
    [{}, {"optimizer": "ftrl", "rate": 0.1, "l1": 0.01}, {"l2": 1e-3, "class_weight": "balanced"}],
)
def test_holds_the_contract(params):
    check_model(lambda: MaskedLogistic(**params))


@pytest.mark.parametrize("masked", [False, True])
def test_equals_river(masked):
    linear_model = pytest.importorskip("river.linear_model", reason="river is not installed")
    optim = pytest.importorskip("river.optim", reason="river is not installed")
    X, y = easy_stream(400)
    if not masked:
        X = np.where(np.isnan(X), 0.5, X)
    peer = linear_model.LogisticRegression(optim.SGD(0.05), intercept_lr=0.05)
    model = MaskedLogistic(rate=0.05, intercept_rate=0.05)
    for t in range(len(X)):
        row = Row.from_dict(dict(enumerate(X[t].tolist())))
        p = peer.predict_proba_one(row.to_dict())[True]
        assert 1 / (1 + math.exp(-model.score_one(row))) == pytest.approx(p, abs=1e-9)
        peer.learn_one(row.to_dict(), bool(y[t]))
        model.learn_one(row, y[t])
    for j in range(5):
        assert model._w[model._index.slot_of[j]] == pytest.approx(peer.weights[j], abs=1e-9)
    assert model.intercept_ == pytest.approx(peer.intercept, abs=1e-9)


def test_ftrl_equals_algorithm_1():
    """McMahan et al. (2013), algorithm 1, written out with dictionaries."""
    alpha, beta, l1, l2 = 0.2, 0.7, 0.05, 0.3
    X, y = easy_stream(300)
    z, n, intercept, expected = {}, {}, 0.0, []

    def weight(i):
        if abs(z.get(i, 0.0)) <= l1:
            return 0.0
        return -(z[i] - math.copysign(l1, z[i])) / ((beta + math.sqrt(n[i])) / alpha + l2)

    for row, label in zip(X, y):
        x = {i: v for i, v in enumerate(row.tolist()) if v == v}
        score = intercept + sum(weight(i) * v for i, v in x.items())
        expected.append(score)
        p = 1 / (1 + math.exp(-score))
        for i, v in x.items():
            w, g = weight(i), (p - label) * v
            old = n.get(i, 0.0)
            z[i] = z.get(i, 0.0) + g - (math.sqrt(old + g * g) - math.sqrt(old)) / alpha * w
            n[i] = old + g * g
        intercept -= 0.01 * (p - label)
    model = MaskedLogistic("ftrl", rate=alpha, beta=beta, l1=l1, l2=l2)
    np.testing.assert_allclose(model.run_arrays(X, y), expected, rtol=0, atol=1e-12)


def test_l1_keeps_weights_at_zero():
    X, y = easy_stream(500)
    model = MaskedLogistic("ftrl", rate=0.1, l1=20.0)
    model.run_arrays(X, y)
    row = Row.from_dict(dict.fromkeys(range(5), 1.0))
    parts = model.explain_one(row)
    assert parts[0] > 0.5
    assert [parts[j] for j in range(1, 5)] == [0.0] * 4
    assert sum(parts.values()) + model.intercept_ == pytest.approx(model.score_one(row), abs=1e-14)


def test_balanced_weights_are_n_over_2_n_c():
    """Row 1 (class 1) has weight 1/2, row 2 (class 1) 2/4, row 3 (class 0) 3/2, each from the rows counted so far."""
    model = MaskedLogistic(rate=1.0, intercept_rate=0.0, class_weight="balanced")
    w = 0.0
    for y, weight in [(1, 0.5), (1, 0.5), (0, 1.5)]:
        model.learn_one(Row.from_dict({"a": 1.0}), y)
        w -= weight * (1 / (1 + math.exp(-w)) - y)
        assert model._w[0] == pytest.approx(w, abs=1e-15)


@pytest.mark.parametrize("optimizer", ["sgd", "ftrl"])
def test_regression_paths_agree_and_learn(optimizer):
    X, _ = easy_stream(1000)
    y = 3.0 * X[:, 0] + 1.0
    make = lambda: MaskedLogistic(optimizer, rate=0.3, intercept_rate=0.05, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.mean((scores - y)[500:] ** 2) < 0.1 * np.var(y)


def test_a_regression_step_never_overshoots():
    """rate * |x|^2 is 450 here; the explicit step would multiply the residual by -449 on every row."""
    model = MaskedLogistic(rate=0.5, intercept_rate=0.0, task="regression")
    row = Row.from_dict({"a": 30.0})
    model.learn_one(row, 7.0)
    assert model.score_one(row) == pytest.approx(7.0 * 450 / 451)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"optimizer": "adam"}, "optimizer is 'sgd' or 'ftrl', not 'adam'"),
        ({"rate": 0}, "rate is a number above 0, not 0"),
        ({"l1": -1.0}, "l1 is a number at least 0, not -1.0"),
        ({"class_weight": "auto"}, "class_weight is a dictionary, 'balanced' or None"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        MaskedLogistic(**params).learn_one(Row.from_dict({"a": 1.0}), 1)
