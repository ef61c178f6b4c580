"""Workbooks: cells as arrays, values, styles, tables and names; readers of .xlsx, .xlsm and .ods."""

from assay.formulas.workbook.model import Sheet, Workbook
from assay.formulas.workbook.store import Cell, CellArrays, Style, Table
from assay.formulas.workbook.values import ErrorValue, Value, date_from_serial, serial_from_date

__all__ = [
    "Cell", "CellArrays", "ErrorValue", "Sheet", "Style", "Table", "Value", "Workbook", "date_from_serial",
    "serial_from_date",
]  # fmt: skip
