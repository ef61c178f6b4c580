import math

import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.olvf import BEST_SETTINGS, OLVF
from assay.streams.rows import Row


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def plain(X, y, C, C_bar, B, reg):
    """The published updates over dictionaries, every sum taken afresh. Returns scores, w and v."""
    w, v, scores = {}, {}, []
    for row, label in zip(X, y):
        x = {i: value for i, value in enumerate(row.tolist()) if value == value}
        sign = 2.0 * label - 1.0
        score = sum(w.get(i, 0.0) * value for i, value in x.items())
        scores.append(score)
        here = sum(v.get(i, 0.0) for i in x)
        p_w, p_x = sigmoid(sum(v.values())), sigmoid(here)
        tau = min(C, max(0.0, 1.0 - sign * score) / sum(value**2 for value in x.values()))
        right = 1.0 if (score > 0) == (label == 1) else -1.0
        gradient = -right * sigmoid(-right * here)
        step = min(C_bar, math.log(1 + math.exp(-right * here)) / (len(x) * gradient**2))
        for i, value in x.items():
            w[i] = w.get(i, 0.0) + (p_w if i in v else p_x) * tau * sign * value
            v[i] = v.get(i, 0.0) - step * gradient
        norm = sum(abs(v[i] * w[i]) for i in w)
        factor = min(1.0, reg / norm) if norm else 1.0
        w = {i: value * factor for i, value in w.items()}
        least = sorted(map(abs, w.values()), reverse=True)[max(1, math.floor(B * len(w))) - 1]
        w = {i: value if abs(value) >= least else 0.0 for i, value in w.items()}
    return scores, w, v


@pytest.mark.parametrize(
    "params",
    [{}, {"B": 0.5}, {"C_bar": 1.0, "B": 0.6, "reg": 0.1}, {"class_weight": "balanced"}],
)
def test_holds_the_contract(params):
    check_model(lambda: OLVF(**params))


@pytest.mark.parametrize(
    "params",
    [
        {"C": 0.01, "C_bar": 1e-4, "B": 1.0, "reg": 1.0},
        {"C": 1.0, "C_bar": 1.0, "B": 1.0, "reg": 1e-4},
        {"C": 0.1, "C_bar": 0.5, "B": 0.4, "reg": 0.05},
    ],
)
def test_equals_the_published_updates(params):
    X, y = easy_stream(300, d=8, seed=3)
    scores, w, v = plain(X, y, **params)
    model = OLVF(**params)
    np.testing.assert_allclose(model.run_arrays(X, y), scores, rtol=0, atol=1e-11)
    slot = model._index.slot_of
    np.testing.assert_allclose([model._w[slot[i]] for i in w], list(w.values()), rtol=0, atol=1e-11)
    np.testing.assert_allclose([model._v[slot[i]] for i in v], list(v.values()), rtol=0, atol=1e-11)


def test_first_step_by_hand():
    """l = 1, |x|^2 = 5, tau = min(1, 1/5), confidence sig(0) = 1/2: w = 0.1 x. Class 0 was predicted, wrongly: I = -1,
    the slope is 1/2, l' = ln 2 and |grad|^2 = 1/2, so v falls by 1 * 1/2."""
    model = OLVF(C=1.0, C_bar=1.0, reg=10.0)
    model.learn_one(Row.from_dict({"a": 1.0, "b": 2.0}), 1)
    np.testing.assert_allclose(model._w[:2], [0.1, 0.2], rtol=1e-15)
    np.testing.assert_allclose(model._v[:2], [-0.5, -0.5], rtol=1e-15)


def test_truncation_keeps_the_large_weights():
    model = OLVF(C=1.0, B=0.5)
    model.learn_one(Row.from_dict({"a": 0.1, "b": -3.0, "c": 0.2, "d": 2.0}), 1)
    assert [bool(weight) for weight in model._w[:4]] == [False, True, False, True]


def test_ties_at_the_cut_are_kept():
    model = OLVF(C=1.0, B=0.5)
    model.learn_one(Row.from_dict({"a": 1.0, "b": -2.0, "c": 2.0, "d": 2.0}), 1)
    assert [bool(weight) for weight in model._w[:4]] == [False, True, True, True]


def test_the_bound_holds_after_every_row():
    X, y = easy_stream(400, d=8)
    model = OLVF(C=1.0, C_bar=1.0, reg=0.02)
    for t in range(len(X)):
        model.run_arrays(X[t : t + 1], y[t : t + 1])
        assert np.abs(model._v * model._w).sum() <= 0.02 * (1 + 1e-9)


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(300)
    model = OLVF()
    model.run_arrays(X, y)
    row = Row.from_dict({j: 0.5 + j for j in range(5)})
    assert sum(model.explain_one(row).values()) == pytest.approx(model.score_one(row), abs=1e-14)


def test_regression_paths_agree_and_learn():
    X, _ = easy_stream(1000)
    y = 2.0 * X[:, 0]
    make = lambda: OLVF(C=1.0, reg=10.0, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.mean((scores - y)[500:] ** 2) < 0.1 * np.var(y)


def test_huge_feature_weights_do_not_overflow():
    """A step of C_bar = 1e6 puts the sum of v beyond the range of exp."""
    X, y = easy_stream(200)
    assert np.isfinite(OLVF(C_bar=1e6).run_arrays(X, y)).all()


def test_best_settings_are_arguments():
    assert len(BEST_SETTINGS) == 14
    for settings in BEST_SETTINGS.values():
        assert OLVF(**settings).get_params() | settings == OLVF(**settings).get_params()
    assert BEST_SETTINGS["diabetes_f"]["B"] == 0.3


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"C": -1.0}, "C is a number above 0, not -1.0"),
        ({"C_bar": 0.0}, "C_bar is a number above 0"),
        ({"B": 0.0}, "B is a number above 0 and at most 1, not 0.0"),
        ({"B": 1.5}, "B is a number above 0 and at most 1, not 1.5"),
        ({"reg": 0}, "reg is a number above 0"),
        ({"epsilon": float("nan")}, "epsilon is a number at least 0"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        OLVF(**params)
