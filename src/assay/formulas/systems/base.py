"""What every system shares: suggestions, and the checks that each formula passes before it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import boxes, reaches


@dataclass(frozen=True)
class Suggestion:
    """A formula for a cell.

    Attributes
    ----------
    formula : str
        In A1 notation, without ``=``.
    score : float
        Between 0 and 1; after calibration the share of suggestions with that score that are right.
    source : str
        The system.
    ms : float
        Time to this suggestion.
    reason : str
        Why, in a sentence.
    evidence : tuple of CellRef
        Cells that speak for it (to be highlighted).
    parts : tuple of (str, float)
        Where the time went: stage and milliseconds.
    """

    formula: str
    score: float
    source: str = ""
    ms: float = 0.0
    reason: str = ""
    evidence: tuple[CellRef, ...] = ()
    parts: tuple[tuple[str, float], ...] = ()


@runtime_checkable
class System(Protocol):
    """Anything that suggests formulas."""

    name: str

    def suggest(self, task: Task, k: int = 5) -> list[Suggestion]:
        """At most ``k`` suggestions, the best first; an empty list abstains."""
        ...


def circular(formula: Formula, book: Workbook, cell: CellRef) -> bool:
    """Whether a formula refers to its own cell, directly or through formulas in between.

    >>> book = Workbook.from_cells({"S": {"A1": 1, "A2": "=A3+1"}})
    >>> [circular(parse(f), book, CellRef("S", 3, 1)) for f in ("SUM(A1:A3)", "A2*2", "A1*2")]
    [True, True, False]
    """
    if reaches(formula, book, cell, cell):
        return True
    seen: set[tuple[str, int, int]] = set()
    waiting = [(formula, cell)]
    from assay.formulas.evaluate.engine import formula_precedents

    while waiting:
        read, at = waiting.pop()
        for place in formula_precedents(book, read, at):
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > 400:  # far from the cell by then; evaluation finds the rest
                return False
            where = CellRef(*place)
            try:
                below = parse(book.formula(where) or "", where)
            except FormulaError:
                continue
            if reaches(below, book, where, cell):
                return True
            waiting.append((below, where))
    return False


def referred_filled(formula: Formula, book: Workbook, cell: CellRef) -> tuple[int, int]:
    """How many references reach something that is filled, and how many there are."""
    filled = total = 0
    for sheet, row1, col1, row2, col2 in boxes(formula, book, cell):
        total += 1
        filled += any_filled(book, sheet, row1, col1, row2, col2)
    return filled, total


def any_filled(book: Workbook, sheet: str, row1: int, col1: int, row2: int, col2: int) -> bool:
    """Whether a box holds anything."""
    import numpy as np

    here = book.sheets[sheet]
    if (row2 - row1 + 1) * (col2 - col1 + 1) <= 32:
        for row in range(row1, row2 + 1):
            for col in range(col1, col2 + 1):
                cell = here.get(row, col)
                if cell is not None and (cell.value is not None or cell.formula):
                    return True
        return False
    a = here.arrays()
    first, last = np.searchsorted(a.row, [row1, row2 + 1])
    cols = a.col[first:last]
    return bool(((cols >= col1) & (cols <= col2)).any())


def matches_prefix(formula: str, prefix: str) -> bool:
    """Whether a formula goes on from what has been typed (case and blanks aside).

    >>> matches_prefix("SUM(A1:A3)", "=su"), matches_prefix("A1+A2", "=SU")
    (True, False)
    """
    typed = "".join(prefix.lstrip("=").split()).upper()
    return not typed or "".join(formula.split()).upper().startswith(typed)


def admitted(task: Task, suggestions: Iterable[Suggestion], k: int) -> list[Suggestion]:
    """Suggestions that parse, go on from the prefix, refer to no circle, each once, the best first."""
    found: dict[str, Suggestion] = {}
    for suggestion in sorted(suggestions, key=lambda s: -s.score):
        if not matches_prefix(suggestion.formula, task.prefix):
            continue
        try:
            read = parse(suggestion.formula, task.cell)
            form = read.canonical()
            if form in found or circular(read, task.view, task.cell):
                continue
        except FormulaError:
            continue
        found[form] = suggestion
        if len(found) == k:
            break
    return list(found.values())


def timed(suggest: Callable[[Task], Iterable[Suggestion]], task: Task, k: int, name: str) -> list[Suggestion]:
    """Run a system's inner function and put its name and the time on what it gives."""
    began = time.perf_counter()
    found = admitted(task, suggest(task), k)
    ms = (time.perf_counter() - began) * 1000
    return [replace(s, source=s.source or name, ms=ms, parts=s.parts or ((name, ms),)) for s in found]
