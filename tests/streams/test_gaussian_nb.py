import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.gaussian_nb import MaskedGaussianNB
from assay.streams.rows import Row


def clouds(n=300, d=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    return rng.normal(0, 2, (k, d))[y] + rng.standard_normal((n, d)) * rng.uniform(0.5, 2, (k, d))[y], y


@pytest.mark.parametrize("params", [{}, {"prior_count": 0.0}, {"prior_count": 10, "classes": [0, 1]}])
def test_holds_the_contract(params):
    check_model(lambda: MaskedGaussianNB(**params))


def test_without_a_prior_it_equals_scikit_learn():
    X, y = clouds()
    scores = MaskedGaussianNB(prior_count=0.0, classes=[0, 1, 2]).run_arrays(X, y)
    for t in (30, 100, 299):
        peer = GaussianNB(var_smoothing=0.0).fit(X[:t], y[:t])
        np.testing.assert_allclose(-np.expm1(-scores[t]), peer.predict_proba(X[t : t + 1])[0], rtol=0, atol=1e-10)


def test_a_missing_feature_is_left_out():
    """On rows that lack column 1, the score is that of a model that never had it."""
    X, y = clouds(k=2)
    model, without = MaskedGaussianNB(), MaskedGaussianNB()
    model.run_arrays(X, y)
    without.run_arrays(X[:, [0, 2, 3]], y, columns=[0, 2, 3])
    row = Row.from_dict({0: 0.3, 2: -1.0, 3: 2.0})
    assert model.score_one(row) == pytest.approx(without.score_one(row), abs=1e-12)


def test_statistics_shrink_to_those_of_all_classes():
    """Class 0 had 1 and 3, class 1 had 5 only: overall mean 3, variance 8/3. With prior_count 1 class 1 has mean
    (5 + 3) / 2 = 4 and variance (0 + 8/3) / 2; class 0 mean (1 + 3 + 3) / 3 and variance (2 + 8/3) / 3."""
    model = MaskedGaussianNB(prior_count=1.0)
    for value, label in [(1.0, 0), (3.0, 0), (5.0, 1)]:
        model.learn_one(Row.from_dict({"a": value}), label)

    def log_density(x, mean, variance):
        return -0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance)

    expected = log_density(2.0, 4.0, 4 / 3) - log_density(2.0, 7 / 3, 14 / 9) + np.log(1 / 2)
    assert model.score_one(Row.from_dict({"a": 2.0})) == pytest.approx(expected, abs=1e-12)


def test_a_feature_one_class_never_had_is_judged_by_its_overall_density():
    model = MaskedGaussianNB()
    for value in (0.0, 1.0, 2.0):
        model.learn_one(Row.from_dict({"a": value}), 0)
        model.learn_one(Row.from_dict({"b": value}), 1)
    score = model.score_one(Row.from_dict({"a": 1.0}))
    assert abs(score) < 0.3  # class 0's density of a is nearly the overall one
    strict = MaskedGaussianNB(prior_count=0.0).load_state_dict(model.state_dict())
    assert strict.score_one(Row.from_dict({"a": 1.0})) == 0.0


def test_constant_features_say_nothing():
    model = MaskedGaussianNB()
    for t in range(10):
        model.learn_one(Row.from_dict({"a": 7.0}), t % 2)
    assert model.score_one(Row.from_dict({"a": 7.0})) == 0.0


def test_contributions_add_up_to_the_score():
    X, y = clouds(k=2)
    model = MaskedGaussianNB()
    model.run_arrays(X, y)
    row = Row.from_dict(dict(enumerate(X[7].tolist())))
    prior = np.log(np.mean(y == 1) / np.mean(y == 0))
    assert sum(model.explain_one(row).values()) + prior == pytest.approx(model.score_one(row), abs=1e-10)


def test_multiclass_paths_agree_and_a_class_never_learned_never_wins():
    X, y = clouds()
    X[np.random.default_rng(1).random(X.shape) < 0.3] = np.nan
    make = lambda: MaskedGaussianNB(classes=["z", *range(3)])  # noqa: E731
    labels = y.tolist()
    scores = make().run_arrays(X, labels)
    np.testing.assert_array_equal(scores_by_row(make(), X, labels), scores)
    assert (scores[:, 0] == 0).all()
    assert np.mean(scores[100:].argmax(axis=1) - 1 == y[100:]) > 0.7


def test_scores_do_not_saturate():
    X, y = easy_stream(1000)
    scores = MaskedGaussianNB().run_arrays(40.0 * X, y)
    assert len(np.unique(scores[10:])) == len(scores) - 10


def test_bad_arguments_are_named():
    with pytest.raises(StreamError, match="prior_count is a number at least 0, not -1"):
        MaskedGaussianNB(prior_count=-1)
