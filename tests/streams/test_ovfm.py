"""OVFM against a plain version of itself, scipy's distributions and a copula that is known."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit, ndtri
from scipy.stats import truncnorm

from assay.streams import OneVsRest, load, run
from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import LabelOutOfRange, StateLimitExceeded, StreamError
from assay.streams.models.ovfm import BEST_SETTINGS, OVFM
from assay.streams.models.ovfm.normal import cut_normal, normal_quantile
from assay.streams.rows import Row


def plain_ovfm(X, y, decay_choice, share, window, forgetting=None, step=5.0, eta=0.001):
    """Continuous columns, whole matrices, numpy's solver, every column known from the first row on."""
    d = X.shape[1]
    S, seen = np.eye(d), [[] for _ in range(d)]
    learners = [
        {
            "v": np.zeros(d + 1),
            "h": np.zeros(d + 1),
            "r": 1.0,
            "t": 0,
            "fails": 0,
            "wt": 0,
            "wf": 0,
            "p": 1.0,
            "s": 10.0,
        }
        for _ in range(2)
    ]
    losses, scores = [0.0, 0.0], []
    for t in range(len(X)):
        o = np.flatnonzero(~np.isnan(X[t]))
        m = np.setdiff1d(np.arange(d), o)
        deviation = np.sqrt(np.diag(S))
        sigma = S / np.outer(deviation, deviation)
        z = np.zeros(d)
        for j in o:
            last = np.array(seen[j][-window:])
            z[j] = ndtri((np.sum(last < X[t, j]) + np.sum(last == X[t, j]) / 2 + 1) / (len(last) + 2))
        J = np.linalg.solve(sigma[np.ix_(o, o)] + 1e-8 * np.eye(len(o)), sigma[np.ix_(o, m)])
        z[m] = J.T @ z[o]
        C = np.zeros((d, d)) if t else np.eye(d)  # a first value says nothing of its rank
        C[np.ix_(m, m)] = sigma[np.ix_(m, m)] - J.T @ sigma[np.ix_(o, m)]
        inputs = [np.r_[1.0, np.nan_to_num(X[t])], np.r_[1.0, z]]
        own = [(m_["h"] - m_["v"]) / m_["r"] @ x for m_, x in zip(learners, inputs)]
        mix = np.exp(-eta * losses[0]) / (np.exp(-eta * losses[0]) + np.exp(-eta * losses[1]))
        scores.append(mix * own[0] + (1 - mix) * own[1])
        for k, (m_, x, s) in enumerate(zip(learners, inputs, own)):
            p = expit(s)
            losses[k] += np.logaddexp(0, -s if y[t] else s)
            wrong = abs(p - y[t]) > 0.5
            m_["t"] += 1
            m_["fails"] += wrong
            n = m_["t"]
            decay = [1 - n ** (-1 / 3), 1 - n**-0.5, (n - 1) / n, n / (n + 1), 1 - math.log(n) / (2 * n)][decay_choice]
            if n > 30:
                error = m_["fails"] / n
                sd = math.sqrt(error * (1 - error) / n)
                decay = decay * (1 - share) + share * error
                if error + sd < m_["p"] + m_["s"]:
                    m_["p"], m_["s"] = error, sd
                if error + sd < m_["p"] + 2 * m_["s"]:
                    m_["wt"] = m_["wf"] = 0
                else:
                    m_["wt"] += 1
                    m_["wf"] += wrong
                    if error + sd > m_["p"] + 3 * m_["s"]:
                        m_.update(t=m_["wt"], fails=m_["wf"], p=1.0, s=10.0)
            w = (m_["h"] - m_["v"]) / m_["r"]
            m_["v"] = m_["v"] + (p - y[t]) * x
            m_["h"] = decay * m_["h"] + w
            m_["r"] = 1 + decay * m_["r"]
        g = forgetting or step / (t + 1 + step)
        S = (1 - g) * S + g * (np.outer(z, z) + C)
        for j in o:
            seen[j].append(X[t, j])
    return np.array(scores), S


@pytest.mark.parametrize("choice", range(5))
def test_equals_a_plain_version(choice):
    rng = np.random.default_rng(choice)
    X = rng.standard_normal((200, 5)) @ rng.standard_normal((5, 5))
    X[:, 2] = np.round(X[:, 2])  # ties
    y = (X[:, 0] > 0).astype(np.int64)
    y[120:] = 1 - y[120:]  # a drift that starts the decay over
    absent = rng.random(X.shape) < 0.5
    absent[0] = False
    X[absent] = np.nan
    model = OVFM(choice, 0.02, window=25, max_ordinal=0, forgetting=0.05 if choice == 2 else None)
    scores, S = plain_ovfm(X, y, choice, 0.02, 25, forgetting=0.05 if choice == 2 else None)
    np.testing.assert_allclose(model.run_arrays(X, y), scores, atol=1e-7)
    np.testing.assert_allclose(model._covariance[:5, :5], S, atol=1e-7)


@pytest.mark.parametrize("params", [{}, {"window": 9, "forgetting": 0.1, "decay_choice": 0}, {"max_features": 40}])
def test_holds_the_contract(params):
    check_model(lambda: OVFM(**params), auroc=0.95, rows=120)


def test_holds_the_contract_on_ordinal_columns():
    X, y = easy_stream(300)
    X[:, 1:] = np.round(X[:, 1:])
    labels = y.astype(float)
    labels[40:60] = np.nan
    scores = OVFM(window=30).run_arrays(X, labels)
    np.testing.assert_array_equal(scores_by_row(OVFM(window=30), X, labels), scores)
    half = OVFM(window=30)
    half.run_arrays(X[:150], labels[:150])
    resumed = OVFM(window=30).load_state_dict(half.state_dict()).run_arrays(X[150:], labels[150:])
    np.testing.assert_array_equal(resumed, scores[150:])


def test_auroc_on_wdbc():
    """haphazard 1.2.8 reaches .842."""
    for seed in range(5):
        result = run(OVFM(), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] >= 0.97
        assert result.metrics["balanced_accuracy"] >= 0.90


def test_check_7_sigma_is_a_correlation_matrix():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 12)) @ rng.standard_normal((12, 12))
    X[:, 3] = X[:, 2]  # equal columns
    X[:, 4:7] = np.round(X[:, 4:7])
    y = (X[:, 0] > 0).astype(np.int64)
    X[rng.random(X.shape) > 0.25] = np.nan
    model = OVFM()
    for part in range(10):
        rows = slice(500 * part, 500 * (part + 1))
        assert np.isfinite(model.run_arrays(X[rows], y[rows])).all()
        sigma = model.correlation_
        np.testing.assert_array_equal(sigma, sigma.T)
        np.testing.assert_array_equal(np.diag(sigma), 1.0)
        assert np.linalg.eigvalsh(sigma).min() > 0


@pytest.mark.parametrize("ordinal", [False, True])
def test_check_7_known_copula(ordinal):
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((20_000, 2)) @ np.linalg.cholesky([[1, 0.7], [0.7, 1]]).T
    X = np.c_[np.digitize(latent[:, 0], [-1, 0, 0.5]) if ordinal else np.exp(latent[:, 0]), latent[:, 1] ** 3]
    X[rng.random(X.shape) > 0.5] = np.nan
    model = OVFM()
    model.run_arrays(X, rng.integers(0, 2, 20_000))
    assert model.correlation_[0, 1] == pytest.approx(0.7, abs=0.05)


def test_constant_step_follows_a_drift():
    rng = np.random.default_rng(0)
    latent = rng.standard_normal((4000, 2))
    latent[:, 1] = np.where(np.arange(4000) < 2000, 0.8, -0.8) * latent[:, 0] + 0.6 * latent[:, 1]
    y = rng.integers(0, 2, 4000)
    falling, constant = OVFM(), OVFM(forgetting=0.01)
    falling.run_arrays(latent, y)
    constant.run_arrays(latent, y)
    assert constant.correlation_[0, 1] < -0.7
    assert falling.correlation_[0, 1] > constant.correlation_[0, 1]


def test_type_of_a_column_comes_from_its_window():
    model = OVFM(window=40)
    rng = np.random.default_rng(0)
    for t in range(100):
        values = {"dice": float(rng.integers(1, 7)), "number": rng.standard_normal()}
        if t >= 80:
            values["dice"] = rng.standard_normal()
        model.learn_one(Row.from_dict(values), t % 2)
        at = model._index.slot_of
        for name in values:
            last = model._recent[at[name], : min(t + 1, 40)]
            assert model._distinct[at[name]] == len(np.unique(last))
            np.testing.assert_array_equal(model._sorted[at[name], : len(last)], np.sort(last))


def test_columns_may_come_in_any_order():
    X, y = easy_stream(400, d=6)
    X[:, 3:] = np.round(X[:, 3:])
    order = [4, 0, 5, 2, 1, 3]
    a = OVFM().run_arrays(X, y)
    b = OVFM().run_arrays(X[:, order], y, columns=[f"c{j}" for j in order])
    np.testing.assert_allclose(a, b, atol=1e-9)


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(400)
    X[:, 2] = np.round(X[:, 2])
    for task in ("classification", "regression"):
        model = OVFM(task=task)
        model.run_arrays(X, y)
        row = Row.from_dict({0: -1.2, 2: 1.0, 3: 1.0, "new": 1.0})
        parts = model.explain_one(row)
        assert set(parts) == {0, 2, 3}
        assert sum(parts.values()) == pytest.approx(model.score_one(row), abs=1e-9)
        assert min(parts, key=parts.get) == 0


def test_completion_helps_through_a_correlated_feature():
    """Feature 0 decides and is a copy of feature 1; rows without feature 0 are still predicted."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 2))
    X[:, 1] = X[:, 0] + 0.1 * rng.standard_normal(1500)
    y = (X[:, 0] > 0).astype(np.int64)
    X[:1200, 1][rng.random(1200) < 0.5] = np.nan
    X[1200:, 0] = np.nan
    scores = OVFM(eta=0.1).run_arrays(X, y)
    assert np.mean((scores > 0) == y) > 0.9
    assert np.mean((scores[1200:] > 0) == y[1200:]) > 0.9


def test_regression():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 4)) @ rng.standard_normal((4, 4))
    y = 1000 + 100 * (X @ [1, -2, 0.5, 0]) + rng.standard_normal(3000)
    make = lambda: OVFM(task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    assert scores[0] == 0
    assert 1 - np.mean((scores - y)[1000:] ** 2) / np.var(y[1000:]) > 0.98
    assert np.abs(scores[1:] - 1000).max() < 10 * y.std()  # no step runs away
    X[rng.random(X.shape) < 0.3] = np.nan
    np.testing.assert_array_equal(scores_by_row(make(), X[:150], y[:150]), make().run_arrays(X[:150], y[:150]))


def test_three_classes_with_one_vs_rest():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 600)
    X = rng.standard_normal((600, 3)) + 3 * np.eye(3)[y]
    X[rng.random(X.shape) < 0.3] = np.nan
    scores = OneVsRest(OVFM(), classes=[0, 1, 2]).run_arrays(X, y)
    assert np.mean(scores[300:].argmax(axis=1) == y[300:]) > 0.7


def test_class_weight():
    X, y = easy_stream(400)
    equal = OVFM(class_weight={0: 1.0, 1: 1.0}).run_arrays(X, y)
    np.testing.assert_array_equal(equal, OVFM().run_arrays(X, y))
    assert OVFM(class_weight={0: 1.0, 1: 5.0}).run_arrays(X, y).mean() > equal.mean() + 0.5
    balanced = OVFM(class_weight="balanced")
    np.testing.assert_array_equal(
        scores_by_row(balanced, X[:80], y[:80]), OVFM(class_weight="balanced").run_arrays(X[:80], y[:80])
    )
    with pytest.raises(LabelOutOfRange, match="class_weight names"):
        OVFM(class_weight={"x": 2.0}, classes=[0, 1]).run_arrays(X, y)


def test_eviction_forgets_the_least_seen_feature_only():
    rng = np.random.default_rng(0)
    names = ["a", "b", "c", "d"]
    X = rng.standard_normal((200, 4)) @ rng.standard_normal((4, 4))
    X[rng.random(200) < 0.3, 2] = np.nan
    y = (X[:, 0] > 0).astype(np.int64)
    full = OVFM(max_features=4)
    full.run_arrays(X, y, columns=names)
    at = [full.features_.index(name) for name in "abd"]
    sigma = full.correlation_[np.ix_(at, at)]
    full.learn_one(Row.from_dict({"e": 1.0, "a": 0.1}), 1)
    assert full.features_ == ["a", "b", "d", "e"]
    np.testing.assert_allclose(full.correlation_[:3, :3], sigma, atol=0.05)
    for _ in range(30):
        full.learn_one(Row.from_dict({str(rng.integers(50)): 1.0, "a": rng.standard_normal()}), 1)
        assert len(full.features_) == 4
        assert np.isfinite(full.score_one(Row.from_dict({"a": 1.0, "b": 0.0})))
    with pytest.raises(StateLimitExceeded, match="max_features is 2"):
        OVFM(max_features=2, on_limit="raise").run_arrays(X[:1], y[:1])


def test_normal_quantile_is_that_of_scipy():
    for p in np.r_[1e-9, 0.001, np.linspace(0.01, 0.99, 50), 0.999, 1 - 1e-9]:
        assert normal_quantile(p) == pytest.approx(ndtri(p), rel=1e-10, abs=1e-12)


def test_cut_normal_is_that_of_scipy():
    for mean, deviation, low, high in [
        (0, 1, -1, 0.5), (0.3, 2, 1, np.inf), (0, 1, -np.inf, -2), (-1, 0.5, 1, 2), (0, 0.1, -0.5, -0.4),
    ]:  # fmt: skip
        a, b = (low - mean) / deviation, (high - mean) / deviation
        expected = truncnorm.stats(a, b, loc=mean, scale=deviation)
        np.testing.assert_allclose(
            cut_normal(*map(float, (mean, deviation, low, high))), expected, rtol=1e-5, atol=1e-9
        )
    assert cut_normal(0.0, 1.0, 60.0, 61.0) == (60.0, 0.0)


def test_best_settings_are_parameters():
    assert BEST_SETTINGS["wdbc"] == {"decay_choice": 0, "contribute_error_rate": 0.02}
    assert len(BEST_SETTINGS) == 11
    for settings in BEST_SETTINGS.values():
        assert OVFM(**settings).get_params().items() >= settings.items()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"decay_choice": 5}, "decay_choice is 0, 1, 2, 3 or 4, not 5"),
        ({"contribute_error_rate": 2}, "contribute_error_rate is a number"),
        ({"window": 1}, "window is a whole number of at least 2"),
        ({"step": 0}, "step is a number above 0"),
        ({"forgetting": 0}, "forgetting is a number above 0"),
        ({"eta": -1}, "eta is a number"),
        ({"max_ordinal": -1}, "max_ordinal is a whole number of at least 0"),
        ({"max_features": 0}, "max_features is a whole number of at least 1"),
        ({"on_limit": "stop"}, "on_limit is 'evict' or 'raise', not 'stop'"),
        ({"classes": ["a", "b", "c"]}, "OneVsRest"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        OVFM(**params)


def test_same_without_compilation():
    call = "OVFM(window=10).run_arrays(np.round(easy_stream(50)[0], 0), easy_stream(50)[1]).tolist()"
    code = (
        "import numpy as np; from assay.streams.contract import easy_stream; "
        f"from assay.streams.models.ovfm import OVFM; print({call})"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ASSAY_STREAMS_JIT": "0"}, capture_output=True, check=True
    )
    np.testing.assert_allclose(eval(call), eval(plain.stdout), atol=1e-10)
