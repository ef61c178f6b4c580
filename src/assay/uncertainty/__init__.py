"""Represent, quantify and evaluate predictive uncertainty: transform, represent, quantify, evaluate, in any
combination.

Any classifier, any way to represent what it does not know, any measure, any test of it:

>>> from sklearn.datasets import load_digits
>>> from sklearn.tree import DecisionTreeClassifier
>>> from assay.uncertainty import Ensemble, quantify, selective_prediction
>>> X, y = load_digits(return_X_y=True)
>>> rep = Ensemble(DecisionTreeClassifier(), n=20, seed=0).fit(X[:900], y[:900]).predict(X[900:])
>>> # total, aleatoric, epistemic; one number a row, in nats
>>> parts = quantify(rep)
>>> result = selective_prediction(parts.total, rep.predict() != y[900:])
>>> round(float(parts.epistemic.mean()), 3), round(result.scores["aurc"], 4)
(0.631, 0.0262)

Saved probabilities of members, as they are:

>>> import numpy as np
>>> from assay.uncertainty import Sample
>>> members = np.array([[[0.9, 0.1], [0.1, 0.9]]])                # (rows, members, classes)
>>> quantify(Sample(members, axis=1)).epistemic.round(6).tolist()
[0.368064]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.uncertainty.errors import (
    AmbiguousAxis,
    ClassMissingInCalibration,
    EmptyCredalSet,
    FallbackWarning,
    MemberDropped,
    NotADistribution,
    NotFitted,
    NotSupported,
    PriorRetuned,
    TargetShape,
    TooFewCalibration,
    UncertaintyError,
)
from assay.uncertainty.representations import (
    Bernoulli,
    Categorical,
    Dirichlet,
    DirichletMixture,
    Gaussian,
    GaussianLogits,
    GaussianMixture,
    GaussianSample,
    Hull,
    Intervals,
    IntervalSet,
    LabelSet,
    LevelSet,
    NormalInverseGamma,
    Representation,
    Sample,
    ScoreBall,
    SparseLogCategorical,
    TVBall,
    WithDensity,
)

# What needs scipy's optimisers, scikit-learn, torch or jax is imported when it is used.
_LAZY = {
    **dict.fromkeys(("MEASURES", "Decomposition", "quantify", "uncertainty_of"), "measures"),
    **dict.fromkeys(
        (
            "dominance_set",
            "e_admissible",
            "gamma_maximin",
            "hartley",
            "hull_coverage",
            "hull_distance",
            "interval_coverage",
            "lower_entropy",
            "upper_entropy",
        ),
        "credal",
    ),
    **dict.fromkeys(
        (
            "AdaptiveConformal",
            "CVPlus",
            "CVPlusClassifier",
            "ConformalRegressor",
            "PredictiveSystem",
            "QuantileConformal",
            "SplitConformal",
            "conformal_quantile",
            "risk_threshold",
        ),
        "conformal",
    ),
    **dict.fromkeys(
        ("DirichletCalibration", "IsotonicCalibration", "PlattScaling", "TemperatureScaling", "VectorScaling"),
        "calibration",
    ),
    **dict.fromkeys(("ConformalClassifier", "Ensemble", "ForestEnsemble", "Single"), "transforms_sklearn"),
    **dict.fromkeys(
        (
            "ConformalCredalSet",
            "CredalEnsemble",
            "CredalWrapper",
            "EfficientCredal",
            "credal_ensemble",
            "credal_wrapper",
        ),
        "credal_methods",
    ),
    **dict.fromkeys(("LaplaceLogistic", "LaplaceRidge"), "laplace"),
    "Mahalanobis": "density",
    **dict.fromkeys(
        (
            "DDU",
            "DUQ",
            "SNGP",
            "SWAG",
            "BatchEnsemble",
            "CredalRelativeLikelihood",
            "DeepEnsemble",
            "DropConnect",
            "EvidentialClassifier",
            "EvidentialRegressor",
            "GraphPosteriorNetwork",
            "HetNet",
            "LastLayerLaplace",
            "MCDropout",
            "Masksembles",
            "MeanFieldNetwork",
            "PosteriorNetwork",
            "SubEnsemble",
            "TorchClassifier",
        ),
        "transforms_torch",
    ),
    **dict.fromkeys(("FlaxDropout", "FlaxEnsemble"), "transforms_flax"),
    **dict.fromkeys(
        (
            "Result",
            "active_learning",
            "compare_all",
            "first_order",
            "first_order_conformal",
            "ood_detection",
            "regression_quality",
            "selective_prediction",
        ),
        "protocols",
    ),
    **dict.fromkeys(("OnlineEnsemble", "RiverForest", "prequential"), "streams"),
    **dict.fromkeys(("Generations", "semantic_entropy", "spectral_uncertainty"), "language"),
    **dict.fromkeys(("Audit", "audit", "read_predictions"), "auditing"),
    **dict.fromkeys(("DATASETS", "load"), "data"),
}

__all__ = [
    "AmbiguousAxis",
    "ClassMissingInCalibration",
    "EmptyCredalSet",
    "FallbackWarning",
    "MemberDropped",
    "NotADistribution",
    "NotFitted",
    "NotSupported",
    "PriorRetuned",
    "TargetShape",
    "TooFewCalibration",
    "UncertaintyError",
    "Bernoulli",
    "Categorical",
    "Dirichlet",
    "DirichletMixture",
    "Gaussian",
    "GaussianLogits",
    "GaussianMixture",
    "GaussianSample",
    "Hull",
    "IntervalSet",
    "Intervals",
    "LabelSet",
    "LevelSet",
    "NormalInverseGamma",
    "Representation",
    "Sample",
    "ScoreBall",
    "SparseLogCategorical",
    "TVBall",
    "WithDensity",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.uncertainty.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
