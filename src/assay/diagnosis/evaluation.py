"""One model on one split: all figures of prediction and diagnosis, leakage checked first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.diagnosis.errors import DiagnosisError, LeakageError, UndefinedMetric, UnknownName
from assay.diagnosis.estimator import DiagnosisModel
from assay.diagnosis.irt import IRT
from assay.diagnosis.metrics import (
    accuracy,
    auc,
    calibration_error,
    difficulty_agreement,
    doa,
    doa_gain,
    doa_pooled,
    identifiability,
    kappa,
    kc_auc,
    kc_specificity,
    log_loss,
    mastery_vs_heldout,
    mean_distance,
    monotonicity_violations,
    normalised_distance,
    rmse,
    split_half_reliability,
)  # fmt: skip
from assay.diagnosis.metrics.agreement import Ratings
from assay.diagnosis.responses import ResponseData, Split

if TYPE_CHECKING:
    import pandas as pd

PREDICTION = ("auc", "accuracy", "rmse", "log_loss", "calibration_error", "kc_auc")
DIAGNOSIS = (
    "doa",
    "doa_pair_mean",
    "doa_train",
    "doa_all",
    "doa_gain",
    "kc_specificity",
    "mastery_vs_heldout",
    "monotonicity_violations",
    "identifiability",
    "mean_distance",
    "normalised_distance",
)
COSTLY = ("kc_reliability",)
DIFFICULTY = ("difficulty_tau", "difficulty_accuracy")
TRUTH = ("mastery_auc_truth", "classification_accuracy", "classification_kappa")
METRICS = (*PREDICTION, *DIAGNOSIS, *COSTLY, *DIFFICULTY, *TRUTH)

_references: dict[str, NDArray[np.float64]] = {}


def reference_ability(split: Split) -> NDArray[np.float64]:
    """Ability of a two-parameter model fitted on the training answers, which `doa_gain` is measured from."""
    if split.hash not in _references:
        while len(_references) > 8:
            _references.pop(next(iter(_references)))
        model = IRT().fit(split.train)
        if split.support is not None:
            model = model.with_students(_all_known(split))
        _references[split.hash] = model.theta_
    return _references[split.hash]


def _all_known(split: Split) -> ResponseData:
    """Training answers and the support of new students."""
    assert split.support is not None
    whole = split.train.take(slice(0, 0))
    for name in ("student", "item", "correct"):
        whole.__dict__[name] = np.concatenate([getattr(part, name) for part in (split.train, split.support)])
    whole.__dict__["order"] = None
    return whole


def scored(model: DiagnosisModel, split: Split) -> DiagnosisModel:
    """The model that speaks of the split's test students: itself, or with new students scored from their support."""
    return model if split.support is None else model.with_students(_all_known(split))


def figures(
    model: DiagnosisModel, split: Split, metrics: str | Sequence[str] = "all", *, ratings: Ratings | None = None,
    alpha: NDArray[np.float64] | None = None, seed: int = 0,
) -> dict[str, float]:  # fmt: skip
    """Figures of a fitted model by name; see `evaluate`."""
    names = (
        [m for m in METRICS if m not in COSTLY]
        if metrics == "all"
        else [metrics]
        if isinstance(metrics, str)
        else list(metrics)
    )
    for name in names:
        if name not in METRICS:
            raise UnknownName.of("metric", name, METRICS)
    model.check_leakage(split.test)
    judged = scored(model, split)
    test = split.test
    if not len(test):
        raise DiagnosisError("the split has no test answer")
    rng = np.random.default_rng(seed)
    p = judged.predict_proba(test.student, test.item)
    out: dict[str, float] = {}
    simple = {
        "auc": auc,
        "accuracy": accuracy,
        "rmse": rmse,
        "log_loss": log_loss,
        "calibration_error": calibration_error,
    }
    out.update({name: function(test.correct, p) for name, function in simple.items() if name in names})
    if "kc_auc" in names:
        out["kc_auc"] = kc_auc(test, p)
    try:
        mastery = judged.mastery_
    except DiagnosisError:  # free dimensions claim none
        mastery = None
    if mastery is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetric)
            lazy: dict[str, Any] = {
                "doa": lambda: doa_pooled(mastery, test),
                "doa_pair_mean": lambda: doa(mastery, test, variant="pair_mean"),
                "doa_train": lambda: doa(mastery, split, responses="train"),
                "doa_all": lambda: doa(mastery, split, responses="all"),
                "doa_gain": lambda: doa_gain(mastery, reference_ability(split), test),
                "kc_specificity": lambda: kc_specificity(mastery, test, rng),
                "mastery_vs_heldout": lambda: mastery_vs_heldout(mastery, test),
                "monotonicity_violations": lambda: monotonicity_violations(
                    judged.predict_from_mastery, mastery, judged.q_, rng
                ),
                "identifiability": lambda: identifiability(mastery, split.train),
                "mean_distance": lambda: mean_distance(mastery, rng),
                "normalised_distance": lambda: normalised_distance(mastery, rng),
                "kc_reliability": lambda: _mean(split_half_reliability(model, split.train, rng)),
            }
            out.update({name: lazy[name]() for name in names if name in lazy})
    if ratings is not None and {"difficulty_tau", "difficulty_accuracy"} & set(names):
        found = difficulty_agreement(model.difficulty_, ratings)
        out |= {"difficulty_tau": found["kendall_tau"], "difficulty_accuracy": found["pairwise_accuracy"]}
    if alpha is not None and mastery is not None and "mastery_auc_truth" in names:
        out["mastery_auc_truth"] = _against_truth(mastery, alpha)
    if alpha is not None and mastery is not None and np.isin(alpha, (0, 1)).all():
        found = kappa(mastery > 0.5, alpha > 0.5)
        named = {"classification_accuracy": found["accuracy"], "classification_kappa": found["kappa"]}
        out.update({name: value for name, value in named.items() if name in names})
    return out


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def evaluate(
    model: DiagnosisModel, split: Split, metrics: str | Sequence[str] = "all", *, ratings: Ratings | None = None,
    alpha: NDArray[np.float64] | None = None, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """All figures of a fitted model on the test answers of a split, as a table with a row a figure.

    Parameters
    ----------
    model : DiagnosisModel
        Fitted on ``split.train``.
    split : Split
    metrics : str or sequence of str
        Names of `METRICS`; "all" leaves out those that fit the model again (``kc_reliability``).
    ratings : list of (int, int, float), optional
        People's ratings of difficulty.
    alpha : float[S, K], optional
        True mastery, where it is known.
    seed : int
        Of permuted columns and probes.

    Raises
    ------
    LeakageError
        If a test answer was in the training.
    UnknownName
        If there is no such metric.

    Examples
    --------
    >>> from assay.diagnosis import IRT, evaluate, load
    >>> split = load("lsat7").split("student", seed=0)
    >>> evaluate(IRT(estimator="em").fit(split.train), split, ["auc", "doa"])["value"].round(3).tolist()
    [0.674, 0.621]
    """
    import pandas as pd

    found = figures(model, split, metrics, ratings=ratings, alpha=alpha, seed=seed)
    return pd.DataFrame({"metric": list(found), "value": list(found.values())})


def leakage_probe(model: DiagnosisModel, split: Split) -> None:
    """Flip every test answer and fit again: nothing of the model may change.

    Parameters
    ----------
    model : DiagnosisModel
        Its parameters are used; it is not fitted itself.

    Raises
    ------
    LeakageError
        If a prediction changed.
    """
    flipped = split.test.take(slice(None))
    flipped.__dict__["correct"] = (1 - split.test.correct).astype(np.uint8)
    other = Split(split.train, split.valid, flipped, split.scheme, split.seed, split.hash, split.support)
    first = model.clone().fit(split.train, split.valid).predict_proba(split.test.student, split.test.item)
    second = model.clone().fit(other.train, other.valid).predict_proba(split.test.student, split.test.item)
    if not np.array_equal(first, second):
        changed = int((first != second).sum())
        raise LeakageError(
            f"{changed:,} of {len(first):,} predictions of {type(model).__name__} changed when the test answers "
            "were flipped (or training is not deterministic)"
        )


def _against_truth(mastery: NDArray[Any], alpha: NDArray[np.float64]) -> float:
    """Mean over skills of the AUC of mastery against true mastery (above one half, or above the median of a true
    ability).
    """
    values = []
    for k in range(alpha.shape[1]):
        cut = 0.5 if alpha[:, k].min() >= 0 and alpha[:, k].max() <= 1 else np.median(alpha[:, k])
        truth = (alpha[:, k] > cut).astype(np.int64)
        if 0 < truth.sum() < len(truth):
            values.append(auc(truth, mastery[:, k].astype(np.float64)))
    return float(np.mean(values)) if values else float("nan")
