"""The benchmark of the field: data sets x kinds of ground truth x methods, all on the same trained model for a seed."""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from assay.attribution.data import (
    SMS,
    Split,
    load_digits_split,
    load_shapes_split,
    load_sms_split,
    load_table_split,
    make_shapes,
)
from assay.attribution.errors import AttributionError
from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.errors import DataError, SkipRun
from assay.core.run import RunContext

PURPOSES = (
    "lds", "loo", "brittleness", "removal", "class", "subclass", "mislabel", "shortcut", "mixed", "topk",
    "randomization",
    "duplicate", "facts",
)  # fmt: skip


@dataclass(frozen=True)
class AttributionTask:
    """A data set and what is judged on it; the seed of a run draws split, corruption and model."""

    purpose: str
    dataset: str
    options: tuple[tuple[str, Any], ...] = ()

    def missing(self) -> str | None:
        """Which file is not on this machine and where to get it, if the data set has to be fetched by hand."""
        if not self.dataset.startswith("sms"):
            return None
        try:
            SMS.fetch()
        except DataError as error:
            return str(error)
        return None

    def fingerprint(self) -> str:
        """Hash of the rows and the purpose (of the purpose alone while the file is missing)."""
        from assay.core.data import fingerprint

        if self.missing() is not None:
            return fingerprint([self.purpose, [list(o) for o in self.options], self.dataset, "no file"])
        if self.purpose == "facts":
            rows: Any = [(f.subject, f.relation, f.object) for f in _hard_facts()]
        else:
            data = load_data(self.dataset, 0, self.purpose)
            rows = [data.X_train, data.y_train, data.X_test, data.y_test]
        return fingerprint([self.purpose, [list(o) for o in self.options], rows])


def load_task(purpose: str, dataset: str, **options: Any) -> AttributionTask:
    """A data set for one purpose: one of `PURPOSES`."""
    if purpose not in PURPOSES:
        raise AttributionError(f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r}")
    # now and not in the middle of a run: scikit-learn's metrics import rich, which draws random numbers at import
    import_module("assay.attribution.metrics")
    return AttributionTask(purpose, dataset, tuple(sorted(options.items())))


def load_data(dataset: str, seed: int, purpose: str) -> Split:
    """The rows of a data set, split by the seed."""
    twins = purpose == "duplicate"
    if dataset == "digits-small":
        return load_digits_split(seed, train=500, test=120)
    if dataset in ("digits", "digits-cnn"):
        return load_digits_split(seed, train=1000, test=250)
    if dataset in ("shapes", "shapes-cnn"):
        return load_shapes_split(seed, train=800, test=250)
    if dataset == "sms":
        return load_sms_split(seed, train=1115, test=300, keep_duplicates=twins)
    if dataset == "sms-transformer":
        return load_sms_split(seed, train=800, test=200, tokens=24, keep_duplicates=twins)
    return load_table_split(dataset, seed)


def _recipe(dataset: str, data: Split) -> tuple[Any, Any]:
    from assay.attribution.fitting import FitSpec
    from assay.attribution.models import ModelSpec

    inputs, classes = int(np.prod(data.X_train.shape[1:])), data.n_classes if data.y_train.dtype.kind in "iu" else 1
    if dataset in ("digits-cnn", "shapes-cnn"):
        side = round(inputs**0.5)
        return ModelSpec.of("cnn", side=side, outputs=classes), FitSpec(epochs=15, lr=0.003, optimizer="adam")
    if dataset == "sms-transformer":
        words = int(data.facts["words"])
        model = ModelSpec.of("text_transformer", vocabulary=words, outputs=classes, length=24)
        return model, FitSpec(epochs=8, lr=0.003, optimizer="adam", batch_size=32)
    hidden = {"sms": (32,), "digits": (64,), "digits-small": (64,), "shapes": (64,)}.get(dataset, (16,))
    model = ModelSpec.of("mlp", inputs=inputs, outputs=classes, hidden=hidden)
    if dataset == "sms":
        return model, FitSpec(epochs=10, lr=0.05)
    if classes == 1:
        return model, FitSpec(epochs=30, lr=0.01, task="regression")
    return model, FitSpec(lr=0.02 if dataset == "shapes" else 0.05)


def _hard_facts() -> tuple[Any, ...]:
    """Facts whose object cannot be guessed from the relation: parts of the world and groups of elements are few."""
    from assay.attribution.corpus import load_facts

    return tuple(f for f in load_facts() if f.relation not in ("region", "series"))


@lru_cache(maxsize=3)
def prepared(task: AttributionTask, seed: int) -> Any:
    """Ground truth and trained model of a task and a seed, kept for the next method in this process."""
    options = dict(task.options)
    if task.purpose == "facts":
        from assay.attribution.corpus import make_fact_corpus
        from assay.attribution.tracing import FactTracing, Training

        corpus = make_fact_corpus(
            options.get("n_facts", 60), distractors=options.get("distractors", 240), prompts="cloze", seed=seed,
            facts=_hard_facts(),
        )  # fmt: skip
        return FactTracing.build(corpus, Training(dim=48, epochs=30), seed=seed)
    from assay.attribution.builders import AttributionBenchmark

    data = load_data(task.dataset, seed, task.purpose)
    if task.purpose == "mixed":
        options["X_other"] = _foreign(task.dataset, data, seed)
    model, spec = _recipe(task.dataset, data)
    bench = AttributionBenchmark.from_split(task.purpose, data, model, spec, seed=seed, **options)
    bench.shared = _retrained()
    return bench


@lru_cache(maxsize=1)
def _retrained() -> Path:
    """A folder of this process for the models that methods train: tasks on the same rows take them from there."""
    folder = Path(tempfile.mkdtemp(prefix="assay-attribution-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _foreign(dataset: str, data: Split, seed: int) -> np.ndarray:
    """Rows of another source in the same form: shapes for digits, digits for shapes."""
    if dataset.startswith("digits"):
        images, _ = make_shapes(150, 3, side=8, seed=seed + 77, noise=0.1)
        return images.reshape(150, 64)
    if dataset.startswith("shapes"):
        small = load_digits_split(seed, train=150, test=10).X_train.reshape(-1, 1, 8, 8)
        return np.kron(small, np.ones((1, 1, 2, 2), dtype=np.float32))
    raise AttributionError(f"there is no other source for {dataset}")


@dataclass(frozen=True)
class Named:
    """Makes a method by the path of its class; its module is imported at the first call."""

    path: str
    keywords: tuple[tuple[str, Any], ...] = ()

    def __call__(self, **params: Any) -> Any:
        return self._class()(**{**dict(self.keywords), **params})

    def parameter_names(self) -> list[str]:
        """Parameters that the class takes."""
        return list(self._class()._get_param_names())

    def _class(self) -> Any:
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(f"assay.attribution.{module}"), name)


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Fit the method on the task's model, and judge it."""
    import time

    from assay.attribution.tracing import FactTracing

    purpose: AttributionTask = task.data()
    reason = purpose.missing()
    if reason is not None:
        raise SkipRun(reason)
    bench = prepared(purpose, context.seed)
    attributor = _made(method, context)
    began = time.perf_counter()
    if isinstance(bench, FactTracing):
        c = bench.corpus
        attributor.fit(bench.model, c.tokens, c.labels, checkpoints=bench.states)
        fitted = time.perf_counter() - began
        found = bench.evaluate(attributor, lr=1e-3, fitted=True)
        result = found["mrr"]
        context.note(exact_match=bench.exact_match(), answer_probability=float(bench.answer_probability().mean()))
        extra = {name: found[name].score for name in ("recall_at_10", "tail_patch")}
        context.note(**{f"{k}_{part}": getattr(v, part) for k, v in found.items() for part in ("chance", "normalized")})
    else:
        bench.fit(attributor)
        fitted = time.perf_counter() - began
        result, extra = bench.evaluate(attributor, fitted=True), {}
        if "average_precision" in result.extras:
            extra = {"average_precision": result.extras["average_precision"]}
        for name in ("precision_at", "by_k", "reliability"):
            if result.extras.get(name) is not None:
                value = result.extras[name]
                context.note(**{name: {str(k): v for k, v in value.items()} if isinstance(value, dict) else value})
        if task.tags & {"removal"}:
            for fraction, mine, chance in result.extras["curve"]:
                context.curve("accuracy while rows are removed", fraction, mine, x_label="share removed")
                context.curve("accuracy, random order", fraction, chance, x_label="share removed")
        if "mislabel" in task.tags:
            curve = result.extras["curve"]
            for at in np.linspace(0, len(curve) - 1, 30).astype(int):
                context.curve("share of bad rows found", (at + 1) / len(curve), curve[at], x_label="share looked at")
    context.rows("per_sample", result.per_sample)
    context.note(
        metric=result.name, direction=result.direction, ci=list(result.ci), n_used=result.n_used,
        n_dropped=result.n_dropped,
    )  # fmt: skip
    return {
        "normalized": result.normalized, "score": result.score, "chance": result.chance, "ceiling": result.ceiling,
        "fit_seconds": fitted, "total_seconds": time.perf_counter() - began, **extra,
    }  # fmt: skip


def _made(method: Method, context: RunContext) -> Any:
    """The method, with a seed of the run where it takes one."""
    names = method.factory.parameter_names() if isinstance(method.factory, Named) else ()
    if "seed" in names and "seed" not in method.params:
        return method.make(seed=context.integer_seed("method") % 2**31)
    made = method.make()
    if not hasattr(made, "attribute") or not hasattr(made, "fit"):
        if callable(made):
            from assay.attribution.methods.simple import FromCallable

            return FromCallable(made)
        raise SkipRun(
            f"{method.name} is neither an Attributor (fit, attribute) nor a function (rows, targets) -> (T, N)"
        )
    return made


def applicable(task: Task, method: Method) -> str | None:
    """Which pairs make no sense, and why."""
    purpose = task.params.get("purpose", "")
    if not isinstance(method.factory, Named):
        return None
    if purpose == "facts" and "classifier" in method.tags:
        return f"{method.name} is for classifiers, not for language models"
    if purpose != "facts" and "language" in method.tags:
        return f"{method.name} compares tokens"
    slow = task.params.get("dataset", "").endswith(("-cnn", "-transformer", "facts"))
    if slow and "retrains" in method.tags:
        return f"{method.name} would train a hundred convolutional networks or transformers, minutes for one figure"
    if slow and purpose != "lds" and "costly" in method.tags:
        return f"{method.name} takes minutes on this network; it is judged there by retraining only"
    if task.params.get("dataset") == "diabetes" and "classes" in method.tags:
        return f"{method.name} compares classes, and this is a regression"
    if purpose == "randomization" and "retrains" in method.tags:
        return f"{method.name} trains models of its own, so it does not depend on this one"
    if purpose in ("mislabel",) and "no-suspicion" in method.tags:
        return f"{method.name} says nothing about the label of a row by itself"
    if purpose in ("lds", "loo", "class", "subclass", "topk", "shortcut", "mixed", "duplicate", "brittleness") and (
        "one-value" in method.tags
    ):
        return f"{method.name} gives each training row one value for all test rows"
    if task.params.get("dataset", "").startswith("sms-transformer") and "raw-inputs" in method.tags:
        return f"{method.name} compares raw inputs, and token numbers have no distance"
    return None


benchmark = Benchmark(
    "attribution",
    "Training data attribution",
    [
        Metric("normalized", higher_is_better=True, title="normalised score", may_be_undefined=True),
        Metric("score", True, title="score of the task's metric", bounds=(-1, 1)),
        Metric("chance", True, title="chance level", bounds=(-1, 1)),
        Metric("ceiling", True, title="ceiling", may_be_undefined=True, bounds=(-1, 1)),
        Metric("average_precision", True, title="average precision", may_be_undefined=True, bounds=(0, 1)),
        Metric("recall_at_10", True, title="recall at 10", may_be_undefined=True, bounds=(0, 1)),
        Metric("tail_patch", True, title="tail patch", format=".4f", may_be_undefined=True, bounds=(-1, 1)),
        Metric("fit_seconds", False, title="seconds of fit", unit="s", cost=True, bounds=(0, math.inf)),
        Metric("total_seconds", False, title="seconds in all", unit="s", cost=True, bounds=(0, math.inf)),
    ],
    evaluate,
    packages=("torch", "scikit-learn"),
    applicable=applicable,
    default_seeds=range(3),
    description=(
        "Methods that say which training rows caused a prediction, judged against retrained models and against data "
        "with known answers. 'normalized' is 0 for random attributions and 1 for the best that can be had."
    ),
)

_WHAT = {
    "lds": "linear datamodelling score against 50 x 2 retrained models",
    "loo": "correlation with leaving single rows out", "brittleness": "predictions flip without the top rows",
    "removal": "accuracy falls as the best rows are removed", "class": "top rows have the class",
    "subclass": "top rows have the hidden class", "mislabel": "wrong labels come first",
    "shortcut": "rows with the artefact come first", "mixed": "rows of the other source come first",
    "topk": "different test rows get different rows", "randomization": "depends on the weights",
    "duplicate": "a copy of the row comes first", "facts": "rows that state the fact come first",
}  # fmt: skip
_OPTIONS: dict[str, dict[str, Any]] = {
    "lds": {"n_subsets": 50}, "loo": {"rows": 100}, "brittleness": {"n_test": 15, "k": (10, 40)},
}  # fmt: skip


def _add_tasks() -> None:
    digits = [p for p in PURPOSES if p != "facts"]
    image = ["lds", "class", "mislabel", "shortcut", "mixed"]
    grid = {
        "digits-small": ["lds", "class", "mislabel"], "digits": digits, "digits-cnn": ["lds", "class", "mislabel",
            "shortcut"],
        "shapes": image, "shapes-cnn": ["lds", "class", "shortcut"], "sms": ["lds", "mislabel", "duplicate", "class",
            "topk"],
        "sms-transformer": ["lds", "mislabel"], "breast_cancer": ["lds", "mislabel"], "diabetes": ["lds"],
    }  # fmt: skip
    licences = {"sms": "CC BY 4.0", "sms-transformer": "CC BY 4.0"}
    for dataset, purposes in grid.items():
        for purpose in purposes:
            options = dict(_OPTIONS.get(purpose, {}))
            if dataset == "digits-small" and purpose == "lds":
                options = {"n_subsets": 40, "n_seeds": 2}
            if dataset.endswith(("cnn", "transformer")) and purpose == "lds":
                options = {"n_subsets": 20}
            benchmark.add_task(
                f"{dataset}-{purpose}", load_task, title=f"{dataset}: {_WHAT[purpose]}", tags={purpose, dataset},
                licence=licences.get(dataset, ""), purpose=purpose, dataset=dataset, **options,
            )  # fmt: skip
    benchmark.add_task("facts", load_task, title=_WHAT["facts"], tags={"facts"}, purpose="facts", dataset="facts")


def _add_methods() -> None:
    def add(name: str, path: str, title: str, *, tags: Any = (), baseline: bool = False, **keywords: Any) -> None:
        benchmark.add_method(name, Named(path, tuple(keywords.items())), title=title, tags=tags, baseline=baseline)

    add("random", "methods.Random", "random scores", baseline=True)
    add("graddot", "methods.GradDot", "inner product of gradients")
    add("gradcos", "methods.GradCos", "cosine of gradients")
    add("tracin", "methods.TracIn", "TracIn, five checkpoints")
    add("tracin_last", "methods.TracInLast", "TracIn, last layer")
    add("influence", "methods.Influence", "influence, empirical Fisher")
    add("relatif", "methods.RelatIF", "relative influence")
    add("ekfac", "methods.EKFAC", "influence, EK-FAC")
    add("datainf", "methods.DataInf", "DataInf")
    add(
        "arnoldi",
        "methods.Influence",
        "influence, Arnoldi on the Hessian",
        curvature="hessian",
        solver="arnoldi",
        damping=1e-3,
        tags={"costly"},
    )
    add("trak", "methods.TRAK", "TRAK, one model", projection="sparse")
    add("trak_10", "methods.TRAK", "TRAK, ten models", tags={"classifier", "costly"}, projection="sparse", n_models=10)
    add("representer", "methods.RepresenterPoints", "representer points", tags={"classifier"})
    add("similarity", "methods.Similarity", "cosine of the last hidden layer", tags={"classifier", "no-suspicion"})
    add(
        "similarity_input", "methods.Similarity", "cosine of the inputs",
        tags={"classifier", "no-suspicion", "raw-inputs"}, layer="input",
    )  # fmt: skip
    add("knn_shapley", "methods.KNNShapley", "KNN-Shapley", tags={"classifier", "raw-inputs", "classes"})
    add("banzhaf", "methods.BanzhafMSR", "Banzhaf, 100 retrained models", tags={"classifier", "retrains"})
    add("datamodel", "methods.Datamodel", "datamodel, 100 retrained models", tags={"classifier", "retrains"})
    add(
        "data_oob", "methods.DataOOB", "out-of-bag accuracy, 100 retrained models",
        tags={"classifier", "retrains", "one-value"},
    )  # fmt: skip
    add("bm25", "tracing.LexicalOverlap", "words in common (BM25)", tags={"language"})


_add_tasks()
_add_methods()
benchmark.quick(
    tasks=["digits-small-lds", "digits-small-class", "digits-small-mislabel"],
    methods=["random", "graddot", "similarity", "influence", "ekfac", "trak", "knn_shapley"],
    seeds=(0, 1),
)
benchmark.full(tasks=[t for t in benchmark.tasks if not t.startswith("digits-small")])
