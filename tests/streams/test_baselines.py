import numpy as np
import pytest

from assay.streams.contract import check_model, easy_stream, scores_by_row
from assay.streams.errors import LabelOutOfRange
from assay.streams.models.baselines import LastLabel, Majority
from assay.streams.rows import Row

NOTHING = Row.from_dict({})


def raw_by_row(model, X, labels):
    """One score a class, row by row; a class not met yet has 0."""
    scores = []
    for values, label in zip(X.tolist(), labels):
        row = Row.from_dict(dict(enumerate(values)))
        scores.append(model.raw_score_one(row))
        model.learn_one(row, label)
    return np.array([np.pad(s, (0, len(model.classes_) - len(s))) for s in scores])


@pytest.mark.parametrize("model", [Majority, LastLabel])
def test_holds_the_contract(model):
    check_model(model, auroc=0.0)


def test_majority_scores_are_shares():
    model = Majority()
    for label in (1, 1, 0, 1):
        model.learn_one(NOTHING, label)
    assert model.score_one(NOTHING) == 0.5
    assert model.predict_one(NOTHING) == 1


def test_last_label():
    scores = LastLabel().run_arrays(np.ones((5, 1)), [1, 0, 0, 1, 1])
    assert scores.tolist() == [0.0, 1.0, -1.0, -1.0, 1.0]


@pytest.mark.parametrize("model", [Majority, LastLabel])
def test_three_classes_by_name(model):
    X, _ = easy_stream(60)
    labels = ["b", "a", "c", "c", None, "c"] * 10
    scores = model().run_arrays(X, labels)
    np.testing.assert_array_equal(raw_by_row(model(), X, labels), scores)
    grown = model()
    grown.run_arrays(X, labels)
    assert grown.classes_ == ["b", "a", "c"]
    assert grown.predict_one(NOTHING) == "c"


def test_regression_is_the_mean_and_the_last_value():
    y = np.array([3.0, 5.0, np.nan, 10.0, 0.0])
    X = np.ones((5, 1))
    assert Majority(task="regression").run_arrays(X, y).tolist() == [0.0, 3.0, 4.0, 4.0, 6.0]
    assert LastLabel(task="regression").run_arrays(X, y).tolist() == [0.0, 3.0, 5.0, 5.0, 10.0]
    for model in (Majority, LastLabel):
        by_row = scores_by_row(model(task="regression"), X, y)
        np.testing.assert_array_equal(by_row, model(task="regression").run_arrays(X, y))


def test_they_look_at_no_feature():
    X, y = easy_stream(100)
    for model in (Majority, LastLabel):
        np.testing.assert_array_equal(model().run_arrays(X, y), model().run_arrays(np.ones((100, 1)), y))
        assert model().learn_one(Row.from_dict({"a": 1.0}), 1).explain_one(Row.from_dict({"a": 1.0})) == {"a": 0.0}


def test_declared_classes_are_kept_to():
    with pytest.raises(LabelOutOfRange, match="'c' is not one of the declared classes"):
        Majority(classes=["a", "b"]).learn_one(NOTHING, "c")
