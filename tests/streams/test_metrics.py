"""Figures against scikit-learn, and what is said where a figure is undefined."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.streams import metrics as m
from assay.streams.errors import SingleClassWarning, StreamError


@given(seed=st.integers(0, 10_000), weighted=st.booleans())
@settings(max_examples=40, deadline=None)
def test_two_classes_with_ties(seed, weighted):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 200)
    s = rng.integers(-4, 5, 200).astype(float)
    w = rng.random(200) if weighted else None
    p = (s > 0).astype(np.int64)
    probability = 1 / (1 + np.exp(-s))
    assert m.auroc(y, s, w) == pytest.approx(sk.roc_auc_score(y, s, sample_weight=w), abs=1e-12)
    assert m.auprc(y, s, w) == pytest.approx(sk.average_precision_score(y, s, sample_weight=w), abs=1e-12)
    assert m.accuracy(y, p, w) == pytest.approx(sk.accuracy_score(y, p, sample_weight=w), abs=1e-12)
    assert m.balanced_accuracy(y, p, w) == pytest.approx(sk.balanced_accuracy_score(y, p, sample_weight=w), abs=1e-12)
    assert m.macro_f1(y, p, w) == pytest.approx(sk.f1_score(y, p, average="macro", sample_weight=w), abs=1e-12)
    assert m.kappa(y, p, w) == pytest.approx(sk.cohen_kappa_score(y, p, sample_weight=w), abs=1e-12)
    assert m.log_loss(y, s, w) == pytest.approx(sk.log_loss(y, probability, sample_weight=w), abs=1e-12)
    assert m.brier(y, s, w) == pytest.approx(sk.brier_score_loss(y, probability, sample_weight=w), abs=1e-12)
    recall = sk.recall_score(y, p, average=None, sample_weight=w)
    assert m.g_mean(y, p, w) == pytest.approx(np.sqrt(recall.prod()), abs=1e-12)
    assert m.number_of_errors(y, p) == np.sum(y != p)


def test_three_classes_are_one_vs_rest_macro_averages():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    s = rng.normal(size=(300, 3)) + 1.5 * np.eye(3)[y]
    p = s.argmax(1)
    onehot = np.eye(3)[y]
    assert m.auroc(y, s) == pytest.approx(sk.roc_auc_score(onehot, s, average="macro"), abs=1e-12)
    assert m.auprc(y, s) == pytest.approx(sk.average_precision_score(onehot, s, average="macro"), abs=1e-12)
    assert m.balanced_accuracy(y, p) == pytest.approx(sk.balanced_accuracy_score(y, p), abs=1e-12)
    softmax = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    assert m.log_loss(y, s) == pytest.approx(sk.log_loss(y, softmax), abs=1e-12)
    assert m.brier(y, s) == pytest.approx(np.mean(((softmax - onehot) ** 2).sum(1)), abs=1e-12)


def test_a_class_absent_from_the_prefix_is_left_out_of_the_average():
    y = np.array([0, 1, 0, 1, 0, 0])
    s = np.random.default_rng(0).normal(size=(6, 3))
    two = [sk.roc_auc_score(y == k, s[:, k]) for k in (0, 1)]
    assert m.auroc(y, s) == pytest.approx(np.mean(two), abs=1e-12)


def test_one_class_is_nan_with_a_warning_never_an_exception():
    y, s = np.ones(5, dtype=np.int64), np.arange(5.0)
    for function in (m.auroc, m.auprc):
        with pytest.warns(SingleClassWarning):
            assert np.isnan(function(y, s))
    with pytest.warns(SingleClassWarning):
        assert np.isnan(m.kappa(y, y))
    with pytest.warns(SingleClassWarning):
        assert np.isnan(m.kappa_temporal(y, y))
    assert m.balanced_accuracy(y, y) == 1.0


def test_temporal_kappa_is_zero_for_the_last_label_and_one_for_the_truth():
    y = np.random.default_rng(1).integers(0, 2, 100)
    last = np.concatenate([[0], y[:-1]])
    assert m.kappa_temporal(y, last) == pytest.approx(0.0)
    assert m.kappa_temporal(y, y) == 1.0
    # Zliobaite et al. 2015: (p - p_per) / (1 - p_per) with p = .8, p_per = .5
    y = np.array([0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1])
    predicted = y.copy()
    predicted[[2, 5]] = 1 - predicted[[2, 5]]
    assert m.kappa_temporal(y, predicted) == pytest.approx((0.8 - 0.5) / 0.5)


def test_regression_figures():
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=(2, 50))
    assert m.rmse(y, p) == pytest.approx(np.sqrt(sk.mean_squared_error(y, p)), abs=1e-12)
    assert m.mae(y, p) == pytest.approx(sk.mean_absolute_error(y, p), abs=1e-12)
    assert m.r2(y, p) == pytest.approx(sk.r2_score(y, p), abs=1e-12)


def test_sliding_and_faded_figures_against_loops():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    s = rng.normal(size=400) + y
    p = (s > 0.5).astype(np.int64)
    points = [10, 150, 400]
    for name in ("accuracy", "balanced_accuracy", "auroc"):
        metric = m.METRICS[name]
        windowed = m.sliding(metric, y, s, p, 100, points)
        given_ = s if metric.needs == "scores" else p
        assert windowed == pytest.approx(
            [metric.function(y[max(0, t - 100) : t], given_[max(0, t - 100) : t]) for t in points]
        )
    fading = m.faded(m.METRICS["accuracy"], y, s, p, 0.99, points)
    for t, value in zip(points, fading, strict=True):
        weights = 0.99 ** np.arange(t - 1, -1, -1.0)
        assert value == pytest.approx(np.average(y[:t] == p[:t], weights=weights), abs=1e-9)


def test_recovery_time():
    hits = np.array([True] * 200 + [False] * 30 + [True] * 170)
    # the window of 50 is full of hits again when the last miss has left it
    assert m.recovery_time(hits, 200, window=50) == 79
    assert m.recovery_time(np.ones(100, dtype=bool), 50) == 0
    assert m.recovery_time(np.array([True] * 50 + [False] * 50), 50) == np.inf
    assert np.isnan(m.recovery_time(hits, 0))


def test_names_belong_to_a_task():
    with pytest.raises(StreamError, match="did you mean auroc"):
        m.metrics_for("classification", ["auroq"])
    with pytest.raises(StreamError, match="rmse"):
        m.metrics_for("classification", ["rmse"])
    assert [x.name for x in m.metrics_for("regression", None)] == ["rmse", "mae", "r2"]
