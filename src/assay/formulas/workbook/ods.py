"""Reading .ods (OpenDocument): cells, formulas in A1 notation, number formats and names."""

from __future__ import annotations

import re
import zipfile
from typing import Any
from xml.etree import ElementTree

import numpy as np

from assay.formulas.grammar import MAX_COL, MAX_ROW, quote_sheet
from assay.formulas.workbook.model import Sheet, Workbook
from assay.formulas.workbook.reading import limit_error, parts_of
from assay.formulas.workbook.store import WIDTH, Store, Style, kind_of
from assay.formulas.workbook.values import ErrorValue, Value, serial_from_iso

_NS = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
_TABLE, _OFFICE, _TEXT = _NS % "table", _NS % "office", _NS % "text"
_STYLE, _NUMBER = _NS % "style", _NS % "datastyle"
_CALC = "{urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0}"
_FORMATS = {"percentage": "%", "currency": "$", "date": "d", "time": "d"}
_PLACE = re.compile(
    r"\"[^\"]*(?:\"\"[^\"]*)*\"|(;)|\[((?:'[^']*(?:''[^']*)*'|[^\]'])*)\]|(?<=[0-9)\]\"])\s*(~)|(!)(?=\s*\[)|(\{[^}]*\})"
)
_POINT = re.compile(r"(?:\$?('(?:[^']|'')*'|[^.:'$]*))?\.(\$?[A-Za-z]{1,3}\$?[0-9]+|\$?[A-Za-z]{1,3}|\$?[0-9]+)\Z")


def a1_formula(text: str) -> str:
    """An OpenFormula text in the notation of the other formats.

    >>> a1_formula("of:=SUM([.A1:.A5];[$'My Data'.$B$2];\\"a;b\\")")
    'SUM(A1:A5,\\'My Data\\'!$B$2,"a;b")'
    """
    text = re.sub(r"\A(?:of|oooc|msoxl):", "", text)
    text = text[1:] if text[:1] == "=" else text

    def changed(match: re.Match[str]) -> str:
        semicolon, place, union, cross, array = match.groups()
        if semicolon or union:
            return ","
        if cross:
            return " "
        if array:
            return array.replace(";", ",").replace("|", ";")
        return _reference(place) if place is not None else match[0]

    return _PLACE.sub(changed, text)


def _reference(place: str) -> str:
    parts = _split(place)
    found = []
    first_sheet = ""
    for i, part in enumerate(parts):
        match = _POINT.match(part)
        if match is None:
            return "#REF!" if "#REF!" in place else f"[{place}]"
        sheet = match[1] or ""
        sheet = sheet[1:-1].replace("''", "'") if sheet[:1] == "'" else sheet
        if i == 0:
            first_sheet = sheet
        shown = sheet if sheet and (i == 0 or sheet != first_sheet) else ""
        found.append((shown, match[2]))
    if len(found) == 2 and found[1][0] and found[0][0]:  # cells of several sheets
        inside = found[0][1] if found[0][1] == found[1][1] else f"{found[0][1]}:{found[1][1]}"
        return f"'{found[0][0]}:{found[1][0]}'!{inside}"
    return ":".join((quote_sheet(sheet) + "!" if sheet else "") + address for sheet, address in found)


def _split(place: str) -> list[str]:
    parts, quoted, start = [], False, 0
    for i, letter in enumerate(place):
        if letter == "'":
            quoted = not quoted
        elif letter == ":" and not quoted:
            parts.append(place[start:i])
            start = i + 1
    return [*parts, place[start:]]


def _value(cell: Any, text: str) -> tuple[Value, str]:
    kind = cell.get(f"{_OFFICE}value-type") or ""
    given = cell.get(f"{_OFFICE}value")
    error = cell.get(f"{_CALC}value-type") == "error"
    if error:
        shown = text.strip()
        known = {"#DIV/0!", "#N/A", "#NAME?", "#NUM!", "#REF!", "#VALUE!", "#NULL!"}
        codes = {"Err:502": "#VALUE!", "Err:503": "#NUM!", "Err:504": "#REF!", "Err:508": "#NAME?", "Err:522": "#REF!"}
        return ErrorValue(shown if shown in known else codes.get(shown, "#VALUE!")), ""
    if kind in ("float", "percentage", "currency") and given is not None:
        return float(given), _FORMATS.get(kind, "")
    if kind == "boolean":
        return cell.get(f"{_OFFICE}boolean-value") == "true", ""
    if kind == "date":
        return serial_from_iso(cell.get(f"{_OFFICE}date-value") or "1899-12-30"), "d"
    if kind == "time":
        match = re.match(r"PT(\d+)H(\d+)M([\d.]+)S", cell.get(f"{_OFFICE}time-value") or "")
        return (int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])) / 86400 if match else None, "d"
    if kind == "string":
        return cell.get(f"{_OFFICE}string-value") or text, ""
    return None, ""


def _styles(root: Any) -> dict[str, Style]:
    found = {}
    for style in root.iter(f"{_STYLE}style"):
        if style.get(f"{_STYLE}family") != "table-cell":
            continue
        bold = fill = border = False
        for part in style.iter():
            for name, value in part.attrib.items():
                short = name.rpartition("}")[2]
                bold = bold or (short == "font-weight" and value == "bold")
                fill = fill or (short == "background-color" and value != "transparent")
                border = border or (short.startswith("border") and value not in ("none", ""))
        found[style.get(f"{_STYLE}name") or ""] = Style("", bold, fill, border)
    return found


def read_ods(archive: zipfile.ZipFile, path: str, max_cells: int) -> Workbook:
    """Read an OpenDocument spreadsheet whose archive has passed the guard."""
    with archive.open("content.xml") as part:
        root = ElementTree.parse(part).getroot()
    looks = _styles(root)
    known: dict[Style, int] = {Style(): 0}
    sheets = []
    left = max_cells
    for table in root.iter(f"{_TABLE}table"):
        if table.get(f"{_TABLE}name") is None:
            continue
        sheet = _sheet(table, looks, known, path, left, max_cells)
        left -= len(sheet.store.row)
        sheets.append(sheet)
    styles = list(known)
    for sheet in sheets:
        sheet.styles = styles
    names = {}
    for name in root.iter(f"{_TABLE}named-range"):
        address = name.get(f"{_TABLE}cell-range-address") or ""
        names["", (name.get(f"{_TABLE}name") or "").upper()] = _reference(address.replace("$", "$"))
    for name in root.iter(f"{_TABLE}named-expression"):
        names["", (name.get(f"{_TABLE}name") or "").upper()] = a1_formula(name.get(f"{_TABLE}expression") or "")
    parts = set(parts_of(set(archive.namelist())))
    if any(n.startswith(("Basic/", "Scripts/")) for n in archive.namelist()):
        parts.add("macros")
    if any(n.startswith("Object ") for n in archive.namelist()):
        parts.add("charts")
    return Workbook(sheets, (), names, False, path, frozenset(parts))


def _sheet(table: Any, looks: dict[str, Style], known: dict[Style, int], path: str, left: int, limit: int) -> Sheet:
    found: list[tuple[int, int, Value, str | None, int]] = []
    blocks: dict[tuple[int, int], tuple[int, int, int, int]] = {}
    merged = []
    row = 0
    for line in table.iter(f"{_TABLE}table-row"):
        repeat_rows = int(line.get(f"{_TABLE}number-rows-repeated") or 1)
        col = 0
        cells: list[tuple[int, Value, str | None, int]] = []
        for cell in line:
            if cell.tag not in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
                continue
            repeat = int(cell.get(f"{_TABLE}number-columns-repeated") or 1)
            text = "\n".join("".join(p.itertext()) for p in cell.findall(f"{_TEXT}p"))
            value, fmt = _value(cell, text)
            formula = cell.get(f"{_TABLE}formula")
            if value is not None or formula is not None:
                look = looks.get(cell.get(f"{_TABLE}style-name") or "", Style())._replace(fmt=fmt)
                style = known.setdefault(look, len(known))
                converted = a1_formula(formula) if formula is not None else None
                for extra in range(min(repeat, MAX_COL - col)):
                    cells.append((col + 1 + extra, value, converted, style))
                    if len(found) + len(cells) > left:
                        raise limit_error(path, limit)
                down, across = (cell.get(f"{_TABLE}number-matrix-{n}-spanned") for n in ("rows", "columns"))
                if down:
                    blocks[row + 1, col + 1] = (row + 1, col + 1, row + int(down), col + int(across or 1))
            span_r, span_c = (int(cell.get(f"{_TABLE}number-{n}-spanned") or 1) for n in ("rows", "columns"))
            if span_r > 1 or span_c > 1:
                merged.append((row + 1, col + 1, row + span_r, col + span_c))
            col += repeat
        if cells:
            if len(found) + len(cells) * min(repeat_rows, MAX_ROW - row) > left:
                raise limit_error(path, limit)
            for extra in range(min(repeat_rows, MAX_ROW - row)):
                found.extend((row + 1 + extra, *cell) for cell in cells)
        row += repeat_rows
    store = Store(
        np.array([f[0] for f in found], np.int32),
        np.array([f[1] for f in found], np.int32),
        np.array([kind_of(f[2]) for f in found], np.uint8),
        np.array([f[4] for f in found], np.int32),
        [f[2] for f in found],
        {i: f[3] for i, f in enumerate(found) if f[3]},
        arrays={i: blocks[f[0], f[1]] for i, f in enumerate(found) if (f[0], f[1]) in blocks},
        missing=frozenset(f[0] * WIDTH + f[1] for f in found if f[3] and f[2] is None),
    )
    return Sheet(table.get(f"{_TABLE}name"), store, [Style()], merged)
