"""Figures of prediction and of diagnosis: pure functions, arrays in, floats out."""

from assay.diagnosis.metrics.agreement import difficulty_agreement, kappa, pairwise_accuracy, rank_agreement
from assay.diagnosis.metrics.doa import doa, doa_gain, doa_pair_mean, doa_per_kc, doa_pooled, kc_specificity
from assay.diagnosis.metrics.mastery import (
    identifiability,
    mastery_vs_heldout,
    mean_distance,
    monotonicity_violations,
    normalised_distance,
    split_half_reliability,
)  # fmt: skip
from assay.diagnosis.metrics.prediction import accuracy, auc, calibration_error, kc_auc, log_loss, rmse

__all__ = [
    "accuracy",
    "auc",
    "calibration_error",
    "difficulty_agreement",
    "doa",
    "doa_gain",
    "doa_pair_mean",
    "doa_per_kc",
    "doa_pooled",
    "identifiability",
    "kappa",
    "kc_auc",
    "kc_specificity",
    "log_loss",
    "mastery_vs_heldout",
    "mean_distance",
    "monotonicity_violations",
    "normalised_distance",
    "pairwise_accuracy",
    "rank_agreement",
    "rmse",
    "split_half_reliability",
]
