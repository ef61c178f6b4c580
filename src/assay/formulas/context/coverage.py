"""Coverage: for how many tasks a context holds all cells without which the formula cannot be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.formulas.context.base import Context
from assay.formulas.context.strategies import strategy
from assay.formulas.errors import BudgetTooSmall
from assay.formulas.grammar import CellRef
from assay.formulas.intent import intent_cells
from assay.formulas.tasks import Task
from assay.formulas.tokens import Counter


@dataclass(frozen=True)
class Coverage:
    """One row of the table of `coverage`.

    Attributes
    ----------
    strategy : str
    budget : int or None
    coverage : float
        Share of tasks with a whole set of intent cells in the context: the bound of what can be right.
    recall : float
        Mean share of the best set.
    tokens : float
        Mean tokens.
    tokens_per_covered : float
    cells : float
        Mean number of cells.
    tasks : int
    """

    strategy: str
    budget: int | None
    coverage: float
    recall: float
    tokens: float
    tokens_per_covered: float
    cells: float
    tasks: int


def covers(context: Context, sets: Sequence[frozenset[CellRef]]) -> bool:
    """Whether a context holds one whole set."""
    return any(s <= context.cells for s in sets)


def recall(context: Context, sets: Sequence[frozenset[CellRef]]) -> float:
    """The largest share of a set that the context holds."""
    return max((len(s & context.cells) / len(s) if s else 1.0) for s in sets)


def coverage(
    tasks: Sequence[Task],
    strategies: Sequence[str] = ("window", "dense", "oracle"),
    budgets: Sequence[int | None] = (128, 512, 1024),
    tokenizer: str | Counter = "bytes4",
) -> list[Coverage]:
    """Coverage, recall and tokens of strategies under budgets, over the tasks with a truth.

    A budget too small for the line of the target covers nothing.

    Examples
    --------
    >>> from assay.formulas import Workbook, build_tasks
    >>> cells = {"A1": 1, "A2": 2, "A3": "=A1+A2"}
    >>> rows = coverage(build_tasks([Workbook.from_cells({"S": cells})], abstain=0), ["oracle"], [None])
    >>> rows[0].coverage
    1.0
    """
    chosen = [task for task in tasks if task.truth is not None]
    sets = [intent_cells(task) for task in chosen]
    rows = []
    for name in strategies:
        for budget in budgets:
            gather = strategy(name, budget, tokenizer)
            hits, shares, sizes, counts = [], [], [], []
            for task, wanted in zip(chosen, sets, strict=True):
                try:
                    context = gather(task)
                except BudgetTooSmall:
                    context = Context("")
                hits.append(covers(context, wanted))
                shares.append(recall(context, wanted))
                sizes.append(context.tokens)
                counts.append(len(context.cells))
            covered = [s for s, hit in zip(sizes, hits, strict=True) if hit]
            rows.append(
                Coverage(
                    name, budget, _mean(hits), _mean(shares), _mean(sizes), _mean(covered), _mean(counts), len(chosen)
                )
            )
    return rows


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
