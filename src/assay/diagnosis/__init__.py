"""Cognitive diagnosis: which skill has which student, how hard is which item, and how far is that to be trusted.

From answers (student, item, right or wrong) and a Q-matrix (which item needs which skill), models from Rasch to graph
networks give mastery, and figures say what a diagnosis is worth beside how well answers are foretold.

>>> from assay.diagnosis import GDINA, IRT, calibrated_mastery, evaluate, simulate_platform
>>> platform = simulate_platform(800, 40, 4, density=0.8, model="dina", seed=0)
>>> split = platform.data.split("student", seed=0)
>>> ability, classes = IRT().fit(split.train), GDINA("DINA").fit(split.train)
>>> [round(float(evaluate(m, split, "doa")["value"][0]), 3) for m in (ability, classes)]
[0.745, 0.762]

Your own log:

>>> import pandas as pd
>>> log = pd.DataFrame({"user": ["ann", "ann", "bob"], "question": ["q1", "q2", "q1"], "correct": [1, 0, 1],
...                     "skills": ["add", "add~carry", "add"]})
>>> from assay.diagnosis import KCAccuracy, from_frame
>>> KCAccuracy().fit(from_frame(log)).mastery_.round(2).tolist()
[[0.5899999737739563, 0.5199999809265137], [0.7699999809265137, 0.7200000286102295]]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from assay.diagnosis.check import check_data
from assay.diagnosis.errors import (
    CyclicHierarchy,
    DiagnosisError,
    DuplicateResponses,
    EmptyKC,
    LeakageError,
    NonBinaryResponse,
    NotConverged,
    NotFitted,
    QMatrixMismatch,
    TooManyClasses,
    UndefinedMetric,
    UnknownName,
)
from assay.diagnosis.hierarchy import Hierarchy
from assay.diagnosis.responses import QMatrix, ResponseData, Split, preprocess

if TYPE_CHECKING:
    from assay.diagnosis.baselines import ItemMean, KCAccuracy, Rasch, StudentItemLogit
    from assay.diagnosis.data import DATASETS, load, load_groups
    from assay.diagnosis.dcm import DINA, DINO, GDINA, choose_rules, fit_statistics, item_fit, qmatrix_validation
    from assay.diagnosis.dif import differential_item_functioning
    from assay.diagnosis.difficulty import (
        bradley_terry,
        compare_difficulty,
        difficulty_from_titles,
        empirical_difficulty,
        human_agreement,
        read_ratings,
    )
    from assay.diagnosis.estimator import DiagnosisModel, calibrated_mastery
    from assay.diagnosis.evaluation import evaluate, leakage_probe
    from assay.diagnosis.formats import READERS
    from assay.diagnosis.graph import ORCDF, RCD
    from assay.diagnosis.irt import IRT, MIRT
    from assay.diagnosis.models import MODELS, model_class
    from assay.diagnosis.neural import CDMFKC, IDCDF, KSCD, NCDM, GradientDINA, HierCDF, KaNCD
    from assay.diagnosis.page import write_report
    from assay.diagnosis.protocol import compare, learning_curve_diagnosis, paired_bootstrap, search
    from assay.diagnosis.readers import from_frame, from_matrix, read_table
    from assay.diagnosis.report import Diagnosis, diagnose
    from assay.diagnosis.simulate import simulate_platform

# What needs pandas or torch is imported when it is used.
_LAZY = {
    **dict.fromkeys(("ItemMean", "StudentItemLogit", "KCAccuracy", "Rasch"), "baselines"),
    **dict.fromkeys(("DATASETS", "load", "load_groups"), "data"),
    **dict.fromkeys(
        ("DINA", "DINO", "GDINA", "choose_rules", "fit_statistics", "item_fit", "qmatrix_validation"), "dcm"
    ),
    "differential_item_functioning": "dif",
    **dict.fromkeys(
        (
            "bradley_terry",
            "compare_difficulty",
            "difficulty_from_titles",
            "empirical_difficulty",
            "human_agreement",
            "read_ratings",
        ),
        "difficulty",
    ),
    **dict.fromkeys(("DiagnosisModel", "calibrated_mastery"), "estimator"),
    **dict.fromkeys(("evaluate", "leakage_probe"), "evaluation"),
    **dict.fromkeys(("ORCDF", "RCD"), "graph"),
    **dict.fromkeys(("IRT", "MIRT"), "irt"),
    **dict.fromkeys(("MODELS", "model_class"), "models"),
    **dict.fromkeys(("CDMFKC", "IDCDF", "KSCD", "NCDM", "GradientDINA", "HierCDF", "KaNCD"), "neural"),
    **dict.fromkeys(("compare", "learning_curve_diagnosis", "paired_bootstrap", "search"), "protocol"),
    "READERS": "formats",
    **dict.fromkeys(("from_frame", "from_matrix", "read_table"), "readers"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "report"),
    "write_report": "page",
    "simulate_platform": "simulate",
}

__all__ = [
    "CDMFKC",
    "DATASETS",
    "DINA",
    "DINO",
    "GDINA",
    "IDCDF",
    "IRT",
    "KSCD",
    "MIRT",
    "MODELS",
    "NCDM",
    "ORCDF",
    "RCD",
    "READERS",
    "CyclicHierarchy",
    "Diagnosis",
    "DiagnosisError",
    "DiagnosisModel",
    "DuplicateResponses",
    "EmptyKC",
    "GradientDINA",
    "HierCDF",
    "Hierarchy",
    "ItemMean",
    "KCAccuracy",
    "KaNCD",
    "LeakageError",
    "NonBinaryResponse",
    "NotConverged",
    "NotFitted",
    "QMatrix",
    "QMatrixMismatch",
    "Rasch",
    "ResponseData",
    "Split",
    "StudentItemLogit",
    "TooManyClasses",
    "UndefinedMetric",
    "UnknownName",
    "bradley_terry",
    "calibrated_mastery",
    "check_data",
    "choose_rules",
    "compare",
    "compare_difficulty",
    "diagnose",
    "differential_item_functioning",
    "difficulty_from_titles",
    "empirical_difficulty",
    "evaluate",
    "fit_statistics",
    "from_frame",
    "from_matrix",
    "human_agreement",
    "item_fit",
    "leakage_probe",
    "learning_curve_diagnosis",
    "load",
    "load_groups",
    "model_class",
    "paired_bootstrap",
    "preprocess",
    "qmatrix_validation",
    "read_ratings",
    "read_table",
    "search",
    "simulate_platform",
    "write_report",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"assay.diagnosis.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
