"""Systems that suggest formulas, all with ``suggest(task, k)``."""

from assay.formulas.systems.aggregate import Aggregate
from assay.formulas.systems.base import Suggestion, System
from assay.formulas.systems.cascade import Cascade
from assay.formulas.systems.neighbour import Neighbour

__all__ = ["Aggregate", "Cascade", "Neighbour", "Suggestion", "System"]
