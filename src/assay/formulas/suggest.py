"""A user's job: suggestions for a cell or a range of a file, and accepted ones written to a copy."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from assay.formulas.errors import CellRefError, CircularReference, FormulaError, WorkbookError, WouldLoseContent
from assay.formulas.evaluate import Engine, Unsupported
from assay.formulas.evaluate.core import Value
from assay.formulas.grammar import CellRef, parse, parse_area
from assay.formulas.recalculate import recalculated
from assay.formulas.systems.base import Suggestion, System, referred_filled
from assay.formulas.systems.cascade import Cascade
from assay.formulas.tasks import Task
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import reaches
from assay.formulas.workbook.values import ErrorValue

# What openpyxl does not carry over into a copy.
LOST = (
    "macros", "charts", "pictures", "pivot tables", "embedded objects", "slicers", "controls", "diagrams",
    "threaded comments", "timelines", "chart sheets", "linked data types", "data connections", "data model", "queries",
    "external links", "dialog sheets", "custom data",
)  # fmt: skip
MAX_CELLS = 100_000


@dataclass(frozen=True)
class CellCheck:
    """One cell of a range that a suggestion fills.

    Attributes
    ----------
    cell : CellRef
    formula : str
    value : value
        What it gives; None where it cannot be calculated here.
    problem : str
        Empty where the copy is sound: it parses, refers to filled cells, to no circle, and gives no error.
    """

    cell: CellRef
    formula: str
    value: Value = None
    problem: str = ""


@dataclass
class Advice:
    """Suggestions for a cell or a range.

    Attributes
    ----------
    cell : CellRef
    suggestions : list of Suggestion
    fill : list of CellCheck
        For a range: the first suggestion in every cell.
    value : value
        What the first suggestion gives.
    written : str
        The copy that it was written to.
    """

    cell: CellRef
    suggestions: list[Suggestion]
    fill: list[CellCheck] = field(default_factory=list)
    value: Value = None
    written: str = ""


def suggest_file(
    source: str | os.PathLike[str] | Workbook,
    where: str,
    out: str | os.PathLike[str] | None = None,
    *,
    system: System | None = None,
    k: int = 3,
    prefix: str = "",
    engine: Engine | None = None,
) -> Advice:
    """Suggest a formula for a cell (``Sheet1!D10``) or one for a whole range (``Sheet1!D10:D40``).

    Parameters
    ----------
    source : path or Workbook
        Read only; never changed.
    where : str
        Without a sheet, of the first one. What stands in the cells is not looked at.
    out : path, optional
        A copy with the first suggestion in place (of a range, in the cells whose check is sound).
    system : System, optional
        Default: the cascade without a model.

    Raises
    ------
    CellRefError, WorkbookError
    WouldLoseContent
        If a copy would lose charts, macros and the like; nothing is written.

    Examples
    --------
    >>> cells = {"A1": "Qty", "B1": "Price", "C1": "Total"} | {f"A{i}": i for i in range(2, 6)}
    >>> cells |= {f"B{i}": 2.5 for i in range(2, 6)} | {"C2": "=A2*B2", "C3": "=A3*B3"}
    >>> advice = suggest_file(Workbook.from_cells({"S": cells}), "S!C4:C5")
    >>> advice.suggestions[0].formula, [(c.cell.address, c.value) for c in advice.fill]
    ('A4*B4', [('C4', 10.0), ('C5', 12.5)])
    """
    book = source if isinstance(source, Workbook) else Workbook.open(source)
    if out is not None:
        _refuse_losses(book, out)
    first, last = parse_area(where)
    name = book.sheet(first.sheet).name if first.sheet else next(iter(book.sheets))
    first, last = first._replace(sheet=name), last._replace(sheet=name)
    size = (last.row - first.row + 1) * (last.col - first.col + 1)
    if size > MAX_CELLS:
        raise CellRefError(f"{where} has {size:,} cells; a range to fill has at most {MAX_CELLS:,}")
    run = engine or Engine()
    if book.missing_values():
        book, _ = recalculated(book, run)
    places = [
        CellRef(name, row, col) for row in range(first.row, last.row + 1) for col in range(first.col, last.col + 1)
    ]
    task = Task(f"{Path(book.path).name}!{first}", book, first, prefix, removed=frozenset(places))
    suggestions = (system or Cascade()).suggest(task, k)
    advice = Advice(first, suggestions)
    if not suggestions:
        return advice
    best = suggestions[0]
    advice.value = _value(run, task.view, first, best.formula)
    if size > 1:
        advice.fill = check_fill(task.view, first, best.formula, places, run)
    if out is not None:
        chosen = [(c.cell, c.formula) for c in advice.fill if not c.problem] if size > 1 else [(first, best.formula)]
        advice.written = str(write_copy(book, out, chosen))
    return advice


def _value(run: Engine, book: Workbook, cell: CellRef, formula: str) -> Value:
    try:
        found = run.evaluate(book, cell.sheet, cell, formula, use_cached=True)
    except FormulaError:
        return None
    if isinstance(found, Unsupported):
        return None
    value: Value = found if isinstance(found, (float, str, bool, ErrorValue)) or found is None else found[0, 0]
    return value


def check_fill(book: Workbook, first: CellRef, formula: str, places: list[CellRef], run: Engine) -> list[CellCheck]:
    """A formula filled over a range, each copy looked at: readable, on the grid, on data, no circle, no error.

    Copies that refer to cells of the range itself (running totals) see the values of the copies before them.
    """
    original = parse(formula, first)
    values: dict[tuple[str, int, int], Value] = {}
    found = []
    own = {(p.sheet, p.row, p.col) for p in places}
    for place in places:
        try:
            copy = original.moved(place)
        except FormulaError as error:
            found.append(CellCheck(place, "", None, f"the copy leaves the grid ({error})"))
            continue
        text = copy.to_a1()
        if reaches(copy, book, place, place):
            found.append(CellCheck(place, text, None, "the copy refers to its own cell"))
            continue
        try:
            value = run.evaluator(book, values).cell_value(copy, place)
        except CircularReference as error:
            found.append(CellCheck(place, text, None, str(error)))
            continue
        except FormulaError as error:
            found.append(CellCheck(place, text, None, str(error)))
            continue
        filled, total = referred_filled(copy, book, place)
        inside = any((place.sheet, r.row1, r.col1) in own for r in copy.references() if r.kind == "cell")
        problem = ""
        if isinstance(value, ErrorValue):
            problem = f"gives {value}"
        elif filled < total and not inside:
            problem = f"{total - filled} of {total} references fall on blanks"
        values[place.sheet, place.row, place.col] = value
        found.append(CellCheck(place, text, value, problem))
    return found


def _refuse_losses(book: Workbook, out: str | os.PathLike[str]) -> None:
    if not book.path or not Path(book.path).is_file():
        raise WorkbookError("the workbook is not from a file, so there is nothing to copy; open it from its path")
    if Path(book.path).suffix.lower() not in (".xlsx", ".xltx", ".xlsm", ".xltm"):
        raise WorkbookError(f"copies can be written of .xlsx files only, not of {Path(book.path).name}")
    if Path(out).resolve() == Path(book.path).resolve():
        raise WorkbookError(f"{out} is the workbook itself; give another name for the copy")
    lost = sorted(part for part in book.parts if part in LOST) + _extensions(book.path)
    if lost:
        raise WouldLoseContent(book.path, lost)


def _extensions(path: str) -> list[str]:
    """Extensions of sheets (sparklines, newer conditional formats and validations) that a copy would lose."""
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.startswith("xl/worksheets/sheet")]
        for name in names:
            with archive.open(name) as part:
                tail = b""
                while block := part.read(1 << 20):
                    if b"<extLst" in tail + block or b":extLst" in tail + block:
                        return ["extensions of sheets (sparklines, newer conditional formats)"]
                    tail = block[-16:]
    return []


def write_copy(book: Workbook, out: str | os.PathLike[str], formulas: list[tuple[CellRef, str]]) -> Path:
    """A copy of the workbook's file with formulas in cells; the file itself stays as it is.

    The copy holds no stored values (openpyxl writes none): a spreadsheet program calculates it when it is opened.

    Raises
    ------
    WouldLoseContent, WorkbookError
    """
    import openpyxl

    _refuse_losses(book, out)
    target = Path(out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = openpyxl.load_workbook(book.path)
        for cell, formula in formulas:
            copy[cell.sheet].cell(cell.row, cell.col).value = "=" + formula
        copy.calculation.fullCalcOnLoad = True
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.xlsx")
        try:
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder, "copy.xlsx")
                copy.save(made)
                Workbook.open(made)
                shutil.copyfile(made, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    return target


__all__ = ["Advice", "CellCheck", "check_fill", "suggest_file", "write_copy"]
