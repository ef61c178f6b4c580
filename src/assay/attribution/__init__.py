"""Which training rows caused this prediction, and how far a method that says so can be trusted.

Attributors share one convention: ``fit(model, X_train, y_train)``, then ``attribute(X_test, targets)`` gives scores
(test rows, training rows) that are positive for rows that raise the explained number.

>>> from assay.attribution import FitSpec, Influence, ModelSpec, fit_one, load_digits_split, as_tensors
>>> data = load_digits_split(train=300, test=50)
>>> X, y = as_tensors(data.X_train, data.y_train)
>>> model, _ = fit_one(ModelSpec.of("mlp", inputs=64, outputs=10), FitSpec(), X, y)
>>> method = Influence().fit(model, X, y)
>>> rows, scores = method.top_k(data.X_test, data.y_test, k=3)
>>> rows.shape, bool((y[rows[:, 0]].numpy() == data.y_test).mean() > 0.8)
((50, 3), True)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from assay.attribution.errors import (
    AttributionError,
    BudgetExceeded,
    CheckpointMismatch,
    ConstantOutput,
    ConstantOutputWarning,
    DataFormatError,
    LabelError,
    NoEligibleSamples,
    NonFiniteAttribution,
    NotFitted,
    ShapeMismatch,
    UnsupportedModel,
)

_PLACES: dict[str, tuple[str, ...]] = {
    "methods": (
        "Attributor", "GradDot", "GradCos", "TracIn", "TracInLast", "Influence", "RelatIF", "EKFAC", "DataInf", "TRAK",
        "RepresenterPoints", "Similarity", "KNNShapley", "DataOOB", "BanzhafMSR", "Datamodel", "ExactLOO", "LeafKernel",
        "Random", "FromCallable", "METHODS",
    ),
    "farm": ("RetrainingFarm", "train_many", "Cost"),
    "chunks": ("GroundTruth",),
    "subsets": ("random_subsets", "leave_out"),
    "fitting": ("FitSpec", "fit_one", "as_tensors"),
    "models": ("ModelSpec", "MLP", "SmallCNN", "TextTransformer", "GPT"),
    "adapter": ("TorchModel",),
    "gradients.projection": ("Projection",),
    "metrics": (
        "MetricResult", "PairedTest", "lds", "noise_ceiling", "loo_correlation", "leave_one_out_truth", "brittleness",
        "point_removal", "class_detection", "subclass_detection", "mislabel_detection", "shortcut_detection",
        "mixed_datasets", "duplicate_detection", "model_randomization", "randomized_copy", "topk_cardinality", "mrr",
        "recall_at_k", "tail_patch", "paired_test", "random_average_precision",
    ),
    "comparison": ("Comparison", "compare"),
    "builders": ("AttributionBenchmark", "KINDS"),
    "corpus": ("Fact", "FactCorpus", "load_facts", "make_fact_corpus"),
    "tracing": ("FactTracing", "LexicalOverlap", "Training", "train_language_model"),
    "text": ("Vocabulary",),
    "data": (
        "Split", "split_rows", "load_digits_split", "load_table_split", "load_sms", "load_sms_split",
        "load_shapes_split",
        "make_shapes", "make_linear", "flip_labels", "group_classes", "add_artifact", "mix_source", "duplicate_rows",
        "white_square",
    ),
    "formats": (
        "TableData", "read_table", "read_mnist", "read_cifar", "read_image_folder", "read_tsv", "read_jsonl",
        "read_state",
    ),
    "tables": ("rank_rows", "RankedRows"),
    "report": ("explain_html", "write_report"),
    "plots": ("plot_comparison", "plot_tradeoff", "plot_curve", "plot_rows", "tradeoff_chart"),
}  # fmt: skip
_LAZY = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "AttributionError", "BudgetExceeded", "CheckpointMismatch", "ConstantOutput", "ConstantOutputWarning",
    "DataFormatError",
    "LabelError",
    "NoEligibleSamples", "NonFiniteAttribution", "NotFitted", "ShapeMismatch", "UnsupportedModel", *_LAZY,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.attribution.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'assay.attribution' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
