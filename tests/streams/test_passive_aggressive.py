import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier, SGDRegressor

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import LabelOutOfRange, StreamError
from assay.streams.models.passive_aggressive import MaskedPA
from assay.streams.rows import Row


def dense(n=300, d=6, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = (X @ rng.standard_normal(d) + rng.standard_normal(n) > 0).astype(np.int64)
    return X, y


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"variant": "PA"},
        {"variant": "PA-II", "C": 1.0},
        {"class_weight": "balanced"},
        {"class_weight": {0: 1.0, 1: 2.0}},
    ],
)
def test_holds_the_contract(params):
    check_model(lambda: MaskedPA(**params))


@pytest.mark.parametrize(("variant", "rate"), [("PA-I", "pa1"), ("PA-II", "pa2")])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_equals_scikit_learn_update_by_update(variant, rate, C):
    X, y = dense()
    peer = SGDClassifier(loss="hinge", penalty=None, learning_rate=rate, eta0=C, fit_intercept=False)
    model = MaskedPA(C=C, variant=variant)
    for t in range(len(X)):
        peer.partial_fit(X[t : t + 1], y[t : t + 1], classes=[0, 1])
        model.learn_one(Row(tuple(range(6)), X[t]), y[t])
        np.testing.assert_allclose(model._w[:6], peer.coef_[0], rtol=0, atol=1e-12)


def test_class_weights_equal_those_of_scikit_learn():
    X, y = dense()
    peer = SGDClassifier(
        loss="hinge", penalty=None, learning_rate="pa1", eta0=0.1, fit_intercept=False, class_weight={0: 1.0, 1: 3.0}
    )
    for t in range(len(X)):
        peer.partial_fit(X[t : t + 1], y[t : t + 1], classes=[0, 1])
    model = MaskedPA(C=0.1, class_weight={0: 1.0, 1: 3.0})
    model.run_arrays(X, y)
    np.testing.assert_allclose(model._w[:6], peer.coef_[0], rtol=0, atol=1e-12)


def test_regression_equals_scikit_learn():
    X, _ = dense()
    y = X @ np.arange(1.0, 7.0)
    peer = SGDRegressor(
        loss="epsilon_insensitive", penalty=None, learning_rate="pa1", eta0=0.3, epsilon=0.05, fit_intercept=False
    )
    model = MaskedPA(C=0.3, epsilon=0.05, task="regression")
    scores = model.run_arrays(X[:-1], y[:-1])
    for t in range(len(X) - 1):
        if t:
            assert scores[t] == pytest.approx(peer.predict(X[t : t + 1])[0], abs=1e-12)
        peer.partial_fit(X[t : t + 1], y[t : t + 1])
    np.testing.assert_allclose(model._w[:6], peer.coef_, rtol=0, atol=1e-12)


def test_plain_pa_reaches_the_margin_in_one_step():
    model = MaskedPA(variant="PA")
    row = Row.from_dict({"a": 2.0, "b": -1.0})
    model.learn_one(row, 1)
    assert model.score_one(row) == pytest.approx(1.0, abs=1e-15)
    assert model.explain_one(row) == {"a": pytest.approx(0.8), "b": pytest.approx(0.2)}


def test_flipped_labels_flip_the_scores_exactly():
    X, y = easy_stream(500)
    np.testing.assert_array_equal(MaskedPA().run_arrays(X, 1 - y), -MaskedPA().run_arrays(X, y))


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(300)
    model = MaskedPA()
    model.run_arrays(X, y)
    row = Row.from_dict({j: 0.5 + j for j in range(5)} | {"never seen": 3.0})
    parts = model.explain_one(row)
    assert sum(parts.values()) == pytest.approx(model.score_one(row), abs=1e-14)
    assert list(map(abs, parts.values())) == sorted(map(abs, parts.values()), reverse=True)


def test_regression_paths_agree_with_missing_targets():
    X, _ = easy_stream(200)
    y = np.where(np.isnan(X[:, 0]), 0.0, X[:, 0]) * 2.0
    y[50:70] = np.nan
    make = lambda: MaskedPA(C=1.0, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.nanmean((scores - y)[100:] ** 2) < 0.02 * np.nanvar(y)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"C": 0.0}, "C is a number above 0, not 0.0"),
        ({"C": "x"}, "C is a number above 0"),
        ({"epsilon": -1}, "epsilon is a number at least 0, not -1"),
        ({"variant": "PA-III"}, "variant is one of PA, PA-I, PA-II"),
        ({"task": "ranking"}, "task='ranking'"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        MaskedPA(**params)


def test_a_class_weight_for_no_class_is_an_error():
    model = MaskedPA(class_weight={"yes": 2.0}, classes=["no", "oui"])
    with pytest.raises(LabelOutOfRange, match="'yes'"):
        model.learn_one(Row.from_dict({"a": 1.0}), "no")
