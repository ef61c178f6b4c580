"""The benchmark of the field: streams under regimes, all models, prequential figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.errors import SkipRun
from assay.core.run import RunContext
from assay.streams.data import DATASETS, load
from assay.streams.errors import CheckpointMismatch, NotCausal
from assay.streams.generators import make_stream
from assay.streams.metrics import CLASSIFICATION, METRICS, REGRESSION
from assay.streams.models.registry import MODELS, model_class
from assay.streams.protocol import run
from assay.streams.regimes import Regime, regime
from assay.streams.stream import HaphazardStream, from_arrays

CHECKPOINT_EVERY = 10_000
CURVE_POINTS = 50


@dataclass(frozen=True)
class StreamTask:
    """A stream and the regime it is put under; the seed of a run is the seed of the mask."""

    stream: HaphazardStream
    regime: Regime
    normalizer: str = "zscore"
    dataset: str = ""

    def fingerprint(self) -> str:
        """Hash of the rows and the regime."""
        return f"{self.stream.fingerprint()}/{self.regime!r}/{self.normalizer}"


def load_stream(dataset: str, protocol: str = "obstruct-50", normalizer: str = "zscore", **params: Any) -> StreamTask:
    """A public stream under a protocol: ``obstruct-P`` (each cell kept with P per cent) or the name of a regime."""
    return StreamTask(load(dataset), regime(protocol, **params), normalizer, dataset)


def load_generated(kind: str, n: int, d: int, protocol: str = "intrinsic", normalizer: str = "zscore") -> StreamTask:
    """A generated stream under a protocol."""
    return StreamTask(make_stream(kind, n, d).stream, regime(protocol), normalizer)


@dataclass(frozen=True)
class NamedModel:
    """Makes a model by its name; the model's module is imported at the first call."""

    name: str

    def __call__(self, **params: Any) -> Any:
        return model_class(self.name)(**params)

    def parameter_names(self) -> list[str]:
        """Parameters that the model takes."""
        return model_class(self.name)._parameter_names()


def prequential(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Test-then-train over the task's stream, with the metrics of its kind."""
    data: StreamTask = task.data()
    try:
        model = method.make()
    except ImportError as error:
        raise SkipRun(str(error)) from error
    best = _best_settings(type(model), data.dataset) if not method.params else {}
    if best:
        model = model.clone(**best)
        context.note(settings_of_the_set=best)
    stream = data.stream
    if stream.columns is not None:
        stream = stream.masked(data.regime, seed=context.seed, empty="one")
    long = (stream.n_rows or 0) > CHECKPOINT_EVERY
    checkpoint = context.checkpoints / "pass.npz" if long else None
    one_pass = partial(
        run, model, stream, normalizer=data.normalizer, seed=context.integer_seed("model"), checkpoint=checkpoint,
        every=CHECKPOINT_EVERY, report=context.progress,
    )  # fmt: skip
    try:
        result = one_pass()
    except CheckpointMismatch:  # of an older version of the library: start afresh
        (context.checkpoints / "pass.npz").unlink(missing_ok=True)
        result = one_pass()
    main = "rmse" if data.stream.task == "regression" else "balanced_accuracy"
    for row, value in zip(*result.curve(main, points=CURVE_POINTS), strict=True):
        if np.isfinite(value):
            context.curve(f"{METRICS[main].name} over the last {result.window} rows", row, value, x_label="row")
    known = result.labels >= 0 if result.task == "classification" else ~np.isnan(result.labels)
    if result.task == "classification":
        context.rows("correct", result.predictions[known] == result.labels[known])
    else:
        context.rows("squared_error", (result.predictions[known] - result.labels[known]) ** 2)
    if result.change_points:
        context.note(
            change_points=result.change_points,
            per_block=result.per_block(main),
            recovery_rows=[
                None if not np.isfinite(r) else r
                for r in (result.recovery() if result.task == "classification" else [])
            ],
        )
    return {
        **result.metrics,
        "rows_per_second": len(result.scores) / max(result.seconds, 1e-9),
        "state_bytes": result.peak_state_bytes,
        "predict_p50_us": result.latency.get("predict_p50", float("nan")),
        "learn_p50_us": result.latency.get("learn_p50", float("nan")),
    }


def _best_settings(kind: type, dataset: str) -> dict[str, Any]:
    # a class of a plug-in has no module to import in a worker process
    settings = getattr(sys.modules.get(kind.__module__), "BEST_SETTINGS", {})
    found: dict[str, Any] = settings.get(dataset, {})
    return found


def applicable(task: Task, method: Method) -> str | None:
    """Regression tasks are for models that do regression."""
    made = method.factory
    if "regression" in task.tags and isinstance(made, NamedModel) and not model_class(made.name).regression:
        return f"{method.name} does classification only"
    return None


def check_no_future(bench: Benchmark, method: Method) -> None:
    """Scores up to a row must not change when later rows are replaced.

    Raises
    ------
    NotCausal
    """
    stream = load("wdbc").masked("probabilistic", seed=3).head(120)
    rows = [(row.to_dict(), y) for row, y in stream]
    names = sorted({name for row, _ in rows for name in row}, key=str)
    X = np.array([[row.get(name, np.nan) for name in names] for row, _ in rows])
    y = np.array([label for _, label in rows])
    other, labels = X.copy(), y.copy()
    other[80:] = np.random.default_rng(0).normal(1e3, 1e3, other[80:].shape)
    labels[80:] = 1 - labels[80:]
    a, b = (
        run(method.make(), from_arrays(t, u, columns=names, classes=(0, 1)), seed=0).scores[:80]
        for t, u in ((X, y), (other, labels))
    )
    different = np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1))
    if len(different):
        raise NotCausal(f"{method.name}: the score of row {different[0]} changed when rows after 80 were replaced")


def _metric(name: str) -> Metric:
    titles = {"auroc": "AUROC", "auprc": "AUPRC", "rmse": "RMSE", "mae": "MAE", "r2": "R²"}
    digits = ".0f" if name == "number_of_errors" else ".3f"
    better = METRICS[name].higher_is_better
    least = {"kappa": -1.0, "kappa_temporal": -math.inf, "r2": -math.inf}.get(name, 0.0)
    bounds = (least, 1.0 if better else math.inf)
    return Metric(name, better, title=titles.get(name, ""), format=digits, may_be_undefined=True, bounds=bounds)


MAIN = ["balanced_accuracy", "auroc"]
benchmark = Benchmark(
    "streams",
    "Online learning from haphazard inputs",
    [
        *(_metric(name) for name in [*MAIN, *(n for n in (*CLASSIFICATION, *REGRESSION) if n not in MAIN)]),
        Metric("rows_per_second", True, "rows a second", ",.0f", may_be_undefined=True, cost=True),
        Metric("state_bytes", False, "state", ",.0f", "bytes", may_be_undefined=True),
        Metric("predict_p50_us", False, "prediction, median", ".1f", "µs", may_be_undefined=True, cost=True),
        Metric("learn_p50_us", False, "update, median", ".1f", "µs", may_be_undefined=True, cost=True),
    ],
    prequential,
    version="1",
    description="Every row is predicted before it is learned; which features it has is the regime's doing.",
    packages=("numba", "scikit-learn", "pandas", "torch"),
    applicable=applicable,
)
benchmark.checks.append(check_no_future)

PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "25": ("obstruct-25", {}), "75": ("obstruct-75", {}), "sudden": ("sudden", {}), "obsolete": ("obsolete", {}),
    "reappearing": ("reappearing", {}), "trapezoidal": ("trapezoidal", {}), "capricious": ("capricious", {}),
    "evolvable": ("evolvable", {}), "bursts": ("bursts", {}),
}  # fmt: skip
for _data in DATASETS.values():
    _tags = {"regression"} if _data.task == "regression" else set()
    _about: dict[str, Any] = {"tags": _tags, "licence": _data.licence, "citation": _data.citation}
    if _data.name in ("imdb", "spamassassin", "diabetes_us"):
        benchmark.add_task(
            _data.name, partial(load_stream, _data.name), title=_data.title, protocol="intrinsic", **_about
        )
        continue
    benchmark.add_task(
        _data.name,
        partial(load_stream, _data.name),
        title=f"{_data.title}, half of the cells",
        protocol="obstruct-50",
        **_about,
    )
    for _suffix, (_protocol, _params) in PROTOCOLS.items():
        benchmark.add_task(
            f"{_data.name}-{_suffix}",
            partial(load_stream, _data.name),
            title=f"{_data.title}, {_protocol}",
            protocol=_protocol,
            **_params,
            **_about,
        )
for _kind, _n, _d, _protocol in (
    ("linear_drift", 5000, 20, "obstruct-50"), ("hyperplane", 5000, 20, "bursts"), ("rbf", 5000, 20, "capricious"),
    ("mixed", 5000, 20, "obstruct-50"), ("higgs_like", 5000, 21, "obstruct-50"), ("words", 2000, 12, "intrinsic"),
):  # fmt: skip
    benchmark.add_task(
        f"made-{_kind}",
        partial(load_generated, _kind),
        title=f"Generated: {_kind.replace('_', ' ')}",
        n=_n,
        d=_d,
        protocol=_protocol,
    )

_BASELINES = ("majority", "last_label")
for _name in MODELS:
    benchmark.add_method(_name, NamedModel(_name), baseline=_name in _BASELINES)

benchmark.quick(
    tasks=["wdbc", "wdbc-sudden", "wine"],
    methods=["majority", "masked_logistic", "masked_pa", "olvf", "ocds", "nb3", "dynfo"],
    seeds=(0, 1, 2, 3, 4),
)
benchmark.full(
    tasks=[
        "wdbc",
        *(f"wdbc-{s}" for s in PROTOCOLS),
        "digits",
        "wine",
        "diabetes",
        *(n for n in benchmark.tasks if n.startswith("made-")),
    ],
    methods=[n for n in MODELS if n != "hi2"],
)
