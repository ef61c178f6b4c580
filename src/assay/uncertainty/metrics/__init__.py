"""Figures of uncertain predictions: pure functions, arrays in, floats out."""

from assay.uncertainty.metrics.calibration import (
    brier_parts,
    brier_score,
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    ks_calibration_error,
    log_loss,
    reliability,
    sharpness,
)
from assay.uncertainty.metrics.coverage import coverage_by, first_order_coverage, size_stratified_coverage
from assay.uncertainty.metrics.detection import aupr, auroc, detection_error, detection_scores, fpr_at_tpr
from assay.uncertainty.metrics.intervals import bootstrap, paired_difference, wilson
from assay.uncertainty.metrics.regression import crps_gaussian, crps_sample, interval_score, pit
from assay.uncertainty.metrics.selective import (
    augrc,
    aurc,
    aurc_by_row,
    coverage_at_risk,
    excess_aurc,
    rejection_area,
    risk_at_coverage,
    risk_coverage_curve,
)

__all__ = [
    "augrc",
    "aupr",
    "aurc",
    "aurc_by_row",
    "auroc",
    "bootstrap",
    "brier_parts",
    "brier_score",
    "calibration_error",
    "classwise_calibration_error",
    "coverage_at_risk",
    "coverage_by",
    "crps_gaussian",
    "crps_sample",
    "detection_error",
    "detection_scores",
    "excess_aurc",
    "expected_calibration_error",
    "first_order_coverage",
    "fpr_at_tpr",
    "interval_score",
    "ks_calibration_error",
    "log_loss",
    "paired_difference",
    "pit",
    "rejection_area",
    "reliability",
    "risk_at_coverage",
    "risk_coverage_curve",
    "sharpness",
    "size_stratified_coverage",
    "wilson",
]
