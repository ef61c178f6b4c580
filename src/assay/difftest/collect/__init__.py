"""The collector: module hooks, gradient hooks, the optimizer, marked tensors and collectives of one step."""

from __future__ import annotations

from assay.difftest.collect.recorder import SpecRule
from assay.difftest.collect.tracer import LEVELS, Tracer, mark, trace
from assay.difftest.collect.values import coords_of

__all__ = ["LEVELS", "SpecRule", "Tracer", "coords_of", "mark", "trace"]
