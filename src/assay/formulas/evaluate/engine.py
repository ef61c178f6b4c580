"""`Engine`: one formula in one cell, over stored values or over what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.formulas.errors import CellRefError, CircularReference, EngineMissing, FormulaError, UnsupportedFunction
from assay.formulas.evaluate import functions as _functions  # noqa: F401  (enters the functions)
from assay.formulas.evaluate.core import FUNCTIONS, ErrorValue, Grid, Value
from assay.formulas.evaluate.evaluator import MAX_STEPS, Evaluator
from assay.formulas.evaluate.external import Formualizer, FormulasPackage, LibreOffice
from assay.formulas.grammar import CellRef, Formula, parse
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import boxes

ENGINES = ("auto", "builtin", "formualizer", "libreoffice", "formulas")


@dataclass(frozen=True)
class Unsupported:
    """An evaluation that has no result here: which function or construct, and why."""

    name: str
    why: str = ""

    def __bool__(self) -> bool:
        return False


class Engine:
    """Evaluates a formula in a cell.

    Parameters
    ----------
    kind : {"auto", "builtin", "formualizer", "libreoffice", "formulas"}
        ``auto`` walks the formula itself (implicit intersection, tables, names, about 280 functions) and hands other
        functions to formualizer where it is installed. ``builtin`` needs no other package. The others give the whole
        formula, with the stored values that it refers to, to that engine.
    now : float, optional
        Serial number of the present; without it NOW and TODAY are unsupported.
    steps : int
        Limit of one evaluation.

    Raises
    ------
    EngineMissing
        If the engine is not installed.
    FormulaError
        If there is no engine of that name.

    Examples
    --------
    >>> book = Workbook.from_cells({"S": {"A1": 2, "A2": 3, "A3": "n/a"}})
    >>> Engine().evaluate(book, "S", (4, 1), "=SUM(A:A)*2")
    10.0
    >>> Engine().evaluate(book, "S", (4, 2), "=-2^2&\\"\\"")
    '4'
    >>> Engine("builtin").evaluate(book, "S", (4, 2), "=BESSELJ(1,2)")
    Unsupported(name='BESSELJ', why='')
    """

    def __init__(self, kind: str = "auto", *, now: float | None = None, steps: int = MAX_STEPS) -> None:
        if kind not in ENGINES:
            raise FormulaError(f"there is no engine {kind!r}; there is {', '.join(ENGINES)}")
        self.kind = kind
        self.now = now
        self.steps = steps
        self._other: Any = None
        self._delegate = None
        if kind == "auto":
            try:
                self._delegate = Formualizer().call
            except EngineMissing:
                self._delegate = None
        elif kind != "builtin":
            self._other = {"formualizer": Formualizer, "libreoffice": LibreOffice, "formulas": FormulasPackage}[kind]()

    @property
    def functions(self) -> list[str]:
        """Functions of the table, without those of other packages."""
        return sorted(FUNCTIONS)

    def evaluator(
        self, book: Workbook, values: Mapping[tuple[str, int, int], Value] | None = None, live: Any = None
    ) -> Evaluator:
        """An evaluator with the settings of this engine."""
        return Evaluator(book, values=values, live=live, now=self.now, steps=self.steps, delegate=self._delegate)

    def evaluate(
        self,
        book: Workbook,
        sheet: str,
        cell: str | tuple[int, int] | CellRef,
        formula: str | Formula,
        use_cached: bool = True,
        *,
        array: bool | None = None,
        values: Mapping[tuple[str, int, int], Value] | None = None,
    ) -> Value | np.ndarray | Unsupported:
        """Value of a formula in a cell.

        Parameters
        ----------
        use_cached : bool
            Other cells give their stored values. Otherwise formula cells that the formula depends on are calculated.
        array : bool, optional
            Whether the cell holds an array formula (no implicit intersection); default: what the workbook says.
        values : mapping of (sheet, row, col) to value, optional
            What cells hold instead.

        Returns
        -------
        value, object array[rows, cols] where the formula gives several, or Unsupported

        Raises
        ------
        FormulaSyntaxError, CellRefError, CircularReference
        """
        name = book.sheet(sheet).name
        at = _place(cell, name)
        read = parse(formula, at) if isinstance(formula, str) else formula
        if array is None:
            array = book.sheets[name].is_array(at.row, at.col)
        try:
            if self._other is not None:
                found = self._other.evaluate(book, at, read, dict(values or {}))
            elif use_cached:
                found = self.evaluator(book, values).evaluate(read, at, array)
            else:
                found = self._recalculated(book, at, read, array, dict(values or {}))
        except UnsupportedFunction as error:
            return Unsupported(error.name, str(error).partition("here: ")[2])
        return as_array(found)

    def _recalculated(
        self, book: Workbook, at: CellRef, read: Formula, array: bool, values: dict[tuple[str, int, int], Value]
    ) -> Value | Grid:
        for place in upstream(book, read, at, limit=200_000):
            if place in values:
                continue
            sheet, row, col = place
            run = self.evaluator(book, values)
            values[place] = run.cell_value(
                book.sheets[sheet].formula(row, col) or "", CellRef(*place), book.sheets[sheet].is_array(row, col)
            )
        return self.evaluator(book, values).evaluate(read, at, array)


def _place(cell: str | tuple[int, int] | CellRef, sheet: str) -> CellRef:
    from assay.formulas.grammar import parse_address

    if isinstance(cell, CellRef):
        return cell._replace(sheet=sheet)
    return parse_address(cell)._replace(sheet=sheet) if isinstance(cell, str) else CellRef(sheet, *cell)


def as_array(found: Value | Grid) -> Value | np.ndarray:
    """A grid as an object array."""
    if not isinstance(found, list):
        return found
    out = np.empty((len(found), len(found[0])), object)
    for i, row in enumerate(found):
        for j, value in enumerate(row):
            out[i, j] = value
    return out


def upstream(book: Workbook, formula: Formula, at: CellRef, limit: int = 5000) -> list[tuple[str, int, int]]:
    """Formula cells that a formula depends on, those that others need first.

    Raises
    ------
    CircularReference
        With the cells of the circle.
    UnsupportedFunction
        If there are more than the limit.

    Examples
    --------
    >>> book = Workbook.from_cells({"S": {"A1": 1, "A2": "=A1+1", "A3": "=A2+1"}})
    >>> upstream(book, parse("=A3*2"), CellRef("S", 4, 1))
    [('S', 2, 1), ('S', 3, 1)]
    """
    order: list[tuple[str, int, int]] = []
    state: dict[tuple[str, int, int], int] = {(at.sheet, at.row, at.col): 1}
    stack: list[tuple[tuple[str, int, int], list[tuple[str, int, int]]]] = [
        ((at.sheet, at.row, at.col), formula_precedents(book, formula, at))
    ]
    while stack:
        place, waiting = stack[-1]
        if not waiting:
            stack.pop()
            state[place] = 2
            if stack:
                order.append(place)
            continue
        following = waiting.pop()
        known = state.get(following, 0)
        if known == 2:
            continue
        if known == 1:
            path = [str(CellRef(*p)) for p, _ in stack]
            raise CircularReference([*path[path.index(str(CellRef(*following))) :], str(CellRef(*following))])
        state[following] = 1
        if len(state) > limit:
            raise UnsupportedFunction("the formula", f"it depends on more than {limit:,} formulas")
        text = book.sheets[following[0]].formula(*following[1:]) or ""
        where = CellRef(*following)
        try:
            needed = formula_precedents(book, parse(text, where), where)
        except (CellRefError, FormulaError):
            needed = []
        stack.append((following, needed))
    return order


def formula_precedents(book: Workbook, formula: Formula, at: CellRef) -> list[tuple[str, int, int]]:
    """Formula cells that a formula refers to directly."""
    found: list[tuple[str, int, int]] = []
    for sheet, row1, col1, row2, col2 in boxes(formula, book, at):
        here = book.sheets[sheet]
        if (row2 - row1 + 1) * (col2 - col1 + 1) <= 64:
            for row in range(row1, row2 + 1):
                for col in range(col1, col2 + 1):
                    if here.formula(row, col) is not None:
                        found.append((sheet, row, col))
            continue
        a = here.arrays()
        first, last = np.searchsorted(a.row, [row1, row2 + 1])
        part = slice(int(first), int(last))
        hit = (a.cls[part] >= 0) & (a.col[part] >= col1) & (a.col[part] <= col2)
        found.extend((sheet, int(r), int(c)) for r, c in zip(a.row[part][hit], a.col[part][hit], strict=True))
    return found


def is_error(value: object) -> bool:
    """Whether a value is an Excel error."""
    return isinstance(value, ErrorValue)


__all__ = [
    "ENGINES",
    "CircularReference",
    "Engine",
    "Unsupported",
    "as_array",
    "formula_precedents",
    "is_error",
    "upstream",
]
