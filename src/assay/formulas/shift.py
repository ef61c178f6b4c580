"""A formula, and a workbook, after a row has been inserted."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from assay.formulas.errors import FormulaError
from assay.formulas.evaluate.core import Value
from assay.formulas.evaluate.evaluator import Evaluator
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.grammar.nodes import Apply, Array, Binary, Call, Node, Paren, Postfix, Ref, Unary
from assay.formulas.workbook.model import Workbook


def shifted_tree(node: Node, own: str, sheet: str, row: int) -> Node:
    """The tree after a row is put above ``row`` of ``sheet``; ``own`` is the sheet that the formula stands in.

    >>> shifted_tree(parse("SUM(B2:B9)+B9").tree, "S", "S", 5) == parse("SUM(B2:B10)+B10").tree
    True
    """
    match node:
        case Ref():
            where = (node.sheet or own).upper()
            if node.book is not None or where != sheet.upper() or node.last_sheet is not None or node.kind == "cols":
                return node
            row1 = node.row1 + (node.row1 >= row)
            row2 = node.row2 + (node.row2 >= row)
            return replace(node, row1=row1, row2=row2)
        case Call():
            return Call(node.name, [shifted_tree(a, own, sheet, row) for a in node.args])
        case Binary():
            return Binary(node.op, shifted_tree(node.left, own, sheet, row), shifted_tree(node.right, own, sheet, row))
        case Unary():
            return Unary(node.op, shifted_tree(node.operand, own, sheet, row))
        case Postfix():
            return Postfix(node.op, shifted_tree(node.operand, own, sheet, row))
        case Paren():
            return Paren(shifted_tree(node.inner, own, sheet, row))
        case Apply():
            return Apply(
                shifted_tree(node.target, own, sheet, row), [shifted_tree(a, own, sheet, row) for a in node.args]
            )
        case Array():
            return node
    return node


def shifted(formula: Formula, at: CellRef, sheet: str, row: int) -> tuple[Formula, CellRef]:
    """A formula and its cell after a row is put above ``row`` of ``sheet``."""
    moved = at._replace(row=at.row + 1) if at.sheet == sheet and at.row >= row else at
    return Formula(shifted_tree(formula.tree, at.sheet, sheet, row), moved), moved


def shifted_book(book: Workbook, sheet: str, row: int) -> Workbook:
    """The workbook's tables and names after the row is there (cells are the business of `ShiftedEvaluator`)."""
    new = copy.copy(book)
    new.tables = {
        name: replace(t, row1=t.row1 + (t.row1 >= row), row2=t.row2 + (t.row2 >= row)) if t.sheet == sheet else t
        for name, t in book.tables.items()
    }
    names: dict[tuple[str, str], str] = {}
    for key, text in book.names.items():
        try:
            names[key] = Formula(shifted_tree(parse(text).tree, key[0] or "", sheet, row)).to_a1()
        except FormulaError:
            names[key] = text
    new.names = names
    return new


class ShiftedEvaluator(Evaluator):
    """Evaluates where one sheet has one more (blank) row; values given for cells are by their old places."""

    def __init__(self, book: Workbook, sheet: str, row: int, **options: Any) -> None:
        super().__init__(shifted_book(book, sheet, row), **options)
        self.shift_sheet, self.shift_row = sheet, row

    def bounds(self, sheet: str) -> tuple[int, int, int, int]:
        row1, col1, row2, col2 = super().bounds(sheet)
        return (
            (row1, col1, row2 + 1, col2)
            if sheet == self.shift_sheet and row2 >= self.shift_row
            else (row1, col1, row2, col2)
        )

    def plain(self, sheet: str) -> bool:
        return False

    def value(self, sheet: str, row: int, col: int) -> Value:
        if sheet == self.shift_sheet:
            if row == self.shift_row:
                return None
            row -= row > self.shift_row
        return super().value(sheet, row, col)

    def formula(self, sheet: str, row: int, col: int) -> str | None:
        if sheet == self.shift_sheet:
            if row == self.shift_row:
                return None
            row -= row > self.shift_row
        return super().formula(sheet, row, col)
