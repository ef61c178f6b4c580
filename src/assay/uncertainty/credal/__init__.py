"""Exact entropies, probabilities and decisions of credal sets."""

from assay.uncertainty.credal.bounds import (
    CredalSet,
    dominance_set,
    enclosing,
    expectation_bounds,
    hartley,
    lower_entropy,
    lower_probability,
    upper_entropy,
    zero_one_bounds,
)
from assay.uncertainty.credal.coverage import hull_coverage, hull_distance, interval_coverage
from assay.uncertainty.credal.decision import e_admissible, gamma_maximin

__all__ = [
    "CredalSet",
    "dominance_set",
    "e_admissible",
    "enclosing",
    "expectation_bounds",
    "gamma_maximin",
    "hartley",
    "hull_coverage",
    "hull_distance",
    "interval_coverage",
    "lower_entropy",
    "lower_probability",
    "upper_entropy",
    "zero_one_bounds",
]
