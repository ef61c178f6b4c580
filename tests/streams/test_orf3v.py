"""ORF3V against a plain version of itself, and its rules one by one."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest

from assay.streams import load, run
from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.draws import draw_state, uniform
from assay.streams.models.orf3v import ORF3V
from assay.streams.rows import Row


def plain_orf3v(X, y, size, interval, window, alpha=0.1, delta=0.001, chance=None, seed=0):
    """Two classes; a feature is a dictionary with all values it was seen with; same draws."""
    draws, features, counts, scores = draw_state(seed), {}, np.zeros(2), []

    def draw(feature, t):
        x, labels = np.array(feature["x"]), np.array(feature["y"])
        threshold = x.min() + uniform(draws) * (x.max() - x.min())
        sides = np.zeros((2, 2))
        for c in (0, 1):
            values = np.sort(x[labels == c])
            n = len(values)
            if n:
                # ranks of the middles of the values; beyond the ends of the class all or nothing
                rank = np.interp(threshold, values, (np.arange(n) + 0.5), left=0.0, right=n)
                if values[0] == values[-1] == threshold:
                    rank = n / 2
                sides[:, c] = rank, n - rank
        return {"threshold": threshold, "sides": sides, "born": t}

    def vote(feature, value):
        dist = np.zeros(2)
        for stump in feature["stumps"]:
            side = 0 if value <= stump["threshold"] else 1
            if stump["sides"][side].sum() == 0:
                side = 1 - side
            dist += stump["sides"][side] / stump["sides"][side].sum()
        return dist / size

    for t in range(len(X)):
        row = {f: X[t, f] for f in range(X.shape[1]) if not np.isnan(X[t, f])}
        live = [f for f in row if features.get(f)]
        if live:
            weights = np.array([features[f]["weight"] for f in live])
            votes = weights @ np.array([vote(features[f], row[f]) for f in live]) / weights.sum()
        else:
            votes = counts / max(counts.sum(), 1)
        scores.append(votes[1] - votes[0])
        for f, value in row.items():
            if not features.get(f):
                features[f] = {"x": [], "y": [], "t": [], "first": t, "weight": 1.0, "stumps": []}
            else:
                right = np.argmax(vote(features[f], value)) == y[t]
                features[f]["weight"] = (2 * alpha * right + features[f]["weight"]) / (1 + alpha)
            feature = features[f]
            feature["x"].append(value)
            feature["y"].append(y[t])
            feature["t"].append(t)
            n = len(feature["x"])
            if n in (1, 2, 4, 8, 16, 32, 64) and n <= interval:
                feature["stumps"] = [draw(feature, t) for _ in range(size)]
            else:
                for stump in feature["stumps"]:
                    stump["sides"][0 if value <= stump["threshold"] else 1, y[t]] += 1
        counts[y[t]] += 1
        if (t + 1) % interval == 0:
            for f, feature in features.items():
                if not feature:
                    continue
                age = t + 1 - feature["first"]
                recent = sum(s >= t + 1 - window for s in feature["t"]) / window
                bound = math.sqrt(math.log(1 / delta) / (2 * window))
                if age > window and len(feature["x"]) / age - recent > bound:
                    features[f] = None
                elif chance is None:
                    stumps = feature["stumps"]
                    stumps[int(np.argmin([s["born"] for s in stumps]))] = draw(feature, t + 1)
                else:
                    for i in range(size):
                        if uniform(draws) < chance:
                            feature["stumps"][i] = draw(feature, t + 1)
    return np.array(scores)


@pytest.mark.parametrize("chance", [None, 0.4])
def test_equals_a_plain_version(chance):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((260, 4))
    y = ((X[:, 0] + 0.5 * rng.standard_normal(260)) > 0).astype(np.int64)
    absent = rng.random(X.shape) < 0.4
    absent[90:200, 1] = True  # long enough to be forgotten, and it comes back
    X[absent] = np.nan
    # digests of 520 values hold this stream exactly
    model = ORF3V(
        forest_size=3, replacement_interval=10, window=30, compression=130, delta=0.05, seed=4,
        replacement="oldest" if chance is None else "random", replacement_chance=chance or 0.0,
    )  # fmt: skip
    expected = plain_orf3v(X, y, 3, 10, 30, delta=0.05, chance=chance, seed=4)
    np.testing.assert_allclose(model.run_arrays(X, y), expected, atol=1e-12)


@pytest.mark.parametrize(
    "params", [{}, {"replacement": "random", "replacement_interval": 7, "window": 15, "compression": 10}]
)
def test_holds_the_contract_and_check_4(params):
    """Fifty stumps a feature reach .95 on the easy stream."""
    check_model(lambda: ORF3V(forest_size=50, **params), auroc=0.95, rows=150)


def test_check_9_auroc_on_wdbc():
    for seed in range(5):
        result = run(ORF3V(forest_size=5), load("wdbc").masked("probabilistic", p=0.5, seed=seed))
        assert result.metrics["auroc"] >= 0.90


def test_a_feature_is_forgotten_when_the_bound_says_so():
    """400 / 450 - 150 / 200 = .1389 exceeds sqrt(ln 1000 / 400) = .1314; 400 / 440 - 160 / 200 = .1091 does not."""
    model = ORF3V(forest_size=2, replacement_interval=10, window=200, delta=0.001)
    rng = np.random.default_rng(0)
    for t in range(450):
        features = {"stays": rng.standard_normal()} | ({"goes": rng.standard_normal()} if t < 400 else {})
        model.learn_one(Row.from_dict(features), t % 2)
        assert (model._sightings[model._index.slot_of["goes"]] > 0) == (t < 449)
    assert model.score_one(Row.from_dict({"goes": 1.0})) == 0.0  # the shares of the classes are equal
    model.learn_one(Row.from_dict({"goes": 5.0}), 1)
    assert model.score_one(Row.from_dict({"goes": 5.0})) == 1.0  # what it was before is gone


def test_the_oldest_stump_is_replaced():
    """haphazard 1.2.8 replaces the last one each time."""
    model = ORF3V(forest_size=4, replacement_interval=64)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((64 * 9, 1))
    y = rng.integers(0, 2, len(X))
    model.run_arrays(X[:64], y[:64])
    replaced = []
    for i in range(1, 9):
        before = model._threshold[0].copy()
        model.run_arrays(X[64 * i : 64 * (i + 1)], y[64 * i : 64 * (i + 1)])
        replaced.append(np.flatnonzero(model._threshold[0] != before).tolist())
    order = [r[0] for r in replaced]
    assert all(len(r) == 1 for r in replaced)
    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert order[:4] == order[4:]


def test_thresholds_are_uniform_between_the_extremes():
    model = ORF3V(forest_size=400, replacement_interval=128)
    rng = np.random.default_rng(0)
    x = np.r_[10.0, 30.0, rng.uniform(10, 30, 126)]
    model.run_arrays(x[:, None], rng.integers(0, 2, 128))
    u = (np.sort(model._threshold[0, :]) - 10) / 20
    assert 0 < u[0] < u[-1] < 1
    assert np.abs(u - (np.arange(400) + 0.5) / 400).max() < 1.63 / np.sqrt(400)  # Kolmogorov, p = .01


def test_weights_follow_the_formula():
    model = ORF3V(alpha=0.1)
    row = Row.from_dict({"a": 1.0})
    model.learn_one(row, 1)
    assert model._vote_weight[0] == 1.0
    model.learn_one(row, 1)
    assert model._vote_weight[0] == pytest.approx(1.2 / 1.1)
    model.learn_one(row, 0)
    assert model._vote_weight[0] == pytest.approx(1.2 / 1.1 / 1.1)


def test_three_classes_and_one_that_is_never_met():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 1500)
    X = rng.standard_normal((1500, 4)) + 2.0 * codes[:, None]
    X[rng.random(X.shape) < 0.4] = np.nan
    labels = np.array(["a", "b", "c"])[codes]
    scores = ORF3V(classes=["a", "b", "c", "never"]).run_arrays(X, labels)
    assert np.all(scores[0] == 0)
    assert np.all(scores[:, 3] == 0)
    np.testing.assert_allclose(scores[1:].sum(axis=1), 1.0)
    assert np.mean(scores[700:].argmax(axis=1) == codes[700:]) > 0.8
    in_order = list(dict.fromkeys(labels.tolist()))
    grown, declared = (ORF3V(classes=c).run_arrays(X[:80], labels[:80]) for c in (None, in_order))
    np.testing.assert_array_equal(grown, declared)


def test_regression_learns_the_mean_of_each_side():
    x = np.tile([-1.0, 1.0], 300)
    y = 1000 + np.where(x > 0, 4.0, 2.0)
    model = ORF3V(forest_size=5, task="regression")
    scores = model.run_arrays(x[:, None], y)
    assert scores[0] == 0
    # the residuals of the first rows are from a mean still moving
    np.testing.assert_allclose(scores[-2:], [1002, 1004], atol=0.05)


def test_regression_on_two_features():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((4000, 2))
    y = -50 + 3 * np.sign(X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(4000)
    X[rng.random(X.shape) < 0.2] = np.nan
    make = lambda: ORF3V(task="regression")  # noqa: E731
    scores = make().run_arrays(X, y)
    late = np.arange(4000) > 2000
    assert 1 - np.mean((scores - y)[late] ** 2) / np.var(y[late]) > 0.3
    np.testing.assert_array_equal(scores_by_row(make(), X[:150], y[:150]), scores[:150])


def test_contributions_add_up_to_the_score():
    X, y = easy_stream(400)
    for task in ("classification", "regression"):
        model = ORF3V(forest_size=20, task=task)
        model.run_arrays(X, y)
        row = Row.from_dict({0: -1.2, 2: 0.3, 3: 1.0, "new": 1.0})
        parts = model.explain_one(row)
        assert set(parts) == {0, 2, 3}
        assert sum(parts.values()) == pytest.approx(model.score_one(row), abs=1e-12)
        assert min(parts, key=parts.get) == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"forest_size": 0}, "forest_size is a whole number of at least 1"),
        ({"replacement": "newest"}, "replacement is 'oldest' or 'random', not 'newest'"),
        ({"replacement_interval": 0}, "replacement_interval is a whole number of at least 1"),
        ({"replacement_chance": 1.5}, "replacement_chance is a number"),
        ({"window": 0}, "window is a whole number of at least 1"),
        ({"alpha": 0.0}, "alpha is a number above 0"),
        ({"delta": 0.0}, "delta is a number above 0"),
        ({"compression": 3}, "compression is 10 or more"),
    ],
)
def test_bad_arguments(params, message):
    with pytest.raises(StreamError, match=message):
        ORF3V(**params)


def test_same_without_compilation():
    call = (
        "ORF3V(forest_size=4, replacement_interval=8, window=10, compression=10).run_arrays(*easy_stream(60)).tolist()"
    )
    code = (
        f"from assay.streams.contract import easy_stream; from assay.streams.models.orf3v import ORF3V; print({call})"
    )
    plain = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "ASSAY_STREAMS_JIT": "0"}, capture_output=True, check=True
    )
    np.testing.assert_allclose(eval(call), eval(plain.stdout), atol=1e-12)
