"""Workbooks whose stored values are missing or stale."""

from __future__ import annotations

from typing import Any

from assay.formulas.errors import FormulaError
from assay.formulas.evaluate import Engine
from assay.formulas.evaluate.core import Value
from assay.formulas.evaluate.engine import upstream
from assay.formulas.execute import Place, same_value
from assay.formulas.grammar import CellRef, parse
from assay.formulas.workbook.model import Workbook


def stale_cells(
    book: Workbook, engine: Engine | None = None, limit: int = 20_000
) -> list[tuple[CellRef, Value, Value]]:
    """Formula cells whose stored value is not what their formula gives: (cell, stored, calculated).

    Cells without a stored value are in `Workbook.missing_values`; cells that cannot be calculated here are left out.

    Examples
    --------
    >>> book = Workbook.from_cells({"S": {"A1": 2, "A2": ("=A1*2", 4.0), "A3": ("=A1*3", 7.0)}})
    >>> [(c.address, stored, new) for c, stored, new in stale_cells(book)]
    [('A3', 7.0, 6.0)]
    """
    run = engine or Engine()
    found: list[tuple[CellRef, Value, Value]] = []
    count = 0
    for sheet in book.sheets.values():
        for row, col, formula in sheet.formula_cells():
            stored = sheet.value(row, col)
            if stored is None:
                continue
            count += 1
            if count > limit:
                return found
            at = CellRef(sheet.name, row, col)
            try:
                value = run.evaluator(book).cell_value(formula, at, sheet.is_array(row, col))
            except FormulaError:
                continue
            if not same_value(value, stored):
                found.append((at, stored, value))
    return found


def recalculated(book: Workbook, engine: Engine | None = None, limit: int = 200_000) -> tuple[Workbook, list[CellRef]]:
    """The workbook with values for formula cells that had none, and the cells that could not be calculated.

    Examples
    --------
    >>> book = Workbook.from_cells({"S": {"A1": 2, "A2": "=A1*2", "A3": "=A2+1"}})
    >>> full, failed = recalculated(book)
    >>> full.sheets["S"].value(3, 1), failed
    (5.0, [])
    """
    missing = book.missing_values()
    if not missing:
        return book, []
    if len(missing) > limit:
        raise FormulaError(f"{len(missing):,} cells have no stored value, the limit is {limit:,}")
    run = engine or Engine()
    values: dict[Place, Value] = {}
    failed: list[CellRef] = []
    wanted = {(c.sheet, c.row, c.col) for c in missing}
    done: set[Place] = set()

    def one(place: Place) -> None:
        if place in done:
            return
        done.add(place)
        sheet, row, col = place
        evaluator = run.evaluator(book)
        evaluator.values = values
        try:
            values[place] = evaluator.cell_value(
                book.sheets[sheet].formula(row, col) or "", CellRef(*place), book.sheets[sheet].is_array(row, col)
            )
        except FormulaError:
            failed.append(CellRef(*place))

    for cell in missing:
        try:
            chain = upstream(book, parse(book.formula(cell) or "", cell), cell, limit=limit)
        except FormulaError:
            failed.append(cell)
            done.add((cell.sheet, cell.row, cell.col))
            continue
        for place in chain:
            if place in wanted:
                one(place)
        one((cell.sheet, cell.row, cell.col))
    by_sheet: dict[str, dict[tuple[int, int], Any]] = {}
    for (sheet, row, col), value in values.items():
        cell_now = book.sheets[sheet].get(row, col)
        if cell_now is not None:
            by_sheet.setdefault(sheet, {})[row, col] = cell_now._replace(value=value)
    return book.replace(*(book.sheets[s].with_values(v) for s, v in by_sheet.items())), failed
