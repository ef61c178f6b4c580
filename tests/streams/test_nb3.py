import numpy as np
import pytest
from scipy.stats import chi2_contingency
from sklearn.naive_bayes import BernoulliNB

from assay.streams.contract import check_model, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.nb3 import BEST_SETTINGS, NB3, chi2
from assay.streams.models.odds import class_scores
from assay.streams.rows import Row


def words(n=400, d=12, k=3, seed=0):
    """Presence that depends on the class; values are never 0."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    p = rng.uniform(0.1, 0.9, (k, d))
    X = np.where(rng.random((n, d)) < p[y], rng.uniform(0.5, 2.0, (n, d)), np.nan)
    return X, y


def log_joint(X, y, row, classes):
    """class_log_prior_ + the feature_log_prob_ of what is present, of a BernoulliNB on all rows so far."""
    peer = BernoulliNB(alpha=1.0).fit(~np.isnan(X), y)
    assert list(peer.classes_) == list(classes)
    return peer.class_log_prior_ + peer.feature_log_prob_[:, ~np.isnan(row)].sum(axis=1)


@pytest.mark.parametrize("params", [{}, {"fraction": 1.0}, {"fraction": 0.2}, {"classes": [0, 1]}])
def test_holds_the_contract(params):
    check_model(lambda: NB3(**params), presence=True)


def test_chi2_is_that_of_the_two_by_two_table():
    """haphazard 1.0.9 fixed this statistic. scikit-learn's `chi2` is another one (4.4444 here)."""
    assert chi2(10.0, 5.0, 2.0, 13.0) == pytest.approx(8.8889, abs=5e-5)
    rng = np.random.default_rng(0)
    for _ in range(20):
        table = rng.integers(1, 50, (2, 2)).astype(float)
        expected = chi2_contingency(table, correction=False).statistic
        assert chi2(table[0, 0], table[0, 1], table[1, 0], table[1, 1]) == pytest.approx(expected, rel=1e-10)
    assert chi2(0.0, 0.0, 3.0, 4.0) == 0.0


def test_two_classes_equal_bernoulli_naive_bayes():
    X, y = words(k=2)
    scores = NB3(fraction=1.0).run_arrays(X, y)
    for t in (10, 50, 200, 399):
        joint = log_joint(X[:t], y[:t], X[t], [0, 1])
        assert scores[t] == pytest.approx(joint[1] - joint[0], abs=1e-12)


def test_three_classes_give_the_posterior_of_bernoulli_naive_bayes():
    X, y = words()
    scores = NB3(fraction=1.0, classes=[0, 1, 2]).run_arrays(X, y)
    for t in (30, 200, 399):
        joint = log_joint(X[:t], y[:t], X[t], [0, 1, 2])
        posterior = np.exp(joint - joint.max()) / np.exp(joint - joint.max()).sum()
        np.testing.assert_allclose(-np.expm1(-scores[t]), posterior, rtol=0, atol=1e-12)


def test_only_the_best_features_count():
    """Of ten features with fraction .2 two are kept; a row with the other eight says no more than the prior."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 500)
    X = np.where(rng.random((500, 10)) < 0.5, 1.0, np.nan)
    X[:, 3] = np.where(rng.random(500) < np.where(y, 0.9, 0.2), 1.0, np.nan)
    X[:, 7] = np.where(rng.random(500) < np.where(y, 0.3, 0.8), 1.0, np.nan)
    model = NB3(fraction=0.2)
    model.run_arrays(X, y)
    prior = np.log(y.sum() / (500 - y.sum()))
    others = Row.from_dict({j: 1.0 for j in range(10) if j not in (3, 7)})
    assert model.score_one(others) == pytest.approx(prior, abs=1e-12)
    parts = model.explain_one(Row.from_dict(dict.fromkeys(range(10), 1.0)))
    assert {j for j, part in parts.items() if part != 0.0} == {3, 7}
    assert parts[3] > 0 > parts[7]
    n3 = np.array([np.sum(~np.isnan(X[y == c, 3])) for c in (0, 1)])
    p3 = (n3 + 1) / (np.bincount(y) + 2)
    assert parts[3] == pytest.approx(np.log(p3[1] / p3[0]), abs=1e-12)


def test_features_tied_at_the_cut_are_all_kept():
    """Three features are always there together: fraction .34 of them would be one, but they have the same rank."""
    model = NB3(fraction=0.34)
    for t in range(20):
        present = {"a": 1.0, "b": 1.0, "c": 1.0} if t % 2 else {"z": 1.0}
        model.learn_one(Row.from_dict(present), t % 2)
    parts = model.explain_one(Row.from_dict({"a": 1.0, "b": 1.0, "c": 1.0}))
    assert parts["a"] == parts["b"] == parts["c"] > 1.0


def test_a_value_of_zero_is_counted_but_does_not_vote():
    model = NB3(fraction=1.0)
    for t in range(10):
        model.learn_one(Row.from_dict({"a": 0.0, "b": 1.0} if t % 2 else {"b": 1.0}), t % 2)
    assert model.score_one(Row.from_dict({"a": 0.0})) == 0.0
    assert model.score_one(Row.from_dict({"a": -0.1})) == pytest.approx(np.log((6 / 7) / (1 / 7)), abs=1e-12)


def test_contributions_add_up_to_the_score():
    X, y = words(k=2)
    model = NB3(fraction=0.5)
    model.run_arrays(X, y)
    row = Row.from_dict(dict(enumerate(X[3].tolist())))
    prior = np.log(np.mean(y == 1) / np.mean(y == 0))
    assert sum(model.explain_one(row).values()) + prior == pytest.approx(model.score_one(row), abs=1e-12)


def test_among_three_classes_the_best_is_explained_against_the_runner_up():
    X, y = words()
    model = NB3(fraction=1.0, classes=[0, 1, 2])
    model.run_arrays(X, y)
    row = Row.from_dict(dict(enumerate(X[5].tolist())))
    order = np.argsort(-model.score_one(row))
    joint = log_joint(X, y, X[5], [0, 1, 2])
    prior = np.log(np.bincount(y))
    expected = (joint - prior)[order[0]] - (joint - prior)[order[1]]
    assert sum(model.explain_one(row).values()) == pytest.approx(expected, abs=1e-11)


def test_multiclass_paths_agree_and_a_class_never_learned_never_wins():
    X, y = words(200)
    make = lambda: NB3(classes=[0, 1, 2, "rare"])  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert (scores[0] == 0).all()
    assert (scores[1:, 3] == 0).all()
    assert (scores[1:].max(axis=1) > 0).all()
    assert np.mean(scores[100:].argmax(axis=1) == y[100:]) > 0.5


def test_with_one_class_learned_it_is_predicted():
    model = NB3(classes=["no", "yes"])
    row = Row.from_dict({"a": 1.0})
    model.learn_one(row, "no")
    model.learn_one(row, "no")
    assert model.score_one(row) == pytest.approx(-np.log(3.0))
    assert model.predict_one(row) == "no"
    assert model.explain_one(row) == {"a": 0.0}


def test_class_scores_are_log_one_plus_odds():
    rng = np.random.default_rng(0)
    joint = rng.normal(0, 3, 5)
    out = np.empty(5)
    class_scores(joint, np.ones(5), out)
    p = np.exp(joint) / np.exp(joint).sum()
    np.testing.assert_allclose(out, np.log1p(p / (1 - p)), rtol=1e-12)
    # far beyond where a probability is 1.0 in floating point
    class_scores(np.array([0.0, 900.0]), np.ones(2), out[:2])
    assert out[1] - out[0] == 900.0


def test_best_settings_are_arguments():
    assert len(BEST_SETTINGS) == 14
    assert NB3(**BEST_SETTINGS["a8a"]).fraction == 0.2


@pytest.mark.parametrize("fraction", [0.0, 1.1, "all"])
def test_bad_arguments_are_named(fraction):
    with pytest.raises(StreamError, match="fraction is a number above 0 and at most 1"):
        NB3(fraction=fraction)
