"""Diagnostic classification models: DINA, DINO and the G-DINA family, with fit, validation and model choice."""

from assay.diagnosis.dcm.fit import FitStatistics, fit_statistics, item_fit
from assay.diagnosis.dcm.models import DINA, DINO, GDINA
from assay.diagnosis.dcm.validation import QProposal, choose_rules, qmatrix_validation

__all__ = [
    "DINA",
    "DINO",
    "GDINA",
    "FitStatistics",
    "QProposal",
    "choose_rules",
    "fit_statistics",
    "item_fit",
    "qmatrix_validation",
]
