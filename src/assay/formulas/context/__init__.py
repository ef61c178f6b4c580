"""Gathering context: strategies under a budget of tokens, the dense format, coverage."""

from assay.formulas.context.base import Context
from assay.formulas.context.coverage import Coverage, coverage, covers
from assay.formulas.context.strategies import STRATEGIES, strategy

__all__ = ["STRATEGIES", "Context", "Coverage", "coverage", "covers", "strategy"]
