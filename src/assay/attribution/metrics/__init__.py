"""The metrics, each as a `MetricResult` with interval, chance level, ceiling and normalised score."""

from __future__ import annotations

from assay.attribution.metrics.detection import (
    class_detection,
    duplicate_detection,
    mislabel_detection,
    mixed_datasets,
    random_average_precision,
    shortcut_detection,
    subclass_detection,
)
from assay.attribution.metrics.facts import mrr, recall_at_k, tail_patch
from assay.attribution.metrics.ground_truth import (
    brittleness,
    lds,
    leave_one_out_truth,
    loo_correlation,
    noise_ceiling,
    point_removal,
    rank_correlation,
)
from assay.attribution.metrics.heuristics import model_randomization, randomized_copy, topk_cardinality
from assay.attribution.metrics.result import MetricResult, PairedTest, bootstrap, paired_test

__all__ = [
    "MetricResult", "PairedTest", "bootstrap", "brittleness", "class_detection", "duplicate_detection", "lds",
    "leave_one_out_truth", "loo_correlation", "mislabel_detection", "mixed_datasets", "model_randomization", "mrr",
    "noise_ceiling", "paired_test", "point_removal", "random_average_precision", "randomized_copy", "rank_correlation",
    "recall_at_k", "shortcut_detection", "subclass_detection", "tail_patch", "topk_cardinality",
]  # fmt: skip
