"""Cells that disagree with what the sheet implies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.formulas.errors import FormulaError, WorkbookError
from assay.formulas.evaluate.core import text_to_number
from assay.formulas.grammar import CellRef, Formula, column_name, parse
from assay.formulas.grammar.nodes import Call, Ref
from assay.formulas.regions import formula_blocks, label_left
from assay.formulas.systems.words import asked
from assay.formulas.tasks import workbook_files
from assay.formulas.workbook.model import Sheet, Workbook
from assay.formulas.workbook.store import NUMBER, TEXT, WIDTH

KINDS = {
    "outlier in block": "a formula that differs from the copies on both sides of it",
    "number typed over a formula": "a number between copies of one formula",
    "range short of adjacent numbers": "a total whose range stops before numbers that touch it",
    "blank precedent": "a formula that refers to a blank where its copies refer to data",
    "number as text": "a text that looks like a number among numbers",
    "label asks for another function": "a total whose label names another function",
    "circular reference": "a formula that depends on its own cell",
}
_TOTALS = frozenset(("SUM", "AVERAGE", "COUNT", "COUNTA", "MAX", "MIN", "MEDIAN", "PRODUCT", "STDEV", "SUBTOTAL"))


@dataclass(frozen=True)
class Finding:
    """A cell to look at.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    file, sheet, cell : str
    formula : str
        What stands there.
    expected : str
        What the sheet implies.
    evidence : str
        Cells that say so.
    """

    kind: str
    file: str
    sheet: str
    cell: str
    formula: str
    expected: str
    evidence: str


def audit(
    source: str | os.PathLike[str] | Workbook | Iterable[Any], *, skipped: list[tuple[str, str]] | None = None
) -> list[Finding]:
    """Findings of a workbook, a file, several, or all files of a folder.

    Parameters
    ----------
    skipped : list, optional
        Gets (file, reason) of files that cannot be read; without it the first such file is an error where one file
        was asked for.

    Examples
    --------
    >>> cells = {f"A{i}": i for i in range(1, 7)} | {f"B{i}": f"=A{i}*2" for i in range(1, 7)}
    >>> cells |= {"B3": 6.5, "B5": "=A5*3"}
    >>> [(f.kind, f.cell, f.expected) for f in audit(Workbook.from_cells({"S": cells | {"B6": "=A6*2"}}))]
    [('number typed over a formula', 'B3', 'A3*2')]
    >>> cells["B3"], cells["A7"], cells["B7"] = "=A3*2", 7, "=A7*2"
    >>> [(f.kind, f.cell, f.expected) for f in audit(Workbook.from_cells({"S": cells}))]
    [('outlier in block', 'B5', 'A5*2')]
    """
    if isinstance(source, Workbook):
        return list(_book(source))
    if isinstance(source, (str, os.PathLike)):
        items: list[Any] = list(workbook_files(source))
    else:
        items = list(source)
    found: list[Finding] = []
    for item in items:
        try:
            book = item if isinstance(item, Workbook) else Workbook.open(item)
        except WorkbookError as error:
            if skipped is None and len(items) == 1:
                raise
            if skipped is not None:
                skipped.append((str(item), str(error)))
            continue
        found += _book(book)
    return found


def _book(book: Workbook) -> Iterator[Finding]:
    for sheet in book.sheets.values():
        seen: set[str] = set()
        for finding in _sheet(book, sheet):
            key = f"{finding.cell}"
            if key not in seen:
                seen.add(key)
                yield finding


class _Audit:
    """One sheet: classes of formulas by place, and what a copy would read elsewhere."""

    def __init__(self, book: Workbook, sheet: Sheet) -> None:
        self.book, self.sheet = book, sheet
        a = sheet.arrays()
        self.kind = dict(
            zip(
                (a.row.astype(np.int64) * WIDTH + a.col).tolist(),
                zip(a.kind.tolist(), a.cls.tolist(), strict=True),
                strict=True,
            )
        )
        self.forms: dict[int, str] = {}
        self.examples: dict[int, tuple[int, int]] = {}

    def cls(self, row: int, col: int) -> int:
        """Class of the formula, -1 for a constant, -2 for a blank."""
        if row < 1 or col < 1:
            return -2
        found = self.kind.get(row * WIDTH + col)
        return -2 if found is None else found[1]

    def constant_number(self, row: int, col: int) -> bool:
        return self.kind.get(row * WIDTH + col) == (NUMBER, -1) if row >= 1 and col >= 1 else False

    def form(self, row: int, col: int) -> str:
        """Canonical R1C1 text of the formula of a cell."""
        cls = self.cls(row, col)
        if cls not in self.forms:
            try:
                self.forms[cls] = parse(
                    self.sheet.formula(row, col) or "", CellRef(self.sheet.name, row, col)
                ).canonical_r1c1()
            except FormulaError:
                self.forms[cls] = f"unreadable {cls}"
        return self.forms[cls]

    def copy(self, source: tuple[int, int], to: tuple[int, int]) -> str | None:
        at = CellRef(self.sheet.name, *source)
        try:
            return parse(self.sheet.formula(*source) or "", at).moved(CellRef(self.sheet.name, *to)).to_a1()
        except FormulaError:
            return None

    def finding(self, kind: str, row: int, col: int, expected: str, evidence: str) -> Finding:
        formula = self.sheet.formula(row, col)
        value = self.sheet.value(row, col)
        shown = "=" + formula if formula is not None else ("" if value is None else str(value))
        return Finding(
            kind, Path(self.book.path).name, self.sheet.name, f"{column_name(col)}{row}", shown, expected, evidence
        )


def _sheet(book: Workbook, sheet: Sheet) -> Iterator[Finding]:
    work = _Audit(book, sheet)
    yield from _between_copies(work)
    yield from _by_formula(work)
    yield from _numbers_as_text(work)


def _between_copies(work: _Audit) -> Iterator[Finding]:
    """Formulas and numbers with copies of one formula on both sides (at least three copies in the line)."""
    for key, (kind, own) in work.kind.items():
        row, col = divmod(key, WIDTH)
        if own < 0 and kind != NUMBER:
            continue
        for down, right in ((1, 0), (0, 1)):
            before, after = work.cls(row - down, col - right), work.cls(row + down, col + right)
            if before < 0 or before != after or before == own:
                continue
            more = (work.cls(row - 2 * down, col - 2 * right) == before) + (
                work.cls(row + 2 * down, col + 2 * right) == before
            )
            if not more:
                continue
            # a line of its own across (a total row) explains the difference
            left, other = work.cls(row - right, col - down), work.cls(row + right, col + down)
            if own >= 0 and (left == own or other == own):
                continue
            if own < 0 and (
                work.constant_number(row - right, col - down) and work.constant_number(row + right, col + down)
            ):
                continue
            source = (row - down, col - right)
            if own >= 0 and work.form(row, col) == work.form(*source):
                continue
            expected = work.copy(source, (row, col))
            if expected is None:
                continue
            evidence = (
                f"{column_name(col - right)}{row - down} and {column_name(col + right)}{row + down} hold one formula"
            )
            name = "outlier in block" if own >= 0 else "number typed over a formula"
            yield work.finding(name, row, col, expected, evidence)
            break


def _by_formula(work: _Audit) -> Iterator[Finding]:
    blank: dict[tuple[int, int], list[tuple[int, int]]] = {}
    copies: dict[int, int] = {}
    for block in formula_blocks(work.sheet):
        copies[block.cls] = copies.get(block.cls, 0) + len(block.cells)
        for row, col in block.cells:
            at = CellRef(work.sheet.name, row, col)
            try:
                read = parse(work.sheet.formula(row, col) or "", at)
            except FormulaError:
                continue
            own = [r for r in read.references() if r.sheet is None or r.sheet.upper() == work.sheet.name.upper()]
            if any(
                r.box()[0] <= row <= r.box()[2] and r.box()[1] <= col <= r.box()[3] and r.book is None for r in own
            ) and not set(read.functions()) & {"ROW", "ROWS", "COLUMN", "COLUMNS", "CELL", "OFFSET", "INDIRECT"}:
                yield work.finding("circular reference", row, col, "a range without the cell itself", at.address)
            yield from _short_range(work, at, read)
            yield from _other_function(work, at, read)
            if len(block.cells) <= 2000:
                for i, ref in enumerate(own):
                    if ref.kind == "cell" and ref.fixed == 0 and work.cls(ref.row1, ref.col1) == -2:
                        blank.setdefault((block.cls, i), []).append((row, col))
    for (cls, i), places in blank.items():
        if copies[cls] < 3 or len(places) * 4 > copies[cls]:
            continue
        for row, col in places:
            at = CellRef(work.sheet.name, row, col)
            refs = parse(work.sheet.formula(row, col) or "", at).references()
            own = [r for r in refs if r.sheet is None or r.sheet.upper() == work.sheet.name.upper()]
            place = f"{column_name(own[i].col1)}{own[i].row1}"
            evidence = f"{place} is blank, other copies have one"
            yield work.finding("blank precedent", row, col, f"a value in {place}", evidence)


def _short_range(work: _Audit, at: CellRef, read: Formula) -> Iterator[Finding]:
    """``SUM(B2:B8)`` in B10 while B9 holds a number."""
    node = read.tree
    if not isinstance(node, Call) or node.function not in _TOTALS or len(node.args) > 2:
        return
    ref = node.args[-1]
    if not isinstance(ref, Ref) or ref.kind != "range" or ref.sheet is not None:
        return
    row1, col1, row2, col2 = ref.box()
    down = col1 == col2 == at.col
    if not down and not row1 == row2 == at.row:
        return
    first, last, target = (row1, row2, at.row) if down else (col1, col2, at.col)

    def number(line: int) -> bool:
        return work.constant_number(line, at.col) if down else work.constant_number(at.row, line)

    def formula_like_inside(line: int) -> bool:
        place = (line, at.col) if down else (at.row, line)
        inside = (last, at.col) if down else (at.row, last)
        return work.cls(*place) >= 0 and work.cls(*place) == work.cls(*inside)

    if target == last + 1 or target == first - 1:
        start, end = first, last
    else:
        start, end = first, last
        line = last + 1
        while target > line and line - last <= 50 and (number(line) or formula_like_inside(line)):
            end = line
            line += 1
    line = first - 1
    if target > last:
        while line >= 1 and (number(line) or formula_like_inside(line)) and first - line <= 50:
            value = work.sheet.value(line, at.col) if down else work.sheet.value(at.row, line)
            above = (line - 1, at.col) if down else (at.row, line - 1)
            header_year = (
                isinstance(value, float) and 1900 <= value <= 2100 and value == int(value) and work.cls(*above) == -2
            )
            if header_year:
                break
            start = line
            line -= 1
    if (start, end) == (first, last):
        return
    if start != first and end == last and not number(first):
        return

    def address(line: int) -> str:
        return f"{column_name(at.col)}{line}" if down else f"{column_name(line)}{at.row}"

    missed = [line for line in range(start, end + 1) if not first <= line <= last]
    yield work.finding(
        "range short of adjacent numbers", at.row, at.col, f"{node.function}({address(start)}:{address(end)})",
        f"{', '.join(address(m) for m in missed[:6])} hold{'s' if len(missed) == 1 else ''} numbers",
    )  # fmt: skip


def _other_function(work: _Audit, at: CellRef, read: Formula) -> Iterator[Finding]:
    node = read.tree
    if not isinstance(node, Call) or node.function not in ("SUM", "AVERAGE", "MAX", "MIN", "COUNT", "COUNTA", "MEDIAN"):
        return
    if len(node.args) != 1 or not isinstance(node.args[0], Ref) or node.args[0].kind != "range":
        return
    _row1, col1, row2, col2 = node.args[0].box()
    if not (col1 == col2 == at.col and row2 < at.row):
        return
    place = label_left(work.sheet, at.row, at.col)
    if place is None:
        return
    wanted = asked(str(work.sheet.value(*place)))
    own = "COUNT" if node.function == "COUNTA" else node.function
    if len(wanted) == 1 and wanted[0] != own and not (wanted[0] == "SUM" and own != "AVERAGE"):
        text = Formula(Call(wanted[0], node.args), at).to_a1()
        yield work.finding(
            "label asks for another function", at.row, at.col, text,
            f"{column_name(place[1])}{place[0]} says {work.sheet.value(*place)!r}",
        )  # fmt: skip


def _numbers_as_text(work: _Audit) -> Iterator[Finding]:
    a = work.sheet.arrays()
    if not len(a.row):
        return
    numbers = np.bincount(a.col[a.kind == NUMBER], minlength=int(a.col.max()) + 1)
    for i in np.flatnonzero((a.kind == TEXT) & (a.cls < 0)):
        row, col = int(a.row[i]), int(a.col[i])
        value = work.sheet.value(row, col)
        if not isinstance(value, str) or value.strip()[:1] not in "0123456789-+.$€£(" or not value.strip():
            continue
        number = text_to_number(value)
        if number is None or any(c in value for c in ":/") or value.count("-") > 1:
            continue
        beside = [work.kind.get((row + d) * WIDTH + col, (0, 0))[0] == NUMBER for d in (-1, 1) if row + d >= 1]
        if numbers[col] >= 3 and any(beside):
            yield work.finding(
                "number as text",
                row,
                col,
                f"the number {number:g}",
                f"column {column_name(col)} holds {numbers[col]} numbers",
            )
