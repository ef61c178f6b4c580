"""What every method must hold before its results mean anything, as checks that the author of a plug-in runs.

Each check has a name, an outcome, and a message that says what to do. They use the protocol itself: the method is run
on a small task in a store that is thrown away.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.benchmark import Benchmark, Method, Metric, Task, as_method, plain
from assay.core.data import fingerprint
from assay.core.errors import AssayError, DataError, MethodError
from assay.core.run import RunRecord

_TIME_UNITS = {"s", "ms", "us", "µs", "ns", "min", "h"}


@dataclass(frozen=True)
class Check:
    """One check: ``passed`` is None where it could not be made."""

    name: str
    passed: bool | None
    message: str = ""

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "--  "}[self.passed]
        return f"{mark}  {self.name}" + (f": {self.message}" if self.message else "")


@dataclass(frozen=True)
class CheckReport:
    """Outcome of `check_method`."""

    benchmark: str
    method: str
    task: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """No check failed (some may not have been made)."""
        return not self.failures

    @property
    def failures(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.passed is False]

    def raise_for_failures(self) -> None:
        """Raise if a check failed.

        Raises
        ------
        MethodError
            With the text of all failed checks.
        """
        if self.failures:
            raise MethodError("\n".join([f"{self.method} fails checks of {self.benchmark}:", *map(str, self.failures)]))

    def __str__(self) -> str:
        made = [check for check in self.checks if check.passed is not None]
        last = f"{len(made) - len(self.failures)} of {len(self.checks)} checks passed"
        if len(made) < len(self.checks):
            last += f", {len(self.checks) - len(made)} could not be made"
        return "\n".join([f"{self.method} on {self.benchmark}, task {self.task}", *map(str, self.checks), last])


def check_method(
    benchmark: Benchmark, method: Any, *, task: str | None = None, seeds: Sequence[int] = (0, 1)
) -> CheckReport:
    """Check that a method keeps the rules of the protocol.

    It can be made twice; its parameters can be told apart on record; it finishes; its metrics are complete and finite;
    the same seed gives the same metrics (those of cost excepted, known by a unit or name such as ``seconds``); it
    leaves the global random states of Python, NumPy and torch and the task's data as they were; it works in a worker
    process; and what the benchmark itself demands.

    Parameters
    ----------
    method : str, Method, instance, class or factory
        A name is one of the benchmark's methods.
    task : str, optional
        Default: the first task of the benchmark's quick grid, else its first task.
    seeds : sequence of int
        The first is run twice, and once in a worker process.

    Returns
    -------
    CheckReport

    Raises
    ------
    UnknownNameError
        If the benchmark has no such task or method.
    AssayError
        If it has no task at all, or no seed is given.

    Examples
    --------
    >>> coin = Benchmark("coin", "", [Metric("error", False)], lambda task, method, context: {
    ...     "error": method.make()(task.data())})
    >>> _ = coin.add_task("ones", lambda: np.ones(3))
    >>> class Unseeded:
    ...     def __call__(self, data):
    ...         return abs(data.mean() - np.random.rand())
    >>> [check.name for check in check_method(coin, Unseeded).failures]
    ['same seed, same metrics', 'global random state is left alone']
    """
    chosen = _method(benchmark, method)
    on = _task(benchmark, task)
    if not seeds:
        raise AssayError("check_method needs at least one seed")
    checks = [_made_anew(chosen), _on_record(chosen, method)]
    with _guarded_random_state() as random_state:
        before, problem = _content(on)
        random_state.start(0)
        first = _run(benchmark, chosen, on, seeds)
        changed = random_state.changed()
        random_state.start(1)
        again = _run(benchmark, chosen, on, seeds[:1]) if isinstance(first, dict) else first
        changed |= random_state.changed()
        after, _ = _content(on)
    checks += _outcomes(benchmark, chosen, on, first)
    repeatable = _repeatable(benchmark, first, again)
    checks.append(repeatable)
    checks.append(_random_state_kept(changed))
    checks.append(_data_kept(on, before, after, problem))
    checks.append(_in_a_worker(benchmark, chosen, on, seeds[0], first, repeatable.passed is True))
    checks += [_own(benchmark, chosen, demand) for demand in benchmark.checks]
    return CheckReport(benchmark.name, chosen.name, on.name, tuple(checks))


def _method(benchmark: Benchmark, method: Any) -> Method:
    if isinstance(method, str):
        return benchmark.get_method(method)
    return as_method(getattr(method, "__name__", None) or type(method).__name__, method)


def _task(benchmark: Benchmark, name: str | None) -> Task:
    if name is not None:
        return benchmark.get_task(name)
    if not benchmark.tasks:
        raise AssayError(f"{benchmark.name} has no task to check a method on")
    return benchmark.get_task(next(iter(benchmark.quick_grid.get("tasks") or benchmark.tasks)))


# -- before a run ----------------------------------------------------------------------------------------------------


def _made_anew(method: Method) -> Check:
    name = "made anew each time"
    try:
        one, other = method.make(), method.make()
    except Exception as error:
        return Check(name, False, f"its factory raises {type(error).__name__}: {error}; it must work without arguments")
    if one is other and not isinstance(one, (type(None), bool, int, float, str, bytes, tuple, frozenset)):
        return Check(
            name, False, "its factory gives one and the same object twice, so runs would learn from each other"
        )
    return Check(name, True)


def _on_record(method: Method, given: Any) -> Check:
    name = "parameters are on record"
    lost = [key for key, value in method.params.items() if not _faithful(value)]
    if hasattr(given, "get_params") and not inspect.isclass(given) and method.params:
        lost += [key for key in given.get_params(deep=False) if key not in method.params]
    if lost:
        return Check(
            name, False,
            f"two different values of {', '.join(lost)} would look the same in a record; use numbers, texts or lists, "
            f"or give the objects a __repr__ that shows what is in them",
        )  # fmt: skip
    try:
        json.dumps(plain(method.params), allow_nan=False)
    except ValueError:
        return Check(name, False, "a parameter is NaN or infinite, which JSON cannot hold; use None")
    return Check(name, True)


def _faithful(value: Any) -> bool:
    """Whether the plain form of a value tells it apart from others."""
    if value is None or isinstance(value, (bool, int, float, str, Path)):
        return True
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _faithful(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return all(map(_faithful, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return bool(value.dtype.kind != "O")
    if inspect.isclass(value) or inspect.isroutine(value):
        return "<" not in value.__qualname__  # neither a lambda nor something made inside a function
    return " at 0x" not in repr(value)


# -- runs ------------------------------------------------------------------------------------------------------------

Runs = dict[int, RunRecord]


def _run(benchmark: Benchmark, method: Method, task: Task, seeds: Sequence[int], workers: int = 0) -> Runs | str:
    """Records by seed, or why there are none."""
    with tempfile.TemporaryDirectory(prefix="assay-check-") as store:
        try:
            results = benchmark.run(
                [task.name], {method.name: method}, seeds, store=store, workers=workers, progress=False
            )
            records = {record.seed: record for record in results.records}
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if records:
        return records
    reason = benchmark.applicable(task, method) if benchmark.applicable is not None else None
    return f"{benchmark.name} does not run it on {task.name}: {reason}; name another task"


def _outcomes(benchmark: Benchmark, method: Method, task: Task, runs: Runs | str) -> list[Check]:
    finishes, complete = f"finishes on {task.name}", "metrics are complete and finite"
    if isinstance(runs, str):
        return [Check(finishes, False, runs), Check(complete, None, "there was no run")]
    bad = next((record for record in runs.values() if record.status != "ok"), None)
    if bad is None:
        return [Check(finishes, True), Check(complete, True)]
    assert bad.failure is not None
    said = f"with seed {bad.seed}, {bad.failure.type}: {bad.failure.message}"
    if bad.failure.type == "MethodError":
        return [Check(finishes, True), Check(complete, False, said)]
    if bad.status == "skipped":
        said = f"it was skipped ({bad.failure.message}); name another task"
    frames = re.findall(r'File "([^"]+)", line (\d+)', bad.failure.traceback)
    where = f" ({Path(frames[-1][0]).name}, line {frames[-1][1]})" if frames else ""
    return [Check(finishes, False, said + where), Check(complete, None, "there was no result")]


def _repeatable(benchmark: Benchmark, first: Runs | str, again: Runs | str) -> Check:
    name = "same seed, same metrics"
    if isinstance(first, str) or isinstance(again, str):
        return Check(name, None, "there was no run")
    if any(record.status != "ok" for record in [*first.values(), *again.values()]):
        return Check(name, None, "there was no result")
    different = _different(benchmark, first, again, 0.0)
    if different:
        return Check(
            name, False,
            f"{different}; take all random numbers from the context (context.rng(), context.integer_seed()), and keep "
            f"nothing in a class or module between runs",
        )  # fmt: skip
    return Check(name, True)


def _different(benchmark: Benchmark, first: Runs, second: Runs, tolerance: float) -> str:
    """The first metric that two runs of one seed disagree on, in words; empty if there is none."""
    for seed, record in second.items():
        for metric in benchmark.metrics.values():
            a, b = first[seed].metric(metric.name), record.metric(metric.name)
            same = math.isclose(a, b, rel_tol=tolerance) or (math.isnan(a) and math.isnan(b))
            if not same and not _is_cost(metric):
                return f"with seed {seed}, {metric.name} is {a:.6g} and then {b:.6g}"
    return ""


def _is_cost(metric: Metric) -> bool:
    return metric.cost or metric.unit in _TIME_UNITS


def _in_a_worker(
    benchmark: Benchmark, method: Method, task: Task, seed: int, first: Runs | str, repeatable: bool
) -> Check:
    name = "works in a worker process"
    import cloudpickle

    for what, value in (("the benchmark", benchmark), ("the method", method)):
        try:
            cloudpickle.loads(cloudpickle.dumps(value))
        except Exception as error:
            hint = "do not keep open files, locks or modules in it, but open them when they are needed"
            return Check(name, False, f"{what} cannot be sent to one ({type(error).__name__}: {error}); {hint}")
    if isinstance(first, str) or first[seed].status != "ok":
        return Check(name, None, "there was no result in this process")
    there = _run(benchmark, method, task, [seed], workers=1)
    if isinstance(there, str):
        return Check(name, False, there)
    record = there[seed]
    if record.status != "ok":
        assert record.failure is not None
        return Check(name, False, f"{record.failure.type}: {record.failure.message}; it must import what it uses")
    # Sums may be taken in another order there: worker processes use fewer threads.
    different = _different(benchmark, first, there, 1e-6) if repeatable else ""
    if different:
        return Check(name, False, f"{different} in a worker: it depends on something that only this process has")
    return Check(name, True)


# -- what must not change --------------------------------------------------------------------------------------------


class _RandomState:
    """The global random states, set to known values and looked at afterwards."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def start(self, seed: int) -> None:
        """Start from a state of our own, another one each time, so that a method that reads it is found out."""
        random.seed(7919 + seed)
        np.random.seed(7919 + seed)  # noqa: NPY002 - the legacy state is what is watched
        if (torch := sys.modules.get("torch")) is not None:
            torch.default_generator.manual_seed(7919 + seed)
        self._known = self.states()

    def changed(self) -> set[str]:
        now = self.states()
        return {name for name, state in self._known.items() if now[name] != state}

    @staticmethod
    def states() -> dict[str, Any]:
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        found = {"random": random.getstate(), "numpy.random": (kind, np.asarray(keys).tobytes(), *rest)}
        if (torch := sys.modules.get("torch")) is not None:
            found["torch"] = torch.get_rng_state().numpy().tobytes()
        return found


@contextmanager
def _guarded_random_state() -> Iterator[_RandomState]:
    """Put the caller's random states back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch is not None else None
    try:
        yield _RandomState()
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(of_torch)


def _random_state_kept(changed: set[str]) -> Check:
    name = "global random state is left alone"
    if changed:
        return Check(
            name, False,
            f"the state of {', '.join(sorted(changed))} is another one after a run; use a generator of your own, made "
            f"from the seed (context.rng())",
        )  # fmt: skip
    return Check(name, True)


def _content(task: Task) -> tuple[dict[str, str], str]:
    """Hashes of the parts of a task's data, and why there are none.

    Parts are hashed one by one, and not by the data's own ``fingerprint()``, which may be kept from before.
    """
    try:
        data = task.data()
    except Exception as error:
        return {}, f"the data cannot be loaded ({type(error).__name__}: {error})"
    parts: Mapping[str, Any] = {"": data}
    if isinstance(data, Mapping):
        parts = data
    elif callable(getattr(data, "fingerprint", None)) and hasattr(data, "__dict__"):
        parts = vars(data)
    found = {}
    for name, part in parts.items():
        try:
            found[str(name)] = fingerprint(part)
        except DataError:
            continue
    return found, "" if found else "the data has no content that can be hashed"


def _data_kept(task: Task, before: dict[str, str], after: dict[str, str], problem: str) -> Check:
    name = "data is left unchanged"
    if problem:
        return Check(name, None, problem)
    # What came newly (values that the data works out when first asked) is no change.
    parts = [part for part, digest in before.items() if after.get(part) != digest]
    if parts:
        task.forget()  # later runs in this process must not see the changed data
        what = f"{', '.join(parts)} of the data" if parts != [""] else "the data"
        return Check(
            name, False,
            f"{what} of {task.name} is another one after a run; it is shared between runs, so copy what you change",
        )  # fmt: skip
    return Check(name, True)


def _own(benchmark: Benchmark, method: Method, demand: Any) -> Check:
    name = getattr(demand, "__name__", type(demand).__name__).removeprefix("check_").replace("_", " ")
    try:
        demand(benchmark, copy.copy(method))
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return Check(name, True)
