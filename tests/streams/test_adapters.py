"""scikit-learn's and river's conventions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from assay.streams import FromRiver, StreamClassifier, StreamRegressor, ToRiver, load, run


@parametrize_with_checks([StreamClassifier(), StreamClassifier("masked_gaussian_nb"), StreamRegressor()])
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


def test_partial_fit_is_the_pass_and_predict_learns_nothing():
    X, y = load("wdbc").masked("probabilistic", seed=0).arrays()
    estimator = StreamClassifier("olvf")
    for part in np.array_split(np.arange(400), 4):
        estimator.partial_fit(X[part], y[part], classes=[0, 1])
    first = estimator.decision_function(X[400:])
    np.testing.assert_array_equal(first, estimator.decision_function(X[400:]))
    assert np.mean(estimator.predict(X[400:]) == y[400:]) > 0.85
    np.testing.assert_allclose(estimator.predict_proba(X[400:]).sum(axis=1), 1.0)
    one_pass = run("olvf", load("wdbc").masked("probabilistic", seed=0).head(400))
    for row, _ in load("wdbc").masked("probabilistic", seed=0).tail(400):
        ready = one_pass.normalizer.transform_one(row, learn=False)
        by_name = estimator.normalizer_.transform_block
        assert by_name is not None
        assert one_pass.model.score_one(ready) == pytest.approx(float(first[0]), abs=1e-9)
        break
    with pytest.raises(ValueError, match="not among the classes"):
        estimator.partial_fit(X[:2], [0, 7])


def test_a_river_model_runs_here_and_ours_run_there():
    river = pytest.importorskip("river", reason="river is not installed")
    from river import linear_model, metrics, optim, preprocessing, stream

    model = preprocessing.StandardScaler() | linear_model.LogisticRegression(optim.SGD(0.05))
    result = run(FromRiver(model), load("wdbc").masked("probabilistic", seed=0), normalizer="none")
    assert result.metrics["auroc"] > 0.95
    X, y = load("wdbc").masked("probabilistic", seed=0).arrays()
    ours, auc = ToRiver("masked_logistic"), metrics.ROCAUC()
    for x, label in zip(X, y, strict=True):
        row = {f"c{j}": v for j, v in enumerate(x) if v == v}
        auc.update(bool(label), ours.predict_proba_one(row).get(True, 0.5))
        ours.learn_one(row, bool(label))
    assert auc.get() > 0.95
    assert river.__version__
    assert stream is not None
