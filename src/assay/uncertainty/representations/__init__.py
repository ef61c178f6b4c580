"""How a prediction says how sure it is: first-order and second-order distributions, credal sets, conformal sets."""

from assay.uncertainty.representations.base import Representation
from assay.uncertainty.representations.first_order import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianMixture,
    SparseLogCategorical,
)
from assay.uncertainty.representations.second_order import (
    Dirichlet,
    DirichletMixture,
    GaussianLogits,
    GaussianSample,
    NormalInverseGamma,
    Sample,
    WithDensity,
)
from assay.uncertainty.representations.sets import Hull, Intervals, IntervalSet, LabelSet, LevelSet, ScoreBall, TVBall

__all__ = [
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
]
