"""Intent cells: cells without which a formula cannot be known, as sets of which one suffices.

The first set holds the precedents (of ranges the first and last cell), their headers, the header of the target's
column and the label of its row, and labels of constants. A sibling (a cell in sight with the same R1C1 form) is a set
of its own. Cells that are empty in what the system sees are not asked for: there is nothing to show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from assay.formulas.errors import FormulaError, TaskFileError
from assay.formulas.grammar import CellRef, parse, parse_address
from assay.formulas.grammar.nodes import Number
from assay.formulas.regions import column_header, label_left
from assay.formulas.tasks import Task
from assay.formulas.workbook.resolve import resolved, sheets_of

MAX_SIBLINGS = 200
_PLAIN_CONSTANTS = frozenset((0.0, 1.0, 2.0, 10.0, 12.0, 100.0, 1000.0))


def siblings(task: Task) -> list[CellRef]:
    """Cells in sight whose formula has the same R1C1 form as the truth, the nearest first."""
    if task.truth is None:
        return []
    try:
        wanted = parse(task.truth, task.cell).canonical_r1c1()
    except FormulaError:
        return []
    sheet = task.view.sheet(task.cell.sheet)
    a = sheet.arrays()
    found = []
    forms: dict[int, bool] = {}
    for row, col, cls in zip(a.row.tolist(), a.col.tolist(), a.cls.tolist(), strict=True):
        if cls < 0:
            continue
        if cls not in forms:
            at = CellRef(sheet.name, row, col)
            try:
                forms[cls] = parse(sheet.formula(row, col) or "", at).canonical_r1c1() == wanted
            except FormulaError:
                forms[cls] = False
        if forms[cls]:
            found.append(CellRef(sheet.name, row, col))
    found.sort(key=lambda c: (abs(c.row - task.cell.row) + abs(c.col - task.cell.col), c))
    return found[:MAX_SIBLINGS]


def needed_cells(task: Task) -> frozenset[CellRef]:
    """Precedents, headers and labels of the truth that hold something in what the system sees."""
    book = task.view
    target = book.sheet(task.cell.sheet)
    found: set[CellRef] = set()

    def add(sheet: str, place: tuple[int, int] | None) -> None:
        if place is not None:
            found.add(CellRef(sheet, *place))

    read = parse(task.truth or "", task.cell)
    for _, ref in resolved(read, book, task.cell):
        row1, col1, row2, col2 = ref.box()
        for name in sheets_of(ref, book, task.cell):
            sheet = book.sheets[name]
            top, left, bottom, right = sheet.bounds
            if ref.kind == "cols":
                row1, row2 = top, max(bottom, top)
            elif ref.kind == "rows":
                col1, col2 = left, max(right, left)
            for place in ((row1, col1), (row2, col2)):
                add(name, place)
            add(name, column_header(sheet, row1, col1, book))
            if row1 == row2:
                add(name, label_left(sheet, row1, col1))
    add(target.name, column_header(target, task.cell.row, task.cell.col, book))
    add(target.name, label_left(target, task.cell.row, task.cell.col))
    constants = {n.value for n in read.tree.walk() if isinstance(n, Number)} - _PLAIN_CONSTANTS
    if constants:
        a = target.arrays()
        for row, col, kind, cls in zip(a.row.tolist(), a.col.tolist(), a.kind.tolist(), a.cls.tolist(), strict=True):
            if kind == 1 and cls < 0 and target.value(row, col) in constants:
                add(target.name, label_left(target, row, col))
    shown = (c for c in found if book.sheets[c.sheet].value(c.row, c.col) is not None or book.formula(c))
    return frozenset(shown)


def intent_cells(task: Task) -> list[frozenset[CellRef]]:
    """Sets of cells of which one whole set suffices to know the formula.

    Marks by a person (`load_annotations`) take the place of the first set. An abstain task needs nothing.

    Examples
    --------
    >>> from assay.formulas import Workbook, Task, parse_address
    >>> book = Workbook.from_cells({"S": {"A1": "Qty", "B1": "Double", "A2": 3, "B2": "=A2*2", "A3": 4, "B3": "=A3*2"}})
    >>> cell = parse_address("S!B3")
    >>> task = Task("t", book, cell, truth="A3*2", removed=frozenset([cell]))
    >>> [sorted(c.address for c in s) for s in intent_cells(task)]
    [['A1', 'A3', 'B1'], ['B2']]
    """
    if task.truth is None:
        return [frozenset()]
    first = task.intent if task.intent is not None else needed_cells(task)
    return [first, *(frozenset([cell]) for cell in siblings(task))]


def load_annotations(tasks: Sequence[Task], path: str | os.PathLike[str]) -> list[Task]:
    """Tasks with intent cells from a JSON file: ``{"task id": ["A1", "Rates!B2"]}``.

    Raises
    ------
    TaskFileError
        If the file cannot be read, or names a task that is not among these.
    """
    try:
        marks: Mapping[str, list[str]] = json.loads(Path(path).read_text(encoding="utf-8"))
        by_id = {task.id: task for task in tasks}
        unknown = sorted(set(marks) - set(by_id))
        if unknown:
            raise TaskFileError(f"{path} names tasks that are not there: {', '.join(unknown[:5])}")
        made = {key: frozenset(parse_address(c, by_id[key].cell.sheet) for c in cells) for key, cells in marks.items()}
    except (OSError, json.JSONDecodeError, AttributeError, TypeError) as error:
        raise TaskFileError(f"{path} is no file of annotations ({type(error).__name__}: {error})") from error
    return [replace(task, intent=made[task.id]) if task.id in made else task for task in tasks]


def origin(task: Task) -> str:
    """Where the intent cells of a task come from: ``marked`` by a person or ``auto``."""
    return "marked" if task.intent is not None else "auto"
