"""What questions to results are answered with: leaderboards, tables, comparisons, ranks, curves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from assay.core import compare
from assay.core.benchmark import Benchmark, Metric

if TYPE_CHECKING:
    from assay.core.report.tables import Table

ALPHA = 0.05
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Gap:
    """Runs of a method that a leaderboard would need and does not have."""

    task: str
    kind: str  # failed, skipped, missing, not applicable, or undefined: a result without a value of the metric
    count: int
    of: int
    reason: str = ""

    def __str__(self) -> str:
        what = {"undefined": "without a value", "missing": "not run"}.get(self.kind, self.kind)
        return f"{self.task}: {self.count} of {self.of} {what}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class LeaderboardRow:
    """A method's line.

    Attributes
    ----------
    rank : int or None
        Equal means share a rank. None without any value, and with values on less than half of the tasks, since a mean
        over a few tasks says little beside means over all of them; such methods stand at the end.
    mean, low, high : float
        Mean over tasks of the means over seeds, and the interval of it; NaN where unknown.
    runs, failed : int
        Runs with a result; runs that failed.
    tasks : int
        Tasks on which the method has a value.
    mean_rank : float
        Mean over those tasks of the rank by the mean over seeds.
    wall_seconds : float
        Of a run, on average.
    apart : bool or None
        Whether the method is told apart from the first (sign-flip test over shared pairs, p-values adjusted after
        Holm); None where there are too few pairs for the test to be able to.
    p : float
        That p-value.
    gaps : tuple of Gap
        Runs that it lacks. A method with values on half of the tasks or more is ranked on what it has.
    """

    rank: int | None
    method: str
    mean: float
    low: float
    high: float
    runs: int
    failed: int
    tasks: int
    mean_rank: float
    wall_seconds: float
    apart: bool | None
    p: float
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True)
class Leaderboard:
    """Methods, best first, with a sentence on whether the first two can be told apart.

    Attributes
    ----------
    verdict : str
    notes : list of str
        What a reader must know beside the verdict: gaps, methods that could not be tested.
    """

    benchmark: Benchmark
    metric: Metric
    tasks: list[str]
    rows: list[LeaderboardRow]
    verdict: str
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.to_text()

    def table(self) -> Table:
        """As a table of text."""
        from assay.core.report.tables import leaderboard_table

        return leaderboard_table(self)

    def to_text(self) -> str:
        """Aligned columns."""
        return "\n".join([self.table().to_text(), "", self.verdict, *self.notes])

    def to_markdown(self) -> str:
        """A Markdown table and the verdict."""
        from assay.core.report.tables import markdown_text

        return "\n\n".join([self.table().to_markdown(), *map(markdown_text, [self.verdict, *self.notes])]) + "\n"

    def to_latex(self) -> str:
        """A LaTeX table (package booktabs), the verdict as its caption."""
        return self.table().to_latex(caption=self.verdict)

    def to_csv(self) -> str:
        """Full precision, a row a method."""
        return self.table().to_csv()


@dataclass(frozen=True)
class ScoreTable:
    """Means of a metric, tasks x methods.

    Attributes
    ----------
    mean, low, high : float arrays, shape (tasks, methods)
    n, failed : int arrays, shape (tasks, methods)
        Runs with a value; failed runs.
    apart : int array, shape (tasks, methods)
        1 told apart from the best of the task (after Holm), 0 not, -1 too few pairs to tell.
    """

    benchmark: Benchmark
    metric: Metric
    tasks: list[str]
    methods: list[str]
    mean: Floats
    low: Floats
    high: Floats
    n: Counts
    failed: Counts
    apart: Counts

    def __str__(self) -> str:
        return self.to_text()

    def table(self) -> Table:
        """As a table of text."""
        from assay.core.report.tables import score_table

        return score_table(self)

    def to_text(self) -> str:
        """Aligned columns."""
        return self.table().to_text()

    def to_markdown(self) -> str:
        """A Markdown table."""
        return self.table().to_markdown() + "\n"

    def to_latex(self) -> str:
        """A LaTeX table (package booktabs)."""
        return self.table().to_latex(caption=f"{self.metric.title}: mean and 95% interval over seeds.")

    def to_csv(self) -> str:
        """Full precision, a row a cell."""
        from assay.core.report.tables import score_csv

        return score_csv(self)


@dataclass(frozen=True)
class Comparison:
    """Two methods over the pairs that both have.

    Attributes
    ----------
    tests : PairedTests
        The difference is a - b.
    unit : str
        What a pair is: ``"(task, seed) pairs"``, ``"tasks"`` where the seed changes nothing, ``"test rows"``.
    winner : str or None
        The better one, if the permutation test tells them apart.
    """

    a: str
    b: str
    metric: Metric
    tests: compare.PairedTests
    unit: str
    tasks: int
    winner: str | None
    least_seeds: int = 0

    def __str__(self) -> str:
        t, show = self.tests, self.metric.format
        if t.n == 0:
            return f"{self.a} and {self.b} share no {self.unit} with a result of both, so they cannot be compared."
        a, b = self.a, self.b
        ahead = t.difference if self.metric.higher_is_better else -t.difference
        first, second = (a, b) if ahead >= 0 else (b, a)
        size = f"{abs(t.difference):{show}}{self.metric.unit and ' ' + self.metric.unit}"
        if math.isfinite(t.low):
            low, high = (t.low, t.high) if t.difference >= 0 else (-t.high, -t.low)
            size += f" (95% interval {low:{show}} to {high:{show}})"
        over = f"over {t.n} {self.unit}"
        if t.difference == 0 and t.low == t.high:
            return f"{a} and {b} have the same {self.metric.title} {over}."
        if t.least > ALPHA:
            need = compare.pairs_needed(ALPHA)
            what = f"at least {need} {self.unit} would be needed"
            if self.least_seeds:
                what = f"at least {self.least_seeds} seeds would be needed"
            student = f"; Student's t, which assumes normal differences, gives {p_text(t.student)}"
            student = "" if math.isnan(t.student) else student
            return (
                f"{first} is ahead of {second} by {size} {over}, but so few cannot tell them apart: the least p that a "
                f"sign-flip or signed-rank test can give is {t.least:.3g}, and {what} to reach {ALPHA:g}{student}."
            )
        test = f"{'exact ' if t.exact else ''}sign-flip permutation test, {p_text(t.permutation)}"
        if self.winner:
            return f"{first} is better than {second} by {size} {over} ({test})."
        return f"{first} and {second} cannot be told apart: the difference is {size} {over} ({test})."


@dataclass(frozen=True)
class Ranks:
    """Ranks of methods over tasks, with the Friedman test and Nemenyi's critical difference.

    Attributes
    ----------
    methods : list of str
        By mean rank, best first.
    ranks : float array, shape (tasks, methods)
    mean_ranks : float array, shape (methods,)
    cliques : list of lists of str
        Largest sets of methods whose mean ranks are within the critical difference.
    wins : int array, shape (methods, methods, 3)
        Tasks on which the row's method is better, equal, worse.
    left_out : list of str
        Tasks or methods that lack a value and were left out.
    """

    metric: Metric
    tasks: list[str]
    methods: list[str]
    ranks: Floats
    mean_ranks: Floats
    friedman: compare.Friedman
    critical_difference: float
    cliques: list[list[str]]
    wins: Counts
    left_out: list[str]

    def __str__(self) -> str:
        f = self.friedman
        differ = "differ" if f.p_f < ALPHA else "cannot be told apart"
        return (
            f"Over {f.tasks} tasks the mean ranks of {f.methods} methods {differ}: Friedman chi-square = "
            f"{f.chi_square:.2f} ({p_text(f.p_chi_square)}), Iman-Davenport F = {f.f:.2f} ({p_text(f.p_f)}); critical "
            f"difference {self.critical_difference:.2f} (Nemenyi, {ALPHA:g})."
        )


@dataclass(frozen=True)
class Band:
    """A method's curve: mean over seeds with an interval, on a grid of x.

    Attributes
    ----------
    x, mean, low, high : float arrays, shape (points,)
        ``low`` and ``high`` are NaN where only one run reaches.
    runs : int
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    runs: int


@dataclass(frozen=True)
class Curves:
    """Curves of one name on one task."""

    name: str
    task: str
    x_label: str
    bands: dict[str, Band]


def p_text(p: float) -> str:
    """A p-value in words.

    >>> p_text(0.0002), p_text(0.0314)
    ('p < 0.001', 'p = 0.031')
    """
    if math.isnan(p):
        return "no p-value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
