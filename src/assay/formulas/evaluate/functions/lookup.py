"""Lookups, references, dynamic arrays."""

from __future__ import annotations

from typing import Any

from assay.formulas.errors import CellRefError, FormulaError, UnsupportedFunction
from assay.formulas.evaluate.core import (
    ABSENT,
    NA,
    REF,
    VALUE,
    Area,
    Argument,
    Context,
    ErrorValue,
    Fault,
    Grid,
    Value,
    compare,
    fail,
    flat,
    function,
    grid_of,
    rank_of,
    to_bool,
    to_int,
    to_number,
    to_text,
    wildcard,
)
from assay.formulas.grammar import MAX_COL, MAX_ROW, column_name, parse, parse_r1c1, quote_sheet


def position(key: Value, values: list[Value], kind: int, wild: bool = True) -> int:
    """Place (from 0) of a key: ``kind`` 0 equal, 1 last not larger (sorted upwards), -1 last not smaller."""
    if isinstance(key, ErrorValue):
        raise Fault(key)
    if key is None:
        key = 0.0
    if kind == 0:
        pattern = wildcard(key) if wild and isinstance(key, str) else None
        low = key.casefold() if isinstance(key, str) else key
        sort = rank_of(key)
        for i, value in enumerate(values):
            if value is None or isinstance(value, ErrorValue) or rank_of(value) != sort:
                continue
            if pattern is not None:
                if pattern.match(value):  # type: ignore[arg-type]
                    return i
            elif (value.casefold() if isinstance(value, str) else value) == low:
                return i
        fail(NA)
    found = -1
    sort = rank_of(key)
    if kind > 0:
        usable = [
            i for i, v in enumerate(values) if v is not None and not isinstance(v, ErrorValue) and rank_of(v) == sort
        ]
        low, high = 0, len(usable)
        while low < high:  # as Excel searches: halving, which matters where the column is not sorted
            middle = (low + high) // 2
            if compare(values[usable[middle]], key) <= 0:
                low = middle + 1
            else:
                high = middle
        found = usable[low - 1] if low else -1
    else:
        for i, value in enumerate(values):
            if value is None or isinstance(value, ErrorValue) or rank_of(value) != sort:
                continue
            if compare(value, key) < 0:
                break
            found = i
    return found if found >= 0 else fail(NA)


def _line(argument: Argument) -> list[Value]:
    return list(flat(argument))


@function("MATCH", "srs", 2)
def _match(ctx: Context, key: Value, where: Argument, kind: Value = 1.0) -> float:
    which = 1 if kind is ABSENT else to_number(kind)
    if isinstance(where, Area) and where.height > 1 and where.width > 1:
        fail(NA)
    return float(position(key, _line(where), (which > 0) - (which < 0)) + 1)


def _by_line(ctx: Context, key: Value, table: Argument, index: Value, near: Value, across: bool) -> Value:
    place = to_int(index)
    if place < 1:
        fail(VALUE)
    close = True if near is None else (False if near is ABSENT else to_bool(near))
    if not isinstance(table, Area):
        grid = grid_of(table)
        if across:
            grid = [list(column) for column in zip(*grid, strict=True)]
        if place > len(grid[0]):
            fail(REF)
        return grid[position(key, [r[0] for r in grid], 1 if close else 0)][place - 1]
    if len(table.sheets) > 1:
        fail(VALUE)
    if place > (table.height if across else table.width):
        fail(REF)
    # Only the line that is searched is read, then the one cell.
    row1, col1, row2, col2 = table.clipped()
    keys = Area(table.sheets, row1, col1, row1 if across else row2, col2 if across else col1, table.source)
    found = position(key, list(keys.values()), 1 if close else 0)
    sheet = table.sheets[0]
    if across:
        return ctx.run.value(sheet, row1 + place - 1, col1 + found)
    return ctx.run.value(sheet, row1 + found, col1 + place - 1)


@function("VLOOKUP", "srss", 3)
def _vlookup(ctx: Context, key: Value, table: Argument, index: Value, near: Value = None) -> Value:
    return _by_line(ctx, key, table, index, near, False)


@function("HLOOKUP", "srss", 3)
def _hlookup(ctx: Context, key: Value, table: Argument, index: Value, near: Value = None) -> Value:
    return _by_line(ctx, key, table, index, near, True)


@function("LOOKUP", "saa", 2)
def _lookup(ctx: Context, key: Value, where: Argument, result: Argument = None) -> Value:
    if result is None or result is ABSENT:
        grid = grid_of(where)
        if len(grid[0]) > len(grid):
            grid = [list(column) for column in zip(*grid, strict=True)]
        return grid[position(key, [r[0] for r in grid], 1)][-1]
    place = position(key, _line(where), 1)
    values = _line(result)
    return values[place] if place < len(values) else fail(NA)


@function("XMATCH", "srss", 2)
def _xmatch(ctx: Context, key: Value, where: Argument, mode: Value = 0.0, way: Value = 1.0) -> float:
    return float(_xposition(key, _line(where), 0 if mode is ABSENT else to_int(mode), to_int(way)) + 1)


def _xposition(key: Value, values: list[Value], mode: int, way: int) -> int:
    places = list(range(len(values)))
    if way in (-1, -2):
        places.reverse()
    ordered = [values[i] for i in places]
    if mode == 2:
        return places[position(key, ordered, 0)]
    try:
        return places[position(key, ordered, 0, wild=False)] if key is not None else places[ordered.index(None)]
    except (Fault, ValueError):
        if mode == 0 or isinstance(key, ErrorValue):
            fail(NA)
    best: int | None = None
    for i in places:
        value = values[i]
        if value is None or isinstance(value, ErrorValue) or rank_of(value) != rank_of(key):
            continue
        side = compare(value, key)
        if side == mode and (best is None or compare(value, values[best]) == -mode):
            best = i
    return best if best is not None else fail(NA)


@function("XLOOKUP", "srrlss", 3)
def _xlookup(
    ctx: Context, key: Value, where: Argument, result: Argument, other: Any = None, mode: Value = 0.0, way: Value = 1.0
) -> Any:
    from assay.formulas.grammar.nodes import Missing

    try:
        place = _xposition(
            key, _line(where), 0 if mode is ABSENT else to_int(mode), 1 if way is ABSENT else to_int(way)
        )
    except Fault as fault:
        if fault.error == NA and other is not None and not isinstance(other, Missing):
            return ctx.run.node(other, ctx)
        raise
    tall = (where.height if isinstance(where, Area) else len(grid_of(where))) > 1
    if isinstance(result, Area):
        if tall or (result.height > 1 and result.width == 1):
            return Area(
                result.sheets, result.row1 + place, result.col1, result.row1 + place, result.col2, result.source
            )
        return Area(result.sheets, result.row1, result.col1 + place, result.row2, result.col1 + place, result.source)
    grid = grid_of(result)
    return [grid[place]] if tall else [[row[place]] for row in grid]


@function("INDEX", "rsss", 2)
def _index(ctx: Context, a: Argument, row: Value, col: Value = None, which: Value = None) -> Any:
    r = 0 if row is ABSENT else to_int(row)
    c = 0 if col is ABSENT else (to_int(col) if col is not None else -1)
    if r < 0 or c < -1:
        fail(VALUE)
    if isinstance(a, Area):
        if len(a.sheets) > 1:
            fail(VALUE)
        if c == -1:
            r, c = (1, r) if a.height == 1 and a.width > 1 else (r, 1 if a.width == 1 else 0)
        if r > a.height or c > a.width:
            fail(REF)
        row1, row2 = (a.row1, a.row2) if r == 0 else (a.row1 + r - 1,) * 2
        col1, col2 = (a.col1, a.col2) if c == 0 else (a.col1 + c - 1,) * 2
        return Area(a.sheets, row1, col1, row2, col2, a.source)
    grid = grid_of(a)
    if c == -1:
        r, c = (1, r) if len(grid) == 1 and len(grid[0]) > 1 else (r, 1 if len(grid[0]) == 1 else 0)
    if r > len(grid) or c > len(grid[0]):
        fail(REF)
    rows = grid if r == 0 else [grid[r - 1]]
    cut = rows if c == 0 else [[line[c - 1]] for line in rows]
    return cut[0][0] if len(cut) == 1 and len(cut[0]) == 1 else cut


@function("OFFSET", "rssss", 3)
def _offset(
    ctx: Context,
    a: Argument,
    rows: Value,
    cols: Value,
    height: Argument = ABSENT,
    width: Argument = ABSENT,
) -> Area:
    if not isinstance(a, Area):
        fail(VALUE)
    down, right = to_int(rows), to_int(cols)
    tall = a.height if height is ABSENT or height is None else to_int(height)
    wide = a.width if width is ABSENT or width is None else to_int(width)
    row1, col1 = a.row1 + down, a.col1 + right
    if tall == 0 or wide == 0:
        fail(REF)
    row1, row2 = (row1, row1 + tall - 1) if tall > 0 else (row1 + tall + 1, row1)
    col1, col2 = (col1, col1 + wide - 1) if wide > 0 else (col1 + wide + 1, col1)
    if row1 < 1 or col1 < 1 or row2 > MAX_ROW or col2 > MAX_COL:
        fail(REF)
    return Area(a.sheets, row1, col1, row2, col2, a.source)


@function("INDIRECT", "ss", 1)
def _indirect(ctx: Context, x: Value, style: Value = True) -> Any:
    text = to_text(x)
    try:
        read = parse(text, ctx.at) if style is ABSENT or to_bool(style) else parse_r1c1(text, ctx.at)
    except (FormulaError, CellRefError):
        fail(REF)
    if "(" in text and ")" in text and read.functions():
        raise UnsupportedFunction("INDIRECT", f"of {text!r}")
    found = ctx.run.node(read.tree, ctx)
    return found if isinstance(found, Area) else fail(REF)


@function("ROW", "r", 0)
def _row(ctx: Context, a: Argument = None) -> Any:
    if a is None or a is ABSENT:
        return float(ctx.at.row)
    if not isinstance(a, Area):
        fail(VALUE)
    if a.height == 1 or not ctx.array:
        return float(a.row1)
    ctx.run.spend(a.height)
    return [[float(r)] for r in range(a.row1, min(a.row2, a.row1 + 100_000) + 1)]


@function("COLUMN", "r", 0)
def _column(ctx: Context, a: Argument = None) -> Any:
    if a is None or a is ABSENT:
        return float(ctx.at.col)
    if not isinstance(a, Area):
        fail(VALUE)
    return float(a.col1) if a.width == 1 or not ctx.array else [[float(c) for c in range(a.col1, a.col2 + 1)]]


@function("ROWS", "r")
def _rows(ctx: Context, a: Argument) -> float:
    return float(a.height if isinstance(a, Area) else len(grid_of(a)))


@function("COLUMNS", "r")
def _columns(ctx: Context, a: Argument) -> float:
    return float(a.width if isinstance(a, Area) else len(grid_of(a)[0]))


@function("ADDRESS", "sssss", 2)
def _address(ctx: Context, row: Value, col: Value, kind: Value = 1.0, style: Value = True, sheet: Value = None) -> str:
    r, c, k = to_int(row), to_int(col), 1 if kind is ABSENT else to_int(kind)
    if not (1 <= r <= MAX_ROW and 1 <= c <= MAX_COL and 1 <= k <= 4):
        fail(VALUE)
    if style is ABSENT or to_bool(style):
        text = ("$" if k in (1, 3) else "") + column_name(c) + ("$" if k in (1, 2) else "") + str(r)
    else:
        text = (f"R{r}" if k in (1, 2) else f"R[{r}]") + (f"C{c}" if k in (1, 3) else f"C[{c}]")
    return text if sheet is None else f"{quote_sheet(to_text(sheet))}!{text}"


@function("AREAS", "r")
def _areas(ctx: Context, a: Argument) -> float:
    return 1.0


@function("SHEETS", "", 0)
def _sheets(ctx: Context) -> float:
    return float(len(ctx.run.book.sheets))


@function("FORMULATEXT", "r")
def _formulatext(ctx: Context, a: Argument) -> str:
    text = ctx.run.formula(a.sheets[0], a.row1, a.col1) if isinstance(a, Area) else None
    return "=" + text if text is not None else fail(NA)


# -- dynamic arrays --------------------------------------------------------------------------------------------------


@function("FILTER", "aar", 2)
def _filter(ctx: Context, a: Argument, keep: Argument, other: Argument = None) -> Any:
    grid, chosen = grid_of(a), grid_of(keep)
    if len(chosen) == 1 and len(grid[0]) == len(chosen[0]) and len(grid) != 1:
        picks = [to_bool(v) for v in chosen[0]]
        found = [[v for v, pick in zip(row, picks, strict=True) if pick] for row in grid]
        found = found if any(picks) else []
    else:
        if len(chosen) != len(grid):
            fail(VALUE)
        found = [row for row, pick in zip(grid, chosen, strict=True) if to_bool(pick[0])]
    if not found:
        if other is None or other is ABSENT:
            fail(ErrorValue("#CALC!"))
        return other
    return found


def _sort_key(value: Value) -> tuple[int, Any]:
    if value is None:
        return (4, 0)
    if isinstance(value, ErrorValue):
        return (3, value.kind)
    return (rank_of(value), value.casefold() if isinstance(value, str) else value)


@function("SORT", "asss", 1)
def _sort(ctx: Context, a: Argument, index: Value = 1.0, order: Value = 1.0, across: Value = False) -> Grid:
    grid = grid_of(a)
    by_column = across is not ABSENT and to_bool(across)
    if by_column:
        grid = [list(c) for c in zip(*grid, strict=True)]
    place = (1 if index is ABSENT else to_int(index)) - 1
    if not 0 <= place < len(grid[0]):
        fail(VALUE)
    found = sorted(grid, key=lambda r: _sort_key(r[place]), reverse=order is not ABSENT and to_number(order) < 0)
    return [list(c) for c in zip(*found, strict=True)] if by_column else found


@function("SORTBY", "aas", 2)
def _sortby(ctx: Context, a: Argument, by: Argument, order: Value = 1.0) -> Grid:
    grid, keys = grid_of(a), _line(by)
    if len(keys) != len(grid):
        fail(VALUE)
    places = sorted(range(len(grid)), key=lambda i: _sort_key(keys[i]), reverse=to_number(order) < 0)
    return [grid[i] for i in places]


@function("UNIQUE", "ass", 1)
def _unique(ctx: Context, a: Argument, across: Value = False, once: Value = False) -> Grid:
    grid = grid_of(a)
    by_column = across is not ABSENT and to_bool(across)
    if by_column:
        grid = [list(c) for c in zip(*grid, strict=True)]
    seen: dict[Any, int] = {}
    keys = [tuple(_sort_key(v) for v in row) for row in grid]
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
    only = to_bool(once)
    found = []
    done = set()
    for key, row in zip(keys, grid, strict=True):
        if key not in done and (not only or seen[key] == 1):
            found.append(row)
        done.add(key)
    if not found:
        fail(ErrorValue("#CALC!"))
    return [list(c) for c in zip(*found, strict=True)] if by_column else found


def _stacked(grids: list[Grid]) -> Grid:
    width = max(len(g[0]) for g in grids)
    return [row + [NA] * (width - len(row)) for g in grids for row in g]


@function("VSTACK", "a*", 1)
def _vstack(ctx: Context, *args: Argument) -> Grid:
    return _stacked([grid_of(a) for a in args])


@function("HSTACK", "a*", 1)
def _hstack(ctx: Context, *args: Argument) -> Grid:
    turned = [[list(c) for c in zip(*grid_of(a), strict=True)] for a in args]
    return [list(c) for c in zip(*_stacked(turned), strict=True)]


@function("TAKE", "ass", 2)
def _take(ctx: Context, a: Argument, rows: Value, cols: Value = None) -> Grid:
    return _cut(grid_of(a), rows, cols, True)


@function("DROP", "ass", 2)
def _drop(ctx: Context, a: Argument, rows: Value, cols: Value = None) -> Grid:
    return _cut(grid_of(a), rows, cols, False)


def _cut(grid: Grid, rows: Value, cols: Value, take: bool) -> Grid:
    def part(items: list[Any], n: Value) -> list[Any]:
        if n is None or n is ABSENT:
            return items
        size = to_int(n)
        if take:
            return items[:size] if size >= 0 else items[size:]
        return items[size:] if size >= 0 else items[:size]

    found = [part(row, cols) for row in part(grid, rows)]
    return found if found and found[0] else fail(ErrorValue("#CALC!"))


@function("TOCOL TOROW", "a")
def _tocol(ctx: Context, a: Argument) -> Grid:
    return [[v] for v in flat(a)]
