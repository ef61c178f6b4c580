"""Reading workbooks: what is in them, and files that are hostile or broken."""

from __future__ import annotations

import hashlib
import io
import zipfile

import numpy as np
import openpyxl
import pytest
import xlsxwriter

from assay.formulas import (
    CellRefError,
    ErrorValue,
    Style,
    Workbook,
    WorkbookError,
    make_workbook,
    parse,
    recalculated,
    write_xlsx,
)
from assay.formulas.workbook.ods import a1_formula
from assay.formulas.workbook.values import date_from_serial, number_text, serial_from_date


def _rewritten(path, out, change):
    """A copy of a package in which ``change(name, data)`` gives the data of each part (None leaves it out)."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            data = change(name, source.read(name))
            if data is not None:
                target.writestr(name, data)
    return out


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.xlsx"
    made = xlsxwriter.Workbook(str(path))
    page = made.add_worksheet("Data")
    bold = made.add_format({"bold": True, "bg_color": "#cccccc"})
    page.write_row(0, 0, ["Item", "Qty", "When"], bold)
    page.write_row(1, 0, ["bolt", 2])
    page.write_number(1, 2, 45292.0, made.add_format({"num_format": "yyyy-mm-dd"}))
    page.write_boolean(2, 0, True)
    page.write_formula(2, 1, "=B2*2", None, 4)
    page.write_formula(3, 1, "=1/0", None, "#DIV/0!")
    page.write_array_formula("D1:D2", "{=B2:B3*2}", None, 4)
    page.merge_range("A6:C6", "wide")
    page.add_table("F1:G3", {"name": "Prices", "columns": [{"header": "Name"}, {"header": "Price "}]})
    made.define_name("Rate", "=Data!$B$2")
    other = made.add_worksheet("Other sheet")
    other.write_formula("A1", "=Data!B2+1", None, 3)
    made.close()
    return path


def test_cells_styles_tables_names(small):
    before = hashlib.sha256(small.read_bytes()).hexdigest()
    book = Workbook.open(small)
    sheet = book.sheets["Data"]
    assert list(book.sheets) == ["Data", "Other sheet"]
    assert sheet.get(1, 1).bold and sheet.get(1, 1).fill and sheet.value(1, 1) == "Item"
    assert sheet.get(2, 3).fmt == "d" and sheet.value(2, 3) == 45292.0
    assert sheet.value(3, 1) is True and sheet.formula(3, 2) == "B2*2" and sheet.value(3, 2) == 4.0
    assert sheet.value(4, 2) == ErrorValue("#DIV/0!")
    assert sheet.is_array(1, 4) and sheet.array_block(1, 4) == (1, 4, 2, 4)
    assert sheet.merged == [(6, 1, 6, 3)]
    assert book.tables["PRICES"].columns == ("Name", "Price ") and book.tables["PRICES"].col1 == 6
    assert book.names["", "RATE"] == "Data!$B$2"
    assert book.formula(book.address("'other SHEET'!A1")) == "Data!B2+1"
    assert sheet.bounds[:2] == (1, 1)
    assert hashlib.sha256(small.read_bytes()).hexdigest() == before


def test_bytes_are_read_as_files_are(small):
    assert Workbook.open(small.read_bytes()).sheets["Data"].value(1, 1) == "Item"


def test_shared_formulas_are_expanded(public):
    sheet = next(iter(public("shared_formulas.xlsx").sheets.values()))
    assert any(isinstance(text, tuple) for text in sheet.store.formula.values()) or len(sheet.store.shared) > 0
    for row, col, formula in sheet.formula_cells():
        parse(formula, (row, col))
    book = public("TestShiftRowSharedFormula.xlsx")
    # openpyxl expands the groups in its own way
    peer = openpyxl.load_workbook(book.path)
    for page in peer.worksheets:
        for line in page.iter_rows():
            for cell in line:
                if cell.data_type == "f":
                    own = book.sheets[page.title].formula(cell.row, cell.column)
                    assert parse(own).canonical() == parse(str(cell.value)).canonical()


def test_values_agree_with_calamine(public):
    CalamineWorkbook = pytest.importorskip("python_calamine").CalamineWorkbook

    for name in ("54206.xlsx", "simple-monthly-budget.xlsx", "45544.xlsx"):
        book = public(name)
        peer = CalamineWorkbook.from_path(book.path)
        for sheet in book.sheets.values():
            page = peer.get_sheet_by_name(sheet.name)
            rows = page.to_python(skip_empty_area=False)
            compared = 0
            for (row, col), cell in sheet.cells.items():
                if isinstance(cell.value, (float, str)) and cell.fmt != "d" and cell.value != "":
                    other = rows[row - 1][col - 1]
                    compared += 1
                    if isinstance(other, (int, float, str)):
                        assert (
                            other == pytest.approx(cell.value) if isinstance(cell.value, float) else other == cell.value
                        )
            assert compared > 0


def test_dates_of_1904(tmp_path):
    path = tmp_path / "mac.xlsx"
    made = xlsxwriter.Workbook(str(path), {"date_1904": True})
    made.add_worksheet("S").write_number(0, 0, 10)
    made.close()
    book = Workbook.open(path)
    assert book.date1904
    assert date_from_serial(book.sheets["S"].value(1, 1), date1904=True) == (1904, 1, 11)
    with pytest.raises(ValueError):
        date_from_serial(-1)
    assert serial_from_date(2024, 14, 1) == serial_from_date(2025, 2, 1)


def test_numbers_as_text():
    assert [number_text(x) for x in (0.1, 1e15, 123456789.123, 1e-11, -0.0)] == [
        "0.1", "1E+15", "123456789.123", "1E-11", "0"
    ] or number_text(1e15) == "1000000000000000"  # fmt: skip


def test_a_made_workbook_survives_its_file(tmp_path):
    book = make_workbook("inventory", seed=5)
    write_xlsx(book, tmp_path / "x.xlsx")
    again = Workbook.open(tmp_path / "x.xlsx")
    for name, sheet in book.sheets.items():
        for place, cell in sheet.cells.items():
            other = again.sheets[name].get(*place)
            assert other.value == cell.value or other.value == pytest.approx(cell.value)
            assert other.formula == cell.formula and other.style.fmt == cell.style.fmt


# -- .ods ------------------------------------------------------------------------------------------------------------

_CONTENT = """<?xml version="1.0" encoding="UTF-8"?>
<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"
 xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"
 xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"
 xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0"
 xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0">
<office:automatic-styles><style:style style:name="b" style:family="table-cell">
<style:text-properties fo:font-weight="bold"/>
</style:style></office:automatic-styles>
<office:body><office:spreadsheet><table:table table:name="My Data">
<table:table-row><table:table-cell office:value-type="string" table:style-name="b">
<text:p>Qty</text:p></table:table-cell>
<table:table-cell office:value-type="percentage" office:value="0.5"><text:p>50 %</text:p></table:table-cell>
<table:table-cell table:number-columns-repeated="16000"/></table:table-row>
<table:table-row table:number-rows-repeated="2"><table:table-cell office:value-type="float" office:value="3"/>
<table:table-cell table:formula="of:=SUM([.A2:.A3];[$'My Data'.$B$1])" office:value-type="float" office:value="6.5"/>
</table:table-row>
<table:table-row><table:table-cell office:value-type="date" office:date-value="2024-01-01"/></table:table-row>
<table:table-row table:number-rows-repeated="1048000">
<table:table-cell table:number-columns-repeated="16384"/></table:table-row>
</table:table></office:spreadsheet></office:body></office:document-content>"""


def _ods(path, content=_CONTENT):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", content)
    return path


def test_ods(tmp_path):
    book = Workbook.open(_ods(tmp_path / "x.ods"))
    sheet = book.sheets["My Data"]
    assert sheet.get(1, 1).bold and sheet.get(1, 2).fmt == "%" and sheet.value(1, 2) == 0.5
    assert sheet.formula(2, 2) == "SUM(A2:A3,'My Data'!$B$1)" and sheet.value(3, 1) == 3.0
    assert sheet.value(4, 1) == 45292.0 and sheet.get(4, 1).fmt == "d"
    assert len(sheet) == 7


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("of:=[.A1]+[Sheet2.B2]", "A1+Sheet2!B2"),
        ('of:=IF([.A1]>0;"a;b";[.$B$2])', 'IF(A1>0,"a;b",$B$2)'),
        ("of:=SUM([.A1:.A3]~[.C1])", "SUM(A1:A3,C1)"),
        ("of:={1;2|3;4}", "{1,2;3,4}"),
        ("of:=SUM([$'It''s'.A1:.B2])", "SUM('It''s'!A1:B2)"),
    ],
)
def test_ods_formulas(text, wanted):
    assert a1_formula(text) == wanted
    parse(a1_formula(text))


def test_ods_rows_repeated_without_end_are_bounded(tmp_path):
    bomb = _CONTENT.replace('table:number-rows-repeated="2"', 'table:number-rows-repeated="1000000000"')
    with pytest.raises(WorkbookError, match="more than 100,000 cells"):
        Workbook.open(_ods(tmp_path / "x.ods", bomb), max_cells=100_000)


# -- hostile files ---------------------------------------------------------------------------------------------------


def test_encrypted_and_old_formats_are_named():
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600
    with pytest.raises(WorkbookError, match="encrypted"):
        Workbook.open(ole + "EncryptedPackage".encode("utf-16-le"))
    with pytest.raises(WorkbookError, match=r"\.xls"):
        Workbook.open(ole)


def test_corrupt_files_are_named(small, tmp_path):
    data = small.read_bytes()
    for broken in (b"", b"not a workbook", data[: len(data) // 2], b"PK\x03\x04" + b"x" * 100):
        with pytest.raises(WorkbookError):
            Workbook.open(broken)
    flipped = bytearray(data)
    for i in range(60, len(flipped) - 200, 97):
        flipped[i] ^= 0xFF
    with pytest.raises(WorkbookError):
        Workbook.open(bytes(flipped))
    with pytest.raises(WorkbookError, match="cannot be read"):
        Workbook.open(tmp_path / "missing.xlsx")
    empty = io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("hello.txt", "x")
    with pytest.raises(WorkbookError, match="without a workbook"):
        Workbook.open(empty.getvalue())
    cut = _rewritten(small, tmp_path / "cut.xlsx", lambda n, d: d[:200] if n.endswith("sheet1.xml") else d)
    with pytest.raises(WorkbookError, match="damaged"):
        Workbook.open(cut)


def test_a_zip_bomb_is_not_unpacked(small, tmp_path):
    bomb = _rewritten(
        small, tmp_path / "bomb.xlsx", lambda n, d: d + b" " * 120_000_000 if n.endswith("sheet1.xml") else d
    )
    assert bomb.stat().st_size < 1_000_000
    with pytest.raises(WorkbookError, match="zip bomb"):
        Workbook.open(bomb)
    with pytest.raises(WorkbookError, match="limit is 1,000"):
        Workbook.open(small.read_bytes(), max_bytes=1000)


def test_entities_are_refused(small, tmp_path):
    laughs = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'

    def change(name, data):
        return laughs + data.partition(b"?>")[2] if name == "xl/workbook.xml" else data

    with pytest.raises(WorkbookError, match="document type"):
        Workbook.open(_rewritten(small, tmp_path / "x.xlsx", change))


def test_cells_outside_the_grid_and_too_many_cells(small, tmp_path):
    def change(name, data):
        return data.replace(b'r="B2"', b'r="B9999999"') if name.endswith("sheet1.xml") else data

    outside = _rewritten(
        small,
        tmp_path / "x.xlsx",
        change,
    )
    with pytest.raises((WorkbookError, CellRefError)):
        Workbook.open(outside)
    with pytest.raises(WorkbookError, match="more than 5 cells"):
        Workbook.open(small, max_cells=5)


def test_macros_and_links_are_named_and_left_alone(small, tmp_path):
    def add(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("xl/vbaProject.bin", b"\0" * 10)
            archive.writestr("xl/externalLinks/externalLink1.xml", b"<x/>")
        return path

    copy = tmp_path / "macro.xlsm"
    copy.write_bytes(small.read_bytes())
    book = Workbook.open(add(copy))
    assert {"macros", "external links"} <= book.parts


def test_the_sheet_that_is_not_there(small):
    book = Workbook.open(small)
    with pytest.raises(CellRefError, match="'Data'"):
        book.sheet("Nope")
    with pytest.raises(CellRefError):
        book.address("Data!ZZZZ1")


# -- sheets made from sheets -----------------------------------------------------------------------------------------


def test_views_share_and_do_not_change_the_original():
    book = Workbook.from_cells(
        {"S": {"A1": 1, "A2": ("=A1*2", 2.0), "B1": "x"}}, styles={"S": {"B1": Style(bold=True)}}
    )
    sheet = book.sheets["S"]
    view = sheet.without([(2, 1)]).with_values({(1, 1): 5.0, (9, 9): "new"})
    assert view.value(2, 1) is None and view.formula(2, 1) is None and view.value(1, 1) == 5.0
    assert sheet.value(2, 1) == 2.0 and sheet.value(1, 1) == 1.0 and sheet.get(9, 9) is None
    assert list(view.cells) == [(1, 1), (1, 2), (9, 9)]
    assert view.bounds == (1, 1, 9, 9) and sheet.bounds == (1, 1, 2, 2)
    a = view.arrays()
    np.testing.assert_array_equal(a.row, [1, 1, 9])
    sheet.set(3, 1, formula="=A2*2")
    assert sheet.formula(3, 1) == "A2*2" and len(sheet.arrays().row) == 4
    sheet.set(3, 1)
    assert sheet.get(3, 1) is None


def test_recalculation_takes_formulas_in_their_order():
    cells = {"A1": 1.0} | {f"A{i}": f"=A{i - 1}+1" for i in range(2, 400)}
    full, failed = recalculated(Workbook.from_cells({"S": cells}))
    assert failed == [] and full.sheets["S"].value(399, 1) == 399.0
