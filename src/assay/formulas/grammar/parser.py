"""Tokenizer (one compiled expression) and Pratt parser, for A1 and R1C1 notation.

Binding, from the tightest: spill ``#``, range ``:``, intersection (a blank), union ``,``, ``@``, unary minus and plus,
``%``, ``^`` (from left to right), ``* /``, ``+ -``, ``&``, comparisons.
"""

from __future__ import annotations

import re
from typing import NoReturn

from assay.formulas.errors import CellRefError, FormulaSyntaxError
from assay.formulas.grammar.cells import MAX_COL, MAX_ROW, CellRef, column_number
from assay.formulas.grammar.nodes import (
    Apply,
    Array,
    Binary,
    Bool,
    Call,
    ErrorLiteral,
    Missing,
    Name,
    Node,
    Number,
    Paren,
    Postfix,
    Ref,
    String,
    StructuredRef,
    Unary,
)
from assay.formulas.grammar.quick import quick_tree

MAX_LENGTH = 65_536
MAX_DEPTH = 200

_END = r"(?![\w.(\[!?\\])"
_IDENT = r"[^\W\d][\w.?\\]*+|\\[\w.?\\]*+"
_CELL = r"(\$?+)([A-Za-z]{1,3}+)(\$?+)([0-9]{1,7}+)"
_A1 = (
    rf"(?P<ref>{_CELL}(?::{_CELL}{_END}|{_END}))"
    r"|(?P<cols>(\$?)([A-Za-z]{1,3}):(\$?)([A-Za-z]{1,3})" + _END + ")"
    r"|(?P<rows>(\$?)([0-9]{1,7}):(\$?)([0-9]{1,7})" + _END + ")"
)
_ROW, _COL = r"[Rr](\[-?[0-9]+\]|[0-9]*)", r"[Cc](\[-?[0-9]+\]|[0-9]*)"
_R1C1 = (
    rf"(?P<ref>{_ROW}{_COL}(?::{_ROW}{_COL}{_END}|{_END}))"
    rf"|(?P<cols>{_COL}(?::{_COL})?{_END})"
    rf"|(?P<rows>{_ROW}(?::{_ROW})?{_END})"
)
_NUMBER = r"(?P<number>(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[Ee][-+]?[0-9]+)?)"
_STRING = r'(?P<string>"[^"]*(?:""[^"]*)*")'
_FUNCTION = rf"(?P<function>({_IDENT})\()"
_NAME = rf"(?P<name>{_IDENT})"
_OPERATOR = r"(?P<op>[-+*/^&=%@#,;:(){}]|<[>=]?|>=?)"
_BLANK = r"(?P<blank>[ \t\r\n\xa0]+)"
_BAD = r"(?P<bad>[\s\S])"
_ERRORS = (
    r"(?P<error>\#(?:REF!|DIV/0!|N/A|NAME\?|NULL!|NUM!|VALUE!|SPILL!|CALC!|GETTING_DATA|FIELD!|BLOCKED!|CONNECT!"
    r"|UNKNOWN!|BUSY!|PYTHON!))"
)
_SHEET_PART = r"[\w.\\?\x80-\U0010ffff]++"
_SHEET = (
    r"(?P<sheet>'[^']*(?:''[^']*)*'!|#REF!(?=\$?[A-Za-z])|"
    rf"(?:\[[^\[\]]*\])?(?:(?:{_SHEET_PART}:)?{_SHEET_PART})?!)"
)
_SHEET3 = rf"(?P<sheets>(?<!!){_SHEET_PART}:{_SHEET_PART}!)"
_STRUCTURED = rf"(?P<structured>(?:{_IDENT})?\[(?:[^\[\]']|'[\s\S]|\[(?:[^\[\]']|'[\s\S])*\])*\])"


def _compiled(*parts: str) -> re.Pattern[str]:
    return re.compile("|".join(parts))


TOKENS_A1 = _compiled(
    _ERRORS.replace("REF!", r"REF!(?!\$?[A-Za-z])"), _STRING, _SHEET3, _SHEET, _STRUCTURED,
    _OPERATOR, _FUNCTION, _A1, _NUMBER, _NAME, _BLANK, _BAD,
)  # fmt: skip
_TOKENS_R1C1 = _compiled(
    _ERRORS.replace("REF!", r"REF!(?!\$?[A-Za-z])"), _STRING, _SHEET3, _SHEET, _R1C1, _STRUCTURED,
    _OPERATOR, _FUNCTION, _NUMBER, _NAME, _BLANK, _BAD,
)  # fmt: skip

_BINDING = {
    "#": 110, ":": 100, " ": 90, ",": 80, "%": 65, "^": 60, "*": 50, "/": 50, "+": 40, "-": 40, "&": 30,
    "=": 20, "<>": 20, "<": 20, ">": 20, "<=": 20, ">=": 20,
}  # fmt: skip
_PREFIX = 70
_IMPLICIT = 75
_VALUE, _CALL, _STOP = "value", "function", "end"
_STARTS = frozenset((_VALUE, _CALL, "(", "@", "{"))
_CONSTANTS = (Number, String, Bool, Array)
_FALSE_TRUE = {"TRUE": True, "FALSE": False}


class _Parser:
    __slots__ = ("depth", "i", "kinds", "start", "text", "union", "values")

    def __init__(self, text: str, start: int, kinds: list[str], values: list[Node | str]) -> None:
        self.text, self.start, self.kinds, self.values = text, start, kinds, values
        self.i = 0
        self.depth = 0
        self.union = False

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        raise FormulaSyntaxError(self.text, _position(self.text, self.start, self.i if at is None else at), expected)

    def expression(self, least: int) -> Node:
        kinds = self.kinds
        kind = kinds[self.i]
        left: Node
        if kind == _VALUE:
            left = self.values[self.i]  # type: ignore[assignment]
            self.i += 1
        elif kind == _CALL:
            name: str = self.values[self.i]  # type: ignore[assignment]
            self.i += 1
            left = Call(name, self.arguments())
        elif kind == "-" or kind == "+":
            self.i += 1
            self.deeper()
            left = Unary(kind, self.expression(_PREFIX))
            self.depth -= 1
        elif kind == "(":
            self.i += 1
            self.deeper()
            outer, self.union = self.union, True
            inner = self.expression(0)
            self.union = outer
            if kinds[self.i] != ")":
                self.fail("an operator or )")
            self.i += 1
            self.depth -= 1
            left = Paren(inner)
        elif kind == "@":
            self.i += 1
            self.deeper()
            left = Unary("@", self.expression(_IMPLICIT))
            self.depth -= 1
        elif kind == "{":
            left = self.array()
        else:
            self.fail("a value, a reference or a function")
        while True:
            kind = kinds[self.i]
            binding = _BINDING.get(kind)
            if binding is None:
                if kind == "(" and isinstance(left, (Call, Paren, Apply)):
                    self.i += 1
                    left = Apply(left, self.arguments())
                    continue
                return left
            if binding < least or (kind == "," and not self.union):
                return left
            self.i += 1
            if kind == "%" or kind == "#":
                left = Postfix(kind, left)
                continue
            self.deeper()
            right = self.expression(binding + 1)
            self.depth -= 1
            if kind == ":" and isinstance(left, Ref) and isinstance(right, Ref):
                left = _joined(left, right)
            elif binding >= 90 and (type(left) in _CONSTANTS or type(right) in _CONSTANTS):
                self.fail("a reference" if kind == ":" else "an operator")
            else:
                left = Binary(kind, left, right)

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"at most {MAX_DEPTH} levels of nesting")

    def arguments(self) -> list[Node]:
        kinds = self.kinds
        args: list[Node] = []
        if kinds[self.i] == ")":
            self.i += 1
            return args
        self.deeper()
        outer, self.union = self.union, False
        while True:
            kind = kinds[self.i]
            args.append(Missing() if kind == "," or kind == ")" else self.expression(0))
            kind = kinds[self.i]
            self.i += 1
            if kind == ")":
                break
            if kind != ",":
                self.i -= 1
                self.fail("an operator, a comma or )")
        self.union = outer
        self.depth -= 1
        return args

    def array(self) -> Node:
        self.i += 1
        rows: list[list[Node]] = [[]]
        while True:
            sign = ""
            if self.kinds[self.i] in "+-":
                sign = self.kinds[self.i]
                self.i += 1
            if self.kinds[self.i] != _VALUE:
                self.fail("a constant of the array")
            value = self.values[self.i]
            if not isinstance(value, (Number, String, Bool, ErrorLiteral)) or (sign and not isinstance(value, Number)):
                self.fail("a constant of the array")
            rows[-1].append(Unary(sign, value) if sign else value)
            self.i += 1
            kind = self.kinds[self.i]
            self.i += 1
            if kind == "}":
                break
            if kind == ";":
                rows.append([])
            elif kind != ",":
                self.i -= 1
                self.fail(", or ; or } in the array")
        if len({len(row) for row in rows}) != 1:
            self.fail("rows of equal length in the array", self.i - 1)
        return Array(rows)


def parse_tree(text: str, at: CellRef | None = None, r1c1: bool = False) -> Node:
    """The tree of a formula, with or without its ``=``. R1C1 needs ``at``."""
    start = 1 if text[:1] == "=" else 0
    if len(text) > MAX_LENGTH:
        raise FormulaSyntaxError(text[:40], 0, f"at most {MAX_LENGTH} characters, not {len(text)}")
    quick = None if r1c1 else quick_tree(text, start)
    return quick if quick is not None else full_tree(text, start, at, r1c1)


def full_tree(text: str, start: int = 0, at: CellRef | None = None, r1c1: bool = False) -> Node:
    """The tree of any formula that begins at an offset, read by the full grammar."""
    kinds, values = _tokens(text, start, at, r1c1)
    parser = _Parser(text, start, kinds, values)
    tree = parser.expression(0)
    if kinds[parser.i] != _STOP:
        parser.fail("an operator or the end")
    return tree


def _position(text: str, start: int, index: int) -> int:
    """Offset of the token with that index (error path only)."""
    count = -1
    pattern = TOKENS_A1
    for match in pattern.finditer(text, start):
        if match.lastgroup in ("blank", "sheet", "sheets"):
            continue
        count += 1
        if count == index:
            return match.start()
    return len(text)


def _tokens(text: str, start: int, at: CellRef | None, r1c1: bool) -> tuple[list[str], list[Node | str]]:
    pattern = _TOKENS_R1C1 if r1c1 else TOKENS_A1
    kinds: list[str] = []
    values: list[Node | str] = []
    sheet: tuple[str | None, str | None, str | None] | None = None
    blank = False
    for match in pattern.finditer(text, start):
        group = match.lastgroup
        if blank:
            # A blank between two references is the operator of intersection; all other blanks are layout.
            blank = False
            if group != "op" or match[0] in "(@":
                last = kinds[-1]
                if group == "op" and match[0] == "(" and last == _VALUE and type(values[-1]) is Name:
                    kinds[-1], values[-1] = _CALL, values[-1].name
                    continue
                if group != "blank" and (last == _VALUE or last == ")" or last == "#"):
                    kinds.append(" ")
                    values.append("")
        if group == "op":
            kinds.append(match[0])
            values.append("")
            continue
        if group == "ref":
            node: Node = _ref(match, sheet) if not r1c1 else _ref_r1c1(match, sheet, at)
        elif group == "function":
            kinds.append(_CALL)
            name = match[0][:-1]
            if sheet is not None:
                name = f"{_prefix(*sheet)}{name}"
                sheet = None
            values.append(name)
            continue
        elif group == "number":
            node = Number(float(match[0]), match[0])
        elif group == "string":
            node = String(match[0][1:-1].replace('""', '"'))
        elif group == "name":
            word = match[0]
            truth = _FALSE_TRUE.get(word.upper()) if sheet is None else None
            if truth is not None:
                node = Bool(truth)
            elif sheet is None:
                node = Name(word)
            else:
                node = Name(word, sheet[0], sheet[2])
        elif group == "blank":
            blank = bool(kinds)
            continue
        elif group == "cols":
            node = _cols(match, sheet) if not r1c1 else _lines_r1c1(match, sheet, at, "cols")
        elif group == "rows":
            node = _rows(match, sheet) if not r1c1 else _lines_r1c1(match, sheet, at, "rows")
        elif group == "sheet" or group == "sheets":
            sheet = _sheet(match[0][:-1])
            continue
        elif group == "structured":
            node = _structured(text, match.start(), match[0], sheet)
        elif group == "error":
            node = ErrorLiteral(match[0], sheet[0] if sheet else None)
        else:
            raise FormulaSyntaxError(text, match.start(), "no such character")
        sheet = None
        kinds.append(_VALUE)
        values.append(node)
    if sheet is not None:
        raise FormulaSyntaxError(text, len(text), "a reference or a name after the sheet")
    kinds.append(_STOP)
    return kinds, values


def _prefix(sheet: str | None, last: str | None, book: str | None) -> str:
    return f"[{book}]{sheet or ''}!" if book is not None else f"{sheet}!"


_SheetParts = tuple[str | None, str | None, str | None] | None


def _sheet(text: str) -> tuple[str | None, str | None, str | None]:
    if text[:1] == "'":
        text = text[1:-1].replace("''", "'")
    book = None
    if "[" in text:
        before, _, rest = text.partition("[")
        name, _, text = rest.partition("]")
        book = before + name
    first, mark, last = text.partition(":")
    return first or (None if book is not None else ""), last if mark else None, book


def _ref(match: re.Match[str], sheet: _SheetParts) -> Node:
    d1, letters, d2, digits, d3, letters2, d4, digits2 = match.group(*_REF_GROUPS)  # one call is quicker than eight
    col, row = column_number(letters), int(digits)
    if not col or not 0 < row <= MAX_ROW:
        return _not_a_cell(match[0], sheet)
    fixed = (1 if d2 else 0) + (2 if d1 else 0)
    if digits2 is None:
        if sheet is None:
            return Ref("cell", row, col, row, col, fixed * 5)
        return Ref("cell", row, col, row, col, fixed * 5, *sheet)
    col2, row2 = column_number(letters2), int(digits2)
    if not col2 or not 0 < row2 <= MAX_ROW:
        return _not_a_cell(match[0], sheet)
    fixed += (4 if d4 else 0) + (8 if d3 else 0)
    if sheet is None:
        return Ref("range", row, col, row2, col2, fixed)
    return Ref("range", row, col, row2, col2, fixed, *sheet)


def _groups(pattern: re.Pattern[str], name: str, count: int) -> tuple[int, ...]:
    first = pattern.groupindex[name]
    return tuple(range(first + 1, first + 1 + count))


_REF_GROUPS = _groups(TOKENS_A1, "ref", 8)


def _not_a_cell(text: str, sheet: _SheetParts) -> Node:
    if ":" in text or "$" in text or text[-1:] == "0":
        raise CellRefError(f"{text!r} lies outside the grid ({MAX_ROW} rows, {MAX_COL} columns)")
    return Name(text) if sheet is None else Name(text, sheet[0], sheet[2])


def _cols(match: re.Match[str], sheet: _SheetParts) -> Node:
    text = match["cols"]
    a, _, b = text.partition(":")
    col1, col2 = column_number(a.lstrip("$")), column_number(b.lstrip("$"))
    if not col1 or not col2:
        raise CellRefError(f"{text!r} lies outside the grid ({MAX_COL} columns)")
    return Ref("cols", 0, col1, 0, col2, 2 * (a[0] == "$") + 8 * (b[0] == "$"), *(sheet or (None, None, None)))


def _rows(match: re.Match[str], sheet: _SheetParts) -> Node:
    text = match["rows"]
    a, _, b = text.partition(":")
    row1, row2 = int(a.lstrip("$")), int(b.lstrip("$"))
    if not (0 < row1 <= MAX_ROW and 0 < row2 <= MAX_ROW):
        raise CellRefError(f"{text!r} lies outside the grid ({MAX_ROW} rows)")
    return Ref("rows", row1, 0, row2, 0, (a[0] == "$") + 4 * (b[0] == "$"), *(sheet or (None, None, None)))


_R1C1_GROUPS = {
    "ref": _groups(_TOKENS_R1C1, "ref", 4),
    "cols": _groups(_TOKENS_R1C1, "cols", 2),
    "rows": _groups(_TOKENS_R1C1, "rows", 2),
}


def _line(text: str, origin: int, limit: int, what: str) -> tuple[int, bool]:
    if text[:1] == "[":
        line, fixed = origin + int(text[1:-1]), False
    elif text:
        line, fixed = int(text), True
    else:
        line, fixed = origin, False
    if not 1 <= line <= limit:
        raise CellRefError(f"{what} {line} lies outside the grid (1 to {limit})")
    return line, fixed


def _ref_r1c1(match: re.Match[str], sheet: _SheetParts, at: CellRef | None) -> Node:
    if at is None:
        raise CellRefError("R1C1 notation needs the cell that the formula stands in: parse(..., at='D10')")
    r1, c1, r2, c2 = match.group(*_R1C1_GROUPS["ref"])
    row1, a = _line(r1, at.row, MAX_ROW, "row")
    col1, b = _line(c1, at.col, MAX_COL, "column")
    if r2 is None:
        return Ref("cell", row1, col1, row1, col1, (a + 2 * b) * 5, *(sheet or (None, None, None)))
    row2, c = _line(r2, at.row, MAX_ROW, "row")
    col2, d = _line(c2, at.col, MAX_COL, "column")
    return Ref("range", row1, col1, row2, col2, a + 2 * b + 4 * c + 8 * d, *(sheet or (None, None, None)))


def _lines_r1c1(match: re.Match[str], sheet: _SheetParts, at: CellRef | None, kind: str) -> Node:
    if at is None:
        raise CellRefError("R1C1 notation needs the cell that the formula stands in: parse(..., at='D10')")
    first, last = match.group(*_R1C1_GROUPS[kind])
    origin, limit, what = (at.col, MAX_COL, "column") if kind == "cols" else (at.row, MAX_ROW, "row")
    one, a = _line(first, origin, limit, what)
    two, b = _line(last, origin, limit, what) if last is not None else (one, a)
    parts = sheet or (None, None, None)
    if kind == "cols":
        return Ref("cols", 0, one, 0, two, 2 * a + 8 * b, *parts)
    return Ref("rows", one, 0, two, 0, a + 4 * b, *parts)


def _joined(left: Ref, right: Ref) -> Node:
    """``A1 : B2`` written with blanks is the same tree as ``A1:B2``."""
    if left.kind == right.kind == "cell" and right.sheet is None and right.book is None:
        return Ref(
            "range", left.row1, left.col1, right.row1, right.col1, (left.fixed & 3) | (right.fixed & 12),
            left.sheet, left.last_sheet, left.book,
        )  # fmt: skip
    return Binary(":", left, right)


_ITEM = re.compile(r"\[((?:[^\[\]']|'[\s\S])*)\]")
_ESCAPED = re.compile(r"'([\s\S])")
_ITEMS = {"#all": "#All", "#data": "#Data", "#headers": "#Headers", "#totals": "#Totals", "#this row": "#This Row"}


def _structured(text: str, position: int, found: str, sheet: _SheetParts) -> Node:
    table, _, rest = found.partition("[")
    body = rest[:-1]
    items: list[str] = []
    columns: list[str] = []
    tail = body
    if body[:1] == "@":
        items.append("#This Row")
        tail = body[1:]
    stripped = tail.strip()
    if stripped[:1] == "[":
        spans = False
        end = 0
        for match in _ITEM.finditer(stripped):
            between = stripped[end : match.start()].strip()
            if between not in (("",) if not end else (",", ":")):
                raise FormulaSyntaxError(text, position, "a table reference such as Table[[#This Row],[Column]]")
            spans = spans or between == ":"
            end = match.end()
            known = _ITEMS.get(match[1].strip().lower())
            if known:
                items.append(known)
            else:
                columns.append(_ESCAPED.sub(r"\1", match[1]))
        if stripped[end:].strip() or len(columns) > 2 or (len(columns) == 2 and not spans):
            raise FormulaSyntaxError(text, position, "a table reference such as Table[[#This Row],[Column]]")
    elif stripped:
        known = _ITEMS.get(stripped.lower())
        if known:
            items.append(known)
        else:
            columns.append(_ESCAPED.sub(r"\1", tail))
    first = columns[0] if columns else None
    last = columns[1] if len(columns) == 2 else None
    return StructuredRef(table or None, tuple(items), first, last, f"[{body}]", sheet[2] if sheet else None)
