"""Section 8 of the field's scope: numbers that must come out."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf, log

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import expit, softmax
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LogisticRegression

from assay.uncertainty import (
    Dirichlet,
    EfficientCredal,
    Hull,
    Intervals,
    LaplaceLogistic,
    LaplaceRidge,
    Sample,
    SplitConformal,
    TooFewCalibration,
    TVBall,
    hartley,
    hull_coverage,
    hull_distance,
    lower_entropy,
    quantify,
    upper_entropy,
)
from assay.uncertainty import metrics as m
from assay.uncertainty.conformal import conformal_quantile, conformal_rank, label_scores
from assay.uncertainty.credal.balls import tv_lower_point
from assay.uncertainty.language import von_neumann_entropy
from assay.uncertainty.measures.sample import MEASURES
from assay.uncertainty.simplex import entropy


def three(rep, measure):
    parts = quantify(rep, measure)
    return [float(v[0]) for v in (parts.total, parts.aleatoric, parts.epistemic)]


def test_check_1_two_members():
    pair = Sample([[[0.9, 0.1], [0.1, 0.9]]])
    assert three(pair, "entropy") == pytest.approx([0.693147, 0.325083, 0.368064], abs=1e-6)
    assert three(pair, "brier") == pytest.approx([0.5, 0.18, 0.32], abs=1e-12)
    assert three(pair, "zero_one") == pytest.approx([0.5, 0.1, 0.4], abs=1e-12)
    assert three(pair, "tv")[2] == pytest.approx(0.4, abs=1e-12)
    assert three(pair, "spherical") == pytest.approx([0.292893, 0.094461, 0.198432], abs=1e-6)


def test_check_2_dirichlet():
    assert three(Dirichlet([[1.0, 1.0]]), "entropy")[1:] == pytest.approx([0.5, 0.193147], abs=1e-6)
    assert quantify(Dirichlet([[1.0, 1.0]]), "vacuity").epistemic[0] == 1
    assert three(Dirichlet([[1.0, 1.0, 1.0]]), "entropy") == pytest.approx([1.098612, 0.833333, 0.265279], abs=1e-6)


def test_check_3_intervals_and_hartley():
    box = Intervals([[0.2] * 3], [[0.5] * 3])
    assert upper_entropy(box)[0] == pytest.approx(log(3), abs=1e-12)
    assert lower_entropy(box)[0] == pytest.approx(float(entropy(np.array([0.5, 0.3, 0.2]))), abs=1e-12)
    assert lower_entropy(box)[0] == pytest.approx(1.029653, abs=1e-6)
    assert hartley(box)[0] == pytest.approx(0.317805, abs=1e-6)
    assert hartley(Intervals([[0.0] * 3], [[1.0] * 3]))[0] == pytest.approx(1.098612, abs=1e-6)
    assert hartley(Hull([[[1.0, 0, 0], [0, 1.0, 0]]]))[0] == pytest.approx(0.693147, abs=1e-6)


def test_check_3b_lower_entropy_is_not_the_index_order_fill():
    box = Intervals([[0.1, 0.2, 0.3]], [[0.3, 0.4, 0.5]])
    assert lower_entropy(box)[0] == pytest.approx(0.943348, abs=1e-6)
    assert lower_entropy(box)[0] == pytest.approx(float(entropy(np.array([0.1, 0.4, 0.5]))), abs=1e-12)


def test_check_4_tv_ball_is_not_its_box():
    ball = TVBall([[0.25] * 4], 0.2)
    assert lower_entropy(ball)[0] == pytest.approx(1.202262, abs=1e-6)
    assert tv_lower_point(ball.center, ball.radius)[0] == pytest.approx([0.45, 0.25, 0.25, 0.05], abs=1e-12)
    assert lower_entropy(ball.intervals())[0] == pytest.approx(1.018230, abs=1e-6)
    assert upper_entropy(ball)[0] == pytest.approx(1.386294, abs=1e-6)


def test_check_5_expected_tv_against_a_linear_program():
    rng = np.random.default_rng(0)
    for i in range(100):
        members = rng.dirichlet(np.ones(4), 5)
        weights = rng.dirichlet(np.ones(5)) if i % 2 else np.full(5, 0.2)
        rows = 20  # |theta - q| <= t, cell by cell
        a = np.zeros((2 * rows, 4 + rows))
        for cell in range(rows):
            a[2 * cell, cell % 4], a[2 * cell, 4 + cell] = 1, -1
            a[2 * cell + 1, cell % 4], a[2 * cell + 1, 4 + cell] = -1, -1
        b = np.repeat(members.ravel(), 2) * np.tile([1, -1], rows)
        cost = np.concatenate([np.zeros(4), np.repeat(weights, 4) / 2])
        equal = np.concatenate([np.ones(4), np.zeros(rows)])[None]
        program = linprog(cost, A_ub=a, b_ub=b, A_eq=equal, b_eq=[1.0])
        ours = quantify(Sample(members[None], weights if i % 2 else None), "tv").epistemic[0]
        assert ours == pytest.approx(program.fun, abs=1e-9)


def test_check_6_aurc_exact_and_ties_in_expectation():
    u = np.arange(10.0)
    loss = np.array([0.0] * 8 + [1.0, 1.0])
    assert m.aurc(u, loss) == pytest.approx((1 / 9 + 1 / 5) / 10, abs=1e-12)
    assert m.augrc(u, loss) == pytest.approx(0.03, abs=1e-12)
    assert m.excess_aurc(u, loss) == pytest.approx(0, abs=1e-12)
    for order in range(5):
        shuffled = np.random.default_rng(order).permutation(loss)
        assert m.aurc(np.zeros(10), shuffled) == pytest.approx(0.2, abs=1e-12)


def test_check_6_ties_equal_the_mean_over_all_orders():
    from itertools import permutations

    u, loss = np.array([0.0, 0.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.5, 0.0])
    values = []
    for order in permutations(range(3)):
        ordered = loss[[*order, 3]]
        values.append((np.cumsum(ordered) / np.arange(1, 5)).mean())
    assert m.aurc(u, loss) == pytest.approx(np.mean(values), abs=1e-12)


def test_check_7_detection_with_ties():
    from sklearn.metrics import average_precision_score, roc_auc_score

    inside, outside = np.zeros(60), np.zeros(20)
    assert m.auroc(inside, outside) == 0.5
    assert m.aupr(inside, outside) == pytest.approx(0.25)
    assert m.fpr_at_tpr(inside, outside) == 1.0
    rng = np.random.default_rng(0)
    a, b = rng.random(400).round(1), (rng.random(300) * 0.9 + 0.05).round(1)
    y, s = np.r_[np.zeros(400), np.ones(300)], np.r_[a, b]
    assert m.auroc(a, b) == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert m.aupr(a, b) == pytest.approx(average_precision_score(y, s), abs=1e-12)


def test_check_8_order_statistic():
    assert conformal_quantile(np.arange(1.0, 10.0), 0.1) == 9
    with pytest.warns(TooFewCalibration):
        assert conformal_quantile(np.arange(1.0, 9.0), 0.1) == inf
    assert conformal_quantile(np.arange(1.0, 100.0), 0.1) == 90


def test_check_8_rank_equals_rational_arithmetic():
    levels = ["0.005", "0.025", *(f"{i / 100:.2f}" for i in range(1, 51))]
    wrong_without_care = 0
    for text in levels:
        alpha, exact = float(text), 1 - Fraction(text)
        for n in range(1, 2001):
            k = ceil((n + 1) * exact)
            assert conformal_rank(n, alpha) == k, (n, text)
            wrong_without_care += ceil((n + 1) * (1 - alpha)) != k
    assert wrong_without_care == 222


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_check_8_coverage_over_2000_splits(score):
    rng = np.random.default_rng(1)
    k = conformal_rank(50, 0.1)
    means = []
    for i in range(2000):
        p = rng.dirichlet(np.ones(5), 150)  # exact posteriors: labels are drawn from them
        y = (p.cumsum(1) < rng.random((150, 1))).sum(1)
        sets = SplitConformal(score, 0.1, random_state=i).fit(p[:50], y[:50]).predict(p[50:])
        means.append(sets.covers(y[50:]).mean())
    error = np.std(means, ddof=1) / np.sqrt(2000)
    assert abs(np.mean(means) - k / 51) <= 3 * error


def test_check_8_same_seed_same_sets_whatever_the_batch():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(4), 300)
    y = rng.integers(0, 4, 300)
    for score in ("aps", "raps", "saps"):
        method = SplitConformal(score, 0.2, random_state=5).fit(p[:100], y[:100])
        whole = method.predict(p[100:]).mask
        parts = [method.predict(p[100 + i : 100 + i + 7], first_row=i).mask for i in range(0, 200, 7)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def _digits():
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def test_check_9_efficient_credal_at_alpha_one():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(X, y)  # its intercept is not penalised
    p = model.predict_proba(X)
    point = EfficientCredal(alpha=1.0).fit_probs(p, y).predict_probs(p)
    assert np.abs(point.lower - p).max() < 1e-6
    assert np.abs(point.upper - p).max() < 1e-6
    # Half a logit more for class 0: its interval reaches down from the point only.
    q = softmax(np.log(p) + np.array([0.5, 0, 0]), axis=1)
    moved = EfficientCredal(alpha=1.0).fit_probs(q, y)
    assert moved.shift_high_[0] == pytest.approx(0, abs=1e-12)
    assert moved.shift_low_[0] < -0.5
    box = moved.predict_probs(q)
    unsure = (q[:, 0] > 0.05) & (q[:, 0] < 0.95)
    assert unsure.any()
    assert (box.lower[unsure, 0] < q[unsure, 0] - 1e-3).all()


def test_check_9_efficient_credal_shifts_solve_their_equation_and_widen():
    X, y = _digits()
    p = LogisticRegression(C=0.1, max_iter=300).fit(X[:600], y[:600]).predict_proba(X[:600])
    freq = np.bincount(y[:600]) / 600
    last = None
    for alpha in (0.99, 0.9, 0.7, 0.4, 0.1):
        found = EfficientCredal(alpha=alpha).fit_probs(p, y[:600])
        for shift in (found.shift_low_, found.shift_high_):
            values = shift * freq - np.log(1 - p + p * np.exp(shift)).mean(0)
            np.testing.assert_allclose(values, np.log(alpha), atol=1e-9)
        box = found.predict_probs(p)
        again = box.reachable()
        assert max(np.abs(again.lower - box.lower).max(), np.abs(again.upper - box.upper).max()) <= 1e-12
        if last is not None:
            assert (box.lower <= last.lower + 1e-12).all()
            assert (box.upper >= last.upper - 1e-12).all()
        last = box


def test_check_9_a_class_without_rows_has_lower_bound_zero():
    p = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    y = np.random.default_rng(1).integers(0, 2, 50)
    found = EfficientCredal(alpha=0.8).fit_probs(p, y)
    assert found.shift_low_[2] == -inf
    assert (found.predict_probs(p).lower[:, 2] == 0).all()


def test_check_9_relative_likelihoods_reach_their_goals():
    pytest.importorskip("torch")
    from assay.training import TrainConfig
    from assay.uncertainty import CredalRelativeLikelihood

    X, y = load_wine(return_X_y=True)
    method = CredalRelativeLikelihood(alpha=0.6, n=5, config=TrainConfig(epochs=60, lr=0.01)).fit(X[::2], y[::2])
    assert len(method.models_) == 5
    assert method.goals_[1:] == pytest.approx([0.6, 0.68, 0.76, 0.84])
    assert all(r >= g for r, g in zip(method.relative_likelihoods_, method.goals_, strict=True))
    box = method.predict(X[1::2])
    again = box.reachable()
    assert np.abs(again.lower - box.lower).max() <= 1e-12


def test_check_10_additive_measures_and_weights():
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(5), (200, 6))
    for measure in MEASURES:
        parts = quantify(Sample(p), measure)
        assert (parts.epistemic >= 0).all()
        if parts.additive:
            np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic, atol=1e-12)
        same = quantify(Sample(np.repeat(p[:, :1], 6, axis=1)), measure)
        np.testing.assert_allclose(same.epistemic, 0, atol=1e-12)
        doubled = quantify(Sample(np.concatenate([p, p[:, :1]], axis=1)), measure)
        weighted = quantify(Sample(p, [2, 1, 1, 1, 1, 1]), measure)
        by_row = quantify(Sample(p, np.tile([2, 1, 1, 1, 1, 1], (200, 1))), measure)
        for name in ("total", "aleatoric", "epistemic"):
            np.testing.assert_allclose(getattr(doubled, name), getattr(weighted, name), atol=1e-12)
            np.testing.assert_allclose(getattr(doubled, name), getattr(by_row, name), atol=1e-12)


def test_check_11_public_first_order_data(public_table):
    cifar = public_table("cifar10h")
    assert entropy(cifar.y).mean() == pytest.approx(0.15446, abs=5e-6)
    assert (cifar.counts > 0).sum(1).mean() == pytest.approx(1.9404, abs=5e-5)
    assert (cifar.counts.sum(1).min(), cifar.counts.sum(1).max()) == (47, 63)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("movie", 1.413),
        ("sbu3dfe", 1.707),
        ("sjaffe", 1.718),
        ("yeast_spo5", 1.069),
        ("yeast_cold", 1.373),
        ("emotion6", 1.246),
        ("m2b", 0.655),
        ("painting", 1.488),
        ("scut_fbp", 0.917),
    ],
)
def test_check_11_mean_target_entropies(public_table, name, value):
    assert entropy(public_table(name).y).mean() == pytest.approx(value, abs=6e-4)


def test_check_12_hull_coverage():
    rng = np.random.default_rng(4)
    vertices = rng.dirichlet(np.ones(6), (200, 5))
    inside = np.einsum("nmk,nm->nk", vertices, rng.dirichlet(np.ones(5), 200))
    assert hull_coverage(Hull(vertices), inside).all()
    # The first class of every vertex is at most 0.5; a target 0.005 above that, 0.005 less elsewhere, is 0.01 away in
    # L1.
    flat = np.zeros((100, 3, 4))
    flat[:, :, 0] = 0.5
    flat[:, :, 1:] = 0.5 * np.eye(3)
    target = np.tile([0.505, 0.495 / 3, 0.495 / 3, 0.495 / 3], (100, 1))
    np.testing.assert_allclose(hull_distance(Hull(flat), target), 0.01, atol=1e-9)
    assert not hull_coverage(Hull(flat), target, epsilon=0.0005).any()


def test_check_12_hull_coverage_agrees_with_the_linear_program():
    rng = np.random.default_rng(5)
    vertices = rng.dirichlet(np.ones(5) * 0.7, (500, 6))
    weights = rng.dirichlet(np.ones(6), 500) + rng.normal(0, 0.05, (500, 6))
    target = np.clip(np.einsum("nmk,nm->nk", vertices, weights), 0, None)
    target /= target.sum(1, keepdims=True)
    distance = hull_distance(Hull(vertices), target)
    for epsilon in (0.0005, 0.01, 0.05):
        np.testing.assert_array_equal(hull_coverage(Hull(vertices), target, epsilon=epsilon), distance <= epsilon)
    assert 0 < (distance <= 0.0005).mean() < 1


def test_check_13_laplace_in_closed_form():
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    fitted = LaplaceLogistic(prior_precision=2.0).fit(X, y)
    phi = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    p = expit(phi @ fitted.coef_)
    np.testing.assert_allclose(phi.T @ (p - y) + 2.0 * fitted.coef_, 0, atol=1e-8)
    closed = np.linalg.inv((phi * (p * (1 - p))[:, None]).T @ phi + 2.0 * np.eye(phi.shape[1]))
    np.testing.assert_allclose(fitted.covariance_, closed, atol=1e-8)


def test_check_13_ridge_is_bayesian_linear_regression():
    X, y = load_diabetes(return_X_y=True)
    y = (y - y.mean()) / y.std()
    fitted = LaplaceRidge(prior_precision=0.5, noise=0.4, center=False).fit(X, y)
    phi = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    precision = phi.T @ phi / 0.4 + 0.5 * np.eye(phi.shape[1])
    np.testing.assert_allclose(fitted.covariance_ @ precision, np.eye(phi.shape[1]), atol=1e-8)
    np.testing.assert_allclose(fitted.coef_, np.linalg.solve(precision, phi.T @ y / 0.4), atol=1e-8)
    parts = quantify(fitted.predict(X[:5]), "variance")
    exact = np.einsum("nd,de,ne->n", phi[:5], np.linalg.inv(precision), phi[:5])
    np.testing.assert_allclose(parts.epistemic, exact, atol=1e-10)
    np.testing.assert_allclose(parts.aleatoric, 0.4, atol=1e-12)


def test_check_14_scores_in_closed_form():
    one, zero = np.ones(1), np.zeros(1)
    assert m.crps_gaussian(zero, one, zero)[0] == pytest.approx(0.233695, abs=1e-6)
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(1, 200_000))
    assert m.crps_sample(draws, np.array([0.7]))[0] == pytest.approx(
        m.crps_gaussian(zero, one, np.array([0.7]))[0], abs=3e-3
    )
    assert m.interval_score(zero, one, np.array([-0.2]), 0.2)[0] == pytest.approx(1 + 2 / 0.2 * 0.2)
    assert m.interval_score(zero, one, np.array([0.4]), 0.2)[0] == 1
    p = np.array([[0.75, 0.25]] * 4)
    assert m.expected_calibration_error(p, np.array([0, 0, 0, 1])) == pytest.approx(0, abs=1e-12)
    certain = np.array([[1.0, 0.0]] * 3 + [[0.9, 0.1]])
    assert m.reliability(certain.max(1), np.ones(4), bins=10)[2].tolist() == [0] * 9 + [4]


def test_check_15_brier_parts_and_ordinal_variance():
    rng = np.random.default_rng(6)
    f = rng.random(2000)
    o = (rng.random(2000) < f).astype(float)
    few = f.round(1)
    d = m.brier_parts(few, o)
    assert d["reliability"] - d["resolution"] + d["uncertainty"] == pytest.approx(d["brier"], abs=1e-12)
    b = m.brier_parts(f, o, bins=10)
    three_terms = b["reliability"] - b["resolution"] + b["uncertainty"]
    assert abs(three_terms - b["brier"]) > 2e-4  # three terms alone miss
    assert three_terms + b["variance"] - 2 * b["covariance"] == pytest.approx(b["brier"], abs=1e-12)
    parts = quantify(Sample([[[0.5, 0.0, 0.5]]]), "ordinal_variance")
    assert parts.total[0] == pytest.approx(0.5, abs=1e-12)
    assert von_neumann_entropy(np.eye(7), gamma=100.0) == pytest.approx(log(7), abs=1e-9)


@pytest.mark.parametrize(("n", "alpha"), [(500, 0.1), (333, 0.1), (64, 0.1), (499, 0.05)])
def test_check_16_lac_sets_equal_those_of_crepes_and_mapie(n, alpha):
    crepes = pytest.importorskip("crepes")
    mapie = pytest.importorskip("mapie.classification")
    X, y = _digits()
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    model = LogisticRegression(C=0.05, max_iter=300).fit(X[:600], y[:600])
    cal, test = slice(600, 600 + n), slice(1200, None)
    p = model.predict_proba(X[cal])
    ours = SplitConformal("lac", alpha).fit(p, y[cal]).predict(model.predict_proba(X[test])).mask
    theirs = crepes.ConformalClassifier().fit(1 - p[np.arange(n), y[cal]])
    sets = theirs.predict_set(1 - model.predict_proba(X[test]), confidence=1 - alpha, smoothing=False)
    np.testing.assert_array_equal(ours, np.asarray(sets, dtype=bool))
    other = mapie.SplitConformalClassifier(
        model, confidence_level=1 - alpha, conformity_score="lac", prefit=True
    ).conformalize(X[cal], y[cal])
    np.testing.assert_array_equal(ours, other.predict_set(X[test])[1][:, :, 0])


def test_check_16_scores_by_hand():
    p = np.array([[0.5, 0.3, 0.2]])
    assert label_scores(p, "raps", lam=0.1, k_reg=0)[0] == pytest.approx([0.6, 1.0, 1.3])
    assert label_scores(p, "saps", lam=0.1)[0] == pytest.approx([0.5, 0.6, 0.7])
    assert label_scores(p, "aps", np.array([0.5]))[0] == pytest.approx([0.25, 0.65, 0.9])
    assert label_scores(p[:, ::-1].copy(), "aps")[0] == pytest.approx([1.0, 0.8, 0.5])
