"""Anchors, an inverted index and aggregated formats: the idea of SpreadsheetLLM's SheetCompressor, in our own form.

Rows and columns where the kinds of cells change are anchors; cells farther than ``k`` from every anchor are left out,
equal texts are named once with the places that hold them, numbers are named by their format and the box they fill.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.formulas.context.base import header_cells, placeholder, redacted_formula, shown
from assay.formulas.context.dense import address_of
from assay.formulas.grammar import CellRef, quote_sheet
from assay.formulas.regions import KEY_NUMBER, LETTERS, cell_keys, rectangles
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Sheet

MAX_CELLS = 20_000


def anchor_lines(row: np.ndarray, col: np.ndarray, key: np.ndarray, k: int) -> tuple[set[int], set[int]]:
    """Rows and columns within ``k`` of one where the kinds differ from the line before.

    >>> row, col = np.array([1, 1, 2, 2, 3, 3, 4, 4]), np.array([1, 2] * 4)
    >>> sorted(anchor_lines(row, col, np.array([1, 1, 10, 10, 10, 10, 10, 10]), 0)[0])
    [1, 2, 4]
    """
    found: list[set[int]] = []
    for line, other in ((row, col), (col, row)):
        order = np.lexsort((other, line))
        values, starts = np.unique(line[order], return_index=True)
        signatures = {}
        for value, part in zip(values.tolist(), np.split(order, starts[1:]), strict=True):
            signatures[value] = hash((other[part].tobytes(), np.minimum(key[part], 100).tobytes()))
        kept: set[int] = set()
        last = None
        for value in values.tolist():
            if last is None or value != last + 1 or signatures[value] != signatures[last]:
                kept |= set(range(value - k, value + k + 1))
                if last is not None:
                    kept |= set(range(last - k, last + k + 1))
            last = value
        if last is not None:
            kept |= set(range(last - k, last + k + 1))
        found.append(kept)
    return found[0], found[1]


def compressed_lines(task: Task, k: int = 2, redact: bool = False) -> Iterator[tuple[str, list[CellRef]]]:
    """Lines of all sheets, the target's first, the nearest to the target first."""
    book = task.view
    own = book.sheet(task.cell.sheet)
    for sheet in [own, *(s for n, s in book.sheets.items() if n != own.name)]:
        prefix = "" if sheet is own else quote_sheet(sheet.name) + "!"
        yield from _sheet_lines(task, sheet, prefix, k, redact)


def _sheet_lines(task: Task, sheet: Sheet, prefix: str, k: int, redact: bool) -> Iterator[tuple[str, list[CellRef]]]:
    a = sheet.arrays()
    if not len(a.row):
        return
    key = cell_keys(sheet, a)
    rows, cols = anchor_lines(a.row, a.col, key, k)
    keep = np.isin(a.row, list(rows)) & np.isin(a.col, list(cols))
    spots = np.flatnonzero(keep)
    if len(spots) > MAX_CELLS:
        far = np.abs(a.row[spots] - task.cell.row) + np.abs(a.col[spots] - task.cell.col)
        spots = np.sort(spots[np.argsort(far, kind="stable")[:MAX_CELLS]])
    entries: dict[str, list[tuple[int, int]]] = {}
    is_header = header_cells(task)
    for i in spots.tolist():
        row, col = int(a.row[i]), int(a.col[i])
        if a.cls[i] >= 0:
            text = sheet.formula(row, col) or ""
            entries.setdefault("=" + (redacted_formula(text) if redact else text)[:200], []).append((row, col))
        elif a.kind[i] != 1:
            value = sheet.value(row, col)
            hide = redact and not is_header(CellRef(sheet.name, row, col))
            entries.setdefault(placeholder(value) if hide else shown(value), []).append((row, col))
    lines: list[tuple[float, str, list[CellRef]]] = []
    for text, places in entries.items():
        boxes = rectangles(
            np.array([p[0] for p in places]), np.array([p[1] for p in places]), np.ones(len(places), int)
        )
        shown_places = ",".join(address_of(box, prefix) for box in boxes.box[:12])
        near = min(abs(r - task.cell.row) + abs(c - task.cell.col) for r, c in places)
        lines.append((near, f"{text}|{shown_places}\n", [CellRef(sheet.name, r, c) for r, c in places]))
    numbers = np.flatnonzero((a.kind == 1) & (a.cls < 0))
    if len(numbers):
        found = rectangles(a.row[numbers], a.col[numbers], key[numbers])
        for box, kind in zip(found.box, found.key, strict=True):
            row1, col1, row2, col2 = (int(x) for x in box)
            near = max(0, row1 - task.cell.row, task.cell.row - row2) + max(
                0, col1 - task.cell.col, task.cell.col - col2
            )
            size = (row2 - row1 + 1) * (col2 - col1 + 1)
            value = (
                shown(sheet.value(row1, col1))
                if size == 1 and not redact
                else {"": "number", "%": "percent", "$": "currency", "d": "date"}[LETTERS[int(kind) - KEY_NUMBER]]
            )
            corners = {(row1, col1), (row2, col2), (row1, col2), (row2, col1)}
            cells = (
                [(r, c) for r in range(row1, row2 + 1) for c in range(col1, col2 + 1)]
                if size <= 3000
                else sorted(corners)
            )
            lines.append((near, f"{value}|{address_of(box, prefix)}\n", [CellRef(sheet.name, r, c) for r, c in cells]))
    lines.sort(key=lambda line: line[0])
    for _, text, cells_ in lines:
        yield text, cells_
