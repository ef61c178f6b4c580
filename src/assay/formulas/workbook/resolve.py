"""From references of all kinds to cells: tables, defined names, precedents."""

from __future__ import annotations

from collections.abc import Iterator

from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.grammar.nodes import Name, Node, Ref, StructuredRef, plain_function
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.store import Table
from assay.formulas.workbook.values import NAME, REF, VALUE, ErrorValue


def table_at(book: Workbook, at: CellRef) -> Table | None:
    """The table that a cell lies in."""
    for table in book.tables.values():
        if table.sheet == at.sheet and table.row1 <= at.row <= table.row2 and table.col1 <= at.col <= table.col2:
            return table
    return None


def _same(column: str) -> str:
    return " ".join(column.split()).casefold()


def _column(table: Table, name: str) -> int | None:
    for compare in (str, str.casefold, _same):
        wanted = compare(name)
        for i, column in enumerate(table.columns):
            if compare(column) == wanted:
                return table.col1 + i
    return None


def resolve_structured(node: StructuredRef, book: Workbook, at: CellRef) -> Ref | ErrorValue:
    """The cells of a table reference, or the error that it shows.

    Examples
    --------
    >>> from assay.formulas.workbook import Table
    >>> book = Workbook.from_cells({"S": {}}, tables=[Table("T", "S", 1, 1, 5, 2, ("Qty", "Price"))])
    >>> ref = resolve_structured(parse("T[[#This Row],[Qty]]").structured()[0], book, CellRef("S", 3, 4))
    >>> (ref.row1, ref.col1)
    (3, 1)
    """
    table = book.tables.get(node.table.upper()) if node.table else table_at(book, at)
    if table is None:
        return NAME if node.table else REF
    col1, col2 = table.col1, table.col2
    if node.first is not None:
        first = _column(table, node.first)
        last = _column(table, node.last) if node.last is not None else first
        if first is None or last is None:
            return REF
        col1, col2 = min(first, last), max(first, last)
    top, bottom = table.row1 + table.header_rows, table.row2 - table.totals_rows
    items = set(node.items) or {"#Data"}
    if "#This Row" in items:
        if not top <= at.row <= bottom:
            return VALUE
        row1 = row2 = at.row
    elif "#All" in items:
        row1, row2 = table.row1, table.row2
    else:
        rows = []
        if "#Headers" in items:
            rows += [table.row1] if table.header_rows else []
        if "#Data" in items:
            rows += [top, bottom]
        if "#Totals" in items:
            rows += [table.row2] if table.totals_rows else []
        if not rows:
            return REF
        row1, row2 = min(rows), max(rows)
    kind = "cell" if row1 == row2 and col1 == col2 else "range"
    return Ref(kind, row1, col1, row2, col2, 15, table.sheet)


def resolved(formula: Formula, book: Workbook, at: CellRef) -> Iterator[tuple[Node, Ref]]:
    """Every reference of a formula to cells of this workbook, with the node that it came from.

    Names are followed; references to other files are left out.
    """
    yield from _resolved(formula.tree, book, at, 0)


def _resolved(tree: Node, book: Workbook, at: CellRef, depth: int) -> Iterator[tuple[Node, Ref]]:
    for node in tree.walk():
        if isinstance(node, Ref):
            if node.book in (None, "0") and node.sheet != "#REF" and (not node.sheet or book.has_sheet(node.sheet)):
                yield node, node
        elif isinstance(node, StructuredRef):
            found = resolve_structured(node, book, at)
            if isinstance(found, Ref):
                yield node, found
        elif isinstance(node, Name) and node.book in (None, "0") and depth < 10:
            name = plain_function(node.name)
            text = book.names.get((node.sheet or at.sheet, name)) or book.names.get(("", name))
            if text is not None:
                try:
                    inner = parse(text).tree
                except FormulaError:
                    continue
                for _, ref in _resolved(inner, book, at, depth + 1):
                    yield node, ref
            elif name in book.tables:
                table = book.tables[name]
                top, bottom = table.row1 + table.header_rows, table.row2 - table.totals_rows
                yield node, Ref("range", top, table.col1, bottom, table.col2, 15, table.sheet)


def sheets_of(ref: Ref, book: Workbook, at: CellRef) -> list[str]:
    """Names of the sheets that a reference reaches."""
    if not ref.sheet:
        return [at.sheet]
    first = book.sheet(ref.sheet).name
    if ref.last_sheet is None or not book.has_sheet(ref.last_sheet):
        return [first]
    names = list(book.sheets)
    i, j = sorted((names.index(first), names.index(book.sheet(ref.last_sheet).name)))
    return names[i : j + 1]


def boxes(formula: Formula, book: Workbook, at: CellRef) -> list[tuple[str, int, int, int, int]]:
    """Sheet and box of every reference; whole rows and columns are cut at the cells in use."""
    found = []
    for _, ref in resolved(formula, book, at):
        row1, col1, row2, col2 = ref.box()
        for sheet in sheets_of(ref, book, at):
            last_row, last_col = book.sheets[sheet].bounds[2:]
            found.append((sheet, row1, col1, min(row2, max(last_row, row1)), min(col2, max(last_col, col1))))
    return found


def reaches(formula: Formula, book: Workbook, at: CellRef, cell: CellRef) -> bool:
    """Whether a formula refers to a cell directly (a formula that reaches its own cell is circular)."""
    for _, ref in resolved(formula, book, at):
        row1, col1, row2, col2 = ref.box()
        if row1 <= cell.row <= row2 and col1 <= cell.col <= col2 and cell.sheet in sheets_of(ref, book, at):
            return True
    return False
