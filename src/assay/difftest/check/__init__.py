"""Compare a candidate's trace with the reference's: structure first, then every tensor in order of execution."""

from __future__ import annotations

from assay.difftest.check.comparison import Comparison
from assay.difftest.check.judge import compare, default_tolerance
from assay.difftest.check.result import Finding, Result, Verdict

__all__ = ["Comparison", "Finding", "Result", "Verdict", "compare", "default_tolerance"]
