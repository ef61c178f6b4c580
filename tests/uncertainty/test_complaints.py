"""Section 9 of the field's scope: what users of other libraries complained about, as tests of what is required here."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression

from assay.uncertainty import (
    Intervals,
    PriorRetuned,
    Sample,
    SplitConformal,
    TooFewCalibration,
    ood_detection,
    quantify,
    selective_prediction,
)
from assay.uncertainty import metrics as m
from assay.uncertainty.conformal import CVPlus, PredictiveSystem, conformal_quantile, conformal_rank, label_scores


def test_no_finite_bound_where_none_is_valid():
    """MAPIE #974, #980: a finite bound from too few rows; NeuralProphet PR #1711, sktime #10758."""
    for n in (1, 5, 8):
        with pytest.warns(TooFewCalibration):
            assert conformal_quantile(np.arange(float(n)), 0.1) == np.inf
    X = np.arange(8.0)[:, None]
    with pytest.warns(TooFewCalibration):
        found = CVPlus(LinearRegression, alpha=0.05, folds=None).fit(X, X[:, 0]).predict(X)
    assert np.isinf(found.lower).all()
    assert np.isinf(found.upper).all()
    system = PredictiveSystem().fit(np.zeros(9), np.arange(9.0))
    assert np.isinf(system.interval([0.0], 0.1).upper).all()


def test_coverage_holds_for_small_n():
    """MAPIE #452: coverage fails for small n."""
    rng = np.random.default_rng(0)
    for n in (9, 12, 19, 25):
        scores = rng.normal(size=(20_000, n + 1))
        k = conformal_rank(n, 0.1)
        threshold = np.partition(scores[:, :n], k - 1, axis=1)[:, k - 1]
        assert conformal_quantile(scores[0, :n], 0.1) == threshold[0]
        coverage = (scores[:, n] <= threshold).mean()
        assert abs(coverage - k / (n + 1)) < 4 * np.sqrt(0.1 * 0.9 / 20_000)
        assert k / (n + 1) >= 0.9


def test_the_order_statistic_is_taken_by_index():
    """MAPIE PR #973: one order statistic too high in 225 of 1064 cells, because a level is handed to numpy."""
    differs = 0
    for n in range(10, 200):
        values = np.arange(1.0, n + 1)
        for alpha in (0.05, 0.1, 0.2, 0.3):
            k = conformal_rank(n, alpha)
            if k > n:
                continue
            assert conformal_quantile(values, alpha) == k
            differs += np.quantile(values, min(1.0, (n + 1) * (1 - alpha) / n), method="higher") != k
    assert differs > 0  # the other way would be wrong somewhere on this grid


def test_randomised_scores_do_not_change_with_the_batch():
    """crepes #30, calibrated_explanations #43: p-values change with the size of the batch."""
    p = np.random.default_rng(0).dirichlet(np.ones(5), 60)
    method = SplitConformal("aps", 0.2, random_state=9).fit(p, np.arange(60) % 5)
    one_by_one = np.concatenate([method.predict(p[i : i + 1], first_row=i).mask for i in range(60)])
    np.testing.assert_array_equal(method.predict(p).mask, one_by_one)
    system = PredictiveSystem().fit(np.zeros(30), np.arange(30.0))
    np.testing.assert_array_equal(
        system.cdf(np.zeros(8), np.full(8, 3.5))[:3], system.cdf(np.zeros(3), np.full(3, 3.5))
    )


def test_randomised_aps_neither_over_nor_under_covers():
    """aangelopoulos/conformal-prediction #15: 93 % instead of 90; #8: sets of 200 labels without randomisation."""
    rng = np.random.default_rng(1)
    p = softmax(rng.normal(size=(40_000, 20)) * 1.5, axis=1)
    y = (p.cumsum(1) < rng.random((40_000, 1))).sum(1)
    covered, size = {}, {}
    for randomized in (True, False):
        sets = SplitConformal("aps", 0.1, randomized=randomized).fit(p[:20_000], y[:20_000]).predict(p[20_000:])
        covered[randomized], size[randomized] = sets.covers(y[20_000:]).mean(), sets.size.mean()
    assert covered[True] == pytest.approx(0.9, abs=0.008)
    assert size[True] < size[False]


def test_raps_has_no_epsilon():
    """probly #413: an epsilon that is in no paper. RAPS is APS plus lam max(0, rank - k_reg), to the last bit."""
    p = np.random.default_rng(2).dirichlet(np.ones(6), 50)
    u = np.random.default_rng(3).random(50)
    rank = (-p).argsort(1).argsort(1) + 1
    for k_reg in (0, 2, 5):
        expected = label_scores(p, "aps", u) + 0.1 * np.maximum(0, rank - k_reg)
        np.testing.assert_array_equal(label_scores(p, "raps", u, lam=0.1, k_reg=k_reg), expected)


def test_ties_do_not_depend_on_the_order_of_rows():
    """probly, measured: constant scores give AUROC 1.0; selective prediction gives 0.654 or 0.051 for the same 30 %
    error."""
    rng = np.random.default_rng(4)
    u = rng.random(200).round(1)
    loss = (rng.random(200) < 0.3).astype(float)
    reference = selective_prediction(u, loss, resamples=0).scores
    assert reference["error_auroc"] == pytest.approx(m.auroc(u[loss == 0], u[loss == 1]))
    for _ in range(5):
        order = rng.permutation(200)
        again = selective_prediction(u[order], loss[order], resamples=0).scores
        assert again == pytest.approx(reference)
    constant = selective_prediction(np.ones(30), [1.0] * 9 + [0.0] * 21, resamples=0)
    assert constant.scores["aurc"] == pytest.approx(0.3)
    assert ood_detection(np.ones(10), np.ones(10), resamples=0).scores["fpr95"] == 1.0


def test_a_confidence_of_one_is_counted():
    """probly, measured: the ECE of its paper's script drops rows with confidence 1."""
    p = np.array([[1.0, 0.0]] * 5)
    assert m.expected_calibration_error(p, np.array([0, 0, 0, 0, 1])) == pytest.approx(0.2)


def test_each_metric_by_hand():
    """torch-uncertainty #333 and PR #335: metrics that were not what their names said."""
    inside, outside = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.35, 0.5])
    assert m.auroc(inside, outside) == pytest.approx(7 / 8)
    assert m.aupr(inside, outside) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    assert m.fpr_at_tpr(inside, outside) == pytest.approx(1 / 4)
    assert m.detection_error(inside, outside) == pytest.approx(0.5 * (1 / 4 + 0))
    p = np.array([[0.7, 0.3], [0.4, 0.6]])
    assert m.brier_score(p, np.array([0, 0])) == pytest.approx((2 * 0.09 + 2 * 0.36) / 2)
    assert m.log_loss(p, np.array([0, 0])) == pytest.approx(-(np.log(0.7) + np.log(0.4)) / 2)
    assert m.coverage_at_risk(np.arange(4.0), np.array([0.0, 0, 1, 0]), 0.3) == pytest.approx(1.0)
    assert m.coverage_at_risk(np.arange(4.0), np.array([0.0, 0, 1, 0]), 0.2) == pytest.approx(0.5)
    assert m.risk_at_coverage(np.arange(4.0), np.array([0.0, 0, 1, 0]), 0.75) == pytest.approx(1 / 3)


def test_error_detection_is_in_selective_prediction():
    """MAPIE #551: wants AUROC of errors and the area under the accuracy-rejection curve."""
    result = selective_prediction([0.1, 0.2, 0.9, 0.3], [0, 0, 1, 0], resamples=0)
    assert result.scores["error_auroc"] == 1.0
    assert result.scores["rejection_area"] == pytest.approx(1 - 0.25 / 4)
    x, y = result.curves["accuracy_rejection"]
    assert (y[0], y[-1]) == (0.75, 1.0)
    assert x[0] == 0


def test_laplace_keeps_its_accuracy_and_says_when_the_prior_is_retuned():
    """Laplace #137: Monte Carlo prediction collapses to 0.25; #280: prior changed after MAP."""
    pytest.importorskip("torch")
    from assay.training import TrainConfig
    from assay.uncertainty import LastLayerLaplace

    X, y = load_digits(return_X_y=True)
    config = TrainConfig(epochs=15, lr=3e-3, optimizer="adamw", weight_decay=1e-4)
    with pytest.warns(PriorRetuned, match="prior precision"):
        method = LastLayerLaplace(config=config).fit(X[:900], y[:900])
    rep = method.predict(X[900:])
    assert (rep.predict() == y[900:]).mean() > 0.9
    assert (rep.sample(200, np.random.default_rng(0)).predict() == y[900:]).mean() > 0.9


def test_laplace_never_builds_rows_by_classes_by_classes():
    """Laplace, many classes: the memory of the logit variances is rows x classes."""
    import tracemalloc

    from assay.uncertainty.laplace import kronecker_laplace

    rng = np.random.default_rng(0)
    n, k, d = 2000, 150, 10
    features, logits = rng.normal(size=(n, d)), rng.normal(size=(n, k))
    target = np.eye(k)[rng.integers(0, k, n)]
    posterior = kronecker_laplace(features, logits, target, rng.normal(size=(k, d)))
    tracemalloc.start()
    variance = posterior.logit_variance(features)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert variance.shape == (n, k)
    assert peak < n * k * k * 8 / 10


def test_credal_measures_in_numpy_on_python_311():
    """probly #18, #20, #73: credal measures exist in torch only; and it needs Python 3.12."""
    import subprocess

    code = (
        "import sys, numpy as np\n"
        "from assay.uncertainty import Intervals, quantify\n"
        "parts = quantify(Intervals([[.2,.2,.2]], [[.5,.5,.5]]))\n"
        "assert abs(parts.epistemic[0] - 0.068959) < 1e-6\n"
        "assert 'torch' not in sys.modules and 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert quantify(Intervals([[0.2] * 3], [[0.5] * 3])).epistemic[0] == pytest.approx(np.log(3) - 1.0296530140645737)


def test_no_global_random_state_is_touched():
    """Randomised scores take a seed and leave numpy's state alone."""
    p = np.random.default_rng(5).dirichlet(np.ones(3), 50)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SplitConformal("aps").fit(p, np.arange(50) % 3).predict(p)
        quantify(Sample(p[:, None]))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
