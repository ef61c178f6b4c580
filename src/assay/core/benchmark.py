"""What is compared, and how it is judged: `Benchmark`, `Task`, `Method`, `Metric`.

A benchmark is wired up in one file of a field and knows nothing of processes, files or statistics; `Benchmark.run`
hands it to `assay.core.execute`.
"""

from __future__ import annotations

import copy
import fnmatch
import functools
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, UnknownNameError

if TYPE_CHECKING:
    from assay.core.results import Results
    from assay.core.run import RunContext

Evaluate = Callable[["Task", "Method", "RunContext"], Mapping[str, float]]
Check = Callable[["Benchmark", "Method"], None]


@dataclass(frozen=True)
class Metric:
    """One figure that a run yields.

    Parameters
    ----------
    name : str
        Key in the dictionary that ``evaluate`` returns.
    higher_is_better : bool
    title : str
        What a reader sees; default: the name with spaces.
    format : str
        Format specification of a value, ``".3f"`` by default.
    unit : str
    may_be_undefined : bool
        NaN is a possible value (AUROC where only one class occurs). Otherwise NaN makes the run a failed one.
    cost : bool
        A figure of cost (seconds, rows a second), which differs from run to run with the same seed.
    bounds : (float, float)
        Least and greatest value that the figure can take, such as (0, 1) for an accuracy. A run that reports one
        outside fails, and intervals end there.

    Raises
    ------
    AssayError
        If the bounds are not two numbers in order.
    """

    name: str
    higher_is_better: bool
    title: str = ""
    format: str = ".3f"
    unit: str = ""
    may_be_undefined: bool = False
    cost: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not low < high:
            raise AssayError(f"bounds of metric {self.name!r} must be (least, greatest), not {self.bounds}")
        if not self.title:
            object.__setattr__(self, "title", self.name.replace("_", " "))


@dataclass
class Task:
    """A data set with a protocol around it.

    ``load(**params)`` gives the data; whatever it returns is what the benchmark's ``evaluate`` understands. It is
    loaded once in a process and shared by the runs there, so methods must not change it.

    Parameters
    ----------
    fingerprint : str or callable, optional
        Identity of the data. By default the loaded data is hashed (arrays, frames, plain containers, or an object with
        a method ``fingerprint()``); give a string where loading only to hash would cost too much.
    """

    name: str
    load: Callable[..., Any]
    params: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    description: str = ""
    fingerprint: str | Callable[[], str] | None = None
    tags: frozenset[str] = frozenset()
    licence: str = ""
    citation: str = ""

    def data(self) -> Any:
        """The loaded data (kept for the next run of the same task in this process)."""
        return _loaded(self)

    def forget(self) -> None:
        """Drop the kept data, so that it is loaded again."""
        _cache.pop(id(self), None)

    def data_fingerprint(self) -> str:
        """A hash of the data that this task puts before a method."""
        if isinstance(self.fingerprint, str):
            return self.fingerprint
        if self.fingerprint is not None:
            return self.fingerprint()
        from assay.core.data import fingerprint

        return fingerprint(self.data())


@dataclass
class Method:
    """A way to solve tasks: a factory (class or function) with parameters.

    ``make(**changes)`` gives a fresh, unfitted object each time.
    """

    name: str
    factory: Callable[..., Any]
    params: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    description: str = ""
    baseline: bool = False
    tags: frozenset[str] = frozenset()
    code: str = ""

    def __post_init__(self) -> None:
        self.code = self.code or source_digest(self.factory)

    def make(self, **changes: Any) -> Any:
        """A fresh instance."""
        return self.factory(**{**self.params, **changes})

    def with_params(self, **changes: Any) -> Method:
        """The same method with other parameters, which then stand in its name.

        Raises
        ------
        UnknownNameError
            If the factory takes no such parameter.
        """
        accepted = parameters_of(self.factory)
        for name in changes:
            if accepted is not None and name not in accepted:
                raise UnknownNameError("parameter", name, accepted, self.name)
        shown = ", ".join(f"{k}={v}" for k, v in changes.items())
        return Method(
            f"{self.name}({shown})", self.factory, {**self.params, **changes}, self.title and f"{self.title} ({shown})",
            self.description, self.baseline, self.tags, self.code,
        )  # fmt: skip


class Benchmark:
    """Tasks x methods x metrics, and the function that judges one pair.

    Parameters
    ----------
    name : str
        Folder of its runs, word on the command line.
    title : str
    metrics : sequence of Metric
        The first is the one that leaderboards show by default.
    evaluate : callable
        ``(task, method, context) -> {metric name: float}``. It makes the method (``method.make(...)``), gives it the
        task's data, and uses ``context.seed``, ``context.rng()``, ``context.curve(...)`` and so on.
    version : str
        Version of the protocol. Raise it when results would change: old runs are then no longer used.
    packages : sequence of str
        Distributions whose versions stand in every record, beside those of the core.
    applicable : callable, optional
        ``(task, method) -> None`` or the reason why that pair makes no sense; such pairs are not run.

    Examples
    --------
    >>> import numpy as np
    >>> coin = Benchmark("coin", "Guess the mean", [Metric("error", higher_is_better=False)],
    ...                  lambda task, method, ctx: {"error": abs(method.make() - task.data().mean())})
    >>> _ = coin.add_task("ones", lambda: np.ones(3))
    >>> _ = coin.add_method("zero", lambda: 0.0)
    >>> import tempfile
    >>> results = coin.run(seeds=[0], store=tempfile.mkdtemp(), progress=False)
    >>> results.leaderboard().rows[0].mean
    1.0
    """

    def __init__(
        self,
        name: str,
        title: str,
        metrics: Sequence[Metric],
        evaluate: Evaluate,
        *,
        version: str = "1",
        description: str = "",
        packages: Sequence[str] = (),
        applicable: Callable[[Task, Method], str | None] | None = None,
        default_seeds: Iterable[int] = range(5),
    ) -> None:
        if not metrics:
            raise AssayError(f"benchmark {name!r} has no metric")
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise AssayError(
                f"{name!r} cannot name a benchmark: letters, digits, - and _ only (it is the name of a folder)"
            )
        self.name = name
        self.title = title
        self.metrics = {metric.name: metric for metric in metrics}
        self.evaluate = evaluate
        self.version = version
        self.description = description
        self.packages = tuple(packages)
        self.applicable = applicable
        self.default_seeds = tuple(default_seeds)
        self.tasks: dict[str, Task] = {}
        self.methods: dict[str, Method] = {}
        self.checks: list[Check] = []
        self.quick_grid: dict[str, Any] = {}
        self.full_grid: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Benchmark({self.name!r}: {len(self.tasks)} tasks, {len(self.methods)} methods)"

    @property
    def metric(self) -> Metric:
        """The first metric."""
        return next(iter(self.metrics.values()))

    def add_task(
        self,
        name: str,
        load: Callable[..., Any],
        *,
        title: str = "",
        description: str = "",
        fingerprint: str | Callable[[], str] | None = None,
        tags: Iterable[str] = (),
        licence: str = "",
        citation: str = "",
        **params: Any,
    ) -> Task:
        """Add a task; further keywords are parameters of ``load``."""
        self._new("task", name, self.tasks)
        task = Task(name, load, params, title, description, fingerprint, frozenset(tags), licence, citation)
        self.tasks[name] = task
        return task

    def add_method(
        self,
        name: str,
        factory: Callable[..., Any],
        *,
        title: str = "",
        description: str = "",
        baseline: bool = False,
        tags: Iterable[str] = (),
        **params: Any,
    ) -> Method:
        """Add a method; further keywords are parameters of ``factory``."""
        self._new("method", name, self.methods)
        method = Method(name, factory, params, title, description, baseline, frozenset(tags))
        self.methods[name] = method
        return method

    def quick(self, *, tasks: Sequence[str], methods: Sequence[str], seeds: Iterable[int] = (0, 1)) -> None:
        """Say what ``--quick`` and the demo run: a grid of about a minute."""
        self.quick_grid = {"tasks": list(tasks), "methods": list(methods), "seeds": tuple(seeds)}

    def full(self, *, tasks: Sequence[str] = (), methods: Sequence[str] = ()) -> None:
        """Say what is run where no names are given, if that is not everything (tasks whose data few people have)."""
        self.full_grid = {"tasks": list(tasks), "methods": list(methods)}

    def get_task(self, name: str) -> Task:
        """The task of that name, or an error that suggests the nearest."""
        if name not in self.tasks:
            raise UnknownNameError("task", name, self.tasks, self.name)
        return self.tasks[name]

    def get_method(self, name: str) -> Method:
        """The method of that name; ``"olvf(C=0.1, B=1)"`` changes parameters.

        Raises
        ------
        UnknownNameError
        AssayError
            If the text in brackets is not ``name=value, ...``.
        """
        if name in self.methods:
            return self.methods[name]
        base, bracket, rest = name.partition("(")
        if base not in self.methods:
            raise UnknownNameError("method", base, self.methods, self.name)
        if not bracket or not rest.endswith(")"):
            raise AssayError(f"cannot read {name!r}; write method(parameter=value, ...)")
        return self.methods[base].with_params(**parse_parameters(rest[:-1]))

    def get_metric(self, name: str | None) -> Metric:
        """The metric of that name, the first one for None."""
        if name is None:
            return self.metric
        if name not in self.metrics:
            raise UnknownNameError("metric", name, self.metrics, self.name)
        return self.metrics[name]

    def run(
        self,
        tasks: Iterable[str] | None = None,
        methods: Iterable[str] | Mapping[str, Any] | None = None,
        seeds: Iterable[int] | None = None,
        *,
        store: str | Path | None = None,
        workers: int = 0,
        ray: str | None = None,
        timeout: float | None = None,
        memory: int | None = None,
        device: str = "cpu",
        retry_failed: bool = False,
        quick: bool = False,
        progress: bool = True,
    ) -> Results:
        """Run what has not been run yet, and give the results of the whole grid.

        Parameters
        ----------
        tasks, methods : iterable of str, optional
            Names, or patterns such as ``"wdbc*"``; default: the full grid. ``methods`` may also map new names to
            instances, classes or factories of your own.
        seeds : iterable of int, optional
        store : path, optional
            Folder of runs; default ``$ASSAY_RUNS`` or ``runs``.
        workers : int
            0 runs in this process, n > 0 in n worker processes.
        ray : str, optional
            ``"auto"``, ``"local"`` or the address of a Ray cluster.
        timeout : float, optional
            Seconds that one run may take. Implies a worker process.
        memory : int, optional
            Bytes of resident memory that one run may take. Implies a worker process.
        device : str
            Given to methods as ``context.device``.
        retry_failed : bool
            Run again what is on record as failed.
        quick : bool
            The small grid of `quick`, where names are not given.

        Returns
        -------
        Results
        """
        from assay.core.execute import execute

        default = self.quick_grid if quick else self.full_grid
        names = _expanded(tasks or default.get("tasks") or self.tasks, self.tasks)
        chosen_tasks = [self.get_task(name) for name in names]
        if isinstance(methods, Mapping):
            chosen = [as_method(name, value) for name, value in methods.items()]
        else:
            names = _expanded(methods or default.get("methods") or self.methods, self.methods)
            chosen = [self.get_method(name) for name in names]
        chosen_seeds = tuple(seeds if seeds is not None else default.get("seeds") or self.default_seeds)
        return execute(
            self, chosen_tasks, chosen, chosen_seeds, store=store, workers=workers, ray=ray, timeout=timeout,
            memory=memory, device=device, retry_failed=retry_failed, progress=progress,
        )  # fmt: skip

    def results(self, store: str | Path | None = None) -> Results:
        """What is in the store, without running anything."""
        from assay.core.results import Results
        from assay.core.store import Store

        return Results.from_store(self, Store(store))

    def _new(self, kind: str, name: str, known: Mapping[str, Any]) -> None:
        if name in known:
            raise AssayError(f"{self.name} already has a {kind} {name!r}")
        if not name or any(ord(c) < 32 for c in name):
            raise AssayError(f"{name!r} cannot be the name of a {kind}: it is empty or holds a control character")


def _expanded(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names with patterns (``*``, ``?``) replaced by what they match; a pattern that matches nothing stays, to be an
    error."""
    found: list[str] = []
    for name in names:
        matches = fnmatch.filter(known, name) if "(" not in name and any(c in name for c in "*?") else []
        found.extend(matches or [name])
    return list(dict.fromkeys(found))


def as_method(name: str, value: Any) -> Method:
    """A method of the user's: an instance (copied for each run), a class, or a function that makes one."""
    if isinstance(value, Method):
        return value
    if inspect.isclass(value) or (callable(value) and not hasattr(value, "get_params")):
        return Method(name, value)
    params = value.get_params(deep=False) if hasattr(value, "get_params") else {}
    plain = {k: v for k, v in params.items() if isinstance(v, (str, int, float, bool, type(None)))}
    digest = source_digest(type(value))
    if not plain:  # nothing to tell two instances apart by: their content
        import cloudpickle

        digest += hashlib.sha256(cloudpickle.dumps(value)).hexdigest()[:16]
    return Method(name, functools.partial(_copied, value, plain), plain, code=digest)


def _copied(value: Any, unchanged: dict[str, Any], **params: Any) -> Any:
    if hasattr(value, "clone"):
        return value.clone(**{k: v for k, v in params.items() if unchanged.get(k, inspect.Parameter.empty) != v})
    fresh = copy.deepcopy(value)
    for key, changed in params.items():
        if unchanged.get(key, inspect.Parameter.empty) != changed:
            fresh.set_params(**{key: changed})
    return fresh


def parameters_of(factory: Callable[..., Any]) -> list[str] | None:
    """Names of the parameters that a factory takes; None if it takes any.

    A factory that forwards its keywords can say what it takes with a method ``parameter_names()``.
    """
    if callable(own := getattr(factory, "parameter_names", None)):
        names: list[str] = own()
        return names
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return None
    kinds = {p.kind for p in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    return [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def parse_parameters(text: str) -> dict[str, Any]:
    """``"C=0.1, mode=fast"`` as a dictionary: JSON and Python literals where they are ones, text otherwise.

    >>> parse_parameters("C=0.1, mode=fast, bias=True, sizes=[1, 2]")
    {'C': 0.1, 'mode': 'fast', 'bias': True, 'sizes': [1, 2]}
    """
    import ast

    parts: list[str] = []
    depth = 0
    for piece in text.split(","):
        if depth and parts:
            parts[-1] += "," + piece
        else:
            parts.append(piece)
        depth += sum(piece.count(c) for c in "([{") - sum(piece.count(c) for c in ")]}")
    params: dict[str, Any] = {}
    for part in parts:
        name, equals, raw = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise AssayError(f"cannot read the parameter {part.strip()!r}; write name=value")
        try:
            params[name.strip()] = ast.literal_eval(raw.strip())
        except (ValueError, SyntaxError):
            params[name.strip()] = {"true": True, "false": False, "null": None}.get(raw.strip(), raw.strip())
    return params


def source_digest(factory: Any) -> str:
    """Hash of the code behind a factory that is not part of an installed package; empty for installed ones.

    So a method that is being written is run again when its code changes, and an installed one goes by its version.
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    module = sys.modules.get(getattr(factory, "__module__", "") or "")
    file = getattr(module, "__file__", None) or ""
    if module is not None and (module.__name__.split(".")[0] == "assay" or "site-packages" in file):
        return ""
    try:
        text = inspect.getsource(factory)
    except (OSError, TypeError):
        code = getattr(factory, "__code__", None)
        text = (
            code.co_code.hex() + repr(code.co_consts) if code else repr(getattr(factory, "__qualname__", type(factory)))
        )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_key(benchmark: Benchmark, task: Task, method: Method, seed: int, data_fingerprint: str) -> str:
    """The name of a run: a hash of all that decides its result."""
    identity = {
        "benchmark": benchmark.name,
        "version": benchmark.version,
        "task": task.name,
        "task_params": plain(task.params),
        "data": data_fingerprint,
        "method": method.name,
        "params": plain(method.params),
        "code": method.code,
        "seed": seed,
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]


def plain(value: Any) -> Any:
    """A JSON-ready form of a parameter; objects become their repr without addresses."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        items = [plain(v) for v in value]
        return sorted(items, key=repr) if isinstance(value, (set, frozenset)) else items
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"{value.__module__}.{value.__qualname__}"
    text = repr(value)
    return text if " at 0x" not in text else f"{type(value).__module__}.{type(value).__qualname__}"


_cache: dict[int, tuple[Task, Any]] = {}


def _loaded(task: Task) -> Any:
    if id(task) not in _cache:
        while len(_cache) >= 2:
            _cache.pop(next(iter(_cache)))
        _cache[id(task)] = (task, task.load(**task.params))
    return _cache[id(task)][1]
