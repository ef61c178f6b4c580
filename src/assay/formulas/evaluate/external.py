"""Engines that are packages or programs of their own, each behind one small class."""

from __future__ import annotations

import datetime as dt
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.formulas.errors import EngineMissing, UnsupportedFunction
from assay.formulas.evaluate.core import ABSENT, ErrorValue, Fault, Grid, Value
from assay.formulas.grammar import CellRef, Formula, column_name, quote_sheet
from assay.formulas.workbook.model import Workbook
from assay.formulas.workbook.resolve import boxes
from assay.formulas.workbook.values import serial_from_date

_ERRORS = {
    "Null": "#NULL!", "Div": "#DIV/0!", "Value": "#VALUE!", "Ref": "#REF!", "Name": "#NAME?", "Num": "#NUM!",
    "Na": "#N/A", "Spill": "#SPILL!", "Calc": "#CALC!",
}  # fmt: skip
_UNKNOWN = ("#NAME?", "#N/IMPL!", "#ERROR!", "#CANCELLED!", "#CIRC!")


def _formualizer() -> Any:
    try:
        import formualizer
    except ImportError as error:
        raise EngineMissing("the engine formualizer is not installed: pip install 'assay[formulas]'") from error
    return formualizer


def _plain(value: Any) -> Value | Grid:
    """A value of formualizer as one of ours."""
    if isinstance(value, list):
        return [[_one(v) for v in row] for row in value]
    return _one(value)


def _one(value: Any) -> Value:
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return value
    if isinstance(value, int):
        return float(value)
    if isinstance(value, dict):
        kind = str(value.get("kind", ""))
        return ErrorValue(_ERRORS.get(kind, kind if kind.startswith("#") else f"#{kind.upper()}!"))
    if isinstance(value, dt.datetime):
        day = serial_from_date(value.year, value.month, value.day)
        return day + (value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6) / 86400
    if isinstance(value, dt.date):
        return float(serial_from_date(value.year, value.month, value.day))
    if isinstance(value, dt.time):
        return (value.hour * 3600 + value.minute * 60 + value.second) / 86400
    if isinstance(value, dt.timedelta):
        return value.total_seconds() / 86400
    raise UnsupportedFunction("a result of formualizer", type(value).__name__)


class Formualizer:
    """formualizer (Rust): single functions for the evaluator, or a formula over stored values."""

    def __init__(self) -> None:
        self.module = _formualizer()
        self._scratch: Any = None

    def call(self, name: str, arguments: list[Any]) -> Value | Grid:
        """One function with given arguments.

        Raises
        ------
        UnsupportedFunction
            If formualizer does not know it.
        """
        book = self.module.Workbook()
        book.add_sheet("S")
        literal = self.module.LiteralValue
        places = []
        col = 1
        for argument in arguments:
            if argument is ABSENT:
                places.append("")
                continue
            grid = argument if isinstance(argument, list) else [[argument]]
            for i, row in enumerate(grid):
                for j, value in enumerate(row):
                    if isinstance(value, ErrorValue):
                        raise Fault(value)
                    if value is not None:
                        book.set_value(
                            "S", i + 1, col + j, literal.number(value) if isinstance(value, float) else value
                        )
            last = f":{column_name(col + len(grid[0]) - 1)}{len(grid)}" if isinstance(argument, list) else ""
            places.append(f"{column_name(col)}1{last}")
            col += len(grid[0]) + 1
            if col > 1000:
                raise UnsupportedFunction(name, "too many columns of arguments")
        book.set_formula("S", 1, 1100, f"={name}({','.join(places)})")
        return self._result(book, "S", 1, 1100, name)

    def _result(self, book: Any, sheet: str, row: int, col: int, name: str) -> Value | Grid:
        try:
            found = _plain(book.evaluate_cell(sheet, row, col))
        except UnsupportedFunction:
            raise
        except Exception as error:
            raise UnsupportedFunction(name, f"formualizer: {str(error)[:120]}") from error
        first = found[0][0] if isinstance(found, list) else found
        if isinstance(first, ErrorValue) and first.kind in _UNKNOWN:
            raise UnsupportedFunction(name, f"formualizer gives {first}")
        if isinstance(first, ErrorValue) and not isinstance(found, list):
            raise Fault(first)
        return found

    def evaluate(
        self, book: Workbook, at: CellRef, formula: Formula, values: Mapping[tuple[str, int, int], Value]
    ) -> Value | Grid:
        """A whole formula in formualizer, over the stored values of the cells that it refers to."""
        made = self.module.Workbook()
        for name in book.sheets:
            made.add_sheet(name)
        count = 0
        for sheet, row1, col1, row2, col2 in boxes(formula, book, at):
            for row in range(row1, row2 + 1):
                for col in range(col1, col2 + 1):
                    place = (sheet, row, col)
                    value = values[place] if place in values else book.sheets[sheet].value(row, col)
                    count += 1
                    if count > 500_000:
                        raise UnsupportedFunction("the formula", "it refers to more than 500,000 cells")
                    if isinstance(value, ErrorValue):
                        made.set_formula(sheet, row, col, f"={value.kind}")
                    elif value is not None:
                        made.set_value(sheet, row, col, value)
        row, col = at.row, at.col
        text = formula.to_a1()
        if formula.structured() or formula.names():
            raise UnsupportedFunction("a name or table", "in formualizer alone")
        made.set_formula(at.sheet, row, col, f"={text}")
        try:
            return self._result(made, at.sheet, row, col, "the formula")
        except Fault as fault:
            return fault.error


class LibreOffice:
    """LibreOffice Calc without a window: a small workbook is written, converted and its stored value read back."""

    def __init__(self, program: str | None = None) -> None:
        found = program or shutil.which("soffice") or shutil.which("libreoffice")
        if found is None:
            raise EngineMissing(
                "LibreOffice is not installed: the program soffice is needed (Debian: libreoffice-calc)"
            )
        self.program = found

    def evaluate(
        self, book: Workbook, at: CellRef, formula: Formula, values: Mapping[tuple[str, int, int], Value]
    ) -> Value | Grid:
        """A formula over the stored values of the cells that it refers to."""
        import openpyxl

        made = openpyxl.Workbook()
        made.remove(made.active)
        for name in book.sheets:
            made.create_sheet(name)
        for sheet, row1, col1, row2, col2 in boxes(formula, book, at):
            for row in range(row1, row2 + 1):
                for col in range(col1, col2 + 1):
                    place = (sheet, row, col)
                    value = values[place] if place in values else book.sheets[sheet].value(row, col)
                    if isinstance(value, ErrorValue):
                        made[sheet].cell(row, col).value = f"={value.kind}"
                    elif value is not None:
                        made[sheet].cell(row, col).value = value
        if formula.structured() or formula.names():
            raise UnsupportedFunction("a name or table", "in LibreOffice over stored values")
        made[at.sheet].cell(at.row, at.col).value = "=" + formula.to_a1()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "in.xlsx")
            made.save(source)
            profile = Path(folder, "profile").as_uri()
            subprocess.run(
                [self.program, f"-env:UserInstallation={profile}", "--headless", "--norestore", "--convert-to", "xlsx",
                 "--outdir", str(Path(folder, "out")), str(source)],
                check=False, capture_output=True, timeout=120,
            )  # fmt: skip
            result = Path(folder, "out", "in.xlsx")
            if not result.exists():
                raise UnsupportedFunction("the formula", "LibreOffice wrote no result")
            return Workbook.open(result).value(at)


class FormulasPackage:
    """The Python package ``formulas``: one formula over given cells."""

    def __init__(self) -> None:
        try:
            import formulas
        except ImportError as error:
            raise EngineMissing("the engine formulas is not installed: pip install formulas") from error
        self.module = formulas

    def evaluate(
        self, book: Workbook, at: CellRef, formula: Formula, values: Mapping[tuple[str, int, int], Value]
    ) -> Value | Grid:
        """A formula over the stored values of the cells that it refers to."""
        import numpy as np

        call = self.module.Parser().ast("=" + formula.to_a1())[1].compile()
        given = []
        for key in call.inputs:
            ref = next(r for r in formula.references() if _key(r) == key.upper().replace("$", ""))
            row1, col1, row2, col2 = ref.box()
            sheet = book.sheet(ref.sheet).name if ref.sheet else at.sheet
            last_row, last_col = book.sheets[sheet].bounds[2:]
            given.append(
                np.array(
                    [
                        [_for_formulas(values.get((sheet, r, c), book.sheets[sheet].value(r, c)))
                         for c in range(col1, min(col2, max(last_col, col1)) + 1)]
                        for r in range(row1, min(row2, max(last_row, row1)) + 1)
                    ],
                    object,
                )
            )  # fmt: skip
        found = np.asarray(call(*given), object)
        if found.size == 0:
            raise UnsupportedFunction("the formula", "formulas gave nothing")
        rows = [[_from_formulas(v) for v in row] for row in np.atleast_2d(found)]
        return rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else rows


def _key(ref: Any) -> str:
    from assay.formulas.grammar.printer import a1

    return ((quote_sheet(ref.sheet) + "!" if ref.sheet else "") + a1(ref, dollars=False)).upper()


def _for_formulas(value: Value) -> Any:
    return "" if value is None else str(value) if isinstance(value, ErrorValue) else value


def _from_formulas(value: Any) -> Value:
    if isinstance(value, (bool, str)):
        return bool(value) if not isinstance(value, str) else value
    if isinstance(value, (int, float)):
        return float(value)
    text = str(value)
    return ErrorValue(text) if text.startswith("#") else float(value)
