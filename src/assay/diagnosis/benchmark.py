"""The benchmark of the field: response tables and simulated platforms, all models, prediction beside diagnosis."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.benchmark import Benchmark, Method, Metric, Task, parse_parameters
from assay.core.run import RunContext
from assay.diagnosis.data import DATASETS, load
from assay.diagnosis.errors import NotConverged
from assay.diagnosis.evaluation import figures, leakage_probe, scored
from assay.diagnosis.models import MODELS, model_class
from assay.diagnosis.protocol import NEURAL, learning_curve_diagnosis, search
from assay.diagnosis.responses import ResponseData, preprocess
from assay.diagnosis.simulate import simulate_platform

MOST_FOR_GDINA = 10  # skills


@dataclass(frozen=True)
class DiagnosisTask:
    """Answers, the scheme of the split, and what is known beyond them; the seed of a run is the seed of the split.

    The budgets are the task's, so that they are the same for all methods: ``trials`` of the search, and ``seen``, the
    training answers that a fit may see in all its epochs (0: no limit).
    """

    data: ResponseData
    scheme: str = "student"
    alpha: NDArray[np.float64] | None = None
    ratings: tuple[tuple[int, int, float], ...] | None = None
    trials: int = 1
    seen: int = 0

    def fingerprint(self) -> str:
        """Hash of the answers, the scheme and the budgets."""
        budget = f"/{self.trials}/{self.seen}" if self.trials > 1 or self.seen else ""
        return f"{self.data.fingerprint()}/{self.scheme}{budget}"


def load_table(
    dataset: str, scheme: str = "student", min_logs: int = 1, trials: int = 1, seen: int = 0
) -> DiagnosisTask:
    """A public table under a split and budgets."""
    return DiagnosisTask(preprocess(load(dataset), min_logs=min_logs), scheme, trials=trials, seen=seen)


def load_platform(scheme: str = "student", **params: Any) -> DiagnosisTask:
    """A simulated platform under a split, with true mastery and ratings of difficulty."""
    made = simulate_platform(**params)
    return DiagnosisTask(made.data, scheme, made.alpha, tuple(made.ratings))


@dataclass(frozen=True)
class NamedModel:
    """Makes a model by its name; the model's module is imported at the first call. ``trials`` > 1 searches its
    parameters.
    """

    name: str

    def __call__(self, trials: int = 1, **params: Any) -> Any:
        model = model_class(self.name)(**params)
        model.search_trials = trials
        return model

    def parameter_names(self) -> list[str]:
        """Parameters that the model takes, and ``trials``."""
        return [*model_class(self.name)._parameter_names(), "trials"]


def read_model(text: str) -> tuple[str, dict[str, Any]]:
    """``"GDINA(rule=ACDM)"`` as a name and parameters."""
    name, bracket, rest = text.partition("(")
    return name.strip(), parse_parameters(rest.rstrip(")")) if bracket and rest.rstrip(")").strip() else {}


def diagnose_once(task: Task, method: Method, context: RunContext) -> Mapping[str, float]:
    """Fit on the training answers of the run's split and judge on its test answers."""
    data: DiagnosisTask = task.data()
    split = data.data.split(data.scheme, context.seed)
    model = method.make()
    own = set(model._parameter_names())
    if "seed" in own and "seed" not in method.params:
        model.set_params(seed=context.integer_seed("model"))
    if "device" in own and "device" not in method.params:
        model.set_params(device=context.device)
    trials = max(getattr(model, "search_trials", 1), data.trials)
    if data.seen and "epochs" in own:
        most = max(1, data.seen // len(split.train))
        model.set_params(epochs=min(model.epochs, most))
        fixed = re.fullmatch(r"fixed\((\d+)\)", model.stopping.strip())
        if fixed:
            model.set_params(stopping=f"fixed({min(int(fixed[1]), most)})")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if trials > 1:
            found = search(model, split, trials=trials, seed=context.integer_seed("search"), folder=context.checkpoints)
            model = found.model
            context.note(chosen=found.params, trials=len(found.trials))
        else:
            if "checkpoint" in own:
                model.set_params(checkpoint=str(context.checkpoints / "training.pt"))
                model.report = lambda done, total, _: context.progress(done, total, "epochs")
            model.fit(split.train, split.valid)
    for warning in caught:
        if issubclass(warning.category, NotConverged):
            context.note(not_converged=str(warning.message))
    if "stopping" in own:
        for epoch, row in enumerate(model.history_, start=1):
            context.curve("training loss", epoch, row[0], x_label="epoch")
            if np.isfinite(row[2]):
                context.curve("validation loss", epoch, row[2], x_label="epoch")
                context.curve("validation AUC", epoch, row[1], x_label="epoch")
        context.note(
            stopping=model.stopping,
            best_epoch=int(model.best_epoch_),
            epochs=len(model.history_),
            learning_curve=learning_curve_diagnosis(model),
        )
    unseen = {
        "test_answers_on_unseen_items": int((~model.seen_items_[split.test.item]).sum()),
        "test_answers_of_unseen_students": int((~model.seen_students_[split.test.student]).sum()),
    }
    context.note(split=split.hash, train=len(split.train), valid=len(split.valid), test=len(split.test), **unseen)
    p = scored(model, split).predict_proba(split.test.student, split.test.item).astype(np.float64)
    p = np.clip(p, 1e-7, 1 - 1e-7)
    context.rows("log_loss", -np.where(split.test.correct == 1, np.log(p), np.log1p(-p)))
    values = figures(model, split, ratings=data.ratings, alpha=data.alpha, seed=context.integer_seed("figures"))
    return {name: values.get(name, float("nan")) for name in benchmark.metrics}


def applicable(task: Task, method: Method) -> str | None:
    """Exact models of latent classes need few skills, and those that cannot merge classes (`merged_classes`) fewer."""
    if not isinstance(method.factory, NamedModel):
        return None
    if method.factory.name == "GDINA" and "many classes" in task.tags:
        return f"more than {MOST_FOR_GDINA} skills: a step over all classes takes a second or more, and it takes many"
    return None


def check_leakage(bench: Benchmark, method: Method) -> None:
    """Nothing of a fitted model may change when the test answers are flipped.

    Raises
    ------
    LeakageError
    """
    model = method.make()
    if "epochs" in model._parameter_names():
        model.set_params(epochs=2)
    leakage_probe(model, simulate_platform(80, 12, 2, density=1.0, seed=5).data.split("student", 0))


_TITLES = {
    "auc": "AUC",
    "rmse": "RMSE",
    "calibration_error": "ECE",
    "kc_auc": "AUC a skill",
    "doa": "DOA",
    "doa_pair_mean": "DOA, pair mean",
    "doa_train": "DOA on training answers",
    "doa_all": "DOA on all answers",
    "doa_gain": "DOA gain over one ability",
    "kc_specificity": "skill specificity",
    "mastery_vs_heldout": "mastery against held-out accuracy",
    "mastery_auc_truth": "AUC against true mastery",
    "classification_accuracy": "accuracy against true mastery",
    "classification_kappa": "kappa against true mastery",
    "difficulty_tau": "difficulty against ratings, tau",
    "difficulty_accuracy": "difficulty against ratings, pairs",
}
_LOWER = {"rmse", "log_loss", "calibration_error", "monotonicity_violations"}
_ALWAYS = {"accuracy", "rmse", "log_loss", "calibration_error"}
_SHARES = {
    "auc", "doa", "doa_pair_mean", "doa_train", "doa_all", "accuracy", "rmse", "calibration_error", "kc_auc",
    "mastery_auc_truth", "classification_accuracy", "difficulty_accuracy", "monotonicity_violations", "identifiability",
}  # fmt: skip
_SIGNED = {"doa_gain", "kc_specificity", "mastery_vs_heldout", "classification_kappa", "difficulty_tau"}
_ORDER = (
    "auc",
    "doa",
    "doa_gain",
    "kc_specificity",
    "log_loss",
    "accuracy",
    "rmse",
    "calibration_error",
    "kc_auc",
    "doa_pair_mean",
    "doa_train",
    "doa_all",
    "mastery_vs_heldout",
    "mastery_auc_truth",
    "classification_accuracy",
    "classification_kappa",
    "difficulty_tau",
    "difficulty_accuracy",
    "monotonicity_violations",
    "identifiability",
    "mean_distance",
    "normalised_distance",
)


def _metric(name: str) -> Metric:
    """A figure with its direction, its name in tables and the range that it cannot leave."""
    bounds = (-1.0 if name in _SIGNED else 0.0, 1.0 if name in _SHARES | _SIGNED else math.inf)
    title = _TITLES.get(name, "")
    return Metric(name, name not in _LOWER, title=title, may_be_undefined=name not in _ALWAYS, bounds=bounds)


benchmark = Benchmark(
    "diagnosis",
    "Cognitive diagnosis of students",
    [_metric(name) for name in _ORDER],
    diagnose_once,
    version="1",
    description="Models are fitted on training answers, stopped on validation answers and judged on test answers: "
    "how well these are foretold, and whether more mastery of a skill goes with more right answers on its items.",
    packages=("scikit-learn", "pandas", "torch"),
    applicable=applicable,
)
benchmark.checks.append(check_leakage)


def _tags(name: str) -> set[str]:
    return {"many classes"} if DATASETS[name].shape[2] > MOST_FOR_GDINA else set()


for _table in DATASETS.values():
    benchmark.add_task(
        _table.name,
        partial(load_table, _table.name),
        title=_table.title,
        tags=_tags(_table.name),
        licence=_table.licence,
        citation=_table.citation,
    )
for _name, _suffix, _scheme in (
    ("frcsub", "responses", "response"), ("ecpe", "responses", "response"), ("timss11", "responses", "response"),
    ("frcsub", "new-students", "new_students"), ("ecpe", "new-students", "new_students"),
):  # fmt: skip
    benchmark.add_task(
        f"{_name}-{_suffix}", partial(load_table, _name), title=f"{DATASETS[_name].title}, {_suffix.replace('-', ' ')}",
        licence=DATASETS[_name].licence, citation=DATASETS[_name].citation, scheme=_scheme,
    )  # fmt: skip
# The six small sets: one fit a cell that sees at most a million answers (half an hour on two cores for all models), and
# the whole protocol with twenty trials a cell (hours).
SMALL_SETS = ("frcsub", "fraction15", "ecpe", "timss11", "timss07", "dtmr")
for _name in SMALL_SETS:
    _budgets: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("capped", "a million answers seen", {"seen": 1_000_000}),
        ("searched", "twenty trials", {"trials": 20}),
    )
    for _suffix, _about, _budget in _budgets:
        benchmark.add_task(
            f"{_name}-{_suffix}", partial(load_table, _name), title=f"{DATASETS[_name].title}, {_about}",
            licence=DATASETS[_name].licence, citation=DATASETS[_name].citation, tags=_tags(_name), **_budget,
        )  # fmt: skip
_platforms: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "made-dina",
        "Simulated platform, all skills needed",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "model": "dina"},
    ),
    (
        "made-mirt",
        "Simulated platform, correlated abilities",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "model": "mirt"},
    ),
    (
        "made-ncdm",
        "Simulated platform, graded mastery",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "model": "ncdm-like"},
    ),
    (
        "made-hierarchy",
        "Simulated platform, skills that build on each other",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "model": "dina", "hierarchy": [(0, 1), (1, 2), (0, 3)]},
    ),
    (
        "made-new-students",
        "Simulated platform, new students",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "scheme": "new_students"},
    ),
    (
        "made-new-items",
        "Simulated platform, new items",
        {"S": 600, "J": 40, "K": 5, "density": 0.5, "scheme": "new_items"},
    ),
)
for _name, _title, _params in _platforms:
    benchmark.add_task(_name, load_platform, title=_title, **_params)

_BASELINES = ("ItemMean", "StudentItemLogit", "KCAccuracy", "Rasch")
for _model_name in MODELS:
    benchmark.add_method(
        _model_name.lower(),
        NamedModel(_model_name),
        title=_model_name,
        baseline=_model_name in _BASELINES,
        tags={"neural"} if _model_name in NEURAL else (),
    )
benchmark.add_method("irt-em", NamedModel("IRT"), title="IRT, marginal", estimator="em")
benchmark.add_method("irt-3pl", NamedModel("IRT"), title="IRT, 3PL", model="3pl")
benchmark.add_method("gdina-acdm", NamedModel("GDINA"), title="ACDM", rule="ACDM")

benchmark.quick(
    tasks=["lsat7", "made-dina"],
    methods=["itemmean", "studentitemlogit", "kcaccuracy", "rasch", "irt", "irt-em", "mirt", "dina", "gdina", "kscd"],
    seeds=(0, 1, 2, 3, 4),
)
benchmark.full(
    tasks=["lsat6", "lsat7", "made-dina", "made-mirt", "made-ncdm", "made-hierarchy", "made-new-students"],
    methods=list(benchmark.methods),
)
