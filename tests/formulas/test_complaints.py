"""What users of other tools complained about, as required behaviour."""

from __future__ import annotations

import numpy as np
import openpyxl
import pytest

from assay.formulas import (
    CellRef,
    CircularReference,
    Engine,
    EngineMissing,
    Judge,
    Task,
    Unsupported,
    UnsupportedFunction,
    Workbook,
    likeness,
    parse,
    recalculated,
    stale_cells,
)
from assay.formulas.runs import judged
from assay.formulas.systems.base import Suggestion


def test_files_without_stored_values_are_recalculated(tmp_path):
    """RUCKBReasoning/SpreadsheetBench#31, #13, SpreadsheetBench-2#3: openpyxl writes no stored values."""
    book = openpyxl.Workbook()
    page = book.active
    page.title = "S"
    for row, value in enumerate((2, 3, 4), 1):
        page.cell(row, 1).value = value
        page.cell(row, 2).value = f"=A{row}*10"
    page["B4"] = "=SUM(B1:B3)"
    book.save(tmp_path / "no-values.xlsx")
    read = Workbook.open(tmp_path / "no-values.xlsx")
    assert len(read.missing_values()) == 4
    full, failed = recalculated(read)
    assert failed == [] and full.sheets["S"].value(4, 2) == 90.0
    cell = CellRef("S", 4, 2)
    task = Task("t", read, cell, truth="SUM(B1:B3)", removed=frozenset([cell]))
    result = judged(task, "x", [Suggestion("B1+B2+B3", 0.9)], 0.0, Engine())
    assert result.top1 and result.reproduces is None


def test_stale_values_are_found_and_the_task_is_marked():
    """The same issues: a stale stored value makes a wrong answer win."""
    book = Workbook.from_cells({"S": {"A1": 2.0, "A2": 3.0, "A3": ("=A1+A2", 6.0)}})
    assert [(c.address, new) for c, _, new in stale_cells(book)] == [("A3", 5.0)]
    cell = CellRef("S", 3, 1)
    judge = Judge(Task("t", book, cell, truth="A1+A2", removed=frozenset([cell])), Engine())
    assert judge.reproduces is False
    assert judge("A1*A2").outcome == "wrong"  # 6, the stale value


def test_reader_is_tolerant():
    """RUCKBReasoning/SpreadsheetBench#4: blanks, line breaks and mixed references are no reason to fail."""
    at = CellRef("S", 5, 5)
    like = likeness("= sum ( $A1 :A$3 ,\n B1 )", "SUM($A1:A$3,B1)", at)
    assert like.exact
    assert likeness("IF( (A1>1) , B1 , )", "if(A1>1,B1,)", at).exact
    assert likeness("sheet1!A1+_xlfn.CONCAT(B2:A1)", "Sheet1!A1+CONCAT(A1:B2)", at).exact


def test_no_graph_is_built_for_one_cell():
    """vinci1it2000/formulas#172: one formula over stored values must not cost a pass over the workbook."""
    cells = {f"A{i}": float(i) for i in range(1, 4001)} | {f"B{i}": (f"=A{i}*2", 2.0 * i) for i in range(1, 4001)}
    book = Workbook.from_cells({"S": cells})
    engine = Engine("builtin")
    run = engine.evaluator(book)
    assert run.evaluate("B7+B8", CellRef("S", 1, 3)) == 30.0
    assert run.limit - run.left < 20


def test_whole_columns_are_cut_at_the_cells_in_use():
    """vinci1it2000/formulas#73: SUM(A:A) hangs."""
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": 2.0, "B1": 5.0}})
    run = Engine("builtin").evaluator(book)
    assert run.evaluate("SUM(A:A)", CellRef("S", 1, 3)) == 3.0
    assert run.limit - run.left < 50
    assert run.evaluate("ROWS(A:A)", CellRef("S", 1, 3)) == 1_048_576.0
    assert run.evaluate('COUNTIF(A:A,"")', CellRef("S", 1, 3)) == 1_048_574.0


def test_circles_have_a_name_and_missing_results_are_errors():
    """vinci1it2000/formulas#143, #155."""
    book = Workbook.from_cells({"S": {"A1": "=B1+1", "B1": "=A1*2"}})
    with pytest.raises(CircularReference) as caught:
        Engine("builtin").evaluate(book, "S", "C1", "A1+1", use_cached=False)
    assert caught.value.path == ["S!A1", "S!B1", "S!A1"]
    found = Engine("builtin").evaluate(book, "S", "C1", "BESSELJ(A1,1)")
    assert isinstance(found, Unsupported) and found.name == "BESSELJ"


def test_unbounded_columns_follow_edits():
    """dgorissen/pycel#67: unbounded columns evaluated wrong after edits."""
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": 2.0}})
    engine = Engine("builtin")
    assert engine.evaluate(book, "S", "C1", "SUM(A:A)") == 3.0
    book.sheets["S"].set(9, 1, 10.0)
    assert engine.evaluate(book, "S", "C1", "SUM(A:A)") == 13.0
    book.sheets["S"].set(1, 1)
    assert engine.evaluate(book, "S", "C1", "SUM(A:A)") == 12.0


def test_offset_inside_a_range():
    """dgorissen/pycel#17."""
    cells = {f"A{i}": float(i) for i in range(1, 11)}
    book = Workbook.from_cells({"S": cells})
    assert parse("SUM(A2:OFFSET(A2,3,0))").to_a1() == "SUM(A2:OFFSET(A2,3,0))"
    assert Engine("builtin").evaluate(book, "S", "C1", "SUM(A2:OFFSET(A2,3,0))") == 2 + 3 + 4 + 5


def test_full_column_lookups_end():
    """ClosedXML#2636: INDEX and MATCH over full columns loop for ever."""
    cells = {f"A{i}": f"k{i}" for i in range(1, 501)} | {f"B{i}": float(i) for i in range(1, 501)}
    book = Workbook.from_cells({"S": cells})
    assert Engine("builtin").evaluate(book, "S", "D1", 'INDEX(B:B,MATCH("k77",A:A,0))') == 77.0
    found = Engine("builtin", steps=200).evaluate(book, "S", "D1", 'INDEX(B:B,MATCH("k77",A:A,0))')
    assert isinstance(found, Unsupported) and "steps" in found.why
    deep = "SUMPRODUCT((A:A=A1)*(B:B>0)*(ROW(A1:A9)>0))"
    assert not isinstance(Engine("builtin").evaluate(book, "S", "D1", deep), float)


def test_values_are_taken_not_displayed_texts(tmp_path):
    """lianghsun/open-sheet#27: a CSV export gives "60.3%"."""
    import xlsxwriter

    path = tmp_path / "percent.xlsx"
    made = xlsxwriter.Workbook(str(path))
    page = made.add_worksheet("S")
    page.write_number(0, 0, 0.6031, made.add_format({"num_format": "0.0%"}))
    made.close()
    cell = Workbook.open(path).sheets["S"].get(1, 1)
    assert cell.value == 0.6031 and cell.fmt == "%"


def test_one_cell_is_evaluated_again_and_again_without_the_rest():
    """bradbase/xlcalculator#17: repeated evaluation touches the referenced cells only, every time."""
    book = Workbook.from_cells({"S": {"A1": 2.0, "A2": 3.0} | {f"B{i}": float(i) for i in range(1, 2000)}})
    engine, read = Engine("builtin"), parse("A1*A2+1", "C1")
    used = []
    for _ in range(5):
        run = engine.evaluator(book)
        assert run.evaluate(read, CellRef("S", 1, 3)) == 7.0
        used.append(run.limit - run.left)
    assert len(set(used)) == 1 and used[0] < 15


def test_indirect_over_a_range_is_right_or_unsupported():
    """proompteng/bilig#36: INDIRECT over a range returned 0 without a word."""
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": 2.0, "B1": "A1:A2"}})
    engine = Engine("builtin")
    assert engine.evaluate(book, "S", "C1", "SUM(INDIRECT(B1))") == 3.0
    assert engine.evaluate(book, "S", "C1", 'SUM(INDIRECT("A"&1&":A"&2))') == 3.0
    found = engine.evaluate(book, "S", "C1", 'SUM(INDIRECT("OFFSET(A1,0,0,2)"))')
    assert isinstance(found, Unsupported) and found.name == "INDIRECT"


def test_spilled_results_are_blocks():
    """A formula that gives several values is compared as a block."""
    book = Workbook.from_cells({"S": {"A1": 1.0, "A2": 2.0}})
    found = Engine("builtin").evaluate(book, "S", "C1", "A1:A2*2", array=True)
    assert isinstance(found, np.ndarray) and found.tolist() == [[2.0], [4.0]]
    assert Engine("builtin").evaluate(book, "S", "C1", "A1:A2*2") == 2.0  # the cell of the own row


def test_what_is_not_known_has_a_name(monkeypatch):
    """An evaluator raises `UnsupportedFunction`; an engine that is not installed says what to install."""
    book = Workbook.from_cells({"S": {"A1": 1.0}})
    with pytest.raises(UnsupportedFunction, match="BESSELJ") as caught:
        Engine("builtin").evaluator(book).evaluate("BESSELJ(A1,1)", CellRef("S", 1, 2))
    assert caught.value.name == "BESSELJ"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineMissing, match="libreoffice-calc"):
        Engine("libreoffice")
    assert Engine("builtin").evaluate(book, "S", "B1", "NOW()") == Unsupported(
        "NOW", "its value depends on the clock; give the engine a time (now=serial)"
    )
    assert Engine("builtin", now=45_000.25).evaluate(book, "S", "B1", "TODAY()") == 45_000.0
