"""Operators between values, and between areas."""

from __future__ import annotations

from collections.abc import Callable

from assay.formulas.errors import UnsupportedFunction
from assay.formulas.evaluate.core import (
    DIV0,
    VALUE,
    Area,
    ErrorValue,
    Value,
    compare,
    fail,
    finite,
    to_number,
    to_text,
)
from assay.formulas.evaluate.functions.maths import power
from assay.formulas.grammar.nodes import Bool, ErrorLiteral, Node, Number, String, Unary


def spanned(a: Area, b: Area) -> Area:
    if a.sheets != b.sheets:
        fail(VALUE)
    return Area(a.sheets, min(a.row1, b.row1), min(a.col1, b.col1), max(a.row2, b.row2), max(a.col2, b.col2), a.source)


def intersected(a: Area, b: Area) -> Area:
    if a.sheets != b.sheets:
        fail(VALUE)
    row1, col1 = max(a.row1, b.row1), max(a.col1, b.col1)
    row2, col2 = min(a.row2, b.row2), min(a.col2, b.col2)
    if row1 > row2 or col1 > col2:
        fail(ErrorValue("#NULL!"))
    return Area(a.sheets, row1, col1, row2, col2, a.source)


def constant(node: Node) -> Value:
    match node:
        case Number() | String() | Bool():
            return node.value
        case ErrorLiteral():
            return ErrorValue(node.kind)
        case Unary(op=op, operand=Number(value=value)):
            return -value if op == "-" else value
    raise UnsupportedFunction("an array of this kind")


def _divided(a: Value, b: Value) -> float:
    x, y = to_number(a), to_number(b)
    return finite(x / y) if y else fail(DIV0)


def _added(a: Value, b: Value) -> float:
    x, y = to_number(a), to_number(b)
    total = x + y
    # a difference far below the last digit that a cell keeps is shown as 0
    return 0.0 if total and abs(total) < 3e-16 * abs(x) else finite(total)


def _subtracted(a: Value, b: Value) -> float:
    return _added(a, -to_number(b))


OPERATORS: dict[str, Callable[[Value, Value], Value]] = {
    "+": _added,
    "-": _subtracted,
    "*": lambda a, b: finite(to_number(a) * to_number(b)),
    "/": _divided,
    "^": lambda a, b: power(to_number(a), to_number(b)),
    "&": lambda a, b: to_text(a) + to_text(b),
    "=": lambda a, b: compare(a, b) == 0,
    "<>": lambda a, b: compare(a, b) != 0,
    "<": lambda a, b: compare(a, b) < 0,
    ">": lambda a, b: compare(a, b) > 0,
    "<=": lambda a, b: compare(a, b) <= 0,
    ">=": lambda a, b: compare(a, b) >= 0,
}
