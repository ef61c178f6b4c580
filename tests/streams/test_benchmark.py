"""The field's benchmark: its grid, its records, and what happens to methods that misbehave."""

from __future__ import annotations

import numpy as np
import pytest

from assay.core.benchmark import Method
from assay.core.errors import UnknownNameError
from assay.streams import DATASETS, StreamModel, load
from assay.streams.benchmark import applicable, benchmark, check_no_future
from assay.streams.contract import check_causal
from assay.streams.errors import LabelOutOfRange, NotCausal, StreamError
from assay.streams.models import MODELS, make_model
from assay.streams.rows import Row


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    return benchmark.run(quick=True, seeds=[0, 1], store=store, progress=False), store


def test_the_quick_grid_has_a_baseline_and_ranks_as_it_should(quick):
    results, _ = quick
    assert results.exit_code == 0
    baselines = [name for name in results.methods if benchmark.methods[name].baseline]
    assert baselines
    assert len(results.methods) - len(baselines) >= 3
    board = [row.method for row in results.leaderboard("auroc", task="wdbc").rows]
    assert board.index("masked_logistic") < board.index("majority")
    assert board.index("olvf") < board.index("nb3")  # presence says nothing under random masks


def test_a_record_says_what_was_done(quick):
    results, store = quick
    record = next(r for r in results.records if r.task == "wdbc-sudden" and r.method == "olvf" and r.seed == 1)
    assert record.task_params == {"protocol": "sudden"}
    assert record.notes["change_points"] == [113, 227, 341, 455]
    assert len(record.notes["per_block"]) == 5
    assert record.notes["settings_of_the_set"]["C"] == pytest.approx(1e-4)
    assert record.provenance.versions["numba"]
    folder = store / "streams" / record.key
    with np.load(folder / "rows.npz") as rows:
        assert rows["correct"].mean() == pytest.approx(record.metrics["accuracy"])
    assert "curves.json" in record.artifacts


def test_runs_repeat_from_their_seeds(quick, tmp_path):
    results, _ = quick
    again = benchmark.run(["wdbc"], ["dynfo", "ocds"], [0, 1], store=tmp_path, progress=False)
    mask = (results.columns["task"] == "wdbc") & np.isin(results.columns["method"], ["dynfo", "ocds"])
    np.testing.assert_array_equal(results.columns["m:auroc"][mask], again.columns["m:auroc"])
    np.testing.assert_array_equal(results.columns["key"][mask], again.columns["key"])


def test_every_set_has_tasks_and_regression_is_for_models_that_do_it():
    for name in DATASETS:
        assert name in benchmark.tasks
    reasons = {name: applicable(benchmark.tasks["diabetes"], benchmark.methods[name]) for name in MODELS}
    assert reasons["nb3"] == "nb3 does classification only"
    assert reasons["masked_logistic"] is None


def test_a_regression_task_end_to_end(tmp_path):
    results = benchmark.run(["diabetes"], ["majority", "masked_logistic"], [0], store=tmp_path, progress=False)
    assert results.exit_code == 0
    rmse = dict(zip(results.columns["method"], results.columns["m:rmse"], strict=True))
    assert 50 < rmse["masked_logistic"] < 120
    assert np.isnan(results.columns["m:auroc"]).all()


class _Method:
    def __init__(self, kind="fine"):
        self.kind = kind
        self.n = 0

    def score_one(self, row):
        self.n += 1
        if self.kind == "nan" and self.n == 5:
            return float("nan")
        if self.kind == "shape":
            return np.zeros((3, 1))
        if self.kind == "raise":
            raise RuntimeError("no weights")
        return float(row.values.sum())

    def learn_one(self, row, y):
        pass


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("nan", "StreamError", "a score must be a finite number"),
        ("shape", "StreamError", "returned an array of shape"),
        ("raise", "RuntimeError", "no weights"),
    ],
)
def test_a_method_that_misbehaves_is_a_failed_record(tmp_path, kind, error, message):
    results = benchmark.run(["wine"], {"mine": _Method(kind), "fine": _Method()}, [0], store=tmp_path, progress=False)
    assert results.exit_code == 1
    (failed,) = results.failures
    assert failed.method == "mine"
    assert failed.failure.type == error
    assert message in failed.failure.message
    assert "Traceback" in failed.failure.traceback


def test_unknown_parameters_of_a_model_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean C_bar"):
        benchmark.get_method("olvf(Cbar=1)")
    with pytest.raises(StreamError, match="did you mean C_bar"):
        make_model("olvf").set_params(Cbar=1)
    with pytest.raises(StreamError, match="did you mean olvf"):
        make_model("olv")


def test_a_model_that_looks_ahead_is_found():
    class LookAhead(StreamModel):
        def __init__(self, classes=None):
            self.classes = classes
            self.reset()

        def _reset(self):
            self._mean = 0.0

        def _score(self, slots, values):
            return self._mean

        def _learn(self, slots, values, target):
            pass

        def _run(self, indptr, slots, values, targets):
            self._mean = float(values.sum())  # of rows that have not come yet
            return np.full(len(targets), self._mean)

    X, y = load("wdbc").arrays()
    with pytest.raises(NotCausal, match=r"the score of row \d+ changed"):
        check_causal(LookAhead, X[:120], y[:120], 60)
    with pytest.raises(NotCausal):
        check_no_future(benchmark, Method("ahead", LookAhead))
    check_no_future(benchmark, Method("fine", _Method))


def test_labels_outside_the_classes_are_named():
    model = make_model("masked_pa", classes=("ok", "fault"))
    row = Row.from_dict({"a": 1.0})
    with pytest.raises(LabelOutOfRange, match=r"label 'odd' is not one of the declared classes \['ok', 'fault'\]"):
        model.learn_one(row, "odd")
    grown = make_model("masked_pa")
    for label in (0, 1):
        grown.learn_one(row, label)
    with pytest.raises(LabelOutOfRange, match="wrap it in OneVsRest"):
        grown.learn_one(row, 2)
    with pytest.raises(LabelOutOfRange, match="three|3 were declared"):
        type(grown)(classes=(0, 1, 2))


def test_the_plugin_of_the_contributing_page_passes_every_check(tmp_path):
    import re
    import subprocess
    import sys
    from pathlib import Path

    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = re.search(r"```python\n(# mine.py.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(code[1])
    words = [sys.executable, "-m", "assay", "check", "streams", "mine", "--plugin", str(tmp_path / "mine.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 checks passed" in done.stdout
