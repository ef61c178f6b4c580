"""What a sheet is made of: regions, header rows, and maximal rectangles of one kind.

Everything is computed on columns of the cells in use, so the cost grows with the cells and not with the grid. A
change of one cell renews the rectangles that it touches and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.formulas.workbook.model import Sheet, Workbook
from assay.formulas.workbook.store import BLANK, BOOL, ERROR, NUMBER, TEXT, WIDTH, CellArrays

HEADER_ROWS = 3
NEAR = 24
"""Rows that are looked at one by one; beyond them a column is looked at as an array."""
_FORMATS = {"": 0, "%": 1, "$": 2, "d": 3}
LETTERS = {0: "", 1: "%", 2: "$", 3: "d"}
KEY_TEXT, KEY_HEADER, KEY_BOOL, KEY_ERROR, KEY_NUMBER, KEY_FORMULA = 1, 2, 3, 4, 10, 100


@dataclass
class Rects:
    """Maximal rectangles of one kind: corners (inclusive) and keys.

    Attributes
    ----------
    box : int array[n, 4]
        row1, col1, row2, col2.
    key : int array[n]
        KEY_TEXT, KEY_HEADER, KEY_BOOL, KEY_ERROR, KEY_NUMBER + format, or KEY_FORMULA + class.
    """

    box: Int[np.ndarray, "n 4"]
    key: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.key)

    def distance(self, row: int, col: int) -> Int[np.ndarray, " n"]:
        """Rows plus columns between each rectangle and a cell; cells of the own row or column come first."""
        down = np.maximum(0, np.maximum(self.box[:, 0] - row, row - self.box[:, 2]))
        right = np.maximum(0, np.maximum(self.box[:, 1] - col, col - self.box[:, 3]))
        return down + right


@dataclass
class SheetMap:
    """Regions and rectangles of a sheet.

    Attributes
    ----------
    regions : int array[n, 4]
        Boxes of the connected blocks (cells touch at sides or corners).
    header_rows : int array[n]
        Rows of headers at the top of each region.
    rects : Rects
    """

    regions: Int[np.ndarray, "n 4"]
    header_rows: Int[np.ndarray, " n"]
    rects: Rects

    def region_at(self, row: int, col: int, reach: int = 1) -> int | None:
        """The region that holds a cell or lies next to it; the smallest, if several."""
        if not len(self.regions):
            return None
        r = self.regions
        near = (r[:, 0] - reach <= row) & (row <= r[:, 2] + reach) & (r[:, 1] - reach <= col) & (col <= r[:, 3] + reach)
        hits = np.flatnonzero(near)
        if not len(hits):
            return None
        area = (r[hits, 2] - r[hits, 0] + 1) * (r[hits, 3] - r[hits, 1] + 1)
        inside = (r[hits, 0] <= row) & (row <= r[hits, 2]) & (r[hits, 1] <= col) & (col <= r[hits, 3])
        return int(hits[np.lexsort((area, ~inside))[0]]) if len(hits) > 1 else int(hits[0])


def sheet_map(sheet: Sheet, book: Workbook | None = None) -> SheetMap:
    """Regions and rectangles of a sheet, from the cache where nothing has changed.

    Examples
    --------
    >>> cells = {"A1": "Item", "B1": "Qty", "A2": "bolt", "B2": 3, "A3": "nut", "B3": 5}
    >>> book = Workbook.from_cells({"S": cells})
    >>> found = sheet_map(book.sheets["S"])
    >>> found.regions.tolist(), found.header_rows.tolist(), found.rects.box.tolist()
    ([[1, 1, 3, 2]], [1], [[1, 1, 1, 2], [2, 1, 3, 1], [2, 2, 3, 2]])
    """
    known: SheetMap | None = sheet.cache.get("map")
    if known is None:
        known = _whole(sheet, book)
    elif sheet.touched:
        for row, col in sheet.touched:
            known = _touched(sheet, known, row, col)
    else:
        return known
    sheet.touched.clear()
    sheet.cache["map"] = known
    return known


def cell_keys(sheet: Sheet, a: CellArrays) -> Int[np.ndarray, " n"]:
    """Kind of every cell, headers not yet told from other texts."""
    letters = np.array([_FORMATS[s.fmt] for s in sheet.styles] + [0], np.int32)
    style = np.where((a.style >= 0) & (a.style < len(sheet.styles)), a.style, len(sheet.styles))
    key = np.zeros(len(a.row), np.int32)
    key[a.kind == TEXT] = KEY_TEXT
    key[a.kind == BOOL] = KEY_BOOL
    key[a.kind == ERROR] = KEY_ERROR
    number = a.kind == NUMBER
    key[number] = KEY_NUMBER + letters[style[number]]
    formula = a.cls >= 0
    key[formula] = KEY_FORMULA + a.cls[formula]
    return key


def _by_column(col: Any) -> Int[np.ndarray, " n"]:
    """Order by column of cells that come by row; a radix sort, since columns fit into 16 bits."""
    return np.argsort(col.astype(np.int16), kind="stable")


def _components(row: Any, col: Any) -> tuple[int, Int[np.ndarray, " n"], Int[np.ndarray, "k 4"]]:
    """Connected blocks of cells given by row and column (sorted by both), corners included; and their boxes.

    The graph joins vertical runs of cells, not cells: two runs in columns side by side are joined if their rows overlap
    or meet at a corner. Finding the runs takes a pass over the cells, and most sheets have few runs.
    """
    order = _by_column(col)
    r, c = row[order].astype(np.int64), col[order].astype(np.int64)
    new = np.ones(len(r), bool)
    new[1:] = (c[1:] != c[:-1]) | (r[1:] != r[:-1] + 1)
    starts = np.flatnonzero(new)
    stops = np.append(starts[1:], len(r))
    top, bottom, side = r[starts], r[stops - 1], c[starts]
    # runs of the next column whose last row is not above, and whose first row is not below: a stretch of the runs
    span = int(bottom.max()) + 2
    low = np.searchsorted(side * span + bottom, (side + 1) * span + top - 1)
    high = np.searchsorted(side * span + top, (side + 1) * span + bottom + 1, side="right")
    count = np.maximum(high - low, 0)
    first = np.repeat(np.arange(len(side)), count)
    second = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count) + np.repeat(low, count)
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(side), len(side)))
    blocks, of_run = connected_components(graph, directed=False)
    box = np.empty((blocks, 4), np.int64)
    together = np.argsort(of_run, kind="stable")
    begin = np.searchsorted(of_run[together], np.arange(blocks))
    for j, (values, extreme) in enumerate(
        ((top, np.minimum), (side, np.minimum), (bottom, np.maximum), (side, np.maximum))
    ):
        box[:, j] = extreme.reduceat(values[together], begin)
    # blocks in reading order of their first cells
    ranked = np.lexsort((box[:, 1], box[:, 0]))
    rank = np.empty(blocks, np.int64)
    rank[ranked] = np.arange(blocks)
    label = np.empty(len(r), np.int64)
    label[order] = np.repeat(rank[of_run], stops - starts)
    return blocks, label, box[ranked]


def _whole(sheet: Sheet, book: Workbook | None) -> SheetMap:
    a = sheet.arrays()
    if not len(a.row):
        none = np.zeros((0, 4), np.int64)
        return SheetMap(none, np.zeros(0, np.int64), Rects(none.copy(), np.zeros(0, np.int64)))
    key = cell_keys(sheet, a)
    _, label, box = _components(a.row, a.col)
    bold = np.array([s.bold or s.fill for s in sheet.styles] + [False])
    styled = bold[np.where((a.style >= 0) & (a.style < len(sheet.styles)), a.style, len(sheet.styles))]
    headers = _header_rows(a, key, label, box, styled)
    depth = a.row - box[label, 0]
    is_header = (key == KEY_TEXT) & (depth < headers[label])
    if book is not None:
        for table in book.tables.values():
            if table.sheet == sheet.name and table.header_rows:
                inside = (a.row == table.row1) & (a.col >= table.col1) & (a.col <= table.col2)
                is_header |= inside & (key == KEY_TEXT)
    key[is_header] = KEY_HEADER
    return SheetMap(box, headers, rectangles(a.row, a.col, key))


def _header_rows(a: CellArrays, key: Any, label: Any, box: Any, styled: Any) -> Int[np.ndarray, " n"]:
    """Rows at the top of each region that hold texts only, followed by one that does not (or looks different)."""
    count = len(box)
    depth = a.row - box[label, 0]
    open_ = np.ones(count, bool)
    rows = np.zeros(count, np.int64)
    texts = np.zeros((HEADER_ROWS + 1, count), bool)
    looks = np.zeros((HEADER_ROWS + 1, count), bool)
    for k in range(HEADER_ROWS + 1):
        here = depth == k
        cells = np.bincount(label[here], minlength=count)
        words = np.bincount(label[here & (key == KEY_TEXT)], minlength=count)
        shown = np.bincount(label[here & styled], minlength=count)
        texts[k] = (cells > 0) & (words == cells)
        looks[k] = (cells > 0) & (shown * 2 >= cells)
    for k in range(HEADER_ROWS):
        open_ &= texts[k]
        ends = open_ & ~texts[k + 1] & (box[:, 2] - box[:, 0] > k)
        rows[ends] = k + 1
    plain = (rows == 0) & texts[0] & (box[:, 2] > box[:, 0]) & (box[:, 3] > box[:, 1])
    rows[plain & looks[0] & ~looks[1]] = 1
    return rows


def rectangles(row: Any, col: Any, key: Any) -> Rects:
    """Cells (by row, then column) joined to vertical runs of one key, and runs of equal height to rectangles."""
    order = _by_column(col)
    r, c, k = row[order].astype(np.int64), col[order].astype(np.int64), key[order].astype(np.int64)
    new = np.ones(len(r), bool)
    new[1:] = (c[1:] != c[:-1]) | (r[1:] != r[:-1] + 1) | (k[1:] != k[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(r)) - 1
    r1, r2, cc, kk = r[starts], r[ends], c[starts], k[starts]
    order = np.lexsort((cc, kk, r2, r1))
    r1, r2, cc, kk = r1[order], r2[order], cc[order], kk[order]
    new = np.ones(len(r1), bool)
    new[1:] = (r1[1:] != r1[:-1]) | (r2[1:] != r2[:-1]) | (kk[1:] != kk[:-1]) | (cc[1:] != cc[:-1] + 1)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(r1)) - 1
    return Rects(np.stack([r1[starts], cc[starts], r2[starts], cc[ends]], 1), kk[starts])


def _touched(sheet: Sheet, known: SheetMap, row: int, col: int) -> SheetMap:
    """Cut the rectangle that holds the cell, put the cell's new kind in its place, join it with a neighbour."""
    rects = known.rects
    box = rects.box
    inside = (box[:, 0] <= row) & (row <= box[:, 2]) & (box[:, 1] <= col) & (col <= box[:, 3])
    pieces: list[tuple[list[int], int]] = []
    for i in np.flatnonzero(inside):
        r1, c1, r2, c2 = (int(x) for x in box[i])
        key = int(rects.key[i])
        if r1 < row:
            pieces.append(([r1, c1, row - 1, c2], key))
        if row < r2:
            pieces.append(([row + 1, c1, r2, c2], key))
        if c1 < col:
            pieces.append(([row, c1, row, col - 1], key))
        if col < c2:
            pieces.append(([row, col + 1, row, c2], key))
    drop = inside.copy()
    cell = sheet.get(row, col)
    if cell is not None and (cell.value is not None or cell.formula):
        key = _key_of(sheet, cell, row, col)
        place = [row, col, row, col]
        same = (rects.key == key) & ~inside
        above = same & (box[:, 1] == col) & (box[:, 3] == col) & ((box[:, 2] == row - 1) | (box[:, 0] == row + 1))
        for i in np.flatnonzero(above):
            place = [min(place[0], int(box[i, 0])), col, max(place[2], int(box[i, 2])), col]
            drop[i] = True
        if not above.any():
            beside = same & (box[:, 0] == row) & (box[:, 2] == row) & ((box[:, 3] == col - 1) | (box[:, 1] == col + 1))
            for i in np.flatnonzero(beside):
                place = [row, min(place[1], int(box[i, 1])), row, max(place[3], int(box[i, 3]))]
                drop[i] = True
        pieces.append((place, key))
    kept = Rects(
        np.concatenate([box[~drop], np.array([p for p, _ in pieces], np.int64).reshape(-1, 4)]),
        np.concatenate([rects.key[~drop], np.array([k for _, k in pieces], np.int64)]),
    )
    regions, headers = known.regions, known.header_rows
    if cell is not None and cell.value is not None:
        at = known.region_at(row, col)
        if at is None:
            regions = np.concatenate([regions, [[row, col, row, col]]])
            headers = np.append(headers, 0)
        else:
            regions = regions.copy()
            regions[at] = [
                min(regions[at, 0], row), min(regions[at, 1], col), max(regions[at, 2], row), max(regions[at, 3], col)
            ]  # fmt: skip
    return SheetMap(regions, headers, kept)


def _key_of(sheet: Sheet, cell: Any, row: int, col: int) -> int:
    if cell.formula:
        return KEY_FORMULA + sheet.store.class_of(cell.formula, row, col)
    if isinstance(cell.value, bool):
        return KEY_BOOL
    if isinstance(cell.value, float):
        return KEY_NUMBER + _FORMATS[cell.style.fmt]
    return KEY_TEXT if isinstance(cell.value, str) else KEY_ERROR


@dataclass(frozen=True)
class Block:
    """Cells of one sheet that hold copies of one formula and touch at sides.

    Attributes
    ----------
    cells : tuple of (row, col)
        In reading order.
    """

    sheet: str
    cls: int
    cells: tuple[tuple[int, int], ...]


def formula_blocks(sheet: Sheet) -> list[Block]:
    """Blocks of a sheet, in reading order of their first cells."""
    a = sheet.arrays()
    spots = np.flatnonzero(a.cls >= 0)
    if not len(spots):
        return []
    row, col, cls = a.row[spots].astype(np.int64), a.col[spots].astype(np.int64), a.cls[spots]
    keys = row * WIDTH + col
    pairs = []
    for step in (1, WIDTH):
        spot = np.searchsorted(keys, keys + step)
        spot[spot == len(keys)] = len(keys) - 1
        hit = np.flatnonzero((keys[spot] == keys + step) & (cls[spot] == cls))
        pairs.append((hit, spot[hit]))
    first, second = (np.concatenate([p[i] for p in pairs]) for i in (0, 1))
    graph = coo_array((np.ones(len(first), np.int8), (first, second)), shape=(len(keys), len(keys)))
    _, label = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for i, number in enumerate(label.tolist()):
        groups.setdefault(number, []).append(i)
    rows, cols = row.tolist(), col.tolist()
    return [
        Block(sheet.name, int(cls[members[0]]), tuple((rows[i], cols[i]) for i in members))
        for members in groups.values()
    ]


# -- headers of one cell ---------------------------------------------------------------------------------------------


def header_above(sheet: Sheet, row: int, col: int, reach: int = 2000) -> tuple[int, int] | None:
    """The nearest text cell above in the column (not a formula), past numbers and at most two blanks."""
    blanks = 0
    for r in range(row - 1, max(0, row - 1 - reach), -1):
        if row - r > NEAR:
            return _text_above(sheet, r, col, r + blanks + 1, row - 1 - reach)
        value = sheet.value(r, col)
        if value is None:
            blanks += 1
            if blanks > 2:
                return None
            continue
        blanks = 0
        if isinstance(value, str) and not sheet.computed(r, col) and value.strip():
            return r, col
    return None


def _text_above(sheet: Sheet, row: int, col: int, filled: int, floor: int) -> tuple[int, int] | None:
    """The same from a row upwards, in arrays; ``filled`` is the last row below that was not blank."""
    rows, kinds, classes = sheet.column(col)
    inside = (kinds != BLANK) & (rows <= row) & (rows > floor)
    rows, kinds, classes = rows[inside], kinds[inside], classes[inside]
    broken = np.flatnonzero(np.diff(rows, append=filled) > 3)
    first = int(broken[-1]) + 1 if len(broken) else 0
    for i in np.flatnonzero((kinds[first:] == TEXT) & (classes[first:] < 0))[::-1] + first:
        if str(sheet.value(int(rows[i]), col)).strip():
            return int(rows[i]), col
    return None


def label_left(sheet: Sheet, row: int, col: int, reach: int = 60) -> tuple[int, int] | None:
    """The nearest text cell to the left in the row (not a formula), past anything."""
    for c in range(col - 1, max(0, col - 1 - reach), -1):
        value = sheet.value(row, c)
        if isinstance(value, str) and not sheet.computed(row, c) and value.strip():
            return row, c
    return None


def column_header(sheet: Sheet, row: int, col: int, book: Workbook | None = None) -> tuple[int, int] | None:
    """The header of a column: of the header rows of the region if it has any, else the nearest text above."""
    found = sheet_map(sheet, book)
    at = found.region_at(row, col)
    if at is not None and found.header_rows[at]:
        top = int(found.regions[at, 0])
        for r in range(top + int(found.header_rows[at]) - 1, top - 1, -1):
            value = sheet.value(r, col)
            if r < row and isinstance(value, str) and value.strip():
                return r, col
    return header_above(sheet, row, col)
