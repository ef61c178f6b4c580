"""The benchmark of the field: selective prediction, foreign inputs, active learning, first-order data, regression."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.benchmark import Benchmark, Method, Metric, Task
from assay.core.run import RunContext
from assay.uncertainty.data import DATASETS, Table, load
from assay.uncertainty.errors import NotSupported, UncertaintyError

Array = NDArray[np.float64]
CURVE_POINTS = 40
PURPOSES = ("select", "ood", "active", "first-order", "regress")


@dataclass(frozen=True)
class UncertaintyTask:
    """A table and what uncertainty is for; the seed of a run draws the split."""

    purpose: str
    table: Table
    options: tuple[tuple[str, Any], ...] = ()

    def fingerprint(self) -> str:
        """Hash of the rows and the purpose."""
        from assay.core.data import fingerprint

        return fingerprint([self.purpose, self.table.X, self.table.y, [list(o) for o in self.options]])

    def option(self, name: str, default: Any) -> Any:
        """A setting of the task."""
        return dict(self.options).get(name, default)


def load_task(purpose: str, dataset: str, **options: Any) -> UncertaintyTask:
    """A data set for one purpose: one of `PURPOSES`."""
    if purpose not in PURPOSES:
        raise UncertaintyError(f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r}")
    return UncertaintyTask(purpose, load(dataset), tuple(sorted(options.items())))


# -- methods ---------------------------------------------------------------------------------------------------------


class Frequencies:
    """The trivial baseline: every row gets the shares of the classes (mean and variance of the targets), equally
    unsure."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, X: Any, y: Any) -> Frequencies:
        """Take the shares."""
        y = np.asarray(y)
        self.numbers_ = y.dtype.kind == "f" and y.ndim == 1
        if self.numbers_:
            self.mean_, self.var_ = float(y.mean()), float(y.var())
        elif y.ndim == 2:
            self.classes_, self.share_ = np.arange(y.shape[1]), y.mean(0)
        else:
            self.classes_, counts = np.unique(y, return_counts=True)
            self.share_ = counts / counts.sum()
        return self

    def predict(self, X: Any) -> Any:
        """The same for every row."""
        from assay.uncertainty.representations import Categorical, GaussianSample

        n = len(X)
        if self.numbers_:
            return GaussianSample(np.full((n, 1), self.mean_), np.full((n, 1), self.var_))
        return Categorical(np.tile(self.share_, (n, 1))).named(self.classes_.tolist())


@dataclass(frozen=True)
class Named:
    """Makes a method by the path of its class; its module is imported at the first call.

    Keywords of the inner method are those of the class that trains (a credal wrapper hands them on).
    """

    path: str
    inner: str = ""
    keywords: tuple[tuple[str, Any], ...] = ()
    scaled: bool = False

    def __call__(self, seed: int = 0, **params: Any) -> Any:
        settings = {**dict(self.keywords), **params}
        if self.inner:
            outer = {k: settings.pop(k) for k in ("alpha",) if k in settings}
            return _class(self.path)(_made(self.inner, seed, settings, False), **outer)
        return _made(self.path, seed, settings, self.scaled)

    def parameter_names(self) -> list[str]:
        """Parameters that the class takes."""
        import inspect

        names = list(inspect.signature(_class(self.inner or self.path).__init__).parameters)
        return [n for n in (*names, "epochs", *(("alpha",) if self.inner else ())) if n not in ("self", "seed")]


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(
        import_module(module if module.startswith(("sklearn", "assay")) else f"assay.uncertainty.{module}"), name
    )


def _made(path: str, seed: int, settings: dict[str, Any], scaled: bool) -> Any:
    kind = _class(path)
    if path.startswith("transforms_torch"):
        from dataclasses import replace

        from assay.uncertainty.transforms_torch.base import DEFAULT

        config = replace(DEFAULT, epochs=settings.pop("epochs", 30))
        return kind(config=config, seed=seed, **settings)
    if path.startswith("transforms_flax"):
        return kind(seed=seed, epochs=settings.pop("epochs", 30), **settings)
    base = settings.pop("base", None)
    if base is not None:
        estimator = _class(base)()
        if "random_state" in estimator.get_params():
            estimator.set_params(random_state=seed)
        if "max_iter" in estimator.get_params():
            estimator.set_params(max_iter=500)
        if "n_estimators" in estimator.get_params():
            estimator.set_params(n_estimators=settings.pop("trees", 50))
        settings["forest" if path.endswith("ForestEnsemble") else "base"] = estimator
    import inspect

    if "seed" in inspect.signature(kind.__init__).parameters:
        settings["seed"] = seed
    method = kind(**settings)
    return Scaled(method) if scaled else method


class Scaled:
    """Standardises the columns by the training rows before a method that does not do so itself."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def fit(self, X: Any, y: Any) -> Scaled:
        """Scale and fit."""
        x = np.asarray(X, dtype=np.float64)
        self.center_, spread = x.mean(0), x.std(0)
        self.spread_ = np.where(spread > 1e-8, spread, 1)
        self.method.fit((x - self.center_) / self.spread_, y)
        return self

    def predict(self, X: Any) -> Any:
        """Scale and predict."""
        return self.method.predict((np.asarray(X, dtype=np.float64) - self.center_) / self.spread_)


# -- one run ---------------------------------------------------------------------------------------------------------


def evaluate(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Fit on one part of the rows, judge on the other, by the task's purpose."""
    data: UncertaintyTask = task.data()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
        judge: dict[str, Callable[..., dict[str, float]]] = {
            "select": _select, "ood": _ood, "active": _active, "first-order": _first_order, "regress": _regress,
        }  # fmt: skip
        return judge[data.purpose](data, method, context)


def _split(
    n: int, context: RunContext, share: float = 0.5, largest: int = 4000
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = context.rng("split").permutation(n)[:largest]
    cut = int(share * len(order))
    return order[:cut], order[cut:]


def _make(method: Method, context: RunContext, seed: int | None = None) -> Any:
    chosen = context.integer_seed("model") if seed is None else seed
    try:
        return method.make(seed=chosen)
    except TypeError as error:  # a user's method that takes no seed
        if "seed" not in str(error):
            raise
        return method.make()


def _curve(context: RunContext, name: str, x: Array, y: Array, x_label: str) -> None:
    for i in np.unique(np.linspace(0, len(x) - 1, min(CURVE_POINTS, len(x))).astype(int)):
        context.curve(name, x[i], y[i], x_label=x_label)


def _uncertainty(rep: Any, notion: str, context: RunContext) -> Array:
    from assay.uncertainty.errors import FallbackWarning
    from assay.uncertainty.measures import uncertainty_of

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        values = uncertainty_of(rep, notion)
    for warning in caught:
        if issubclass(warning.category, FallbackWarning):
            context.note(**{f"{notion}_fallback": str(warning.message)})
    return values


def _select(data: UncertaintyTask, method: Method, context: RunContext) -> dict[str, float]:
    from assay.uncertainty import metrics as m
    from assay.uncertainty.protocols import selective_prediction

    X, y = data.table.X, data.table.y
    assert X is not None
    train, test = _split(len(y), context)
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    p = np.asarray(rep.mean())
    codes = np.searchsorted(np.unique(y[train]), y[test])
    wrong = p.argmax(1) != codes
    result = selective_prediction(_uncertainty(rep, "total", context), wrong, resamples=0)
    _curve(context, "risk over coverage", *result.curves["risk_coverage"], "coverage")
    context.rows("wrong", wrong)
    return {
        "headline": 1 - result.scores["aurc"], "accuracy": float(1 - wrong.mean()), "aurc": result.scores["aurc"],
        "excess_aurc": result.scores["excess_aurc"], "augrc": result.scores["augrc"],
        "error_auroc": result.scores["error_auroc"], "ece": m.expected_calibration_error(p, codes),
        "log_loss": m.log_loss(np.maximum(p, 1e-12), codes), "brier": m.brier_score(p, codes),
    }  # fmt: skip


def _ood(data: UncertaintyTask, method: Method, context: RunContext) -> dict[str, float]:
    from assay.uncertainty.protocols import ood_detection

    X, y = data.table.X, data.table.y
    assert X is not None
    kind = data.option("foreign", "classes")
    known = y < y.max() + 1 - data.option("held_out", 2) if kind == "classes" else np.ones(len(y), dtype=bool)
    inside = np.flatnonzero(known)
    train, test = (inside[part] for part in _split(len(inside), context))
    rng = context.rng("foreign")
    foreign = {
        "classes": lambda: X[~known],
        "inverted": lambda: X.max() - X[test],
        "permuted": lambda: X[test][:, rng.permutation(X.shape[1])],
        "noise": lambda: rng.choice(X.ravel(), size=(len(test), X.shape[1])),
    }[kind]()
    fitted = _make(method, context).fit(X[train], y[train])
    near = fitted.predict(X[test])
    result = ood_detection(
        _uncertainty(near, "epistemic", context),
        _uncertainty(fitted.predict(foreign), "epistemic", context),
        resamples=0,
    )
    _curve(context, "true over false positives", *result.curves["roc"], "false positives")
    s = result.scores
    hit = np.asarray(near.mean()).argmax(1) == np.searchsorted(np.unique(y[train]), y[test])
    return {
        "headline": s["auroc"],
        "accuracy": float(hit.mean()),
        "ood_auroc": s["auroc"],
        "ood_aupr": s["aupr_out"],
        "fpr95": s["fpr95"],
        "detection_error": s["detection_error"],
    }


def _active(data: UncertaintyTask, method: Method, context: RunContext) -> dict[str, float]:
    from assay.uncertainty.protocols import active_learning

    X, y = data.table.X, data.table.y
    assert X is not None
    pool, test = _split(len(y), context, 0.6)
    result = active_learning(
        lambda seed: _make(method, context, seed),
        X[pool],
        y[pool],
        X[test],
        y[test],
        strategy=data.option("strategy", "uncertainty"),
        start=data.option("start", 30),
        step=data.option("step", 20),
        rounds=data.option("rounds", 8),
        seed=context.integer_seed("queries"),
    )
    _curve(context, "accuracy over labelled rows", *result.curves["accuracy"], "labelled rows")
    return {"headline": result.scores["area"], "accuracy": result.scores["final"], "active_area": result.scores["area"]}


def _first_order(data: UncertaintyTask, method: Method, context: RunContext) -> dict[str, float]:
    from assay.uncertainty.protocols import first_order, first_order_conformal

    X, y = data.table.X, data.table.y
    assert X is not None
    train, test = _split(len(y), context)
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    result = first_order(rep, y[test], resamples=0, seed=context.integer_seed("labels"))
    s = result.scores
    sets = first_order_conformal(np.asarray(rep.mean()), y[test], seed=context.integer_seed("splits")).scores
    context.rows("tv", result.rows["tv"])
    names = ("tv", "kl", "ece", "coverage", "efficiency", "aleatoric_correlation", "epistemic_correlation")
    hit = np.asarray(rep.mean()).argmax(1) == y[test].argmax(1)
    return {
        "headline": 1 - s["tv"], "accuracy": float(hit.mean()), **{name: s.get(name, np.nan) for name in names},
        "conditional_satisfaction": sets["conditional_satisfaction"], "set_size": sets["set_size"],
    }  # fmt: skip


def _regress(data: UncertaintyTask, method: Method, context: RunContext) -> dict[str, float]:
    from assay.uncertainty.protocols import regression_quality

    X, y = data.table.X, data.table.y
    assert X is not None
    train, test = _split(len(y), context)
    rep = _make(method, context).fit(X[train], y[train]).predict(X[test])
    result = regression_quality(rep, y[test], resamples=0)
    spread = float(y[train].std())
    context.rows("squared_error", result.rows["squared"])
    return {
        "headline": 1 - result.scores["crps"] / spread, "crps": result.scores["crps"], "rmse": result.scores["rmse"],
        "interval_coverage": result.scores["coverage"],
    }  # fmt: skip


def applicable(task: Task, method: Method) -> str | None:
    """Regression needs a regressor, first-order data a method that learns from distributions."""
    regression = "regress" in task.tags
    if (
        regression != ("regression" in method.tags)
        and "any" not in method.tags
        and (regression or "regression" in method.tags)
    ):
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
        Metric("accuracy", True, may_be_undefined=True),
        Metric("aurc", False, "AURC", ".4f", may_be_undefined=True),
        Metric("excess_aurc", False, "E-AURC", ".4f", may_be_undefined=True),
        Metric("augrc", False, "AUGRC", ".4f", may_be_undefined=True),
        Metric("error_auroc", True, "AUROC of errors", may_be_undefined=True),
        Metric("ece", False, "ECE", may_be_undefined=True),
        Metric("log_loss", False, "log loss", may_be_undefined=True, unit="nats"),
        Metric("brier", False, "Brier score", may_be_undefined=True),
        Metric("ood_auroc", True, "AUROC of foreign inputs", may_be_undefined=True),
        Metric("ood_aupr", True, "AUPR of foreign inputs", may_be_undefined=True),
        Metric("fpr95", False, "FPR at 95 % TPR", may_be_undefined=True),
        Metric("detection_error", False, may_be_undefined=True),
        Metric("active_area", True, "area under the learning curve", may_be_undefined=True),
        Metric("tv", False, "TV to the target", may_be_undefined=True),
        Metric("kl", False, "KL to the target", may_be_undefined=True, unit="nats"),
        Metric("coverage", True, "coverage of the credal set", may_be_undefined=True),
        Metric("efficiency", True, "efficiency of the credal set", may_be_undefined=True),
        Metric("aleatoric_correlation", True, "AU with target entropy (Spearman)", may_be_undefined=True),
        Metric("epistemic_correlation", True, "EU with excess risk (Spearman)", may_be_undefined=True),
        Metric("conditional_satisfaction", True, may_be_undefined=True),
        Metric("set_size", False, "size of conformal sets", may_be_undefined=True),
        Metric("crps", False, "CRPS", may_be_undefined=True),
        Metric("rmse", False, "RMSE", may_be_undefined=True),
        Metric("interval_coverage", True, "coverage of 90 % intervals", may_be_undefined=True),
    ],
    evaluate,
    version="1",
    description=(
        "The headline of a task is 1 - AURC (selective prediction), AUROC (foreign inputs), the normalised "
        "area under the learning curve (active learning), 1 - TV to the true distribution (first-order data), "
        "1 - CRPS / spread (regression)."
    ),
    packages=("scikit-learn", "torch", "accelerate", "jax", "flax"),
    applicable=applicable,
)
benchmark.checks.append(check_representation)

for _name in ("digits", "breast_cancer", "wine"):
    benchmark.add_task(
        f"select-{_name}",
        partial(load_task, "select", _name),
        title=f"Selective prediction, {DATASETS[_name].title}",
        tags={"select"},
    )
for _kind in ("classes", "inverted", "permuted", "noise"):
    benchmark.add_task(
        f"ood-digits-{_kind}",
        partial(load_task, "ood", "digits"),
        title=f"Foreign inputs: digits, {_kind}",
        tags={"ood"},
        foreign=_kind,
    )
benchmark.add_task(
    "active-digits", partial(load_task, "active", "digits"), title="Active learning, digits", tags={"active"}
)
benchmark.add_task(
    "active-wine",
    partial(load_task, "active", "wine"),
    title="Active learning, wine",
    tags={"active"},
    start=10,
    step=8,
    rounds=5,
)
for _data in DATASETS.values():
    if _data.name == "gaussians" or (_data.source is not None and _data.name != "cifar10h"):
        benchmark.add_task(
            f"first-order-{_data.name}",
            partial(load_task, "first-order", _data.name),
            title=f"First-order data, {_data.title}",
            tags={"first-order"},
            licence=_data.source.licence if _data.source else "",
            citation=_data.source.citation if _data.source else "",
        )
benchmark.add_task(
    "regress-diabetes", partial(load_task, "regress", "diabetes"), title="Regression, diabetes", tags={"regress"}
)

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
benchmark.full(
    tasks=["select-*", "ood-*", "active-*", "first-order-gaussians"],
    methods=[n for n, m in benchmark.methods.items() if "regression" not in m.tags and not n.startswith("flax")],
)
