"""Total, aleatoric and epistemic uncertainty of any representation: `quantify`."""

from assay.uncertainty.measures.quantify import Decomposition, quantify, uncertainty_of
from assay.uncertainty.measures.sample import MEASURES

__all__ = ["MEASURES", "Decomposition", "quantify", "uncertainty_of"]
