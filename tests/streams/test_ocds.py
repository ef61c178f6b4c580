import math

import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StateLimitExceeded, StreamError
from assay.streams.models.ocds import BEST_SETTINGS, OCDS
from assay.streams.rows import Row


def plain(X, y, lam=0.01, beta1=1e-4, alpha=0.01, gamma=1.0, tau_g=0.1):
    """The updates over whole matrices, for data whose first row has all columns. Returns scores, w, G and p."""
    d = X.shape[1]
    w, G, p = np.zeros(d), np.eye(d) + 1e-3, 0.5
    L_o = L_r = 0.0
    scores = []
    for t, (row, label) in enumerate(zip(X, y), start=1):
        o = ~np.isnan(row)
        x, sign = row[o], 2.0 * label - 1.0
        psi = G[o].T @ x / o.sum()
        own, graph = w[o] @ x, w[~o] @ psi[~o]
        scores.append(p * own + (1 - p) * graph)
        L_o += math.log2(1 + math.exp(-sign * own))
        L_r += math.log2(1 + math.exp(-sign * graph))
        if t > 1:
            p = 1 / (1 + math.exp(-8 * math.sqrt(1 / math.log(t)) * (L_r - L_o)))
        r = sign - w @ psi
        A = (G + G.T) / 2
        L = np.diag(A.sum(axis=1)) - A
        beta2 = 2 * lam - 2 * beta1
        tau = math.sqrt(1 / t)
        tau_w = min(tau, 0.5 / (psi @ psi))
        reach = (w @ w) * (x @ x) / o.sum() ** 2
        step_g = min(tau_g * tau, 0.5 / reach) if reach else tau_g * tau
        grad = -2 / o.sum() * r * np.outer(x, w)
        grad[:, o] -= 2 * alpha / o.sum() * np.outer(x, x - psi[o])
        G[o] = np.clip(G[o] - step_g * grad, 0, 10)
        w = w + tau_w * 2 * r * psi - tau * (lam * np.sign(w) + beta2 * (L + L.T) @ w)
        w[np.abs(w) < np.sort(np.abs(w))[::-1][math.ceil(gamma * d) - 1]] = 0.0
    return scores, w, G, p


def stream(n=300, d=9, seed=0):
    X, y = easy_stream(n, d=d, seed=seed)
    X[0] = np.arange(d) - d / 2
    return X, y


@pytest.mark.parametrize(
    "params", [{}, {"gamma": 0.5}, {"lam": 1e-4}, {"class_weight": "balanced"}, {"max_features": 40}]
)
def test_holds_the_contract(params):
    check_model(lambda: OCDS(**params), rows=120)


@pytest.mark.parametrize(
    "params", [{}, {"gamma": 0.5}, {"lam": 0.1, "beta1": 0.05, "alpha": 1.0, "tau_g": 1.0}, {"lam": 0.0, "beta1": 0.0}]
)
def test_equals_the_formulas_on_whole_matrices(params):
    X, y = stream()
    scores, w, G, p = plain(X, y, **params)
    model = OCDS(**params)
    np.testing.assert_allclose(model.run_arrays(X, y), scores, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model._w[:9], w, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model._G[:9, :9], G, rtol=0, atol=1e-9)
    assert model._head[1] == pytest.approx(p, abs=1e-9)


def test_two_runs_agree_whatever_the_global_random_state():
    """haphazard 1.0.7: the model was marked deterministic, but its graph started at random."""
    X, y = stream()
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        runs.append(OCDS().run_arrays(X, y))
    np.testing.assert_array_equal(*runs)


def test_contributions_add_up_to_the_score():
    X, y = stream()
    model = OCDS(tau_g=1.0)
    model.run_arrays(X[:8], y[:8])
    assert 0.01 < model._head[1] < 0.99  # both parts of the score count
    row = Row.from_dict({j: 0.5 + j for j in range(5)} | {"never seen": 1.0})
    assert sum(model.explain_one(row).values()) == pytest.approx(model.score_one(row), abs=1e-13)


def test_an_absent_feature_is_made_up_for_by_the_graph():
    """Column 0 decides and column 1 is its copy; where only the copy is there, the graph must carry the decision."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(2000)
    X = np.column_stack([a, a, rng.standard_normal(2000)])
    y = (a > 0).astype(np.int64)
    model = OCDS(alpha=0.5)
    model.run_arrays(X, y)
    assert model._G[1, 0] > 0.05
    X[:, 0] = np.nan
    correct = [
        model.predict_one(Row.from_dict(dict(enumerate(row)))) == label for row, label in zip(X[:200].tolist(), y)
    ]
    assert np.mean(correct) > 0.9


def test_growth_keeps_what_was_learned():
    X, y = stream(60, d=6)
    wide = np.full((1, 40), 0.1)
    model = OCDS()
    model.run_arrays(X, y)
    before = model._G[:6, :6].copy()
    model._reserve(40)
    np.testing.assert_array_equal(model._G[:6, :6], before)
    model.run_arrays(wide, [1], columns=[f"new{j}" for j in range(40)])
    assert model._head[4] == 46
    np.testing.assert_array_equal(model._G[:6, :6], before)  # none of them was in the row
    assert model._G[6, 0] == pytest.approx(1e-3, abs=1e-3)


def test_the_cap_forgets_the_least_seen_and_keeps_the_rest():
    model = OCDS(max_features=3)
    free = OCDS()
    for t in range(8):
        row = Row.from_dict({"a": 1.0 + t, "b": -1.0})
        model.learn_one(row, t % 2)
        free.learn_one(row, t % 2)
    model.learn_one(Row.from_dict({"c": 1.0}), 1)
    row = Row.from_dict({"a": 2.0, "d": 1.0})
    model.learn_one(row, 1)
    assert sorted(map(str, model.features_)) == ["a", "b", "d"]
    slot = model._index.slot_of
    places = [int(model._place[slot[name]]) for name in ("a", "b", "d")]
    assert sorted(places) == [0, 1, 2]
    a, b, d = places
    other = [int(free._place[free._index.slot_of[name]]) for name in ("a", "b")]
    assert model._G[b, a] == free._G[other[1], other[0]]  # b was in no later row
    assert model._G[d, d] > 0.9
    assert np.isfinite(model.score_one(row))


def test_a_capped_model_stays_small_on_a_growing_vocabulary():
    model = OCDS(max_features=10)
    for t in range(200):
        model.learn_one(Row.from_dict({f"w{t}": 1.0, f"w{t + 1}": -1.0, "bias": 1.0}), t % 2)
    assert len(model.features_) == 10
    assert "bias" in model.features_
    assert model._G.shape[0] <= 20


def test_the_cap_can_raise():
    model = OCDS(max_features=2, on_limit="raise")
    model.learn_one(Row.from_dict({"a": 1.0, "b": 1.0}), 1)
    with pytest.raises(StateLimitExceeded, match="3 features, max_features is 2"):
        model.learn_one(Row.from_dict({"c": 1.0}), 0)


def test_values_in_the_thousands_stay_finite():
    """With sqrt(1/t) alone the first steps overshoot by a factor of |psi|^2 and overflow within a few rows."""
    X, y = easy_stream(300)
    assert np.isfinite(OCDS().run_arrays(1e3 * X, y)).all()


def test_regression_paths_agree_and_learn():
    X, _ = easy_stream(1000)
    y = 2.0 * X[:, 0]
    make = lambda: OCDS(lam=1e-3, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.mean((scores - y)[500:] ** 2) < 0.25 * np.var(y)


def test_best_settings_keep_at_most_150_weights():
    assert len(BEST_SETTINGS) == 14
    assert BEST_SETTINGS["spambase"] == {"gamma": 1.0}
    assert BEST_SETTINGS["imdb"] == {"gamma": 0.02}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"lam": -1}, "lam is a number at least 0, not -1"),
        ({"beta1": 0.02}, "beta1 is a number at least 0 and at most 0.01, not 0.02"),
        ({"alpha": -0.1}, "alpha is a number at least 0"),
        ({"gamma": 0}, "gamma is a number above 0 and at most 1"),
        ({"tau_g": -1}, "tau_g is a number at least 0"),
        ({"max_features": 0}, "max_features is a whole number of at least 1, not 0"),
        ({"on_limit": "stop"}, "on_limit is 'evict' or 'raise', not 'stop'"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        OCDS(**params)
