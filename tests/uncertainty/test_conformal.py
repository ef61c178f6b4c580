"""Conformal methods: coverage on real data, closed cases, groups, streams, guaranteed risk."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from assay.uncertainty import (
    AdaptiveConformal,
    ConformalRegressor,
    CVPlus,
    CVPlusClassifier,
    PredictiveSystem,
    QuantileConformal,
    SplitConformal,
    risk_threshold,
)
from assay.uncertainty import metrics as m
from assay.uncertainty.conformal.risk import binomial_upper


def saved_digits(seed=0):
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    X, y = X[order] / 16, y[order]
    p = LogisticRegression(C=0.02, max_iter=300).fit(X[:400], y[:400]).predict_proba(X[400:])
    return p, y[400:]


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "saps"])
def test_marginal_coverage_on_digits(score):
    p, y = saved_digits()
    covered = []
    for seed in range(30):
        order = np.random.default_rng(seed).permutation(len(y))
        cal, test = order[:600], order[600:]
        sets = SplitConformal(score, 0.1, random_state=seed).fit(p[cal], y[cal]).predict(p[test])
        covered.append(sets.covers(y[test]).mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.012)


def test_class_conditional_thresholds_cover_every_class():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([4, 1, 1], 30_000)
    y = (p.cumsum(1) < rng.random((30_000, 1))).sum(1)
    worst = {}
    for groups in (None, "class"):
        sets = SplitConformal("lac", 0.1, groups=groups).fit(p[:15_000], y[:15_000]).predict(p[15_000:])
        worst[groups] = m.coverage_by(sets.covers(y[15_000:]), y[15_000:])[0].coverage
    assert worst[None] < 0.85
    assert worst["class"] > 0.88


def test_groups_of_rows():
    rng = np.random.default_rng(1)
    site = np.array(["north", "south"])[rng.integers(0, 2, 8000)]
    y = rng.normal(size=8000) * np.where(site == "south", 3, 1)
    zero = np.zeros(8000)
    plain = ConformalRegressor().fit(zero[:4000], y[:4000]).predict(zero[4000:])
    own = (
        ConformalRegressor(groups=True)
        .fit(zero[:4000], y[:4000], groups=site[:4000])
        .predict(zero[4000:], groups=site[4000:])
    )
    assert m.coverage_by(plain.covers(y[4000:]), site[4000:])[0].coverage < 0.85
    assert m.coverage_by(own.covers(y[4000:]), site[4000:])[0].coverage > 0.88


def test_empty_sets_stay_empty_unless_told():
    p = np.array([[0.4, 0.3, 0.3]] * 50 + [[0.98, 0.01, 0.01]] * 50)
    y = np.zeros(100, dtype=int)
    kept = SplitConformal("lac", 0.6).fit(p[50:], y[50:]).predict(p)
    assert (kept.size[:50] == 0).all()
    filled = SplitConformal("lac", 0.6, empty="top1").fit(p[50:], y[50:]).predict(p)
    assert (filled.size >= 1).all()
    assert filled.labels()[0] == [0]


def test_cross_validated_sets_use_every_row():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    found = CVPlusClassifier(lambda: LogisticRegression(C=0.02, max_iter=200), "aps", 0.1, folds=5).fit(
        X[:500], y[:500]
    )
    sets = found.predict(X[500:])
    assert 0.85 < sets.covers(y[500:]).mean() < 0.97
    np.testing.assert_array_equal(found.predict(X[503:505], first_row=3).mask, sets.mask[3:5])


def test_regression_scores_on_diabetes():
    X, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    low, high = (
        GradientBoostingRegressor(loss="quantile", alpha=a, n_estimators=60, random_state=0).fit(X[:200], y[:200])
        for a in (0.05, 0.95)
    )
    cal, test = slice(200, 320), slice(320, None)
    coverages = {}
    for score in ("cqr", "cqr_r"):
        method = QuantileConformal(score, 0.1).fit(low.predict(X[cal]), high.predict(X[cal]), y[cal])
        coverages[score] = method.predict(low.predict(X[test]), high.predict(X[test])).covers(y[test]).mean()
    spread = np.random.default_rng(1).uniform(5, 10, (2, 442))
    method = QuantileConformal("uacqr", 0.1).fit(
        low.predict(X[cal]), high.predict(X[cal]), y[cal], tuple(spread[:, cal])
    )
    coverages["uacqr"] = (
        method.predict(low.predict(X[test]), high.predict(X[test]), tuple(spread[:, test])).covers(y[test]).mean()
    )
    model = LinearRegression().fit(X[:200], y[:200])
    for score, sigma in (("absolute", None), ("normalized", 1 + np.abs(X[:, 2]) * 10), ("gamma", None)):
        method = ConformalRegressor(score, 0.1)
        f = np.maximum(model.predict(X), 10.0)
        method.fit(f[cal], y[cal], None if sigma is None else sigma[cal])
        coverages[score] = method.predict(f[test], None if sigma is None else sigma[test]).covers(y[test]).mean()
    assert all(0.8 < c <= 1 for c in coverages.values()), coverages


def test_jackknife_plus_by_hand():
    class Mean:
        def fit(self, X, y):
            self.value = y.mean()
            return self

        def predict(self, X):
            return np.full(len(X), self.value)

    y = np.arange(1.0, 20.0)  # 19 rows, alpha .1: the 18-th smallest of 19
    found = CVPlus(Mean, 0.1, folds=None).fit(y[:, None], y).predict(np.zeros((1, 1)))
    means = (y.sum() - y) / 18
    upper = np.sort(means + np.abs(y - means))[17]
    lower = np.sort(means - np.abs(y - means))[1]
    assert (found.lower[0], found.upper[0]) == (pytest.approx(lower), pytest.approx(upper))


def test_predictive_systems_are_calibrated():
    rng = np.random.default_rng(2)
    y = rng.normal(size=4000)
    system = PredictiveSystem().fit(np.zeros(1000), y[:1000])
    zero = np.zeros(3000)
    assert system.interval(zero, 0.1).covers(y[1000:]).mean() == pytest.approx(0.9, abs=0.03)
    pit = system.cdf(zero, y[1000:])
    assert np.abs(np.sort(pit) - np.arange(1, 3001) / 3001).max() < 0.06
    crps = system.crps(zero, y[1000:]).mean()
    assert crps == pytest.approx(m.crps_gaussian(zero, np.ones(3000), y[1000:]).mean(), abs=0.01)
    assert crps == pytest.approx(m.crps_sample(np.tile(y[:1000], (3000, 1)), y[1000:]).mean(), abs=1e-10)
    scaled = system.quantile(np.ones(2), 0.5, np.full(2, 2.0))
    np.testing.assert_allclose(scaled, 1 + 2 * np.sort(y[:1000])[500])


def test_adaptive_conformal_keeps_its_rate_under_drift():
    rng = np.random.default_rng(3)
    scores = np.abs(rng.normal(size=6000)) * np.linspace(1, 8, 6000)
    adaptive = AdaptiveConformal(0.1, gamma=0.02, window=300).run(scores)["miss"]
    fixed = AdaptiveConformal(0.1, gamma=0.0, window=6000).run(scores)["miss"]
    assert adaptive[500:].mean() == pytest.approx(0.1, abs=0.01)
    assert fixed[500:].mean() > 0.14


def test_guaranteed_risk_holds_in_nine_of_ten_hold_outs():
    rng = np.random.default_rng(4)
    broken = 0
    for _ in range(200):
        u = rng.random(1500)
        found = risk_threshold(u, rng.random(1500) < u**2 / 2, risk=0.05, delta=0.1)
        true_risk = (
            found.threshold**2 / 6 if np.isfinite(found.threshold) else 0.0
        )  # mean of u^2 / 2 below the threshold
        broken += true_risk > 0.05
    assert broken <= 0.1 * 200 + 3 * np.sqrt(200 * 0.1 * 0.9)
    nothing = risk_threshold(rng.random(30), np.ones(30, dtype=bool), risk=0.05)
    assert nothing.threshold == -np.inf
    assert binomial_upper(5, 5, 0.05) == 1.0


def test_size_stratified_coverage():
    p, y = saved_digits()
    sets = SplitConformal("aps", 0.1).fit(p[:600], y[:600]).predict(p[600:])
    cells = m.size_stratified_coverage(sets, y[600:])
    assert sum(c.n for c in cells) == len(y) - 600
    assert cells[0].coverage <= cells[-1].coverage
    assert all(c.low <= c.coverage <= c.high for c in cells)
