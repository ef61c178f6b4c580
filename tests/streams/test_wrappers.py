import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from assay.streams import make_model
from assay.streams.contract import check_model, scores_by_row
from assay.streams.errors import CheckpointMismatch, LabelOutOfRange, StreamError
from assay.streams.models.logistic import MaskedLogistic
from assay.streams.models.nb3 import NB3
from assay.streams.models.ocds import OCDS
from assay.streams.models.olvf import OLVF
from assay.streams.models.one_vs_rest import OneVsRest
from assay.streams.models.passive_aggressive import MaskedPA
from assay.streams.models.scaled_target import ScaledTarget
from assay.streams.models.thresholded import Thresholded
from assay.streams.rows import Row, RowBlock
from assay.streams.state import load_tree, save_tree


def clouds(n=600, d=6, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    X = rng.normal(0, 1.5, (k, d))[y] + rng.standard_normal((n, d))
    X[rng.random((n, d)) < 0.3] = np.nan
    return X, y


def rare(n=3000, seed=0):
    """One row in twenty is positive."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.05).astype(np.int64)
    X = rng.standard_normal((n, 4))
    X[:, 0] += 2.0 * y
    X[:, 1:][rng.random((n, 3)) < 0.5] = np.nan
    return X, y


# -- OneVsRest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: OneVsRest(MaskedLogistic()),
        lambda: OneVsRest(OLVF(), classes=[0, 1]),
        lambda: OneVsRest(OCDS(max_features=40)),
        lambda: OneVsRest(Thresholded(MaskedPA(), "g_mean")),
    ],
)
def test_one_vs_rest_holds_the_contract(make):
    check_model(make, rows=100)


def test_each_class_is_a_model_of_its_own():
    X, y = clouds()
    scores = OneVsRest(MaskedPA(), classes=[0, 1, 2]).run_arrays(X, y)
    for c in range(3):
        alone = MaskedPA(classes=[0, 1]).run_arrays(X, (y == c).astype(np.int64))
        first = int(np.argmax(y == c)) + 1
        np.testing.assert_allclose(np.log(np.expm1(scores[first:, c])), alone[first:], rtol=1e-9, atol=1e-9)
        assert (scores[:first, c] == 0).all()
    assert np.mean(scores[300:].argmax(axis=1) == y[300:]) > 0.75


def test_a_class_that_appears_in_mid_stream_is_learned_from_then_on():
    X, y = clouds()
    y[:200] = np.minimum(y[:200], 1)
    names = np.array(["red", "green", "blue"])[y].tolist()
    model = OneVsRest(MaskedPA())
    scores = model.run_arrays(X, names)
    first = names.index("blue")
    late = model.classes_.index("blue")
    assert first >= 200
    assert late == 2
    assert (scores[: first + 1, 2] == 0).all()
    assert (scores[first + 1 :, 2] > 0).all()
    fresh = MaskedPA(classes=[0, 1]).run_arrays(X[first:], (y[first:] == 2).astype(np.int64))
    np.testing.assert_allclose(np.log(np.expm1(scores[first + 1 :, 2])), fresh[1:], rtol=1e-9, atol=1e-9)
    assert np.mean(np.array(model.classes_)[scores[400:].argmax(axis=1)] == np.array(names)[400:]) > 0.7


def test_three_class_paths_agree_and_resume():
    X, y = clouds(200)
    make = lambda: OneVsRest(OLVF(), classes=[0, 1, 2])  # noqa: E731
    scores = make().run_arrays(X, y)
    np.testing.assert_array_equal(scores_by_row(make(), X, y), scores)
    half = make()
    half.run_arrays(X[:100], y[:100])
    np.testing.assert_array_equal(make().load_state_dict(half.state_dict()).run_arrays(X[100:], y[100:]), scores[100:])


def test_a_wrapped_model_survives_the_disk(tmp_path):
    X, y = clouds(200)
    model = OneVsRest(Thresholded(MaskedLogistic(), window=50))
    model.run_arrays(X[:150], y[:150])
    save_tree(tmp_path / "state.npz", model.state_dict())
    again = OneVsRest(Thresholded(MaskedLogistic(), window=50)).load_state_dict(load_tree(tmp_path / "state.npz"))
    assert again.memory_bytes() == model.memory_bytes() > 3 * 50 * 4 * 8
    np.testing.assert_array_equal(again.run_arrays(X[150:], y[150:]), model.run_arrays(X[150:], y[150:]))
    with pytest.raises(CheckpointMismatch, match="of 'OneVsRest', not of 'Thresholded'"):
        Thresholded(MaskedLogistic()).load_state_dict(model.state_dict())


def test_the_template_is_never_trained_and_clones_start_afresh():
    template = MaskedLogistic()
    model = OneVsRest(template)
    X, y = clouds(50)
    model.run_arrays(X, y)
    assert template.features_ == []
    assert model.clone().features_ == []
    assert model.clone().model.rate == 0.05


def test_explanations_add_up_to_the_raw_score_of_the_class():
    X, y = clouds()
    model = OneVsRest(MaskedPA(), classes=[0, 1, 2])
    model.run_arrays(X, y)
    row = Row.from_dict({j: 1.0 - j for j in range(6)})
    scores = model.score_one(row)
    for label in (0, 1, 2):
        assert sum(model.explain_one(row, label).values()) == pytest.approx(np.log(np.expm1(scores[label])), abs=1e-9)
    assert model.explain_one(row) == model.explain_one(row, model.predict_one(row))
    with pytest.raises(StreamError, match="'violet'"):
        model.explain_one(row, "violet")


def test_a_class_never_learned_never_wins():
    X, y = clouds()
    scores = OneVsRest(MaskedPA(), classes=[2, 1, 0, "never"]).run_arrays(X, y.tolist())
    assert (scores[1:].argmax(axis=1) < 3).all()


def test_features_are_evicted_from_every_copy():
    model = OneVsRest(OCDS(max_features=4))
    for t in range(60):
        model.learn_one(Row.from_dict({f"w{t}": 1.0, "bias": 1.0}), t % 3)
    assert len(model.features_) == 4
    assert {int(copy._head[4]) for copy in model._copies} == {4}
    assert all((copy._seen[:4] > 0).all() and not copy._seen[4:].any() for copy in model._copies)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (NB3(), "NB3 is multi-class by itself"),
        (MaskedPA(task="regression"), "OneVsRest is for classification"),
        ("masked_pa", "model is a StreamModel, not 'masked_pa'"),
    ],
)
def test_what_one_vs_rest_cannot_wrap(model, words):
    with pytest.raises(StreamError, match=words):
        OneVsRest(model)


# -- Thresholded -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Thresholded(MaskedLogistic()),
        lambda: Thresholded(MaskedLogistic(), "f1", window=20, least=5),
        lambda: Thresholded(OCDS(max_features=40), "cost", window=50, false_negative=9.0),
    ],
)
def test_thresholded_holds_the_contract(make):
    check_model(make, rows=100)


def test_a_multiclass_model_can_be_wrapped_for_two_classes():
    check_model(lambda: Thresholded(NB3()), presence=True)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "f1", "g_mean", "cost"])
def test_the_threshold_is_the_best_on_the_window(metric):
    """Against all thresholds between the raw scores of the last 200 labelled rows, judged by scikit-learn."""
    X, y = rare(1000)
    raw = MaskedLogistic().run_arrays(X, y)
    model = Thresholded(MaskedLogistic(), metric, window=200, false_positive=1.0, false_negative=7.0)
    model.run_arrays(X, y)
    last, truth = raw[-200:], y[-200:]

    def quality(threshold):
        predicted = (last > threshold).astype(int)
        if metric == "balanced_accuracy":
            return balanced_accuracy_score(truth, predicted)
        if metric == "f1":
            return f1_score(truth, predicted)
        if metric == "g_mean":
            return np.sqrt(np.mean(predicted[truth == 1]) * np.mean(1 - predicted[truth == 0]))
        return -(np.sum(predicted > truth) + 7.0 * np.sum(predicted < truth))

    ordered = np.sort(last)
    best = max(quality(t) for t in [ordered[0] - 1, *(0.5 * (ordered[1:] + ordered[:-1])), ordered[-1]])
    assert quality(model.threshold_) == pytest.approx(best, abs=1e-12)


def test_scores_are_raw_scores_less_a_threshold_of_the_past():
    X, y = rare(400)
    raw = MaskedLogistic().run_arrays(X, y)
    scores = Thresholded(MaskedLogistic(), window=100).run_arrays(X, y)
    moved = raw - scores
    assert (moved[: 1 + np.flatnonzero(y)[0]] == 0).all()
    for t in (100, 250, 399):
        model = Thresholded(MaskedLogistic(), window=100)
        model.run_arrays(X[:t], y[:t])
        assert moved[t] == pytest.approx(model.threshold_, abs=1e-12)


def test_rare_faults_are_found():
    X, y = rare()
    plain = MaskedLogistic().run_arrays(X, y)
    tuned = Thresholded(MaskedLogistic()).run_arrays(X, y)
    half = len(y) // 2
    before = balanced_accuracy_score(y[half:], plain[half:] > 0)
    after = balanced_accuracy_score(y[half:], tuned[half:] > 0)
    assert before < 0.7 < 0.8 < after
    weighted = MaskedLogistic(class_weight="balanced").run_arrays(X, y)
    assert balanced_accuracy_score(y[half:], weighted[half:] > 0) > 0.8


def test_a_window_forgets():
    """The ring and the sorted table hold the same rows, whatever has passed through them."""
    X, y = rare(333)
    model = Thresholded(MaskedLogistic(), window=50)
    model.run_arrays(X, y)
    np.testing.assert_array_equal(np.sort(model._ring[:, 0]), model._sorted[:, 0])
    assert model._head[2] == y[-50:].sum() == model._sorted[:, 1].sum()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"metric": "accuracy"}, "metric is one of balanced_accuracy, f1, g_mean, cost, not 'accuracy'"),
        ({"window": 1}, "window is a whole number of at least 2, not 1"),
        ({"least": 0.5}, "least is a whole number of at least 2"),
        ({"false_negative": -1}, "false_negative is a number at least 0"),
        ({"model": MaskedLogistic(task="regression")}, "Thresholded is for classification"),
    ],
)
def test_bad_arguments_are_named(params, words):
    with pytest.raises(StreamError, match=words):
        Thresholded(**{"model": MaskedLogistic(), **params})


def test_a_third_class_is_an_error():
    with pytest.raises(LabelOutOfRange, match="wrap it in OneVsRest"):
        Thresholded(NB3()).run_arrays(np.ones((3, 1)), ["a", "b", "c"])


LINEAR = ["masked_logistic", "masked_pa", "olvf", "oli2ds", "olifl", "ocds"]


def scaled(name: str):
    return make_model(name, task="regression")


@pytest.mark.parametrize("name", LINEAR)
def test_linear_regression_is_taken_with_a_scaled_target(name):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    y = 20 * X[:, 0] - 10 * X[:, 1] + 150
    X[rng.random(X.shape) < 0.2] = np.nan
    y[[50, 51]] = np.nan
    model = scaled(name)
    assert isinstance(model, ScaledTarget)
    scores = model.run_arrays(X, y)
    assert scores[0] == 0.0
    np.testing.assert_array_equal(scores_by_row(scaled(name), X, y), scores)
    half = scaled(name)
    half.run_arrays(X[:200], y[:200])
    resumed = scaled(name).load_state_dict(half.state_dict())
    np.testing.assert_array_equal(resumed.run_arrays(X[200:], y[200:]), scores[200:])
    known = ~np.isnan(y[200:])
    assert np.std((y[200:] - scores[200:])[known]) < 0.75 * np.std(y[200:][known])
    row = RowBlock.from_array(X[:1] * 0 + 1.0).row(0)
    assert sum(model.explain_one(row).values()) == pytest.approx(
        model.score_one(row) - model.score_one(RowBlock.from_array(np.full((1, 4), np.nan)).row(0)), abs=1e-9
    )


@pytest.mark.parametrize("name", LINEAR)
def test_predictions_follow_the_unit_of_the_target(name):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=200)
    a, b = scaled(name).run_arrays(X, y), scaled(name).run_arrays(X, 1000 * y - 5000)
    np.testing.assert_allclose(b[1:], 1000 * a[1:] - 5000, rtol=1e-6)


def test_a_scaled_target_is_for_regression():
    with pytest.raises(StreamError, match="task='regression'"):
        ScaledTarget(make_model("masked_pa"))
