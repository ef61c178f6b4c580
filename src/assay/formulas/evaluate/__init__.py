"""Evaluation of one formula over stored values, with other engines behind the same call."""

from assay.formulas.evaluate.engine import Engine, Unsupported, upstream
from assay.formulas.evaluate.evaluator import Evaluator

__all__ = ["Engine", "Evaluator", "Unsupported", "upstream"]
