"""From the tree back to text: as written, in R1C1, in canonical form, as a sketch."""

from __future__ import annotations

from collections.abc import Callable

from assay.formulas.errors import CellRefError
from assay.formulas.grammar.cells import CellRef, column_name, quote_sheet
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
    plain_function,
)
from assay.formulas.grammar.parser import _BINDING, _IMPLICIT, _PREFIX

_ATOM = 1000


def sheet_prefix(node: Ref | Name) -> str:
    """``Data!``, ``'Q1:Q4'!``, ``[1]Data!`` or nothing."""
    sheet, book = node.sheet, node.book
    last = node.last_sheet if isinstance(node, Ref) else None
    if sheet is None and book is None:
        return ""
    if sheet == "#REF":
        return "#REF!"
    if book is not None or last is not None:
        inner = (f"[{book}]" if book is not None and "\\" not in book and "/" not in book else _path(book)) + (
            sheet or ""
        )
        names = [n for n in (sheet, last) if n]
        if last is not None:
            inner += f":{last}"
        plain = all(quote_sheet(n) == n or _cell_like(n) for n in names) and (book is None or _plain_book(book))
        return inner + "!" if plain else "'" + inner.replace("'", "''") + "'!"
    return quote_sheet(sheet or "") + "!"


def _cell_like(name: str) -> bool:
    return name.isalnum() and name.isascii() and not name[0].isdigit()


def _plain_book(book: str) -> bool:
    return all(c.isalnum() or c in "._" for c in book)


def _path(book: str | None) -> str:
    if book is None:
        return ""
    cut = max(book.rfind("\\"), book.rfind("/")) + 1
    return f"{book[:cut]}[{book[cut:]}]"


def a1(ref: Ref, dollars: bool = True) -> str:
    """The position of a reference in A1 notation, without its sheet."""
    fixed = ref.fixed if dollars else 0
    one, two = ("$" if fixed & 1 else ""), ("$" if fixed & 2 else "")
    three, four = ("$" if fixed & 4 else ""), ("$" if fixed & 8 else "")
    if ref.kind == "cell":
        return f"{two}{column_name(ref.col1)}{one}{ref.row1}"
    if ref.kind == "range":
        return f"{two}{column_name(ref.col1)}{one}{ref.row1}:{four}{column_name(ref.col2)}{three}{ref.row2}"
    if ref.kind == "cols":
        return f"{two}{column_name(ref.col1)}:{four}{column_name(ref.col2)}"
    return f"{one}{ref.row1}:{three}{ref.row2}"


def r1c1(ref: Ref, at: CellRef) -> str:
    """The position of a reference in R1C1 notation, seen from a cell."""
    fixed = ref.fixed

    def line(letter: str, value: int, origin: int, absolute: int) -> str:
        if absolute:
            return f"{letter}{value}"
        return f"{letter}[{value - origin}]" if value != origin else letter

    if ref.kind == "cell":
        return line("R", ref.row1, at.row, fixed & 1) + line("C", ref.col1, at.col, fixed & 2)
    if ref.kind == "range":
        return (
            f"{line('R', ref.row1, at.row, fixed & 1)}{line('C', ref.col1, at.col, fixed & 2)}:"
            f"{line('R', ref.row2, at.row, fixed & 4)}{line('C', ref.col2, at.col, fixed & 8)}"
        )
    if ref.kind == "cols":
        one, two = line("C", ref.col1, at.col, fixed & 2), line("C", ref.col2, at.col, fixed & 8)
    else:
        one, two = line("R", ref.row1, at.row, fixed & 1), line("R", ref.row2, at.row, fixed & 4)
    return one if one == two else f"{one}:{two}"


def text_of(node: Node, ref_text: Callable[[Ref], str]) -> str:
    """The tree as written; positions of references are the business of ``ref_text``."""
    parts: list[str] = []
    _write(node, ref_text, parts)
    return "".join(parts)


def _write(node: Node, ref_text: Callable[[Ref], str], out: list[str]) -> None:
    match node:
        case Number():
            out.append(node.text)
        case String():
            out.append('"' + node.value.replace('"', '""') + '"')
        case Ref():
            out.append(sheet_prefix(node) + ref_text(node))
        case Call():
            out.append(f"{node.name}(")
            _write_list(node.args, ref_text, out)
        case Binary():
            _write(node.left, ref_text, out)
            out.append(node.op)
            _write(node.right, ref_text, out)
        case Paren():
            out.append("(")
            _write(node.inner, ref_text, out)
            out.append(")")
        case Unary():
            out.append(node.op)
            _write(node.operand, ref_text, out)
        case Postfix():
            _write(node.operand, ref_text, out)
            out.append(node.op)
        case Bool():
            out.append("TRUE" if node.value else "FALSE")
        case ErrorLiteral():
            out.append((quote_sheet(node.sheet) + "!" if node.sheet else "") + node.kind)
        case Name():
            out.append(sheet_prefix(node) + node.name)
        case StructuredRef():
            book = f"[{node.book}]!" if node.book is not None else ""
            out.append(book + (node.table or "") + node.text)
        case Array():
            out.append("{")
            for i, row in enumerate(node.rows):
                out.append(";" if i else "")
                for j, value in enumerate(row):
                    out.append("," if j else "")
                    _write(value, ref_text, out)
            out.append("}")
        case Apply():
            _write(node.target, ref_text, out)
            out.append("(")
            _write_list(node.args, ref_text, out)
        case Missing():
            pass
        case _:
            raise TypeError(type(node).__name__)


def _write_list(args: list[Node], ref_text: Callable[[Ref], str], out: list[str]) -> None:
    for i, arg in enumerate(args):
        if i:
            out.append(",")
        _write(arg, ref_text, out)
    out.append(")")


def canonical_number(value: float) -> str:
    """The shortest text of a number.

    >>> canonical_number(0.10), canonical_number(1e3), canonical_number(1e300)
    ('0.1', '1000', '1E+300')
    """
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(value).upper()


def normal_range(ref: Ref) -> Ref:
    """Corners in order, with their ``$``; a range of one cell stays a range.

    >>> a1(normal_range(Ref("range", 2, 2, 1, 1, 1)))
    'A1:B$2'
    """
    row1, col1, row2, col2, fixed = ref.row1, ref.col1, ref.row2, ref.col2, ref.fixed
    if row1 > row2:
        row1, row2 = row2, row1
        fixed = (fixed & 10) | ((fixed & 1) << 2) | ((fixed & 4) >> 2)
    if col1 > col2:
        col1, col2 = col2, col1
        fixed = (fixed & 5) | ((fixed & 2) << 2) | ((fixed & 8) >> 2)
    return Ref(ref.kind, row1, col1, row2, col2, fixed, ref.sheet, ref.last_sheet, ref.book)


def canonical_text(node: Node, sheet: str, ref_text: Callable[[Ref], str]) -> str:
    """Upper-case functions without prefixes, no redundant parentheses, ranges and numbers normalised."""
    return _canonical(node, sheet.upper(), ref_text)[0]


def _canonical(node: Node, sheet: str, ref_text: Callable[[Ref], str]) -> tuple[str, int]:
    def inner(child: Node, least: int) -> str:
        text, binding = _canonical(child, sheet, ref_text)
        return text if binding >= least else f"({text})"

    match node:
        case Paren():
            return _canonical(node.inner, sheet, ref_text)
        case Number():
            return canonical_number(node.value), _ATOM
        case Ref():
            prefix = sheet_prefix(node).upper()
            if node.book is None and node.last_sheet is None and node.sheet and node.sheet.upper() == sheet:
                prefix = ""
            return prefix + ref_text(normal_range(node)), _ATOM
        case Call():
            return f"{plain_function(node.name)}({','.join(inner(arg, 0) for arg in node.args)})", _ATOM
        case Binary(op=","):
            return f"({inner(node.left, 80)},{inner(node.right, 81)})", _ATOM
        case Binary():
            binding = _BINDING[node.op]
            return f"{inner(node.left, binding)}{node.op}{inner(node.right, binding + 1)}", binding
        case Unary(op="@"):
            return f"@{inner(node.operand, _IMPLICIT)}", _IMPLICIT
        case Unary():
            return f"{node.op}{inner(node.operand, _PREFIX)}", _PREFIX
        case Postfix():
            binding = _BINDING[node.op]
            return f"{inner(node.operand, binding)}{node.op}", binding
        case Name():
            return sheet_prefix(node).upper() + plain_function(node.name), _ATOM
        case StructuredRef():
            return _canonical_structured(node), _ATOM
        case Array():
            rows = (",".join(_canonical(x, sheet, ref_text)[0] for x in row) for row in node.rows)
            return "{" + ";".join(rows) + "}", _ATOM
        case Apply():
            return f"{inner(node.target, _ATOM)}({','.join(inner(arg, 0) for arg in node.args)})", _ATOM
        case _:
            return text_of(node, ref_text), _ATOM


def _canonical_structured(node: StructuredRef) -> str:
    def column(name: str) -> str:
        return "[" + "".join("'" + c if c in "[]#'@" else c for c in name.upper()) + "]"

    parts = [f"[{item.upper()}]" for item in sorted(node.items) if item != "#Data"]
    if node.first is not None:
        parts.append(column(node.first) + (f":{column(node.last)}" if node.last is not None else ""))
    book = f"[{node.book}]!" if node.book is not None else ""
    return f"{book}{(node.table or '').upper()}[{','.join(parts)}]"


def hole(ref: Ref) -> str:
    """Type of a reference in a sketch."""
    if ref.kind == "cell":
        return "CELL"
    if ref.kind in ("cols", "rows"):
        return "COL" if ref.kind == "cols" else "ROW"
    if ref.row1 == ref.row2 and ref.col1 != ref.col2:
        return "ROWRANGE"
    return "COLRANGE" if ref.col1 == ref.col2 else "BLOCK"


def sketch_text(node: Node) -> str:
    """Canonical text with typed holes for references and constants."""
    return _canonical(_sketched(node), "", lambda ref: "")[0]


def _sketched(node: Node) -> Node:
    match node:
        case Ref():
            return Name(hole(node))
        case Number():
            return Name("NUM")
        case String():
            return Name("STR")
        case Name():
            return Name("NAME")
        case StructuredRef():
            return Name("TABLECOL")
        case Call():
            return Call(node.name, [_sketched(arg) for arg in node.args])
        case Binary():
            return Binary(node.op, _sketched(node.left), _sketched(node.right))
        case Unary():
            return Unary(node.op, _sketched(node.operand))
        case Postfix():
            return Postfix(node.op, _sketched(node.operand))
        case Paren():
            return _sketched(node.inner)
        case Apply():
            return Apply(_sketched(node.target), [_sketched(arg) for arg in node.args])
        case Array():
            return Name("ARRAY")
        case _:
            return node


def need_at(at: CellRef | None) -> CellRef:
    """The cell, or an error that says that R1C1 needs one."""
    if at is None:
        raise CellRefError("R1C1 notation needs the cell that the formula stands in: parse(..., at='D10')")
    return at
