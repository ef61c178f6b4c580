"""`check_method` on a method that keeps all rules, and on methods that break one each."""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from assay.core.benchmark import Benchmark, Metric
from assay.core.check import CheckReport, check_method
from assay.core.errors import AssayError, MethodError, UnknownNameError

SAME = "same seed, same metrics"
ALONE = "global random state is left alone"
UNCHANGED = "data is left unchanged"
WORKER = "works in a worker process"
ANEW = "made anew each time"
RECORD = "parameters are on record"
COMPLETE = "metrics are complete and finite"
ALL = [ANEW, RECORD, "finishes on line", COMPLETE, SAME, ALONE, UNCHANGED, WORKER]


def make_benchmark() -> Benchmark:
    """Methods predict y from x; everything is nested, so that worker processes need not import this file."""

    def evaluate(task: Any, method: Any, context: Any) -> dict[str, float]:
        data = task.data()
        model = method.make()
        guess = model(data["x"], context.rng())
        error = float(np.abs(data["y"] - guess).mean())
        return {"error": error, "seconds": float(__import__("time").perf_counter())}

    benchmark = Benchmark("fit", "Fit", [Metric("error", False), Metric("seconds", False, unit="s")], evaluate)
    benchmark.add_task("long", lambda: {"x": np.arange(9.0), "y": np.arange(9.0)})
    benchmark.add_task("line", lambda: {"x": np.arange(5.0), "y": 2 * np.arange(5.0)})
    benchmark.quick(tasks=["line"], methods=[])
    return benchmark


def outcome(method: Any, **options: Any) -> CheckReport:
    return check_method(make_benchmark(), method, **options)


def failed(report: CheckReport) -> dict[str, str]:
    return {check.name: check.message for check in report.failures}


def good(slope: float = 1.5) -> Callable[..., Any]:
    return lambda x, rng: slope * x + rng.normal()


# -- a method that keeps all rules -----------------------------------------------------------------------------------


def test_a_good_method_passes_all() -> None:
    report = outcome(good)
    assert [check.name for check in report.checks] == ALL
    assert all(check.passed for check in report.checks), str(report)
    assert report.passed
    report.raise_for_failures()
    assert str(report).splitlines()[0] == "good on fit, task line"
    assert str(report).splitlines()[-1] == "8 of 8 checks passed"


def test_a_class_an_instance_and_a_name() -> None:
    class Scaled:
        def __init__(self, slope: float = 2.0) -> None:
            self.slope = slope

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {"slope": self.slope}

        def set_params(self, **params: Any) -> None:
            vars(self).update(params)

        def predict(self, x: Any) -> Any:
            return self.slope * x

    def evaluate(task: Any, method: Any, context: Any) -> dict[str, float]:
        return {
            "error": float(np.abs(task.data()["y"] - method.make().predict(task.data()["x"])).mean()),
            "seconds": 1.0,
        }

    benchmark = make_benchmark()
    benchmark.evaluate = evaluate
    for given, name in ((Scaled, "Scaled"), (Scaled(3.0), "Scaled")):
        report = check_method(benchmark, given)
        assert report.passed, str(report)
        assert report.method == name
    benchmark.add_method("mine", Scaled, slope=1.0)
    report = check_method(benchmark, "mine(slope=2.0)", task="long", seeds=[4])
    assert (report.method, report.task, report.passed) == ("mine(slope=2.0)", "long", True)


def test_unknown_names_and_nothing_to_do() -> None:
    benchmark = make_benchmark()
    benchmark.add_method("olvf", good)
    with pytest.raises(UnknownNameError, match="did you mean olvf"):
        check_method(benchmark, "olvd")
    with pytest.raises(UnknownNameError, match="did you mean line"):
        check_method(benchmark, good, task="lime")
    with pytest.raises(AssayError, match="at least one seed"):
        check_method(benchmark, good, seeds=[])
    with pytest.raises(AssayError, match="no task"):
        check_method(Benchmark("void", "", [Metric("error", False)], lambda t, m, c: {}), good)


# -- one rule broken each --------------------------------------------------------------------------------------------


def test_a_factory_that_raises() -> None:
    def factory(size: int) -> Any:
        return good()

    report = outcome(factory)
    assert "missing 1 required positional argument: 'size'" in failed(report)[ANEW]
    assert "finishes on line" in failed(report)


def test_a_factory_that_gives_one_object() -> None:
    shared = good()

    def factory() -> Any:
        return shared

    assert "one and the same object twice" in failed(outcome(factory))[ANEW]


def test_parameters_that_look_alike_on_record() -> None:
    class Kernel:
        def __init__(self, width: float) -> None:
            self.width = width

    def factory(kernel: Any = None, shift: Any = None) -> Any:
        return lambda x, rng: x

    benchmark = make_benchmark()
    benchmark.add_method("object", factory, kernel=Kernel(1.0))
    benchmark.add_method("lambda", factory, kernel=[lambda x: x])
    benchmark.add_method("nan", factory, shift=math.inf)
    benchmark.add_method("plain", factory, kernel={"width": [1, 2]}, shift=np.float64(3))
    benchmark.add_method("function", factory, kernel=math.sin)
    messages = {name: failed(check_method(benchmark, name)).get(RECORD) for name in benchmark.methods}
    assert messages["object"] is not None
    assert messages["object"].startswith("two different values of kernel would look the same")
    assert messages["lambda"] == messages["object"]
    assert messages["nan"] == "a parameter is NaN or infinite, which JSON cannot hold; use None"
    assert messages["plain"] is None
    assert messages["function"] is None


def test_an_instance_whose_parameters_are_lost() -> None:
    class Wrapped:
        base = object()

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            return {"depth": 3, "base": self.base}

        def __call__(self, x: Any, rng: Any) -> Any:
            return x

        def clone(self, **changes: Any) -> Any:
            return type(self)()

    assert "two different values of base" in failed(outcome(Wrapped()))[RECORD]


def test_a_method_that_raises() -> None:
    def broken() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            raise ZeroDivisionError("no slope")

        return predict

    report = outcome(broken)
    assert failed(report)["finishes on line"].startswith(
        "with seed 0, ZeroDivisionError: no slope (test_check.py, line "
    )
    assert list(failed(report)) == ["finishes on line"]
    undone = [check.name for check in report.checks if check.passed is None]
    assert undone == [COMPLETE, SAME, WORKER]
    assert str(report).endswith("4 of 8 checks passed, 3 could not be made")


def test_fails_with_one_seed_only() -> None:
    def moody() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            if rng.random() < 0.6:  # seed 1 gives 0.51, seed 0 gives 0.64
                raise ValueError("unlucky")
            return x

        return predict

    assert "with seed 1, ValueError: unlucky" in failed(outcome(moody))["finishes on line"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_metrics_that_are_no_numbers(value: float) -> None:
    def empty() -> Any:
        return lambda x, rng: np.full_like(x, value)

    report = outcome(empty)
    assert list(failed(report)) == [COMPLETE]
    assert "metric 'error' is" in failed(report)[COMPLETE]


def test_metrics_that_are_missing() -> None:
    benchmark = make_benchmark()
    benchmark.evaluate = lambda task, method, context: {"error": 1.0}
    assert "returned no 'seconds'" in failed(check_method(benchmark, good))[COMPLETE]


def test_entropy_of_its_own() -> None:
    def unseeded() -> Any:
        return lambda x, rng: x + np.random.default_rng().random()

    report = outcome(unseeded)
    assert list(failed(report)) == [SAME]
    assert "with seed 0, error is" in failed(report)[SAME]


def test_memory_between_runs() -> None:
    seen: list[int] = []

    def learns() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            seen.append(1)
            return 0.1 * x * len(seen)

        return predict

    assert SAME in failed(outcome(learns))


def numpy_state() -> Any:
    def uses() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            np.random.seed(0)  # noqa: NPY002 - the fault that is to be found
            return x + np.random.random()  # noqa: NPY002

        return predict

    return uses


def python_state() -> Any:
    def uses() -> Any:
        return lambda x, rng: x + random.random()

    return uses


def torch_state() -> Any:
    def uses() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            import torch

            return x + float(torch.rand(1))

        return predict

    return uses


@pytest.mark.parametrize(
    ("make", "library", "others"),
    [(numpy_state, "numpy.random", set()), (python_state, "random", {SAME}), (torch_state, "torch", {SAME})],
)
def test_global_random_states(make: Callable[[], Any], library: str, others: set[str]) -> None:
    if library == "torch":
        pytest.importorskip("torch")
    report = outcome(make())
    assert failed(report)[ALONE].startswith(f"the state of {library} is another one after a run")
    assert set(failed(report)) == {ALONE} | others


def test_the_callers_random_state_is_put_back() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    expected = (random.random(), np.random.random())  # noqa: NPY002
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    outcome(numpy_state())
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


def test_data_that_is_changed() -> None:
    def scales() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            x *= 2
            return x

        return predict

    benchmark = make_benchmark()
    report = check_method(benchmark, scales)
    assert failed(report)[UNCHANGED].startswith("x of the data of line is another one after a run")
    assert benchmark.tasks["line"].data()["x"].tolist() == [0, 1, 2, 3, 4]  # loaded anew
    assert check_method(benchmark, good).passed


def test_data_with_a_fingerprint_that_it_keeps() -> None:
    class Table:
        def __init__(self) -> None:
            self.values = np.arange(4.0)
            self._known = "abc"

        def fingerprint(self) -> str:
            return self._known

        @property
        def total(self) -> float:
            self.cached = float(self.values.sum())  # worked out when asked: no change of the data
            return self.cached

    def evaluate(task: Any, method: Any, context: Any) -> dict[str, float]:
        return {"error": task.data().total + float(method.make()(task.data().values)), "seconds": 0.0}

    benchmark = Benchmark("own", "", [Metric("error", False), Metric("seconds", False)], evaluate)
    benchmark.add_task("t", Table)

    def keeps() -> Any:
        return lambda x: x.sum()

    def changes() -> Any:
        def call(x: Any) -> float:
            x[0] = 7.0
            return 0.0

        return call

    assert check_method(benchmark, keeps).passed
    assert failed(check_method(benchmark, changes))[UNCHANGED].startswith("values")


def test_data_that_cannot_be_hashed_or_loaded() -> None:
    benchmark = make_benchmark()
    benchmark.evaluate = lambda task, method, context: {"error": 1.0, "seconds": 1.0}
    benchmark.add_task("function", lambda: len, fingerprint="fixed")

    def missing() -> Any:
        raise FileNotFoundError("wpbc.data is not here")

    benchmark.add_task("missing", missing)
    report = check_method(benchmark, good, task="function")
    assert report.passed
    assert next(c for c in report.checks if c.name == UNCHANGED).message == "the data has no content that can be hashed"
    report = check_method(benchmark, good, task="missing")
    assert "wpbc.data is not here" in failed(report)["finishes on missing"]


def test_a_method_that_cannot_be_sent() -> None:
    lock = threading.Lock()

    def locked() -> Any:
        return lambda x, rng: x if lock is not None else None

    report = outcome(locked)
    assert list(failed(report)) == [WORKER]
    assert "the method cannot be sent to one (TypeError: cannot pickle" in failed(report)[WORKER]


def test_a_method_that_needs_this_process() -> None:
    import types

    made_here = types.ModuleType("made_here")
    made_here.slope = 2.0  # type: ignore[attr-defined]
    sys.modules["made_here"] = made_here

    def imports() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            import made_here

            return made_here.slope * x

        return predict

    def guesses() -> Any:
        return lambda x, rng: x * (2.0 if "made_here" in __import__("sys").modules else 1.0)

    try:
        assert "No module named 'made_here'" in failed(outcome(imports))[WORKER]
        assert "depends on something that only this process has" in failed(outcome(guesses))[WORKER]
    finally:
        del sys.modules["made_here"]


def test_a_pair_that_makes_no_sense() -> None:
    benchmark = make_benchmark()
    benchmark.applicable = lambda task, method: "wants images"
    assert "does not run it on line: wants images" in failed(check_method(benchmark, good))["finishes on line"]


def test_a_run_that_is_skipped() -> None:
    from assay.core.errors import SkipRun

    def skips() -> Any:
        def predict(x: Any, rng: Any) -> Any:
            raise SkipRun("needs a GPU")

        return predict

    assert "it was skipped (needs a GPU); name another task" in failed(outcome(skips))["finishes on line"]


def test_what_the_benchmark_demands() -> None:
    benchmark = make_benchmark()

    def check_no_future(benchmark: Any, method: Any) -> None:
        if method.name == "good":
            raise ValueError("row 81 was seen too early")

    benchmark.checks.append(check_no_future)
    report = check_method(benchmark, good)
    assert failed(report) == {"no future": "ValueError: row 81 was seen too early"}
    assert "FAIL  no future: ValueError: row 81 was seen too early" in str(report)
    with pytest.raises(MethodError, match="good fails checks of fit:\nFAIL  no future"):
        report.raise_for_failures()

    def fair() -> Any:
        return good()

    assert check_method(benchmark, fair).passed
