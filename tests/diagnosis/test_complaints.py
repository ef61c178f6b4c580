"""What users of other toolkits complained about, as behaviour required here. The docstring names the public issue."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from assay.diagnosis import (
    GDINA,
    IRT,
    MODELS,
    KCAccuracy,
    Rasch,
    ResponseData,
    calibrated_mastery,
    check_data,
    fit_statistics,
    from_frame,
    from_matrix,
    learning_curve_diagnosis,
    load,
    model_class,
    simulate_platform,
)
from assay.diagnosis.metrics import auc


def _quick(name):
    kind = model_class(name)
    return kind(stopping="fixed(2)") if "stopping" in kind._parameter_names() else kind()


@pytest.mark.parametrize("name", [n for n in MODELS if n != "ItemMean"])
def test_a_new_student_needs_no_retraining(name):
    """EduCDM#61, ORCDF#4, DCD#1: "a new student registers, must I retrain?"."""
    data = simulate_platform(150, 20, 3, density=0.9, seed=0).data
    known, new = data.only_students(np.arange(120)), data.only_students(np.arange(120, 150))
    model = _quick(name).fit(known)
    before = model.predict_proba([0, 1], [2, 3])
    mastery, se = model.transform(new, return_se=True)
    assert mastery.shape == se.shape == (30, 3)
    assert np.isfinite(mastery).all()
    assert (se >= 0).all()
    assert np.array_equal(before, model.predict_proba([0, 1], [2, 3])), "scoring must not change the model"
    p = model.with_students(new).predict_proba(new.student, new.item)
    assert ((p > 0) & (p < 1)).all()


@pytest.mark.parametrize("name", ["IRT", "MIRT", "GDINA", "NCDM", "KSCD", "IDCDF", "ORCDF"])
def test_new_items_need_no_retraining(name):
    """The same for a new exercise: its parameters are estimated, everything else stays."""
    data = simulate_platform(300, 24, 3, density=0.9, seed=0).data
    old = data.take(data.item < 20)
    first = ResponseData(old.student, old.item, old.correct, data.q[:20], data.student_ids)
    kind = model_class(name)
    model = (kind(stopping="fixed(15)", lr=0.01) if "stopping" in kind._parameter_names() else kind()).fit(first)
    more = model.extend_items(data)
    assert more.predict_proba(old.student, old.item) == pytest.approx(
        model.predict_proba(old.student, old.item), abs=1e-6
    )
    n, right = (np.bincount(data.item, w, 24) for w in (None, data.correct))
    predicted = np.bincount(data.item, more.predict_proba(data.student, data.item), 24)
    gap = np.abs(right - predicted) / n
    assert gap[20:].mean() < gap[:20].mean() + 0.06, "new items fit about as well as those the model was trained on"


def test_mastery_in_reports_is_calibrated():
    """ICDM#3: all mastery values lie in .4 to .6; compare predicted accuracy on the skill's items to a threshold
    instead.
    """
    from assay.diagnosis import KSCD

    data = simulate_platform(300, 24, 3, density=0.9, model="mirt", guess=0.0, seed=0).data
    for model in (KSCD(stopping="fixed(15)", lr=0.01), IRT(), GDINA()):
        value, passed = calibrated_mastery(model.fit(data), threshold=0.6)
        rows, skill = data.per_skill()
        q = data.dense_q()
        weights = 1.0 / q.sum(1)[data.item[rows]] ** 2
        observed = np.array([np.average(data.correct[rows][skill == k], weights=weights[skill == k]) for k in range(3)])
        assert value.mean(0) == pytest.approx(observed, abs=0.06)
        assert np.array_equal(passed, value >= 0.6)


def test_an_undertrained_model_is_said_to_be_one(table):
    """EduStudio#5, EduCAT#9: NCDM reaches AUC .667 or .74 and nobody says why."""
    from assay.diagnosis import NCDM

    split = table("frcsub").split("response", 0)
    short = NCDM(stopping="fixed(3)").fit(split.train, split.valid)
    assert learning_curve_diagnosis(short).startswith("undertrained")
    assert auc(split.test.correct, short.predict_proba(split.test.student, split.test.item)) < 0.75


def test_my_own_data_and_repeats():
    """ORCDF#3: how do I bring my own data, and what about repeated answers?"""
    log = pd.DataFrame({"user": ["a"] * 3 + ["b"], "question": ["x"] * 3 + ["x"], "correct": [0, 1, 1, 1], "tags": "k"})
    kept = {how: from_frame(log, skills="tags", on_duplicate=how).correct[0] for how in ("first", "last", "mean")}
    assert kept == {"first": 0, "last": 1, "mean": 1}
    data = from_frame(log, skills="tags")
    assert data.notes["repeated"] == 2
    assert "2 students" not in check_data(data).facts["items"]
    assert check_data(data).facts["responses"].startswith("2 ")


def test_rows_of_one_attempt_are_merged_before_splitting():
    """learner-performance-prediction#2, pykt-toolkit#119, #248, #128: a row a skill inflates AUC and leaks."""
    log = pd.DataFrame(
        {
            "user": ["a", "a", "a", "b"],
            "question": [1, 1, 2, 1],
            "correct": [1, 1, 0, 1],
            "skills": ["add", "carry", "add", "add"],
            "order_id": [10, 10, 11, 12],
        }
    )
    data = from_frame(log, order="order_id")
    assert len(data) == 3
    assert data.notes["merged_rows"] == 1
    assert data.dense_q().tolist() == [[True, True], [True, False]]
    split = data.split("response", 0, test=0.4)
    assert not set(split.train.cells()) & set(split.test.cells())


def test_missing_is_missing():
    """EduCDM#19, girth#25, #110, py-irt#59: sparse answers are first class, NaN is missing, no skip value."""
    rng = np.random.default_rng(0)
    theta, b = rng.normal(size=500), rng.normal(size=40)
    x = (rng.random((500, 40)) < 1 / (1 + np.exp(b - theta[:, None]))).astype(float)
    x[rng.random(x.shape) < 0.8] = np.nan
    data = from_matrix(x, np.ones((40, 1)))
    assert len(data) == np.isfinite(x).sum()
    model = Rasch(estimator="em").fit(data)
    assert np.corrcoef(model.item_params_[:, 1], b)[0, 1] > 0.95
    assert np.abs(model.item_params_[:, 1] * model.slope_ - b).mean() < 0.3


def test_blanks_are_not_wrong_and_an_alarm_is_raised():
    """irw#1942: blanks scored as wrong made 45 per cent of candidates score zero."""
    log = pd.DataFrame(
        {"user": list("aabbcc"), "question": list("xyxyxy"), "correct": [1, None, None, 1, None, None], "skills": "k"}
    )
    data = from_frame(log)
    assert (len(data), data.notes["blank"], data.correct.tolist()) == (2, 4, [1, 1])
    wrong = from_frame(log, blank_is_wrong=True)
    assert len(wrong) == 6
    assert any("blanks scored as wrong" in w for w in check_data(wrong).warnings)


def test_one_skill_sparse_fit_and_several_starts(table):
    """GDINA#7: one attribute crashes; GDINA#5: fit statistics fail on sparse TIMSS; GDINA#9: ACDM differs between
    machines.
    """
    single = GDINA().fit(load("lsat7"))
    assert single.mastery_.shape == (1000, 1)
    # 15 margins; those of two classes are fixed by 10 numbers (means and one factor), not by the 11 parameters
    assert fit_statistics(single, load("lsat7")).m2_df == 15 - 10
    data = table("timss07")
    few = from_matrix(
        data.matrix(),
        data.q.toarray()[:, :6].astype(int) | (data.q.toarray()[:, 6:].any(1)[:, None] & (np.arange(6) == 0)),
    )
    fit = fit_statistics(GDINA("DINA", tol=1e-4).fit(few), few)
    assert np.isnan(fit.m2)
    assert "complete data" in fit.m2_reason
    assert 0 < fit.srmsr < 1
    many = GDINA("ACDM", starts=3, tol=1e-5).fit(simulate_platform(300, 15, 3, density=1.0, seed=0).data)
    assert len(many.start_logliks_) == 3
    assert many.loglik_ >= max(many.start_logliks_) - 1e-4


def test_students_with_all_answers_right_have_finite_abilities():
    """aimir/irt#3: joint maximum likelihood diverges for all-right students."""
    data = load("lsat6")
    model = IRT().fit(data)
    all_right = np.bincount(data.student, data.correct) == 5
    assert all_right.sum() == 298
    assert np.isfinite(model.theta_).all()
    assert model.theta_[all_right].max() < 3


def test_scoring_raises_the_likelihood():
    """EduCDM's EM-IRT transform steps against the gradient: scores must beat all neighbours in posterior likelihood."""
    data = load("lsat7")
    model = IRT(estimator="em", score="map").fit(data)
    theta = model.theta_

    def log_posterior(t):
        z = model.slope_ * t[:, None] - model.intercept_
        x = data.matrix()
        return (x * z - np.logaddexp(0, z)).sum(1) - t**2 / 2

    best = log_posterior(theta)
    for shift in (-0.5, -0.01, 0.01, 0.5):
        assert (log_posterior(theta + shift) < best).all()


def test_one_config_a_row():
    """ORCDF#2: which command gives which row of the table? Every record holds the parameters of its model."""
    import tempfile

    from assay.diagnosis.benchmark import benchmark

    results = benchmark.run(
        ["lsat7"], ["kcaccuracy(strength=2.0)", "irt"], [0], store=tempfile.mkdtemp(), progress=False
    )
    params = {record.method: record.params for record in results.records}
    assert params["kcaccuracy(strength=2.0)"] == {"strength": 2.0}
    assert all(record.notes["split"] == results.records[0].notes["split"] for record in results.records)
    assert KCAccuracy(strength=2.0).get_params() == {"strength": 2.0}
