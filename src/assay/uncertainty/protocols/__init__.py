"""The tests of uncertainty: selective prediction, foreign inputs, active learning, first-order data. Each gives a
`Result`."""

from assay.uncertainty.protocols.active import STRATEGIES, active_learning, query
from assay.uncertainty.protocols.distributions import first_order, first_order_conformal
from assay.uncertainty.protocols.numbers import regression_quality
from assay.uncertainty.protocols.result import Comparison, Result, compare_all, spearman
from assay.uncertainty.protocols.selection import ood_detection, selective_prediction

__all__ = [
    "STRATEGIES",
    "Comparison",
    "Result",
    "active_learning",
    "compare_all",
    "first_order",
    "first_order_conformal",
    "ood_detection",
    "query",
    "regression_quality",
    "selective_prediction",
    "spearman",
]
