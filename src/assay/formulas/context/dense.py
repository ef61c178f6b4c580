"""The dense format: one line a rectangle of one kind, the nearest to the target first.

    A1:F1 H Item|Qty|Price|Total|Tax|Due
    B2:B40 n 12,8..31 (39)
    D2:D39 f RC[-2]*RC[-1]
    A2:A40 s/7 "bolt","nut".. A40="Total"
    Rates!A1:B9 H ...
    target D40 ?

Only the abstract of the paper is public; the format is our design.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from assay.formulas.context.base import placeholder, redacted_formula, shown
from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef, column_name, parse, quote_sheet
from assay.formulas.regions import (
    KEY_BOOL,
    KEY_ERROR,
    KEY_FORMULA,
    KEY_HEADER,
    KEY_NUMBER,
    KEY_TEXT,
    LETTERS,
    Rects,
    sheet_map,
)
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet
from assay.formulas.workbook.values import Value

HEADERS_SHOWN = 24
OTHER_SHEET = 200
Lines = Iterator[tuple[str, list[CellRef]]]


def dense_lines(task: Task, redact: bool = False) -> Lines:
    """Lines of all sheets and the cells that each shows, the nearest first."""
    for sheet, source, i in dense_rects(task):
        prefix = "" if sheet.name == task.cell.sheet else quote_sheet(sheet.name) + "!"
        yield rect_line(sheet, source, i, task.cell, prefix, redact)


def dense_rects(task: Task) -> Iterator[tuple[Sheet, Rects, int]]:
    """Rectangles of all sheets, the nearest first: the sheet, its rectangles, the number of the one."""
    book = task.view
    cell = task.cell
    sheet = book.sheet(cell.sheet)
    found = sheet_map(sheet, book)
    rects = found.rects
    parts: list[tuple[float, str, int]] = []
    distance = _distance(sheet, rects, found, cell)
    order = np.argsort(distance, kind="stable")
    near = [(float(distance[i]), sheet.name, int(i)) for i in order[:4000]]
    others: list[tuple[float, str, int]] = []
    for number, other in enumerate(n for n in book.sheets if n != sheet.name):
        there = sheet_map(book.sheets[other], book).rects
        for i in range(min(len(there), 400)):
            is_header = there.key[i] == KEY_HEADER
            others.append((OTHER_SHEET * (0.1 if is_header else 1) + number * 5 + float(there.box[i, 0]), other, i))
    others.sort()
    parts = sorted(near + others, key=lambda p: p[0]) if others else near
    for _, name, i in parts:
        here = book.sheets[name]
        yield here, sheet_map(here, book).rects, i


def _distance(sheet: Sheet, rects: Rects, found: Any, cell: CellRef) -> Any:
    """Distance in rows and columns; headers over the target's region and cells of its own row count as near."""
    if not len(rects):
        return np.zeros(0)
    distance = rects.distance(cell.row, cell.col).astype(float)
    at = found.region_at(cell.row, cell.col)
    if at is not None:
        box = found.regions[at]
        inside = (
            (rects.box[:, 0] >= box[0])
            & (rects.box[:, 2] <= box[2])
            & (rects.box[:, 1] >= box[1])
            & (rects.box[:, 3] <= box[3])
        )
        distance[inside] *= 0.5
        distance[inside & (rects.key == KEY_HEADER)] = 0.5
    own_row = (rects.box[:, 0] <= cell.row) & (cell.row <= rects.box[:, 2])
    own_col = (rects.box[:, 1] <= cell.col) & (cell.col <= rects.box[:, 3])
    distance[own_row | own_col] *= 0.7
    # a rectangle of few cells is cheap to show
    return distance


def address_of(box: Any, prefix: str = "") -> str:
    """``A1:F1`` or ``A1``."""
    row1, col1, row2, col2 = (int(x) for x in box)
    first = f"{column_name(col1)}{row1}"
    return prefix + (first if row1 == row2 and col1 == col2 else f"{first}:{column_name(col2)}{row2}")


def rect_line(
    sheet: Sheet, rects: Rects, i: int, target: CellRef, prefix: str = "", redact: bool = False
) -> tuple[str, list[CellRef]]:
    """The line of a rectangle and the cells whose content it tells."""
    row1, col1, row2, col2 = (int(x) for x in rects.box[i])
    key = int(rects.key[i])
    place = address_of(rects.box[i], prefix)
    size = (row2 - row1 + 1) * (col2 - col1 + 1)
    if key == KEY_HEADER:
        cells = [(r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1)][:HEADERS_SHOWN]
        words = "|".join(shown(sheet.value(r, c)) for r, c in cells)
        return f"{place} H {words}\n", [CellRef(sheet.name, r, c) for r, c in cells]
    if key >= KEY_FORMULA:
        if redact:
            return f"{place} f {_redacted_r1c1(sheet, row1, col1)}\n", _cells(sheet.name, row1, col1, row2, col2)
        return f"{place} f {_r1c1(sheet, row1, col1)}\n", _cells(sheet.name, row1, col1, row2, col2)
    if redact:
        cell = sheet.get(row1, col1)
        kind = {KEY_TEXT: "s", KEY_BOOL: "b", KEY_ERROR: "e"}.get(key, "n")
        what = placeholder(cell.value, cell.fmt) if cell is not None else ""
        return f"{place} {kind} {what} ({size})\n", _cells(sheet.name, row1, col1, row2, col2)
    if key == KEY_TEXT:
        return _texts(sheet, place, row1, col1, row2, col2, target)
    if key in (KEY_BOOL, KEY_ERROR):
        first = shown(sheet.value(row1, col1))
        return f"{place} {'b' if key == KEY_BOOL else 'e'} {first}\n", _cells(sheet.name, row1, col1, row2, col2)
    letter = LETTERS[key - KEY_NUMBER]
    fmt = "d" if letter == "d" else ""
    if size == 1:
        numbers = shown(sheet.value(row1, col1), fmt)
    elif size <= 3:
        numbers = ",".join(shown(v, fmt) for v in _values(sheet, row1, col1, row2, col2))
    else:
        second = (row1 + 1, col1) if row2 > row1 else (row1, col1 + 1)
        numbers = (
            f"{shown(sheet.value(row1, col1), fmt)},{shown(sheet.value(*second), fmt)}.."
            f"{shown(sheet.value(row2, col2), fmt)} ({size})"
        )
    return f"{place} n{letter} {numbers}\n", _cells(sheet.name, row1, col1, row2, col2)


def _cells(name: str, row1: int, col1: int, row2: int, col2: int, limit: int = 3000) -> list[CellRef]:
    """All cells of a rectangle; of a very large one its border rows, which is what a range needs."""
    if (row2 - row1 + 1) * (col2 - col1 + 1) <= limit:
        return [CellRef(name, r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1)]
    rows = [*range(row1, min(row1 + 3, row2)), *range(max(row1, row2 - 2), row2 + 1)]
    return [CellRef(name, r, c) for r in rows for c in range(col1, min(col2, col1 + 200) + 1)]


def _values(sheet: Sheet, row1: int, col1: int, row2: int, col2: int) -> list[Value]:
    return [sheet.value(r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1)]


def _r1c1(sheet: Sheet, row: int, col: int) -> str:
    text = sheet.formula(row, col) or ""
    cache: dict[int, str] = sheet.store.__dict__.setdefault("r1c1", {})
    cls = sheet.store.class_of(text, row, col)
    if cls not in cache:
        try:
            cache[cls] = parse(text, CellRef(sheet.name, row, col)).to_r1c1()
        except FormulaError:
            cache[cls] = text
    found = cache[cls]
    return found if len(found) <= 240 else found[:239] + "~"


def _redacted_r1c1(sheet: Sheet, row: int, col: int) -> str:
    text = redacted_formula(sheet.formula(row, col) or "")
    try:
        return (
            parse(text.replace("<number>", "_number_"), CellRef(sheet.name, row, col))
            .to_r1c1()
            .replace("_number_", "<number>")
        )
    except FormulaError:
        return "<formula>"


def _texts(
    sheet: Sheet, place: str, row1: int, col1: int, row2: int, col2: int, target: CellRef
) -> tuple[str, list[CellRef]]:
    size = (row2 - row1 + 1) * (col2 - col1 + 1)
    if size <= 4:
        cells = [(r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1)]
        words = ",".join(f'"{shown(sheet.value(r, c))}"' for r, c in cells)
        return f"{place} s {words}\n", [CellRef(sheet.name, r, c) for r, c in cells]
    # counting distinct texts of a very long column would cost more than it tells
    sample = [
        sheet.value(r, c) for r in range(row1, min(row2, row1 + 200) + 1) for c in range(col1, min(col2, col1 + 5) + 1)
    ]
    more = "+" if size > len(sample) else ""
    second = (row1 + 1, col1) if row2 > row1 else (row1, col1 + 1)
    cells = [(row1, col1), second, (row2, col2)]
    words = f'"{shown(sheet.value(row1, col1))}","{shown(sheet.value(*second))}".."{shown(sheet.value(row2, col2))}"'
    extra = ""
    if target.sheet == sheet.name:
        if row1 <= target.row <= row2:
            own = [(target.row, c) for c in range(max(col1, col2 - 2), col2 + 1)]
        elif col1 <= target.col <= col2:
            own = [(r, target.col) for r in ({row1, row2} if row2 < target.row else {row1})]
        else:
            own = []
        for r, c in own:
            if (r, c) not in cells:
                cells.append((r, c))
                extra += f' {column_name(c)}{r}="{shown(sheet.value(r, c))}"'
    return f"{place} s/{len(set(sample))}{more} {words}{extra}\n", [CellRef(sheet.name, r, c) for r, c in cells]
