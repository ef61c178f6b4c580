"""Named errors: each is raised by the bad input it is for, and says where and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from assay.uncertainty import (
    AmbiguousAxis,
    Bernoulli,
    Categorical,
    ClassMissingInCalibration,
    ConformalCredalSet,
    ConformalRegressor,
    Dirichlet,
    EfficientCredal,
    EmptyCredalSet,
    Ensemble,
    FallbackWarning,
    Hull,
    Intervals,
    LabelSet,
    LevelSet,
    NotADistribution,
    NotFitted,
    NotSupported,
    QuantileConformal,
    Sample,
    SplitConformal,
    TargetShape,
    TemperatureScaling,
    TooFewCalibration,
    TVBall,
    UncertaintyError,
    WithDensity,
    active_learning,
    audit,
    e_admissible,
    first_order,
    hartley,
    hull_coverage,
    lower_entropy,
    quantify,
    read_predictions,
    selective_prediction,
)
from assay.uncertainty.conformal import CVPlus, label_scores, risk_threshold

P = np.random.default_rng(0).dirichlet(np.ones(3), 40)
Y = np.arange(40) % 3


def test_not_a_distribution_names_row_and_sum():
    bad = P.copy()
    bad[7] *= 0.9
    with pytest.raises(NotADistribution, match=r"row 7 sums to 0\.9"):
        Categorical(bad)
    members = np.stack([P, bad], axis=1)
    with pytest.raises(NotADistribution, match=r"row \(7, 1\)"):
        Sample(members)
    bad[7] = [-0.1, 0.6, 0.5]
    with pytest.raises(NotADistribution, match="negative"):
        Categorical(bad)
    bad[7] = [np.nan, 0.5, 0.5]
    with pytest.raises(NotADistribution, match="NaN"):
        Categorical(bad)
    with pytest.raises(NotADistribution, match="weights"):
        Sample(members[:, :1].repeat(2, axis=1) * 0 + P[:, None], [0.0, 0.0])
    with pytest.raises(NotADistribution, match="row 0"):
        Bernoulli([1.2])


def test_limits_of_the_sum_and_renormalisation():
    Categorical((P * (1 + 5e-5)).astype(np.float32))
    with pytest.raises(NotADistribution):
        Categorical(P * (1 + 5e-5))
    assert Categorical(P * (1 + 5e-7)).probs.sum(1) == pytest.approx(np.ones(40), abs=1e-15)
    np.testing.assert_allclose(Categorical(np.array([[3, 1]]), renormalize=True).probs, [[0.75, 0.25]])


def test_ambiguous_axis():
    with pytest.raises(AmbiguousAxis, match="shape"):
        Sample(np.array([0.5, 0.5]))
    with pytest.raises(AmbiguousAxis, match="classes are last"):
        Sample(np.stack([P, P]), axis=2)
    with pytest.raises(AmbiguousAxis, match="which axis"):
        audit(np.stack([P, P]))


def test_empty_credal_set():
    with pytest.raises(EmptyCredalSet, match=r"row 1 .* sum to 1\.2"):
        Intervals([[0.1, 0.2], [0.6, 0.6]], [[0.9, 0.9], [0.7, 0.7]])
    with pytest.raises(EmptyCredalSet, match=r"upper ones to 0\.8"):
        Intervals([[0.1, 0.2]], [[0.4, 0.4]])


def test_target_shape():
    with pytest.raises(TargetShape, match="labels"):
        first_order(Sample(P[:, None]), Y)
    with pytest.raises(TargetShape, match="first-order"):
        SplitConformal().fit(P, P)
    with pytest.raises(TargetShape, match="outside the codes"):
        SplitConformal().fit(P, Y + 1)
    with pytest.raises(TargetShape, match="no classes"):
        SplitConformal(classes=["a", "b", "c"]).fit(P, ["a"] * 39 + ["z"])
    with pytest.raises(TargetShape):
        hull_coverage(Hull(P[:, None]), P[:5])
    with pytest.raises(TargetShape, match="labels"):
        ConformalCredalSet().fit(P, Y)
    with pytest.raises(TargetShape):
        EfficientCredal().fit_probs(P, Y + 3)
    with pytest.raises(TargetShape):
        TemperatureScaling().fit(P, P[:, :2])
    with pytest.raises(TargetShape):
        selective_prediction(np.zeros(3), np.zeros(4))


def test_too_few_calibration_rows_give_infinite_sets():
    with pytest.warns(TooFewCalibration, match="at least 9"):
        sets = SplitConformal("lac", 0.1).fit(P[:8], Y[:8]).predict(P)
    assert sets.mask.all()
    with pytest.warns(TooFewCalibration):
        interval = ConformalRegressor(alpha=0.1).fit(np.zeros(8), np.arange(8.0)).predict(np.zeros(2))
    assert np.isinf(interval.width).all()
    with pytest.warns(TooFewCalibration):
        assert np.isinf(QuantileConformal(alpha=0.1).fit(np.zeros(8), np.ones(8), np.zeros(8)).threshold_)


def test_not_supported_names_what_works():
    with pytest.raises(NotSupported, match="hartley, zero_one"):
        quantify(Intervals(P * 0.5, np.ones_like(P)), "brier")
    with pytest.raises(NotSupported, match="entropy, brier"):
        quantify(Sample(P[:, None]), "hartley")
    with pytest.raises(NotSupported, match="size"):
        quantify(LabelSet(P > 0.3), "entropy")
    with pytest.raises(NotSupported, match="not convex"):
        lower_entropy(LevelSet([[0.5, 2.0]], 0.5))
    with pytest.raises(NotSupported, match="16"):
        hartley(TVBall(np.full((1, 17), 1 / 17), 0.1))
    with pytest.raises(NotSupported, match="polytope"):
        e_admissible(LevelSet([[2.0, 2.0]], 0.5))
    assert np.isfinite(hartley(TVBall(np.full((1, 17), 1 / 17), 0.1), force=True)).all()


def test_class_missing_in_calibration():
    with pytest.raises(ClassMissingInCalibration, match="class 2"):
        SplitConformal(groups="class").fit(P, Y % 2)
    groups = SplitConformal(groups="given").fit(P, Y, ["a", "b"] * 20)
    with pytest.raises(ClassMissingInCalibration, match="group c"):
        groups.predict(P[:1], ["c"])
    regions = ConformalRegressor(groups=True).fit(np.zeros(40), P[:, 0], groups=["n", "s"] * 20)
    with pytest.raises(ClassMissingInCalibration, match="east"):
        regions.predict(np.zeros(1), groups=["east"])


def test_fallback_is_named_and_never_silent():
    parts = quantify(Categorical(P))
    with pytest.warns(FallbackWarning, match="no epistemic .* total"):
        np.testing.assert_array_equal(parts.get("epistemic"), parts.total)
    far = quantify(WithDensity(P, np.arange(40.0)))
    np.testing.assert_array_equal(far.get("epistemic"), -np.arange(40.0))
    with pytest.warns(FallbackWarning, match="no total .* epistemic"):
        far.get("total")
    with pytest.raises(UncertaintyError, match="notions"):
        parts.get("model")


def test_not_fitted():
    for method in (SplitConformal(), ConformalRegressor(), TemperatureScaling(), QuantileConformal()):
        with pytest.raises(NotFitted, match="fit"):
            method.predict(*([np.zeros(2)] * (2 if isinstance(method, QuantileConformal) else 1)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: SplitConformal("best"),
        lambda: SplitConformal(alpha=0.0),
        lambda: SplitConformal(groups="row"),
        lambda: SplitConformal(empty="never"),
        lambda: label_scores(P, "best"),
        lambda: ConformalRegressor("relative"),
        lambda: ConformalRegressor("gamma").fit(np.array([-1.0, 2.0]), np.ones(2)),
        lambda: QuantileConformal("uacqr").fit(np.zeros(3), np.ones(3), np.ones(3)),
        lambda: CVPlus(object, folds=1),
        lambda: risk_threshold([0.1], [True], risk=2.0),
        lambda: Dirichlet([[0.0, 1.0]]),
        lambda: TVBall(P, -0.1),
        lambda: LevelSet([[2.0, 2.0]], 0.0),
        lambda: LabelSet(np.zeros((2, 2))),
        lambda: quantify(Sample(P[:, None]), base="ten"),
        lambda: quantify(Sample(P[:, None]), "brier", base=2),
        lambda: EfficientCredal(alpha=1.5).fit_probs(P, Y),
        lambda: Ensemble(_NoSeed(), resample="none").fit(P, Y),
        lambda: active_learning(lambda s: None, P, Y, P, Y, strategy="best"),
        lambda: active_learning(lambda s: None, P, Y, P, Y, start=30, step=10, rounds=5),
        lambda: Categorical(P).named(["a", "b"]),
    ],
)
def test_settings_out_of_range_are_refused(call):
    with pytest.raises(UncertaintyError):
        call()


class _NoSeed:
    """An estimator without random_state."""

    def get_params(self, deep=True):
        return {}


def test_files_of_predictions(tmp_path):
    np.savez(tmp_path / "two.npz", a=P, b=P)
    with pytest.raises(UncertaintyError, match="a, b"):
        read_predictions(tmp_path / "two.npz")
    with pytest.raises(UncertaintyError, match="no array 'c'"):
        read_predictions(tmp_path / "two.npz", key="c")
    with pytest.raises(UncertaintyError, match="no file"):
        read_predictions(tmp_path / "none.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(UncertaintyError, match="no objects"):
        read_predictions(tmp_path / "objects.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(UncertaintyError, match="plain arrays"):
        read_predictions(tmp_path / "broken.npz")
    (tmp_path / "text.csv").write_text("a,b\n0.5,x\n")
    with pytest.raises(UncertaintyError, match="number"):
        read_predictions(tmp_path / "text.csv")
