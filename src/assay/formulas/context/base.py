"""What a strategy gives: text, the cells that it shows, and how many tokens it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from assay.formulas.errors import BudgetTooSmall, FormulaError
from assay.formulas.grammar import CellRef, column_name, parse, quote_sheet
from assay.formulas.grammar.nodes import Apply, Array, Binary, Call, Name, Node, Number, Paren, Postfix, String, Unary
from assay.formulas.grammar.printer import a1, text_of
from assay.formulas.regions import KEY_HEADER, sheet_map
from assay.formulas.tasks import Task
from assay.formulas.tokens import Counter
from assay.formulas.workbook.model import Sheet
from assay.formulas.workbook.store import Cell
from assay.formulas.workbook.values import ErrorValue, Value, date_from_serial, number_text

MAX_TEXT = 60


@dataclass
class Context:
    """A piece of a workbook in a form that a model can read.

    Attributes
    ----------
    text : str
    cells : set of CellRef
        Cells whose content can be told from the text.
    tokens : int
        By the tokenizer of the strategy.
    order : list of CellRef
        Cells in the order in which they were taken (empty for strategies that take whole lines).
    """

    text: str
    cells: set[CellRef] = field(default_factory=set)
    tokens: int = 0
    order: list[CellRef] = field(default_factory=list)


def target_line(task: Task) -> str:
    """The line that names the target, ``target Data!D40 ?`` and what has been typed."""
    return f"target {task.cell} ? {task.prefix}".rstrip() + "\n"


def placeholder(value: Value, fmt: str = "") -> str:
    """What stands for a value that is not to leave the machine.

    >>> placeholder(12.5), placeholder(45292.0, "d"), placeholder("Ada"), placeholder(True)
    ('<number>', '<date>', '<text>', '<logical>')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "<logical>"
    if isinstance(value, float):
        return "<date>" if fmt == "d" else "<percent>" if fmt == "%" else "<currency>" if fmt == "$" else "<number>"
    return value.kind if isinstance(value, ErrorValue) else "<text>"


_KEPT = frozenset((0.0, 1.0, 2.0, 10.0, 12.0, 100.0))


def redacted_formula(text: str) -> str:
    """A formula with its texts and numbers replaced, but for 0, 1, 2, 10, 12 and 100.

    >>> redacted_formula('IF(A1="Ada",B1*1.0875,0)')
    'IF(A1="<text>",B1*<number>,0)'
    """
    try:
        tree = parse(text).tree
    except FormulaError:
        return "<formula>"
    return text_of(_redacted(tree), a1)


def _redacted(node: Node) -> Node:
    match node:
        case Number():
            return node if node.value in _KEPT else Name("<number>")
        case String():
            return String("<text>") if node.value else node
        case Call():
            return Call(node.name, [_redacted(a) for a in node.args])
        case Binary():
            return Binary(node.op, _redacted(node.left), _redacted(node.right))
        case Unary():
            return Unary(node.op, _redacted(node.operand))
        case Postfix():
            return Postfix(node.op, _redacted(node.operand))
        case Paren():
            return Paren(_redacted(node.inner))
        case Apply():
            return Apply(_redacted(node.target), [_redacted(a) for a in node.args])
        case Array():
            return Array([[_redacted(x) for x in row] for row in node.rows])
    return node


def shown(value: Value, fmt: str = "") -> str:
    """A value in a few characters.

    >>> shown(1234.5), shown(0.25, "%"), shown(45292.0, "d"), shown("x" * 80)[-4:]
    ('1234.5', '0.25', '2024-01-01', 'xxx~')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        if fmt == "d" and 1 <= value < 2_958_466:
            year, month, day = date_from_serial(value)
            return f"{year:04d}-{month:02d}-{day:02d}"
        return number_text(float(f"{value:.6g}"))
    text = value.kind if isinstance(value, ErrorValue) else value
    text = " ".join(text.split()).replace("|", "/").replace("`", "'")
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "~"


def cell_text(cell: Cell, redact: bool = False) -> str:
    """A cell as its formula or its value."""
    if cell.formula:
        text = redacted_formula(cell.formula) if redact else cell.formula
        return "=" + (text if len(text) <= 200 else text[:199] + "~")
    return placeholder(cell.value, cell.fmt) if redact else shown(cell.value, cell.fmt)


def header_cells(task: Task) -> Callable[[CellRef], bool]:
    """Whether a cell is a header of a column (those are kept when values are hidden)."""
    kept: dict[str, set[tuple[int, int]]] = {}

    def check(place: CellRef) -> bool:
        if place.sheet not in kept:
            rects = sheet_map(task.view.sheets[place.sheet], task.view).rects
            kept[place.sheet] = {
                (r, c)
                for box in rects.box[rects.key == KEY_HEADER].tolist()
                for r in range(box[0], box[2] + 1)
                for c in range(box[1], box[3] + 1)
            }
        return (place.row, place.col) in kept[place.sheet]

    return check


def filled(sheet: Sheet, places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, Cell]]:
    """Places that hold something, with what they hold."""
    for row, col in places:
        cell = sheet.get(row, col)
        if cell is not None and (cell.value is not None or cell.formula):
            yield row, col, cell


def grid_text(
    task: Task, places: Iterable[CellRef], budget: int | None, count: Counter, redact: bool = False
) -> Context:
    """Cells by rows, ``12 A:bolt|B:3|C:=B12*2``, cut where the budget ends.

    Each cell costs what its piece costs (and its row's number, if it is the first of the row), so a larger budget only
    adds cells.

    Raises
    ------
    BudgetTooSmall
        If the line of the target does not fit.
    """
    head = target_line(task)
    used = count(head)
    _must_fit(used, budget, task)
    book = task.view
    rows: dict[tuple[str, int], list[tuple[int, str]]] = {}
    found: list[CellRef] = []
    sheets: set[str] = set()
    is_header = header_cells(task)
    for place in places:
        cell = book.sheets[place.sheet].get(place.row, place.col)
        if cell is None or (cell.value is None and not cell.formula):
            continue
        piece = f"{column_name(place.col)}:{cell_text(cell, redact and not is_header(place))}|"
        cost = count(piece)
        key = (place.sheet, place.row)
        if place.sheet not in sheets:
            cost += count(f"# {quote_sheet(place.sheet)}\n")
        if key not in rows:
            cost += count(f"{place.row} \n")
        if budget is not None and used + cost > budget:
            break
        used += cost
        sheets.add(place.sheet)
        rows.setdefault(key, []).append((place.col, piece))
        found.append(place)
    names = [task.cell.sheet, *(n for n in book.sheets if n != task.cell.sheet)]
    lines = []
    for name in names:
        if name in sheets:
            lines.append(f"# {quote_sheet(name)}\n")
            for key in sorted(k for k in rows if k[0] == name):
                lines.append(f"{key[1]} {''.join(piece for _, piece in sorted(rows[key]))}\n")
    return Context("".join(lines) + head, set(found), used, found)


def _must_fit(used: int, budget: int | None, task: Task) -> None:
    if budget is not None and used > budget:
        raise BudgetTooSmall(
            f"a budget of {budget} tokens does not hold the line of the target {task.cell} ({used} tokens); "
            f"give at least {used}"
        )


def line_text(
    task: Task, lines: Iterable[tuple[str, Iterable[CellRef]]], budget: int | None, count: Counter
) -> Context:
    """Lines in the order of their worth, cut at the first that does not fit.

    Raises
    ------
    BudgetTooSmall
    """
    head = target_line(task)
    used = count(head)
    _must_fit(used, budget, task)
    out: list[str] = []
    cells: set[CellRef] = set()
    for text, places in lines:
        cost = count(text)
        if budget is not None and used + cost > budget:
            break
        used += cost
        out.append(text)
        cells.update(places)
    return Context("".join(out) + head, cells, used)
