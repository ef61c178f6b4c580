import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.olifl import OLIFL
from assay.streams.rows import Row


def plain(X, y, C, option):
    """The published updates over dictionaries of lists of past values."""
    past, w, scores = {}, {}, []

    def variance(values):
        return np.var(values) + 1e-6 / len(values)

    for row, label in zip(X, y):
        x = {i: value for i, value in enumerate(row.tolist()) if value == value}
        var = {i: variance([*past.get(i, []), value]) for i, value in x.items()}
        shared = {i for i in x if i in past}
        total = sum(var[i] for i in shared)
        scores.append(sum(var[i] / total * w[i] * x[i] for i in shared))
        sign = 2.0 * label - 1.0
        total = sum(var.values())
        loss = max(0.0, 1.0 - sign * sum(var[i] / total * w.get(i, 0.0) * x[i] for i in x))
        norm = sum(value**2 for value in x.values())
        tau = loss / norm if option == 0 else min(C, 2 * loss / norm)
        for i, value in x.items():
            w[i] = w.get(i, 0.0) + tau * sign * var[i] / total * value
            past.setdefault(i, []).append(value)
    return scores


@pytest.mark.parametrize("params", [{}, {"option": 0}, {"C": 1.0, "class_weight": {1: 3.0}}])
def test_holds_the_contract(params):
    check_model(lambda: OLIFL(**params))


@pytest.mark.parametrize("option", [0, 1])
def test_equals_the_published_updates(option):
    X, y = easy_stream(200, d=6, seed=2)
    expected = plain(X, y, 0.1, option)
    np.testing.assert_allclose(OLIFL(C=0.1, option=option).run_arrays(X, y), expected, rtol=0, atol=1e-11)


def test_running_variance_is_that_of_numpy():
    """The recursion gives the variance (divisor n); what is left of the first value's 1e-6 is 1e-6 / n."""
    values = np.random.default_rng(0).normal(5.0, 2.0, 50)
    model = OLIFL()
    for n, value in enumerate(values, start=1):
        model.learn_one(Row.from_dict({"a": value}), n % 2)
        assert model._stats[0, 2] == pytest.approx(np.var(values[:n]) + 1e-6 / n, rel=1e-12)


def test_flipped_labels_flip_the_scores_exactly():
    X, y = easy_stream(500)
    np.testing.assert_array_equal(OLIFL().run_arrays(X, 1 - y), -OLIFL().run_arrays(X, y))


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(300)
    model = OLIFL()
    model.run_arrays(X, y)
    row = Row.from_dict({j: 0.5 + j for j in range(5)} | {"never seen": 1.0})
    assert sum(model.explain_one(row).values()) == pytest.approx(model.score_one(row), abs=1e-14)
    assert model.explain_one(Row.from_dict({})) == {}


def test_regression_paths_agree_and_learn():
    X, _ = easy_stream(2000)
    y = 2.0 * X[:, 0]
    make = lambda: OLIFL(C=1.0, task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert np.mean((scores - y)[1000:] ** 2) < 0.5 * np.var(y)


@pytest.mark.parametrize(
    ("params", "words"),
    [({"C": 0}, "C is a number above 0, not 0"), ({"option": 2}, "option is 0 or 1, not 2")],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        OLIFL(**params)
