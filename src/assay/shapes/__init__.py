"""What shape is this single-cell data set: clusters, one trajectory, a branching tree, a loop, or a continuum of
archetypes?

>>> from assay.shapes import detect_shape, make_shape
>>> cells = make_shape("cycle", n=1000, seed=0)              # or an array, or an AnnData, of your own
>>> report = detect_shape(cells.X, n_bootstrap=5)
>>> report.labels
['cycle']
>>> print(report.recommendation[0][:19])
A closed trajectory

`ReebTower` gives the skeleton itself, with its levels, persistence and confidence; `make_shape` generates cells of a
known one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.shapes.errors import (
    AnnotationColumnWarning,
    ConfoundedSkeletonWarning,
    ConstantDataError,
    DisconnectedGraphWarning,
    DuplicateCellsWarning,
    LabelSchemaError,
    NonFiniteInputError,
    RawCountsWarning,
    ShapeError,
    TooFewCellsError,
    UnknownKindError,
    UnknownRepresentationError,
)

if TYPE_CHECKING:
    from assay.shapes.archetypes import pcha, simplex_test, t_ratio
    from assay.shapes.classify import GroupedReport, ShapeReport, detect_shape, judge, recommend
    from assay.shapes.data import DATASETS, load
    from assay.shapes.expression import changes_along, differs_between
    from assay.shapes.labels import score_labels
    from assay.shapes.metrics import score_skeleton, skeleton_distance_matrix
    from assay.shapes.model import ShapeClassifier
    from assay.shapes.readers import load_scshapebench, read_cells
    from assay.shapes.reeb.tower import ReebTower
    from assay.shapes.skeleton import Skeleton
    from assay.shapes.synthetic import KINDS, LABELS, Shape, make_benchmark, make_shape

_LAZY = {
    **dict.fromkeys(("detect_shape", "judge", "recommend", "ShapeReport", "GroupedReport"), "classify"),
    "ShapeClassifier": "model",
    "ReebTower": "reeb.tower",
    "Skeleton": "skeleton",
    **dict.fromkeys(("make_shape", "make_benchmark", "Shape", "KINDS", "LABELS"), "synthetic"),
    **dict.fromkeys(("score_skeleton", "skeleton_distance_matrix"), "metrics"),
    "score_labels": "labels",
    **dict.fromkeys(("load_scshapebench", "read_cells"), "readers"),
    **dict.fromkeys(("load", "DATASETS"), "data"),
    **dict.fromkeys(("pcha", "simplex_test", "t_ratio"), "archetypes"),
    **dict.fromkeys(("changes_along", "differs_between"), "expression"),
}

__all__ = [
    "DATASETS",
    "KINDS",
    "LABELS",
    "AnnotationColumnWarning",
    "ConfoundedSkeletonWarning",
    "ConstantDataError",
    "DisconnectedGraphWarning",
    "DuplicateCellsWarning",
    "GroupedReport",
    "LabelSchemaError",
    "NonFiniteInputError",
    "RawCountsWarning",
    "ReebTower",
    "Shape",
    "ShapeClassifier",
    "ShapeError",
    "ShapeReport",
    "Skeleton",
    "TooFewCellsError",
    "UnknownKindError",
    "UnknownRepresentationError",
    "changes_along",
    "detect_shape",
    "differs_between",
    "judge",
    "load",
    "load_scshapebench",
    "make_benchmark",
    "make_shape",
    "pcha",
    "read_cells",
    "recommend",
    "score_labels",
    "score_skeleton",
    "simplex_test",
    "skeleton_distance_matrix",
    "t_ratio",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.shapes.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
