"""Context strategies: which cells are gathered, in which order, within a budget of tokens.

Every strategy takes cells or lines in a fixed order and stops at the first that does not fit, so a larger budget never
drops a cell that a smaller one kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from assay.formulas.context.base import Context, grid_text, line_text
from assay.formulas.context.compressed import compressed_lines
from assay.formulas.context.dense import dense_lines
from assay.formulas.errors import FormulaError
from assay.formulas.grammar import CellRef
from assay.formulas.intent import intent_cells
from assay.formulas.regions import sheet_map
from assay.formulas.tasks import Task
from assay.formulas.tokens import Counter, counter

Strategy = Callable[[Task], Context]


def _rings(task: Task, radius: int) -> Iterator[CellRef]:
    """Cells around the target, ring by ring."""
    name, row, col = task.cell
    top, left, bottom, right = task.view.sheet(name).bounds
    reach = min(radius, max(abs(row - top), abs(bottom - row), abs(col - left), abs(right - col), 1))
    for r in range(1, reach + 1):
        for i in range(row - r, row + r + 1):
            if i < max(top, 1) or i > bottom:
                continue
            cols = range(col - r, col + r + 1) if abs(i - row) == r else (col - r, col + r)
            for j in cols:
                if max(left, 1) <= j <= right:
                    yield CellRef(name, i, j)


def window(task: Task, radius: int = 10) -> Iterator[CellRef]:
    """Rows and columns around the target."""
    yield from _rings(task, radius)


def used_range(task: Task) -> Iterator[CellRef]:
    """All cells of the sheet, from the top, row by row."""
    sheet = task.view.sheet(task.cell.sheet)
    for row, col in sheet.cells:
        yield CellRef(sheet.name, row, col)


def row_col_headers(task: Task) -> Iterator[CellRef]:
    """Texts to the left in the row and above in the column, up to where the kind changes back, nearest first."""
    sheet = task.view.sheet(task.cell.sheet)
    row, col = task.cell.row, task.cell.col
    seen = False
    for c in range(col - 1, max(0, col - 200), -1):
        value = sheet.value(row, c)
        if isinstance(value, str):
            seen = True
            yield CellRef(sheet.name, row, c)
        elif seen:
            break
    seen = False
    for r in range(row - 1, max(0, row - 5000), -1):
        value = sheet.value(r, col)
        if isinstance(value, str):
            seen = True
            yield CellRef(sheet.name, r, col)
        elif seen:
            break


def region(task: Task) -> Iterator[CellRef]:
    """The connected block at the target: its headers first, then its rows from the target's outwards."""
    sheet = task.view.sheet(task.cell.sheet)
    found = sheet_map(sheet, task.view)
    at = found.region_at(task.cell.row, task.cell.col, reach=2)
    if at is None:
        yield from _rings(task, 5)
        return
    row1, col1, row2, col2 = (int(x) for x in found.regions[at])
    heads = list(range(row1, row1 + max(1, int(found.header_rows[at]))))
    rest = sorted((r for r in range(row1, row2 + 1) if r not in heads), key=lambda r: (abs(r - task.cell.row), r))
    for row in [*heads, *rest]:
        for col in sorted(range(col1, col2 + 1), key=lambda c: abs(c - task.cell.col)):
            yield CellRef(sheet.name, row, col)


def precedent_like(task: Task) -> Iterator[CellRef]:
    """What the formulas nearby refer to, at the same relative position, the formulas themselves, then the own row."""
    from assay.formulas.grammar import parse
    from assay.formulas.workbook.resolve import boxes

    sheet = task.view.sheet(task.cell.sheet)
    near: list[CellRef] = []
    for place in _rings(task, 8):
        if sheet.formula(place.row, place.col):
            near.append(place)
        if len(near) == 6:
            break
    given: set[CellRef] = set()
    for place in near:
        yield place
        try:
            read = parse(sheet.formula(place.row, place.col) or "", place)
            moved = read.moved(task.cell)
        except FormulaError:
            continue
        for name, row1, col1, row2, col2 in [*boxes(moved, task.view, task.cell), *boxes(read, task.view, place)]:
            for cell in (CellRef(name, row1, col1), CellRef(name, row2, col2)):
                if cell not in given:
                    given.add(cell)
                    yield cell
    for place in row_col_headers(task):
        yield place
    for place in _rings(task, 8):
        if place not in given and (place.row == task.cell.row or place.col == task.cell.col):
            yield place


def sheet_outline(task: Task, rows: int = 2) -> Iterator[CellRef]:
    """First and last rows of every region, the target's sheet first."""
    own = task.view.sheet(task.cell.sheet)
    for sheet in [own, *(s for n, s in task.view.sheets.items() if n != own.name)]:
        for box in sheet_map(sheet, task.view).regions.tolist():
            row1, col1, row2, col2 = box
            ends = [*range(row1, min(row1 + rows, row2 + 1)), *range(max(row1 + rows, row2 - rows + 1), row2 + 1)]
            for row in ends:
                for col in range(col1, min(col2, col1 + 100) + 1):
                    yield CellRef(sheet.name, row, col)


def oracle(task: Task) -> Iterator[CellRef]:
    """The cells that are needed, from the truth: the smallest set of intent cells, then the others."""
    sets = sorted(intent_cells(task), key=len)
    first = next((s for s in sets if s), frozenset())
    yield from sorted(first, key=lambda c: (c.sheet != task.cell.sheet, c))
    if sets:
        main = intent_cells(task)[0]
        yield from sorted(main - first)


def _once(places: Iterator[CellRef]) -> Iterator[CellRef]:
    seen: set[CellRef] = set()
    for place in places:
        if place not in seen:
            seen.add(place)
            yield place


_BY_CELL: dict[str, Callable[[Task], Iterator[CellRef]]] = {
    "window": window,
    "used_range": used_range,
    "row_col_headers": row_col_headers,
    "region": region,
    "precedent_like": precedent_like,
    "sheet_outline": sheet_outline,
    "oracle": oracle,
}
STRATEGIES = (*(n for n in _BY_CELL if n != "oracle"), "compressed", "dense", "oracle")


def strategy(
    name: str, budget: int | None = 1024, tokenizer: str | Counter = "bytes4", redact: bool = False
) -> Strategy:
    """A context strategy.

    Parameters
    ----------
    name : str
        window, used_range, row_col_headers, region, precedent_like, sheet_outline, compressed, dense or oracle;
        ``window(20)`` sets the radius.
    budget : int, optional
        Tokens at most; None for all.
    tokenizer : str or callable
        ``bytes4`` (an estimate by classes of characters), ``tiktoken:<encoding>``, or a function.
    redact : bool
        Values become ``<number>``, ``<text>`` and so on, in formulas too; headers of columns stay.

    Raises
    ------
    FormulaError
        If there is no such strategy. The strategy itself raises `BudgetTooSmall`.

    Examples
    --------
    >>> from assay.formulas import Workbook, task_at
    >>> cells = {"A1": "Qty", "B1": "Price", "C1": "Total"}
    >>> cells |= {f"A{i}": i for i in (2, 3)} | {f"B{i}": 2.5 for i in (2, 3)} | {"C2": "=A2*B2"}
    >>> print(strategy("dense")(task_at(Workbook.from_cells({"S": cells}), "S!C3")).text, end="")
    A1:C1 H Qty|Price|Total
    C2 f RC[-2]*RC[-1]
    A2:B3 n 2,3..2.5 (4)
    target S!C3 ?
    """
    count = counter(tokenizer)
    base, bracket, inner = name.partition("(")
    if budget is not None and budget < 1:
        raise FormulaError(f"a budget is at least 1 token, not {budget}")
    if base == "window" and bracket:
        radius = int(inner.rstrip(")"))
        return lambda task: grid_text(task, _once(window(task, radius)), budget, count, redact)
    if base in _BY_CELL and not bracket:
        places = _BY_CELL[base]
        return lambda task: grid_text(task, _once(places(task)), budget, count, redact)
    if base == "dense" and not bracket:
        return lambda task: line_text(task, dense_lines(task, redact), budget, count)
    if base == "compressed" and not bracket:
        return lambda task: line_text(task, compressed_lines(task, redact=redact), budget, count)
    raise FormulaError(f"there is no context strategy {name!r}; there is {', '.join(STRATEGIES)}")
