"""How large a correct difference may be, tensor by tensor.

Four modes, combined by their maximum: `estimate_tolerance` (``perturb``, ``theory``), `replay_tolerance`, and fixed
rules, which replace the rest.

The recurrence behind all: layer l maps x_{l-1} to x_l with relative condition number kappa_l and makes an error of at
most c_l eps itself, so ``e_l <= kappa_l e_{l-1} + c_l eps``. Backward it goes the same way from the top.
"""

from __future__ import annotations

from assay.difftest.tolerance.estimate import estimate_tolerance, replay_tolerance
from assay.difftest.tolerance.noise import perturbation, perturbed
from assay.difftest.tolerance.theory import block_conditions, condition_number, layer_of, theory_tolerance
from assay.difftest.tolerance.tolerance import Tolerance

__all__ = [
    "Tolerance",
    "block_conditions",
    "condition_number",
    "estimate_tolerance",
    "layer_of",
    "perturbation",
    "perturbed",
    "replay_tolerance",
    "theory_tolerance",
]
