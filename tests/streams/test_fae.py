import math
from collections import deque

import numpy as np
import pytest

from assay.streams.contract import check_model, scores_by_row
from assay.streams.errors import StreamError
from assay.streams.models.fae import BEST_SETTINGS, FAE
from assay.streams.models.nb3 import chi2
from assay.streams.rows import Row


def words(n=400, d=10, k=2, seed=0, drift=True):
    """Presence that depends on the class; the features that matter change half way."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    p = rng.uniform(0.1, 0.9, (2, k, d))
    half = (np.arange(n) >= n // 2) & drift
    return np.where(rng.random((n, d)) < p[half.astype(int), y], 1.0, np.nan), y


def raw_by_row(model, X, labels):
    """One score a class, row by row; a class not met yet has 0."""
    scores = []
    for values, label in zip(X.tolist(), labels):
        row = Row.from_dict(dict(enumerate(values)))
        scores.append(model.raw_score_one(row))
        model.learn_one(row, label)
    return np.array([np.pad(s, (0, len(model.classes_) - len(s))) for s in scores])


class Learner:
    def __init__(self, features, k, N):
        self.features, self.age, self.probation = features, 0, 0
        self.counts = np.zeros(k)
        self.n1 = {w: np.zeros(k) for w in features}
        self.hits = deque(maxlen=N)

    def learn(self, row, y):
        self.age += 1
        self.counts[y] += 1
        for w in row & self.features:
            self.n1[w][y] += 1

    def joint(self, row, soft):
        prior = (self.counts + 1) / (self.counts.sum() + len(self.counts)) if soft else self.counts / self.counts.sum()
        with np.errstate(divide="ignore"):
            joint = np.log(prior)
        for w in row & self.features:
            joint = joint + np.log((self.n1[w] + 1) / (self.counts + 2))
        return joint

    @property
    def accuracy(self):
        return sum(self.hits) / len(self.hits) if self.hits else 0.0


def hit(scores, y):
    return int(sum(scores >= scores[y] - 1e-9) == 1)


def plain(X, y, soft, m=5, p=3, f=0.15, r=10, N=50, M=0.4):
    """The published algorithm over lists of learners that keep their own counts; two classes. Gives v[1] - v[0]."""
    learners, counts, n1, scores = [], np.zeros(2), {}, []
    recent = deque(maxlen=2 * N)
    sizes = []
    for values, label in zip(X, y):
        row = {int(j) for j in np.flatnonzero(~np.isnan(values))}
        able = [one for one in learners if one.age >= m and one.probation == 0]
        weight = {id(one): one.accuracy if one in able else 0.0 for one in learners}
        if sum(weight.values()) == 0:
            weight = {id(one): float(one.age) for one in learners}
        total = sum(weight.values())
        v = np.zeros(2)
        joints = {id(one): one.joint(row, soft) for one in learners}
        for one in learners if total else []:
            joint = joints[id(one)]
            if soft:
                v[1] += weight[id(one)] / total * (joint[1] - joint[0])
            else:
                best = np.flatnonzero(joint >= joint.max() - 1e-9)
                v[best] += weight[id(one)] / total / len(best)
        if soft and total and (counts == 0).any():
            v[1] = np.log(1 + counts.sum()) * (1 if counts[1] else -1)
        scores.append(v[1] - v[0])
        for one in learners:
            one.hits.append(hit(joints[id(one)], label))
        recent.append(hit(v, label))
        counts[label] += 1
        for w in row:
            n1.setdefault(w, np.zeros(2))[label] += 1
        for one in learners:
            one.learn(row, label)
        rank = {w: chi2(a[1], a[0], counts[1] - a[1], counts[0] - a[0]) for w, a in n1.items()}
        size = max(1, math.floor(M * len(n1)))
        cut = sorted(rank.values(), reverse=True)[size - 1] if rank else 0.0
        top = {w for w in rank if rank[w] >= cut}
        if learners:
            youngest = learners[-1]
            last, both = list(recent)[-N:], list(recent)
            falling = sum(last) / len(last) < sum(both) / len(both)
            if not (len(top ^ youngest.features) / size > f or (youngest.age > r and falling)):
                sizes.append(len(learners))
                continue
        mature = [one for one in learners if one.age >= m]
        if mature:
            middle = (max(one.accuracy for one in mature) + min(one.accuracy for one in mature)) / 2
            for one in mature:
                one.probation = one.probation + 1 if one.accuracy < middle else 0
        learners = [one for one in learners if one.probation < p]
        learners.append(Learner(top, 2, N))
        learners[-1].learn(row, label)
        sizes.append(len(learners))
    return np.array(scores), sizes


@pytest.mark.parametrize("params", [{}, {"M": 0.2, "max_learners": 3}, {"classes": [0, 1], "max_learners": None}])
def test_holds_the_contract(params):
    check_model(lambda: FAE(**params), presence=True)


@pytest.mark.parametrize("params", [{"vote": "hard"}, {"vote": "hard", "p": 1, "m": 1, "f": 0.0, "r": 0, "N": 3}])
def test_hard_votes_hold_the_contract(params):
    """Hard votes tie, which costs AUROC; the rest of the contract is the same."""
    check_model(lambda: FAE(**params), presence=True, auroc=0.6)


@pytest.mark.parametrize("vote", ["hard", "soft"])
@pytest.mark.parametrize("params", [{}, {"m": 2, "p": 2, "f": 0.5, "r": 3, "N": 10, "M": 0.6}])
def test_equals_the_published_algorithm(vote, params):
    X, y = words()
    model = FAE(vote=vote, max_learners=None, **params)
    expected, sizes = plain(X, y, vote == "soft", **params)
    np.testing.assert_allclose(model.run_arrays(X, y), expected, rtol=0, atol=1e-10)
    assert model._head[0] == sizes[-1]
    assert max(sizes) > 4  # more than the first allocation holds


def test_the_accuracies_compared_are_rates():
    """haphazard 1.2.8 compares the hits in N rows with those in 2N rows. Once both are full the first are never more,
    so that a learner is added about every r rows for ever, even where every row is predicted rightly."""
    X = np.where(np.arange(400)[:, None] % 2 == [0, 1], 1.0, np.nan)
    y = (np.arange(400) % 2).astype(np.int64)
    model = FAE(M=1.0, max_learners=None)
    model.run_arrays(X, y)
    assert model._head[0] <= 3


def test_dropping_every_learner_leaves_the_newest():
    """haphazard 1.0.5: dropping the last learner crashed. With p = 1 all that are below the middle go at once."""
    X, y = words()
    model = FAE(m=1, p=1, f=0.0, r=0, N=2, vote="hard")
    for t in range(len(X)):
        model.run_arrays(X[t : t + 1], y[t : t + 1])
        assert model._head[0] >= 1
    assert model.predict_one(Row.from_dict({0: 1.0})) in (0, 1)


def test_the_ensemble_stays_within_its_bound():
    X, y = words(d=10)
    model = FAE(f=0.0, p=100, max_learners=4)
    model.run_arrays(X, y)
    assert model._head[0] == 4
    assert sorted(model._order[: len(model._order)]) == list(range(len(model._order)))


def test_contributions_add_up_to_the_score():
    """What is left is the weighted mean of the learners' own prior log-odds."""
    X, y = words()
    model = FAE()
    model.run_arrays(X, y)
    nothing = model.score_one(Row.from_dict({}))
    row = Row.from_dict(dict.fromkeys(range(6), 1.0))
    parts = model.explain_one(row)
    assert sum(parts.values()) + nothing == pytest.approx(model.score_one(row), abs=1e-10)
    assert any(parts.values())


@pytest.mark.parametrize("vote", ["hard", "soft"])
def test_multiclass_paths_agree_and_a_class_never_learned_never_wins(vote):
    X, y = words(300, k=3, drift=False)
    make = lambda: FAE(vote=vote, classes=[0, 1, 2, 3])  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    assert (scores[:, 3] == 0).all()
    assert (scores[2:].max(axis=1) > 0).all()
    assert np.mean(scores[150:].argmax(axis=1) == y[150:]) > 0.5


def test_a_class_may_appear_in_mid_stream():
    X, y = words(200, k=3, drift=False)
    y[:100] = np.minimum(y[:100], 1)
    names = np.array(["a", "b", "c"])[y].tolist()
    scores = FAE().run_arrays(X, names)
    np.testing.assert_array_equal(raw_by_row(FAE(), X, names), scores)


def test_best_settings_are_arguments():
    assert len(BEST_SETTINGS) == 14
    assert FAE(**BEST_SETTINGS["ipd"]).M == 0.8


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"m": 0}, "m is a whole number of at least 1, not 0"),
        ({"p": 1.5}, "p is a whole number of at least 1, not 1.5"),
        ({"f": -0.1}, "f is a number at least 0"),
        ({"r": -1}, "r is a whole number of at least 0"),
        ({"N": True}, "N is a whole number of at least 1, not True"),
        ({"M": 250}, "M is a number above 0 and at most 1, not 250"),
        ({"vote": "loud"}, "vote is 'hard' or 'soft', not 'loud'"),
        ({"max_learners": 0}, "max_learners is a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        FAE(**params)
