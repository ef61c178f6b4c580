import math

import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.oli2ds import OLI2DS
from assay.streams.rows import Row


def plain(X, y, C, theta, B, reg):
    """The published updates over dictionaries, every sum taken afresh."""
    past, var, w, scores = {}, {}, {}, []
    P = Q = 1.0
    for row, label in zip(X, y):
        x = {i: value for i, value in enumerate(row.tolist()) if value == value}
        scores.append(sum(w.get(i, 0.0) * value for i, value in x.items()))
        sign = 2.0 * label - 1.0
        S, N = [i for i in x if i in past], [i for i in x if i not in past]
        for i, value in x.items():
            past.setdefault(i, []).append(value)
            var[i] = np.var(past[i]) + 1e-6 / len(past[i])
        total = sum(var[i] for i in x)
        ps, pn = sum(var[i] for i in S) / total, sum(var[i] for i in N) / total
        loss = max(0.0, 1.0 - sign * ps * sum(w[i] * x[i] for i in S))
        tau = min(C, loss / (ps**2 * sum(x[i] ** 2 for i in S) + pn**2 * sum(x[i] ** 2 for i in N)))
        a = theta / ((P / Q) ** (label == 1) + (Q / P) ** (label == 0))
        P, Q = P + (label == 1), Q + (label == 0)
        for i, value in x.items():
            w[i] = w.get(i, 0.0) + tau * sign * (ps if i in S else pn) * a * value
        norm = sum(var[i] * abs(w[i]) for i in w) / sum(var.values())
        factor = min(1.0, reg / norm) if norm else 1.0
        w = {i: value * factor for i, value in w.items()}
        least = sorted(map(abs, w.values()), reverse=True)[max(1, math.floor(B * len(w))) - 1]
        w = {i: value if abs(value) >= least else 0.0 for i, value in w.items()}
    return scores


@pytest.mark.parametrize(
    "params", [{}, {"B": 0.5}, {"theta": 1.0, "B": 0.8, "reg": 0.02}, {"class_weight": "balanced"}]
)
def test_holds_the_contract(params):
    check_model(lambda: OLI2DS(**params))


@pytest.mark.parametrize(
    "params",
    [
        {"C": 0.01, "theta": 8.0, "B": 1.0, "reg": 30.0},
        {"C": 1.0, "theta": 1.0, "B": 0.5, "reg": 0.05},
    ],
)
def test_equals_the_published_updates(params):
    X, y = easy_stream(200, d=8, seed=4)
    np.testing.assert_allclose(OLI2DS(**params).run_arrays(X, y), plain(X, y, **params), rtol=0, atol=1e-11)


def test_first_step_by_hand():
    """All features are new: pn = 1, tau = min(1, 1/5), a = 8 / (1 + 1/1) = 4, so w = 0.8 x."""
    model = OLI2DS(C=1.0, theta=8.0)
    model.learn_one(Row.from_dict({"a": 1.0, "b": 2.0}), 1)
    np.testing.assert_allclose(model._w[:2], [0.8, 1.6], rtol=1e-15)


def test_the_rare_class_costs_more():
    """After nine rows of class 0 (P = 1, Q = 10) a row of class 1 costs 2 / (1 + 1/10), one of class 0 2 / (1 + 10)."""
    steps = []
    for label in (1, 0):
        model = OLI2DS(C=1e-3, theta=2.0)
        for _ in range(9):
            model.learn_one(Row.from_dict({"z": 1e-9}), 0)
        model.learn_one(Row.from_dict({"a": 1.0}), label)
        steps.append(model._w[model._index.slot_of["a"]])
    assert steps == pytest.approx([1e-3 * 2 / 1.1, -1e-3 * 2 / 11], rel=1e-12)


def test_flipped_labels_flip_the_scores_exactly():
    X, y = easy_stream(500)
    np.testing.assert_array_equal(OLI2DS().run_arrays(X, 1 - y), -OLI2DS().run_arrays(X, y))


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(300)
    model = OLI2DS()
    model.run_arrays(X, y)
    row = Row.from_dict({j: 0.5 + j for j in range(5)})
    assert sum(model.explain_one(row).values()) == pytest.approx(model.score_one(row), abs=1e-14)


def test_regression_paths_agree_and_learn():
    X, _ = easy_stream(1000)
    y = 2.0 * X[:, 0]
    make = lambda: OLI2DS(C=1.0, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.mean((scores - y)[500:] ** 2) < 0.1 * np.var(y)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"C": 0}, "C is a number above 0"),
        ({"theta": -8}, "theta is a number above 0, not -8"),
        ({"B": 2}, "B is a number above 0 and at most 1"),
        ({"reg": None}, "reg is a number above 0, not None"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        OLI2DS(**params)
