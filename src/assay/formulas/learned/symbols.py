"""The symbols that the decoder emits, and the machine that says which may come next.

A formula is written from the top: an operator or function with its number of arguments, then its arguments. A
reference is a pointer to an item of the context (a stretch of a column), a choice of its row, and what is fixed. The
machine keeps what is still open; a finished sequence is always a formula that parses, refers to filled cells only, and
never to the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, Formula
from assay.formulas.grammar.nodes import (
    Binary,
    Call,
    Missing,
    Node,
    Number,
    Paren,
    Postfix,
    Ref,
    String,
    Unary,
)
from assay.formulas.grammar.nodes import (
    Bool as BoolNode,
)
from assay.formulas.grammar.printer import canonical_number

FUNCTIONS = [
    "SUM/1",
    "SUM/2",
    "SUM/3",
    "AVERAGE/1",
    "MAX/1",
    "MIN/1",
    "COUNT/1",
    "COUNTA/1",
    "MEDIAN/1",
    "STDEV/1",
    "IF/3",
    "IF/2",
    "COUNTIF/2",
    "SUMIF/3",
    "AVERAGEIF/3",
    "COUNTIFS/4",
    "SUMIFS/3",
    "SUMIFS/5",
    "VLOOKUP/4",
    "VLOOKUP/3",
    "INDEX/2",
    "MATCH/3",
    "ROUND/2",
    "ABS/1",
    "PMT/3",
    "IFERROR/2",
    "AND/2",
    "OR/2",
    "NOT/1",
    "LEFT/2",
    "RIGHT/2",
    "MID/3",
    "LEN/1",
    "CONCATENATE/2",
    "CONCATENATE/3",
    "TEXT/2",
    "UPPER/1",
    "LOWER/1",
    "TRIM/1",
    "SUBTOTAL/2",
    "RANK/2",
    "DATE/3",
    "YEAR/1",
    "MONTH/1",
    "DAY/1",
    "SUMPRODUCT/2",
    "PRODUCT/2",
    "INT/1",
    "MOD/2",
    "SQRT/1",
]
OPERATORS = ("+", "-", "*", "/", "^", "&", "=", "<>", "<", ">", "<=", ">=")
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    12,
    15,
    20,
    24,
    25,
    30,
    40,
    50,
    52,
    55,
    60,
    65,
    70,
    75,
    80,
    90,
    100,
    109,
    360,
    365,
    1000,
    0.05,
    0.1,
    0.15,
    0.2,
    0.25,
    0.5,
)
STRINGS = ("", " ", "yes", "no", "pass", "fail", "Yes", "No", "OK", "Y", "N", ", ", "-", "x", "ok")
ROWS = ("own", "first", "last", "above", "below")
FIXED = {"free": 0, "all": 15, "rows": 5, "cols": 10}

VOCABULARY: tuple[str, ...] = (
    "<pad>",
    "<start>",
    "CELL",
    "RANGE",
    "NEG",
    "PERCENT",
    "TRUE",
    "FALSE",
    "MISSING",
    *(f"call:{f}" for f in FUNCTIONS),
    *(f"op:{o}" for o in OPERATORS),
    *(f"num:{canonical_number(float(n))}" for n in NUMBERS),
    *(f"str:{s}" for s in STRINGS),
    *(f"row:{r}" for r in ROWS),
    *(f"fix:{f}" for f in FIXED),
)
INDEX = {symbol: i for i, symbol in enumerate(VOCABULARY)}
SIZE = len(VOCABULARY)
MAX_SYMBOLS = 64
_CLOSING = tuple(INDEX[s] for s in VOCABULARY if s.startswith(("num:", "str:")) or s in ("TRUE", "FALSE"))
_EXPRESSION = tuple(
    INDEX[s] for s in VOCABULARY if s in ("CELL", "RANGE", "NEG", "PERCENT", "TRUE", "FALSE", "MISSING")
    or s.startswith(("call:", "op:", "num:", "str:"))
)  # fmt: skip


@dataclass(frozen=True)
class Item:
    """A stretch of a column that can be pointed to.

    Attributes
    ----------
    sheet : str
    col, row1, row2 : int
    kind : int
    words : tuple of int
        Hashes.
    """

    sheet: str
    col: int
    row1: int
    row2: int
    kind: int
    words: tuple[int, ...]


class Choices:
    """Which cells can be pointed to: for every item and row choice the row, 0 where there is no filled cell.

    Parameters
    ----------
    items : sequence of Item
    target : CellRef
    filled : callable
        ``(sheet, row, col) -> bool``.
    """

    def __init__(self, items: Sequence[Item], target: CellRef, filled: object) -> None:
        self.items, self.target = list(items), target
        rows = np.zeros((len(items), len(ROWS)), np.int64)
        check = filled
        for i, item in enumerate(items):
            wanted = (target.row, item.row1, item.row2, target.row - 1, target.row + 1)
            for j, row in enumerate(wanted):
                if not item.row1 <= row <= item.row2 or (j in (0, 3, 4) and item.sheet != target.sheet):
                    continue
                if item.sheet == target.sheet and (row, item.col) == (target.row, target.col):
                    continue
                if check(item.sheet, row, item.col):  # type: ignore[operator]
                    rows[i, j] = row
        self.rows = rows
        self.cols = np.array([item.col for item in items], np.int64)
        names = {name: i for i, name in enumerate(dict.fromkeys(item.sheet for item in items))}
        self.sheets = np.array([names[item.sheet] for item in items], np.int64)
        self.own = np.array([item.sheet == target.sheet for item in items], bool)

    def any_cell(self) -> Bool[np.ndarray, " n"]:
        """Items with at least one cell to point to."""
        return np.asarray((self.rows > 0).any(1)) if len(self.rows) else np.zeros(0, bool)

    def ends(self, first: int, row: int) -> Bool[np.ndarray, "n rows"]:
        """Item and row choices that can end a range that begins there: below or right of it, the target not inside."""
        col = int(self.cols[first])
        good = (self.rows >= row) & (self.cols >= col)[:, None] & (self.sheets == self.sheets[first])[:, None]
        if self.own[first]:
            inside = (
                (row <= self.target.row) & (self.rows >= self.target.row)
                & ((col <= self.target.col) & (self.cols >= self.target.col))[:, None]
            )  # fmt: skip
            good &= ~inside
        return np.asarray(good & (self.rows > 0))


@dataclass
class Machine:
    """What has been written and what is still open.

    Attributes
    ----------
    open : list of str
        What is expected, the next last: ``expr``, ``point``, ``row``, ``fix``, ``point2``, ``row2``.
    symbols : list of int
        Written so far; pointers are ``SIZE + item``.
    """

    choices: Choices
    open: list[str] = field(default_factory=lambda: ["expr"])
    symbols: list[int] = field(default_factory=list)
    first: tuple[int, int] | None = None
    item: int = -1
    limit: int = MAX_SYMBOLS

    def copy(self) -> Machine:
        return Machine(self.choices, list(self.open), list(self.symbols), self.first, self.item, self.limit)

    @property
    def done(self) -> bool:
        return not self.open

    def _least(self) -> int:
        """Symbols that are needed to close what is open."""
        return len(self.open)

    def allowed(self) -> Bool[np.ndarray, " symbols"]:
        """Which symbols and pointers may come next."""
        mask = np.zeros(SIZE + len(self.choices.items), bool)
        kind = self.open[-1]
        left = self.limit - len(self.symbols) - self._least()
        if kind == "expr":
            if left <= 8:
                mask[list(_CLOSING)] = True
                return mask
            mask[list(_EXPRESSION)] = True
            if len(self.open) == 1 and not self.symbols:
                mask[INDEX["MISSING"]] = False
            if not self.choices.any_cell().any():
                mask[[INDEX["CELL"], INDEX["RANGE"]]] = False
            elif not self.symbols:
                mask[list(_CLOSING)] = False  # a formula that is a constant says nothing
            if not self._argument():
                mask[INDEX["MISSING"]] = False
            for name in FUNCTIONS:
                if int(name.partition("/")[2]) > left - 2:
                    mask[INDEX[f"call:{name}"]] = False
        elif kind == "point":
            mask[SIZE:] = self.choices.any_cell()
        elif kind == "row":
            for j, name in enumerate(ROWS):
                mask[INDEX[f"row:{name}"]] = self.choices.rows[self.item, j] > 0
        elif kind == "point2":
            assert self.first is not None
            mask[SIZE:] = self.choices.ends(*self.first).any(1)
        elif kind == "row2":
            assert self.first is not None
            good = self.choices.ends(*self.first)[self.item]
            for j, name in enumerate(ROWS):
                mask[INDEX[f"row:{name}"]] = good[j]
        else:
            for name in FIXED:
                mask[INDEX[f"fix:{name}"]] = True
        return mask

    def _argument(self) -> bool:
        """Whether the open expression is an argument of a function (which may be left empty)."""
        depth: list[tuple[str, int]] = []
        for symbol in self.symbols:
            text = VOCABULARY[symbol] if symbol < SIZE else "pointer"
            arity = _arity(text)
            if arity:
                depth.append((text, arity))
            elif arity == 0:
                while depth:
                    name, count = depth.pop()
                    if count > 1:
                        depth.append((name, count - 1))
                        break
        return bool(depth) and depth[-1][0].startswith("call:")

    def push(self, symbol: int) -> None:
        """Take a symbol that is allowed."""
        kind = self.open.pop()
        self.symbols.append(symbol)
        if kind == "expr":
            text = VOCABULARY[symbol]
            if text == "CELL":
                self.open += ["fix", "row", "point"]
            elif text == "RANGE":
                self.open += ["fix", "row2", "point2", "row", "point"]
                self.first = None
            else:
                self.open += ["expr"] * (_arity(text) or 0)
        elif kind in ("point", "point2"):
            self.item = symbol - SIZE
        elif kind == "row":
            row = int(self.choices.rows[self.item, ROWS.index(VOCABULARY[symbol][4:])])
            self.first = (self.item, row)


def _arity(text: str) -> int | None:
    """Expressions that follow a symbol; None for parts of a reference."""
    if text.startswith("call:"):
        return int(text.partition("/")[2])
    if text.startswith("op:"):
        return 2
    if text in ("NEG", "PERCENT"):
        return 1
    return None if text == "pointer" or text.startswith(("row:", "fix:")) else 0


def to_formula(symbols: Sequence[int], choices: Choices) -> str:
    """The formula of a finished sequence, without ``=``.

    Raises
    ------
    FormulaError
        If the sequence is not finished.
    """
    stream = iter(symbols)
    try:
        tree = _node(stream, choices)
    except StopIteration as error:
        raise FormulaError("the sequence of symbols is not finished") from error
    return Formula(tree, choices.target).canonical()


def _node(stream: Iterator[int], choices: Choices) -> Node:
    text = VOCABULARY[next(stream)]
    if text.startswith("call:"):
        name, _, count = text[5:].partition("/")
        return Call(name, [_node(stream, choices) for _ in range(int(count))])
    if text.startswith("op:"):
        left = _node(stream, choices)
        return Binary(text[3:], Paren(left), Paren(_node(stream, choices)))
    if text == "NEG":
        return Unary("-", Paren(_node(stream, choices)))
    if text == "PERCENT":
        return Postfix("%", Paren(_node(stream, choices)))
    if text in ("TRUE", "FALSE"):
        return BoolNode(text == "TRUE")
    if text == "MISSING":
        return Missing()
    if text.startswith("num:"):
        return Number(float(text[4:]), text[4:])
    if text.startswith("str:"):
        return String(text[4:])
    first = _cell(stream, choices)
    if text == "CELL":
        fixed = FIXED[VOCABULARY[next(stream)][4:]]
        return Ref("cell", first[1], first[2], first[1], first[2], fixed, first[0])
    last = _cell(stream, choices)
    fixed = FIXED[VOCABULARY[next(stream)][4:]]
    return Ref("range", first[1], first[2], last[1], last[2], fixed, first[0])


def _cell(stream: Iterator[int], choices: Choices) -> tuple[str | None, int, int]:
    item = next(stream) - SIZE
    row = int(choices.rows[item, ROWS.index(VOCABULARY[next(stream)][4:])])
    place = choices.items[item]
    return (None if place.sheet == choices.target.sheet else place.sheet), row, place.col


def from_formula(tree: Node, choices: Choices) -> list[int] | None:
    """The sequence of a formula, None where it needs a symbol or a cell that is not there."""
    out: list[int] = []
    return out if _emit(tree, choices, out) and len(out) <= MAX_SYMBOLS else None


def _emit(node: Node, choices: Choices, out: list[int]) -> bool:
    def put(symbol: str) -> bool:
        if symbol not in INDEX:
            return False
        out.append(INDEX[symbol])
        return True

    match node:
        case Paren():
            return _emit(node.inner, choices, out)
        case Call():
            return put(f"call:{node.function}/{len(node.args)}") and all(_emit(a, choices, out) for a in node.args)
        case Binary():
            return put(f"op:{node.op}") and _emit(node.left, choices, out) and _emit(node.right, choices, out)
        case Unary(op="-"):
            return put("NEG") and _emit(node.operand, choices, out)
        case Postfix(op="%"):
            return put("PERCENT") and _emit(node.operand, choices, out)
        case Number():
            return put(f"num:{canonical_number(node.value)}")
        case String():
            return put(f"str:{node.value}")
        case BoolNode():
            return put("TRUE" if node.value else "FALSE")
        case Missing():
            return put("MISSING")
        case Ref():
            return _emit_ref(node, choices, out)
    return False


def _emit_ref(ref: Ref, choices: Choices, out: list[int]) -> bool:
    if ref.book is not None or ref.last_sheet is not None or ref.kind not in ("cell", "range"):
        return False
    sheet = ref.sheet or choices.target.sheet
    fixed = next((name for name, bits in FIXED.items() if bits == ref.fixed), None)
    if fixed is None:
        return False
    first = _pointer(choices, sheet, ref.row1, ref.col1, False)
    if first is None:
        return False
    out.append(INDEX["CELL" if ref.kind == "cell" else "RANGE"])
    out.extend(first)
    if ref.kind == "range":
        row1, col1, row2, col2 = ref.box()
        if (row1, col1) != (ref.row1, ref.col1):
            return False
        last = _pointer(choices, sheet, row2, col2, True)
        if last is None:
            return False
        item, row = first[0] - SIZE, ref.row1
        if not choices.ends(item, row)[last[0] - SIZE, ROWS.index(VOCABULARY[last[1]][4:])]:
            return False
        out.extend(last)
    out.append(INDEX[f"fix:{fixed}"])
    return True


def _pointer(choices: Choices, sheet: str, row: int, col: int, last: bool) -> tuple[int, int] | None:
    order = (0, 3, 4, 2, 1) if last else (0, 3, 4, 1, 2)
    for i, item in enumerate(choices.items):
        if item.sheet.upper() == sheet.upper() and item.col == col and item.row1 <= row <= item.row2:
            for j in order:
                if choices.rows[i, j] == row:
                    return SIZE + i, INDEX[f"row:{ROWS[j]}"]
    return None
