"""Reading .xlsx and .xlsm: openpyxl unpacks the package, strings, styles and names; cells go straight into columns."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
from openpyxl.cell.text import Text
from openpyxl.packaging.relationship import RelationshipList, get_dependents, get_rels_path
from openpyxl.reader.excel import ExcelReader
from openpyxl.styles.numbers import BUILTIN_FORMATS, BUILTIN_FORMATS_MAX_SIZE
from openpyxl.styles.stylesheet import apply_stylesheet
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from openpyxl.worksheet._reader import (
    FORMULA_TAG,
    INLINE_STRING,
    MERGE_TAG,
    ROW_TAG,
    TABLE_TAG,
    VALUE_TAG,
    MergeCells,
    TablePartList,
    WorkSheetParser,
)
from openpyxl.worksheet.table import Table as XlsxTable
from openpyxl.xml.functions import fromstring, iterparse

from assay.formulas.errors import FormulaError, WorkbookError
from assay.formulas.grammar import MAX_COL, MAX_ROW, CellRef, parse, parse_address, parse_area
from assay.formulas.workbook.model import Sheet, Workbook
from assay.formulas.workbook.reading import limit_error, parts_of, style_letter
from assay.formulas.workbook.store import BOOL, ERROR, NUMBER, TEXT, WIDTH, Store, Style, Table
from assay.formulas.workbook.values import ErrorValue, Value, serial_from_iso


class _Cells(WorkSheetParser):
    """Rows, merged ranges and tables of a sheet; nothing else of it is read."""

    def __init__(self, source: Any, strings: list[str], date1904: bool, path: str, max_cells: int) -> None:
        super().__init__(source, strings)
        self.path, self.max_cells, self.date1904 = path, max_cells, date1904
        self.rows: list[int] = []
        self.cols: list[int] = []
        self.kinds: list[int] = []
        self.styles: list[int] = []
        self.values: list[Value] = []
        self.formulas: dict[int, str | tuple[int, int]] = {}
        self.groups: dict[str, int] = {}
        self.shared: list[str] = []
        self.blocks: dict[int, tuple[int, int, int, int]] = {}
        self.missing: set[int] = set()
        self.merged: Any = None

    def read(self) -> None:
        row = 0
        for _, element in iterparse(self.source):
            tag = element.tag
            if tag == ROW_TAG:
                row = int(element.get("r") or row + 1)
                col = 0
                for cell in element:
                    col = self.cell(cell, row, col)
                element.clear()
            elif tag == MERGE_TAG:
                self.merged = MergeCells.from_tree(element)
                element.clear()
            elif tag == TABLE_TAG:
                self.tables = TablePartList.from_tree(element)
                element.clear()

    def cell(self, element: Any, row: int, col: int) -> int:
        address = element.get("r")
        if address:
            place = parse_address(address)
            row, col = place.row, place.col
        else:
            col += 1
        if row > MAX_ROW or col > MAX_COL:
            raise WorkbookError(f"{self.path or 'the workbook'} has a cell outside the grid (row {row}, column {col})")
        formula = element.find(FORMULA_TAG)
        value, kind = self.stored(element)
        style = int(element.get("s") or 0)
        if formula is None and value is None and not style:
            return col
        position = len(self.rows)
        if position >= self.max_cells:
            raise limit_error(self.path, self.max_cells)
        self.rows.append(row)
        self.cols.append(col)
        self.kinds.append(kind)
        self.styles.append(style)
        self.values.append(value)
        if formula is not None:
            self.formula_of(formula, element, position, row, col)
            if value is None and position in self.formulas:
                self.missing.add(row * WIDTH + col)
        return col

    def stored(self, element: Any) -> tuple[Value, int]:
        kind = element.get("t", "n")
        if kind == "inlineStr":
            child = element.find(INLINE_STRING)
            return (Text.from_tree(child).content, TEXT) if child is not None else (None, 0)
        text = element.findtext(VALUE_TAG)
        if text is None:
            return None, 0
        if kind == "str":
            return text, TEXT
        if text == "":
            return None, 0
        if kind == "n":
            return float(text), NUMBER
        if kind == "s":
            return self.shared_strings[int(text)], TEXT
        if kind == "b":
            return text.strip() not in ("0", "false"), BOOL
        if kind == "e":
            return ErrorValue(text), ERROR
        if kind == "d":
            return serial_from_iso(text, self.date1904), NUMBER
        raise WorkbookError(f"{self.path or 'the workbook'} has a cell of the unknown type {kind!r}")

    def formula_of(self, formula: Any, element: Any, position: int, row: int, col: int) -> None:
        kind, text = formula.get("t"), formula.text
        if kind == "dataTable":
            return
        if kind == "shared":
            group = formula.get("si")
            if text:
                try:
                    self.groups[group] = len(self.shared)
                    self.shared.append(parse(text, CellRef("", row, col)).to_r1c1())
                except FormulaError:
                    self.groups.pop(group, None)
                self.formulas[position] = text
            elif group in self.groups:
                self.formulas[position] = (self.groups[group], 0)
            return
        if not text:
            return
        self.formulas[position] = text
        if kind == "array" or element.get("cm"):
            first, last = parse_area(formula.get("ref") or element.get("r") or CellRef("", row, col).address)
            self.blocks[position] = (first.row, first.col, last.row, last.col)


class _Reader(ExcelReader):
    def read_cells(self, path: str, max_cells: int) -> Workbook:
        self.read_manifest()
        self.read_strings()
        self.read_workbook()
        apply_stylesheet(self.archive, self.wb)
        date1904 = self.wb.epoch == CALENDAR_MAC_1904
        styles = _styles(self.wb)
        sheets: list[Sheet] = []
        tables: list[Table] = []
        order: list[str] = []
        for sheet, rel in self.parser.find_sheets():
            order.append(sheet.name)
            if rel.target not in self.valid_files or "worksheet" not in rel.Type:
                continue
            with self.archive.open(rel.target) as source:
                cells = _Cells(source, self.shared_strings, date1904, path, max_cells)
                cells.read()
            max_cells -= len(cells.rows)
            sheets.append(_sheet(sheet.name, cells, styles))
            tables.extend(self.read_tables(cells, rel.target, sheet.name))
        names: dict[tuple[str, str], str] = {}
        for defined in self.parser.defined_names.definedName:
            if defined.value is None:
                continue
            where = "" if defined.localSheetId is None else order[int(defined.localSheetId)]
            names[where, defined.name.upper()] = defined.value
        return Workbook(sheets, tables, names, date1904, path, parts_of(set(self.valid_files)))

    def read_tables(self, cells: _Cells, target: str, sheet: str) -> list[Table]:
        rels_path = get_rels_path(target)
        if rels_path not in self.valid_files:
            return []
        rels: RelationshipList = get_dependents(self.archive, rels_path)
        found = []
        for part in cells.tables.tablePart:
            table = XlsxTable.from_tree(fromstring(self.archive.read(rels.get(part.id).target)))
            first, last = parse_area(table.ref)
            found.append(
                Table(
                    table.displayName or table.name, sheet, first.row, first.col, last.row, last.col,
                    tuple(_unescaped(column.name) for column in table.tableColumns),
                    1 if table.headerRowCount is None else int(table.headerRowCount), int(table.totalsRowCount or 0),
                )
            )  # fmt: skip
        return found


def _unescaped(name: str) -> str:
    return name.replace("_x000a_", "\n").replace("_x000A_", "\n").replace("_x000d_", "\r").replace("_x000D_", "\r")


def _sheet(name: str, cells: _Cells, styles: list[Style]) -> Sheet:
    row, col = np.array(cells.rows, np.int32), np.array(cells.cols, np.int32)
    merged = [(m.min_row, m.min_col, m.max_row, m.max_col) for m in cells.merged.mergeCell] if cells.merged else []
    keys = row.astype(np.int64) * WIDTH + col
    if len(keys) > 1 and (np.diff(keys) <= 0).any():  # some writers do not sort, or write a cell twice
        last = {key: i for i, key in enumerate(keys.tolist())}
        order = np.array([last[key] for key in sorted(last)])
        new = {int(old): i for i, old in enumerate(order)}
        row, col = row[order], col[order]
        cells.kinds = [cells.kinds[i] for i in order]
        cells.styles = [cells.styles[i] for i in order]
        cells.values = [cells.values[i] for i in order]
        cells.formulas = {new[i]: text for i, text in cells.formulas.items() if i in new}
        cells.blocks = {new[i]: block for i, block in cells.blocks.items() if i in new}
    store = Store(
        row, col, np.array(cells.kinds, np.uint8), np.array(cells.styles, np.int32), cells.values, cells.formulas,
        cells.shared, cells.blocks, frozenset(cells.missing),
    )  # fmt: skip
    store.formula_classes()
    return Sheet(name, store, styles, merged)


def _styles(book: Any) -> list[Style]:
    found = []
    for style in book._cell_styles:
        number = style.numFmtId
        if number < BUILTIN_FORMATS_MAX_SIZE:
            code = BUILTIN_FORMATS.get(number, "General")
        else:
            position = number - BUILTIN_FORMATS_MAX_SIZE
            code = book._number_formats[position] if position < len(book._number_formats) else "General"
        font = book._fonts[style.fontId] if style.fontId < len(book._fonts) else None
        fill = book._fills[style.fillId] if style.fillId < len(book._fills) else None
        border = book._borders[style.borderId] if style.borderId < len(book._borders) else None
        lines = [getattr(border, side, None) for side in ("left", "right", "top", "bottom")] if border else []
        found.append(
            Style(
                style_letter(code),
                bool(font is not None and font.b),
                bool(fill is not None and getattr(fill, "patternType", None) not in (None, "none")),
                any(line is not None and line.style for line in lines),
                code,
            )
        )
    return found or [Style()]


def read_xlsx(data: bytes, archive: zipfile.ZipFile, path: str, max_cells: int) -> Workbook:
    """Read a package whose archive has passed the guard."""
    reader = _Reader(io.BytesIO(data), read_only=True, keep_links=False)
    try:
        return reader.read_cells(path, max_cells)
    finally:
        reader.archive.close()
