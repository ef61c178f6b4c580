"""Sets and intervals with a coverage guarantee."""

from assay.uncertainty.conformal.adaptive import AdaptiveConformal
from assay.uncertainty.conformal.classification import CVPlusClassifier, SplitConformal
from assay.uncertainty.conformal.quantile import conformal_quantile, conformal_rank
from assay.uncertainty.conformal.regression import ConformalRegressor, CVPlus, QuantileConformal
from assay.uncertainty.conformal.risk import risk_threshold
from assay.uncertainty.conformal.scores import SCORES, label_scores
from assay.uncertainty.conformal.systems import PredictiveSystem

__all__ = [
    "SCORES",
    "AdaptiveConformal",
    "CVPlus",
    "CVPlusClassifier",
    "ConformalRegressor",
    "PredictiveSystem",
    "QuantileConformal",
    "SplitConformal",
    "conformal_quantile",
    "conformal_rank",
    "label_scores",
    "risk_threshold",
]
