"""Item response models: one ability (`IRT`), or one a skill (`MIRT`)."""

from assay.diagnosis.irt.multi import MIRT
from assay.diagnosis.irt.uni import IRT

__all__ = ["IRT", "MIRT"]
