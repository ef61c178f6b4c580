"""The benchmark of the field: selective prediction, foreign inputs, active learning, first-order data, regression, and
three case studies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.errors import DataError, SkipRun
from assay.core.run import RunContext
from assay.uncertainty.contenders import Frequencies, Named
from assay.uncertainty.data import DATASETS, Table, load
from assay.uncertainty.errors import NotSupported, UncertaintyError
from assay.uncertainty.judging import PURPOSES, judge


@dataclass(frozen=True)
class UncertaintyTask:
    """A table and what uncertainty is for; the seed of a run draws the split.

    Attributes
    ----------
    table : Table or None
        None where a file is missing, and for case studies, which make their data.
    missing : str
        Which file is missing, and where to put it.
    """

    purpose: str
    table: Table | None
    options: tuple[tuple[str, Any], ...] = ()
    missing: str = ""

    def fingerprint(self) -> str:
        """Hash of the rows and the purpose."""
        from assay.core.data import fingerprint

        rows = [] if self.table is None else [self.table.X, self.table.y]
        return fingerprint([self.purpose, *rows, [list(o) for o in self.options]])

    def option(self, name: str, default: Any) -> Any:
        """A setting of the task."""
        return dict(self.options).get(name, default)


def load_task(purpose: str, dataset: str, **options: Any) -> UncertaintyTask:
    """A data set for one purpose, one of `PURPOSES`; without its file, a task that says which one is missing."""
    if purpose not in PURPOSES:
        raise UncertaintyError(f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r}")
    settings = tuple(sorted(options.items()))
    if purpose == "case":
        return UncertaintyTask(purpose, None, (("case", dataset), *settings))
    try:
        return UncertaintyTask(purpose, load(dataset), settings)
    except DataError as error:
        if DATASETS[dataset].source is None:
            raise
        return UncertaintyTask(purpose, None, settings, str(error))


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Fit on one part of the rows, judge on the other, by the task's purpose."""
    data: UncertaintyTask = task.data()
    if data.missing:
        raise SkipRun(data.missing)
    try:
        return judge(data, method, context)
    except ModuleNotFoundError as error:  # an optional library: jax, river
        if (error.name or "").split(".")[0] == "assay":
            raise
        raise SkipRun(f"{method.name} needs {error.name}, which is not installed") from error


def applicable(task: Task, method: Method) -> str | None:
    """Regression needs a regressor, first-order data a method that learns from distributions, a case its own methods.

    A method of a user's, without tags, is put to the classification tasks.
    """
    case = next((tag for tag in task.tags if tag.startswith("case-")), None)
    own = next((tag for tag in method.tags if tag.startswith("case-")), None)
    if case != own:
        return f"{method.name} is made for {own}" if own else f"{task.name} has methods of its own"
    if case:
        return None
    regression = "regress" in task.tags
    if "any" not in method.tags and regression != ("regression" in method.tags):
        return f"{method.name} does {'regression' if 'regression' in method.tags else 'classification'} only"
    if "first-order" in task.tags and "labels" in method.tags:
        return f"{method.name} learns from labels, not from distributions"
    if "active" in task.tags and "any" in method.tags:
        return f"{method.name} has no uncertainty to choose rows by"
    return None


def check_representation(bench: Benchmark, method: Method) -> None:
    """A method must predict a representation whose mean is a distribution, the same for the same seed.

    Raises
    ------
    UncertaintyError, NotSupported
    """
    from assay.uncertainty.representations import Representation

    table = load("wine")
    assert table.X is not None
    first, second = (method.make(seed=3).fit(table.X[::2], table.y[::2]).predict(table.X[1::2]) for _ in range(2))
    if not isinstance(first, Representation):
        raise NotSupported(
            "quantify", type(first).__name__, (), "predict(X) must return a Representation, such as Sample(probs)"
        )
    if not np.array_equal(first.mean(), second.mean()):
        raise UncertaintyError(f"{method.name}: two runs with one seed differ")


benchmark = Benchmark(
    "uncertainty",
    "Predictive uncertainty",
    [
        Metric("headline", True, "headline"),
        Metric("accuracy", True, may_be_undefined=True, bounds=(0, 1)),
        Metric("aurc", False, "AURC", ".4f", may_be_undefined=True, bounds=(0, 1)),
        Metric("excess_aurc", False, "E-AURC", ".4f", may_be_undefined=True),
        Metric("augrc", False, "AUGRC", ".4f", may_be_undefined=True, bounds=(0, 1)),
        Metric("error_auroc", True, "AUROC of errors", may_be_undefined=True, bounds=(0, 1)),
        Metric("ece", False, "ECE", may_be_undefined=True, bounds=(0, 1)),
        Metric("log_loss", False, "log loss", may_be_undefined=True, unit="nats"),
        Metric("brier", False, "Brier score", may_be_undefined=True),
        Metric("ood_auroc", True, "AUROC of foreign inputs", may_be_undefined=True, bounds=(0, 1)),
        Metric("ood_aupr", True, "AUPR of foreign inputs", may_be_undefined=True, bounds=(0, 1)),
        Metric("fpr95", False, "FPR at 95 % TPR", may_be_undefined=True, bounds=(0, 1)),
        Metric("detection_error", False, may_be_undefined=True, bounds=(0, 1)),
        Metric("active_area", True, "area under the learning curve", may_be_undefined=True, bounds=(0, 1)),
        Metric("tv", False, "TV to the target", may_be_undefined=True, bounds=(0, 1)),
        Metric("kl", False, "KL to the target", may_be_undefined=True, unit="nats"),
        Metric("coverage", True, "coverage of the credal set", may_be_undefined=True, bounds=(0, 1)),
        Metric("efficiency", True, "efficiency of the credal set", may_be_undefined=True, bounds=(0, 1)),
        Metric(
            "aleatoric_correlation", True, "AU with target entropy (Spearman)", may_be_undefined=True, bounds=(-1, 1)
        ),
        Metric("epistemic_correlation", True, "EU with excess risk (Spearman)", may_be_undefined=True, bounds=(-1, 1)),
        Metric("conditional_satisfaction", True, may_be_undefined=True, bounds=(0, 1)),
        Metric("set_size", False, "size of conformal sets", may_be_undefined=True),
        Metric("crps", False, "CRPS", may_be_undefined=True),
        Metric("rmse", False, "RMSE", may_be_undefined=True),
        Metric("interval_coverage", True, "coverage of 90 % intervals", may_be_undefined=True, bounds=(0, 1)),
        Metric("entropy_error", False, "error of the entropy over meanings", may_be_undefined=True, unit="nats"),
        Metric("bridge_auroc", True, "AUROC of bridge nodes", may_be_undefined=True),
        Metric("shift_auroc", True, "AUROC of nodes with foreign features", may_be_undefined=True),
        Metric("epistemic_rise", True, "rise of EU at the drift", ".2f", may_be_undefined=True),
    ],
    evaluate,
    version="2",
    description=(
        "The headline of a task is 1 - AURC (selective prediction), AUROC (foreign inputs), the normalised "
        "area under the learning curve (active learning), 1 - TV to the true distribution (first-order data), "
        "1 - CRPS / spread (regression); in the case studies the rank correlation with the true entropy (language), "
        "the AUROC of bridge nodes (graph), 1 - AURC (stream)."
    ),
    packages=("scikit-learn", "torch", "accelerate", "jax", "flax", "river"),
    applicable=applicable,
)
benchmark.checks.append(check_representation)


def _add(purpose: str, name: str, data: str, title: str, **options: Any) -> None:
    """A task; where the data is a file, its published checksum stands for the rows, so that it need not be there."""
    source = DATASETS[data].source if data in DATASETS else None
    parts = [purpose, data, source.sha256 if source else "", sorted(options.items())]
    known = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16] if source or purpose == "case" else None
    benchmark.add_task(
        name,
        partial(load_task, purpose, data),
        title=title,
        tags={purpose, *((f"case-{data}",) if purpose == "case" else ())},
        fingerprint=known,
        licence=source.licence if source else "",
        citation=source.citation if source else "",
        **options,
    )


for _name in ("digits", "breast_cancer", "wine"):
    _add("select", f"select-{_name}", _name, f"Selective prediction, {DATASETS[_name].title}")
for _kind in ("classes", "inverted", "permuted", "noise"):
    _add("ood", f"ood-digits-{_kind}", "digits", f"Foreign inputs: digits, {_kind}", foreign=_kind)
_BUDGETS = {
    "digits": {"start": 20, "step": 25, "rounds": 4},
    "breast_cancer": {"start": 10, "step": 10, "rounds": 4},
    "wine": {"start": 10, "step": 10, "rounds": 4},
    "gaussians": {"start": 20, "step": 20, "rounds": 4},
}
for _name, _budget in _BUDGETS.items():
    _add("active", f"active-{_name}", _name, f"Active learning, {DATASETS[_name].title}", **_budget)
for _strategy in ("random", "margin", "badge"):
    _add(
        "active",
        f"active-digits-{_strategy}",
        "digits",
        f"Active learning, {DATASETS['digits'].title}: {_strategy}",
        strategy=_strategy,
        **_BUDGETS["digits"],
    )
# The public protocol of the field: 1000 labels, then ten times 1000 more. Hours for all methods, so run by name.
_add(
    "active", "active-letter", "letter", "Active learning, letters", start=1000, step=1000, rounds=10, largest=20_000,
    pool_share=0.7,
)  # fmt: skip
for _data in DATASETS.values():
    if _data.kind == "distributions":
        _few = {"largest": 2000} if _data.shape[0] > 3000 else {}
        _add("first-order", f"first-order-{_data.name}", _data.name, f"First-order data, {_data.title}", **_few)
for _name in ("diabetes", "curve"):
    _add("regress", f"regress-{_name}", _name, f"Regression, {DATASETS[_name].title}")
for _name, _title in (
    ("language", "Case: questions of known ambiguity"),
    ("graph", "Case: a block model with bridge nodes"),
    ("stream", "Case: a stream that drifts"),
):
    _add("case", f"case-{_name}", _name, _title)

_T = "transforms_torch"
_S = "transforms_sklearn"
benchmark.add_method("frequencies", Frequencies, title="Class frequencies", baseline=True, tags={"any"})
benchmark.add_method("network", Named(f"{_T}.TorchClassifier"), title="One network, softmax")
benchmark.add_method("ensemble", Named(f"{_T}.DeepEnsemble"), title="Deep ensemble", n=10)
benchmark.add_method("mc_dropout", Named(f"{_T}.MCDropout"), title="MC-Dropout", passes=100)
benchmark.add_method("dropconnect", Named(f"{_T}.DropConnect"), title="DropConnect", passes=100)
benchmark.add_method("batch_ensemble", Named(f"{_T}.BatchEnsemble"), title="BatchEnsemble", n=10)
benchmark.add_method("masksembles", Named(f"{_T}.Masksembles"), title="Masksembles")
benchmark.add_method("sub_ensemble", Named(f"{_T}.SubEnsemble"), title="Sub-ensemble", n=10)
benchmark.add_method("mean_field", Named(f"{_T}.MeanFieldNetwork"), title="Mean-field posterior", passes=50)
benchmark.add_method("laplace", Named(f"{_T}.LastLayerLaplace"), title="Last-layer Laplace")
benchmark.add_method("swag", Named(f"{_T}.SWAG"), title="SWAG")
benchmark.add_method("sngp", Named(f"{_T}.SNGP"), title="SNGP")
benchmark.add_method("duq", Named(f"{_T}.DUQ"), title="DUQ")
benchmark.add_method("ddu", Named(f"{_T}.DDU"), title="DDU")
benchmark.add_method("evidential", Named(f"{_T}.EvidentialClassifier"), title="Evidential (MSE)")
benchmark.add_method("postnet", Named(f"{_T}.PosteriorNetwork"), title="Posterior network", epochs=60)
benchmark.add_method("hetnet", Named(f"{_T}.HetNet"), title="HetNet")
benchmark.add_method(
    "credal_wrapper", Named("credal_methods.CredalWrapper", f"{_T}.DeepEnsemble"), title="CreWra", n=10
)
benchmark.add_method(
    "credal_ensemble", Named("credal_methods.CredalEnsemble", f"{_T}.DeepEnsemble"), title="CreEns", n=10, alpha=0.8
)
benchmark.add_method("credal_rl", Named(f"{_T}.CredalRelativeLikelihood"), title="CreRL", n=10, alpha=0.8)
benchmark.add_method(
    "efficient_credal", Named("credal_methods.EfficientCredal", f"{_T}.TorchClassifier"), title="EffCre", alpha=0.8,
)  # fmt: skip
benchmark.add_method(
    "forest",
    Named(f"{_S}.ForestEnsemble"),
    title="Random forest, tree by tree",
    base="sklearn.ensemble.RandomForestClassifier",
)
benchmark.add_method(
    "bagged_trees", Named(f"{_S}.Ensemble"), title="Bagged trees", base="sklearn.tree.DecisionTreeClassifier", n=20
)
benchmark.add_method(
    "laplace_logistic",
    Named("laplace.LaplaceLogistic", scaled=True),
    title="Logistic regression, Laplace",
    tags={"labels"},
)
benchmark.add_method("mahalanobis", Named("density.Mahalanobis", scaled=True), title="Mahalanobis", tags={"labels"})
benchmark.add_method("flax_ensemble", Named("transforms_flax.FlaxEnsemble"), title="Deep ensemble (Flax)", n=10)
benchmark.add_method("flax_dropout", Named("transforms_flax.FlaxDropout"), title="MC-Dropout (Flax)", passes=100)
benchmark.add_method(
    "laplace_ridge", Named("laplace.LaplaceRidge", scaled=True), title="Bayesian linear regression", tags={"regression"}
)
benchmark.add_method(
    "evidential_regression",
    Named(f"{_T}.EvidentialRegressor"),
    title="Evidential regression",
    tags={"regression"},
    epochs=100,
)
benchmark.add_method(
    "bagged_regression_trees",
    Named(f"{_S}.Ensemble"),
    title="Bagged regression trees",
    tags={"regression"},
    base="sklearn.tree.DecisionTreeRegressor",
    n=30,
)

for _name, _kind, _title in (
    ("semantic_entropy", "semantic", "Semantic entropy, counts"),
    ("semantic_entropy_rao", "rao", "Semantic entropy, Rao weights"),
    ("spectral_uncertainty", "spectral", "Spectral uncertainty"),
    ("string_entropy", "string", "Entropy of the texts"),
):
    benchmark.add_method(
        _name, Named("cases.language.OfAnswers"), title=_title, tags={"case-language"}, kind=_kind,
        baseline=_kind == "string",
    )  # fmt: skip
benchmark.add_method(
    "gpn", Named("cases.graph.OnGraph"), title="Graph posterior network", tags={"case-graph"}, steps=10
)
benchmark.add_method(
    "gpn_no_edges", Named("cases.graph.OnGraph"), title="The same without edges", tags={"case-graph"}, steps=0,
    baseline=True,
)  # fmt: skip
for _name, _kind, _title in (
    ("online_bagging", "bagging", "Online bagging"),
    ("online_bagging_forgetting", "forgetting", "Online bagging that forgets"),
    ("adaptive_forest", "forest", "Adaptive random forest (river)"),
):
    benchmark.add_method(
        _name, Named("cases.stream.OnStream"), title=_title, tags={"case-stream"}, model=_kind,
        baseline=_kind == "bagging",
    )  # fmt: skip

benchmark.quick(
    tasks=["select-digits", "ood-digits-classes", "active-wine", "first-order-gaussians"],
    methods=[
        "frequencies",
        "network",
        "mc_dropout",
        "evidential",
        "bagged_trees",
        "mahalanobis",
        "efficient_credal",
    ],
    seeds=(0, 1, 2, 3, 4),
)
# Left to be asked for by name: the long one, and two that say much the same as their neighbours.
_BY_NAME = ("active-letter", "active-digits-margin", "ood-digits-noise")
benchmark.full(
    tasks=[name for name in benchmark.tasks if name not in _BY_NAME],
    methods=[name for name in benchmark.methods if not name.startswith("flax")],
)
