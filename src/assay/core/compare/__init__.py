"""Statistics of comparisons: pure functions, arrays in.

Intervals of means over seeds and over test rows, paired tests between two methods, ranks of many methods over many
tasks. Nothing here knows of benchmarks or files; `assay.core.results` feeds it.
"""

from assay.core.compare.intervals import Interval, Intervals, mean_intervals, row_interval
from assay.core.compare.many import Friedman, cliques, critical_difference, friedman, holm, rank_rows, win_tie_loss
from assay.core.compare.pairs import (
    EXACT_PAIRS,
    PairedTests,
    least_p,
    paired_tests,
    pairs_needed,
    sign_flip_test,
    student_test,
    wilcoxon_test,
)

__all__ = [
    "EXACT_PAIRS",
    "Friedman",
    "Interval",
    "Intervals",
    "PairedTests",
    "cliques",
    "critical_difference",
    "friedman",
    "holm",
    "least_p",
    "mean_intervals",
    "paired_tests",
    "pairs_needed",
    "rank_rows",
    "row_interval",
    "sign_flip_test",
    "student_test",
    "wilcoxon_test",
    "win_tie_loss",
]
