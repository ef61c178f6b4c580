"""The pass: order, delay, missing labels, checkpoints, and what comes out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from assay.streams import from_arrays, from_dicts, load, make_model, make_stream, run, tune
from assay.streams.contract import scores_by_row
from assay.streams.errors import CheckpointMismatch, StreamError
from assay.streams.models import MODELS
from assay.streams.normalize import ZScore
from assay.streams.protocol import RunResult
from assay.streams.rows import RowBlock
from assay.streams.state import load_tree


class Recorder:
    """Keeps what it is given, in order."""

    def __init__(self):
        self.seen = []

    def score_one(self, row):
        self.seen.append(("score", row.to_dict()))
        return float(len(self.seen))

    def learn_one(self, row, y):
        self.seen.append(("learn", row.to_dict(), y))


def numbered(n: int):
    return from_dicts([({"t": float(t)}, t % 2) for t in range(n)])


def test_each_row_is_scored_before_it_is_learned_in_order():
    model = Recorder()
    run(model, numbered(4), normalizer="none", metrics=["accuracy"])
    t = [{"t": float(i)} for i in range(4)]
    assert model.seen == [x for i in range(4) for x in (("score", t[i]), ("learn", t[i], i % 2))]


def test_a_delayed_label_is_learned_after_the_row_k_later_was_scored():
    model = Recorder()
    result = run(model, numbered(5), normalizer="none", metrics=["accuracy"], label_delay=2)
    order = [(x[0], x[1]["t"]) for x in model.seen]
    assert order == [
        ("score", 0.0), ("score", 1.0), ("score", 2.0), ("learn", 0.0), ("score", 3.0), ("learn", 1.0), ("score", 4.0),
        ("learn", 2.0),
    ]  # fmt: skip
    assert len(result.scores) == 5  # rows 3 and 4 are still waiting: scored, never learned


def test_a_delayed_row_is_learned_as_it_was_normalised_at_its_time():
    X = np.random.default_rng(0).normal(size=(30, 2)) * 5 + 3
    model = Recorder()
    run(model, from_arrays(X, np.arange(30) % 2), label_delay=7, metrics=["accuracy"])
    scored = [x[1] for x in model.seen if x[0] == "score"]
    learned = [x[1] for x in model.seen if x[0] == "learn"]
    assert learned == scored[:23]


def test_a_missing_label_updates_the_normaliser_only():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = (X[:, 0] > 0).astype(float)
    hidden = y.copy()
    hidden[50:100] = np.nan
    result = run("masked_logistic", from_arrays(X, hidden, task="classification", classes=(0, 1)))
    scale, model = ZScore(), make_model("masked_logistic", classes=(0, 1))
    expected = []
    for t in range(200):
        row = scale.transform_one(RowBlock.from_array(X[t : t + 1], ["x0", "x1", "x2"]).row(0))
        expected.append(model.score_one(row))
        if not np.isnan(hidden[t]):
            model.learn_one(row, int(hidden[t]))
    np.testing.assert_array_equal(result.scores, expected)
    assert (result.labels[50:100] == -1).all()


def test_a_delay_of_zero_is_the_plain_pass_for_every_path():
    stream = load("wdbc").masked("probabilistic", seed=1)
    fast = run("olvf", stream)
    rowwise = run("olvf", stream, impute="none", label_delay=0)
    np.testing.assert_array_equal(fast.scores, rowwise.scores)
    X, y = stream.arrays()
    ready = ZScore().transform_block(RowBlock.from_array(X, stream.columns))
    model = make_model("olvf", classes=(0, 1))
    by_row = []
    for t in range(len(ready)):
        by_row.append(model.score_one(ready.row(t)))
        model.learn_one(ready.row(t), int(y[t]))
    np.testing.assert_array_equal(fast.scores, by_row)


@pytest.mark.parametrize("name", [n for n, (module, _) in MODELS.items() if module != "neural"])
@pytest.mark.parametrize("delay", [0, 3])
def test_a_pass_that_was_killed_goes_on_and_ends_with_the_same_bits(tmp_path, name, delay):
    stream = load("wdbc").masked("probabilistic", seed=2).head(260)
    whole = run(name, stream, label_delay=delay, seed=5)
    path = tmp_path / "pass.npz"

    def stop(done, total, text):
        if done >= 120:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(name, stream, label_delay=delay, seed=5, checkpoint=path, every=60, report=stop)
    assert load_tree(path)["rows"] == 120
    resumed = run(name, stream, label_delay=delay, seed=5, checkpoint=path, every=60)
    np.testing.assert_array_equal(resumed.scores, whole.scores)
    assert resumed.metrics == whole.metrics
    assert not path.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    stream = load("wdbc").masked("probabilistic", seed=2)
    path = tmp_path / "pass.npz"

    def stop(done, total, text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("olvf", stream, checkpoint=path, every=100, report=stop)
    for other in (
        lambda: run("nb3", stream, checkpoint=path),
        lambda: run("olvf", stream, checkpoint=path, normalizer="minmax"),
        lambda: run("olvf", load("wdbc").masked("probabilistic", seed=3), checkpoint=path),
        lambda: run("olvf", stream, checkpoint=path, label_delay=1),
    ):
        with pytest.raises(CheckpointMismatch, match="delete the file to start afresh"):
            other()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointMismatch, match="not a readable state file"):
        run("olvf", stream, checkpoint=path)


def test_two_passes_over_one_stream_are_the_same():
    for stream in (
        load("wdbc").masked("bursts"),
        make_stream("words", 500, 8).stream,
        make_stream("rbf", 1500, 4).stream,
    ):
        a, b = run("masked_pa", stream), run("masked_pa", stream)
        np.testing.assert_array_equal(a.scores, b.scores)


def test_blocks_of_any_size_give_the_same_rows():
    stream = load("wdbc").masked("bursts", seed=1, empty="one")
    one = [row.to_dict() for row, _ in stream]
    for size in (1, 50, 5000):
        many = [block.row(t).to_dict() for block, _ in stream.blocks(size) for t in range(len(block))]
        assert many == one


def test_more_than_two_classes_take_one_vs_rest_and_unseen_classes_do_not_win():
    stream = load("wine").masked("probabilistic", p=0.7, seed=0)
    for name in ("masked_logistic", "masked_gaussian_nb"):
        result = run(name, stream)
        assert result.scores.shape == (178, 3)
        first = {int(k): int(np.flatnonzero(result.labels == k)[0]) for k in range(3)}
        for k, row in first.items():
            assert (result.predictions[: row + 1] != k).all() or k == 0
        assert result.metrics["balanced_accuracy"] > 0.75


def test_undeclared_classes_grow():
    X = np.random.default_rng(0).normal(size=(300, 3))
    names = np.array(["low", "middle", "high"])
    y = names[np.digitize(X[:, 0], [-0.5, 0.5])]
    rows = [({f"x{j}": v for j, v in enumerate(x)}, label) for x, label in zip(X, y, strict=True)]
    result = run("masked_gaussian_nb", from_dicts(rows), normalizer="none")
    assert set(result.classes) == set(names)
    predicted = np.array(result.classes)[result.predictions]
    assert np.mean(predicted[150:] == y[150:]) > 0.85


def test_regression_predicts_values():
    stream = load("diabetes").masked("probabilistic", p=0.8, seed=0)
    result = run("masked_logistic", stream, metrics=["rmse", "r2"])
    base = run("majority", stream, metrics=["rmse"])
    assert set(result.metrics) == {"rmse", "r2"}
    np.testing.assert_array_equal(result.scores, result.predictions)
    means = np.concatenate([[0.0], np.cumsum(result.labels)[:-1] / np.arange(1, 442)])
    np.testing.assert_allclose(base.scores, means)
    with pytest.raises(StreamError, match="does classification only"):
        run("nb3", stream)


def test_a_score_that_is_no_number_is_an_error_with_the_row():
    class Sick(Recorder):
        def score_one(self, row):
            return float("nan") if row.to_dict()["t"] == 3.0 else 0.0

    with pytest.raises(StreamError, match=r"gave the score .*nan.* at row 3"):
        run(Sick(), numbered(6), normalizer="none")

    class Wide(Recorder):
        def score_one(self, row):
            return np.zeros((2, 2))

    with pytest.raises(StreamError, match="an array of shape"):
        run(Wide(), numbered(6), normalizer="none")
    with pytest.raises(StreamError, match=r"has no method learn_one\(row, y\)"):
        run(type("Half", (), {"score_one": lambda self, row: 0.0})(), numbered(2))


def test_curves_blocks_and_recovery():
    result = run("masked_logistic", load("wdbc").masked("reappearing", seed=0), window=100)
    rows, values = result.curve("accuracy", points=50)
    assert rows[-1] == 569
    correct = result.predictions == result.labels
    assert values[-1] == pytest.approx(correct[-100:].mean())
    rows, values = result.curve("accuracy", "cumulative")
    assert values[-1] == pytest.approx(result.metrics["accuracy"])
    assert result.change_points == [113, 227, 341, 455]
    blocks = result.per_block("accuracy")
    assert blocks == pytest.approx(
        [correct[a:b].mean() for a, b in zip([0, 113, 227, 341, 455], [113, 227, 341, 455, 569], strict=True)]
    )
    assert len(result.recovery()) == 4
    with pytest.raises(StreamError, match="'window', 'fading' or 'cumulative'"):
        result.curve("accuracy", "monthly")


def test_a_result_is_saved_whole_and_read_back(tmp_path):
    result = run("masked_gaussian_nb", load("wine").masked("probabilistic"), metrics=["accuracy", "auroc"])
    result.save(tmp_path / "out")
    again = RunResult.load(tmp_path / "out")
    np.testing.assert_array_equal(again.scores, result.scores)
    np.testing.assert_array_equal(again.labels, result.labels)
    assert again.metrics == result.metrics
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["config"]["normalizer"] == "ZScore()"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["result.json", "rows.parquet"]


def test_warm_start_and_freeze():
    stream = load("wdbc").masked("probabilistic", seed=0)
    cold = run("masked_logistic", stream.tail(300), metrics=["auroc", "accuracy"])
    warm = run("masked_logistic", stream.tail(300), metrics=["auroc", "accuracy"], warm_start=stream.head(300))
    assert warm.metrics["accuracy"] > cold.metrics["accuracy"]
    model = warm.model.freeze()
    before = model.state_dict()
    frozen = run(model, stream.head(50), metrics=["accuracy"])
    assert frozen.model is model
    for name, value in before["state"].items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, model.state_dict()["state"][name])


def test_tuning_sees_the_prefix_only():
    stream = load("wdbc").masked("probabilistic", seed=0)
    grid = {"rate": [1e-4, 0.05], "intercept_rate": [0.01]}
    X, y = stream.arrays()
    garbage = X.copy()
    garbage[100:] = 1e6
    a = tune("masked_logistic", stream, grid, rows=100)
    b = tune("masked_logistic", from_arrays(garbage, y, columns=stream.columns, classes=(0, 1)), grid, rows=100)
    assert a.table == b.table
    assert a.params == {"rate": 0.05, "intercept_rate": 0.01}
    later = run("masked_logistic", stream, score_from=a.rows)
    correct = later.predictions == later.labels
    assert later.metrics["accuracy"] == pytest.approx(correct[100:].mean())


def test_imputers_fill_from_the_past_only():
    X = np.array([[1.0, np.nan], [np.nan, 4.0], [3.0, np.nan], [np.nan, np.nan]])
    expected = {
        "zero": [{"x0": 1.0}, {"x1": 4.0, "x0": 0.0}, {"x0": 3.0, "x1": 0.0}, {"x0": 0.0, "x1": 0.0}],
        "last": [{"x0": 1.0}, {"x1": 4.0, "x0": 1.0}, {"x0": 3.0, "x1": 4.0}, {"x0": 3.0, "x1": 4.0}],
        "mean": [{"x0": 1.0}, {"x1": 4.0, "x0": 1.0}, {"x0": 3.0, "x1": 4.0}, {"x0": 2.0, "x1": 4.0}],
    }
    for kind, rows in expected.items():
        model = Recorder()
        run(model, from_arrays(X, [0, 1, 0, 1]), normalizer="none", impute=kind, metrics=["accuracy"])
        assert [x[1] for x in model.seen if x[0] == "score"] == rows
    with pytest.raises(StreamError, match="impute is one of"):
        run("olvf", load("wdbc"), impute="magic")


def test_memory_does_not_grow_with_the_stream():
    short, long = (
        run("masked_logistic", make_stream("linear_drift", n, 6).stream, metrics=["accuracy"]) for n in (2000, 20_000)
    )
    assert long.peak_state_bytes == short.peak_state_bytes


def test_scores_by_row_agree_for_a_model_of_ones_own():
    X, y = load("wdbc").masked("probabilistic").arrays()
    a = make_model("masked_pa", classes=(0, 1)).run_arrays(np.nan_to_num(X, nan=np.nan), y)
    b = scores_by_row(make_model("masked_pa", classes=(0, 1)), X, y)
    np.testing.assert_array_equal(a, b)
