"""Columns looked at as arrays say the same as looking cell by cell."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.formulas import Workbook
from assay.formulas.grammar import CellRef
from assay.formulas.regions import header_above
from assay.formulas.systems.labels import labels_of
from assay.formulas.systems.words import similar

VALUES = [None, None, 1.0, 2.0, "x", "  ", ("=A1+1", 2.0), ("=B9", "t"), True]


def column(seed: int, rows: int = 90):
    rng = random.Random(seed)
    cells = {}
    row = 1
    while row <= rows:
        value = rng.choice(VALUES)
        for _ in range(rng.choice([1, 1, 2, 5, 30])):
            if value is not None and row <= rows:
                cells[f"C{row}"] = value
            row += 1
    cells["A1"] = "top"
    return Workbook.from_cells({"S": cells}).sheet("S")


def by_steps(sheet, row, col):
    blanks = 0
    for r in range(row - 1, 0, -1):
        value = sheet.value(r, col)
        blanks = blanks + 1 if value is None else 0
        if blanks > 2:
            return None
        if isinstance(value, str) and sheet.formula(r, col) is None and value.strip():
            return r, col
    return None


def look(sheet, row, col, same_class):
    cell = sheet.get(row, col)
    if cell is None or (cell.value is None and cell.formula is None):
        return None
    form = sheet.computed(row, col)
    if form and same_class:
        form = r1c1(sheet, row, col)
    return type(cell.value).__name__, form


def r1c1(sheet, row, col):
    from assay.formulas.grammar import parse

    return parse(sheet.formula(row, col), CellRef("S", row, col)).to_r1c1()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 95), st.sets(st.integers(1, 90), max_size=6))
def test_headers_and_stretches_are_those_of_a_walk(seed, row, gone):
    sheet = column(seed).without((r, 3) for r in gone)
    assert header_above(sheet, row, 3) == by_steps(sheet, row, 3)
    for same_class in (False, True):
        own = look(sheet, row, 3, same_class)
        first = last = row
        if own is not None:
            while look(sheet, first - 1, 3, same_class) == own:
                first -= 1
            while look(sheet, last + 1, 3, same_class) == own:
                last += 1
        assert sheet.stretch(row, 3, same_class) == (first, last)


def test_stretches_follow_an_edit():
    book = Workbook.from_cells({"S": {f"A{i}": 1.0 for i in range(1, 101)}})
    sheet = book.sheet("S")
    assert sheet.stretch(50, 1) == (1, 100)
    sheet.set(70, 1, "end")
    assert sheet.stretch(50, 1) == (1, 69)
    assert sheet.stretch(70, 1) == (70, 70)
    sheet.set(70, 1)
    assert sheet.stretch(70, 1) == (70, 70) and sheet.stretch(71, 1) == (71, 100)


@pytest.mark.parametrize("wanted", ["Tax rate", "rates", "VAT", "Sum of q", "unit"])
def test_labels_that_are_alike_are_all_found(wanted):
    texts = ["Tax rate", "Rate of tax", "vat", "Units", "Q", "q sum", "ta", "Nothing", "1 %", ""]
    sheet = Workbook.from_cells({"S": {f"A{i + 1}": t for i, t in enumerate(texts) if t}}).sheet("S")
    alike = {text for text in texts if similar(text, wanted) > 0}
    found = {text for _, _, text in labels_of(sheet).like(wanted)}
    assert alike <= found and "Nothing" not in found
