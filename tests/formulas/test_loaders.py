"""Loaders of other benchmarks, on small files in their formats.

The formats of SpreadsheetBench, NL2Formula and PROSE are those of their public read-me files and code. That of
Auto-Formula (``test_formulas.json`` beside the workbooks) is our reading of the keys; its read-me shows folders only.
"""

from __future__ import annotations

import json

import pytest

from assay.formulas import TaskFileError, Workbook, write_xlsx
from assay.formulas.loaders import (
    completion_tasks,
    load_autoformula,
    load_nl2formula,
    load_prose,
    load_spreadsheetbench,
    suggestion_tasks,
)

CELLS = {"A1": "Qty", "B1": "Price", "C1": "Total", "A2": 2.0, "B2": 3.0, "C2": ("=A2*B2", 6.0), "A3": 4.0, "B3": 5.0}


def put(path, cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_xlsx(Workbook.from_cells({"Sheet 1": cells}), path)


def written(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("start", [0, 1])
def test_autoformula_counts_from_zero_or_one(tmp_path, start):
    put(tmp_path / "deep" / "a.xlsx", CELLS)
    written(tmp_path / "test_formulas.json", {f"a.xlsx---Sheet 1---{1 + start}---{2 + start}": {}})
    (task,) = load_autoformula(tmp_path)
    assert (task.cell.address, task.truth, task.function, task.abstain) == ("C2", "A2*B2", "*", False)
    assert task.view.formula(task.cell) is None and task.view.value(task.cell) is None


def test_autoformula_names_what_is_wrong(tmp_path):
    written(tmp_path / "test_formulas.json", ["a.xlsx---Sheet 1---1"])
    with pytest.raises(TaskFileError, match="file---sheet---row---col"):
        load_autoformula(tmp_path)
    written(tmp_path / "test_formulas.json", ["b.xlsx---Sheet 1---1---2"])
    with pytest.raises(TaskFileError, match=r"no workbook b\.xlsx"):
        load_autoformula(tmp_path)
    with pytest.raises(TaskFileError, match="no JSON file"):
        load_autoformula(tmp_path / "none")


@pytest.mark.parametrize("lines", [False, True])
def test_spreadsheetbench_gives_cells_that_the_answer_fills(tmp_path, lines):
    rows = [
        {"id": "12-3", "instruction": "Multiply", "spreadsheet_path": "spreadsheet/12-3",
         "instruction_type": "Cell-Level Manipulation", "answer_position": "'Sheet 1'!C2:C3"},
        {"id": 7, "instruction": "No file", "spreadsheet_path": "spreadsheet/7",
         "instruction_type": "Sheet-Level Manipulation", "answer_position": "A1"},
    ]  # fmt: skip
    written(tmp_path / "dataset.json", "\n".join(map(json.dumps, rows)) if lines else rows)
    folder = tmp_path / "spreadsheet" / "12-3"
    put(folder / "1_12-3_input.xlsx", {k: v for k, v in CELLS.items() if k != "C2"})
    put(folder / "1_12-3_answer.xlsx", CELLS | {"C3": ("=A3*B3", 20.0)})
    put(folder / "2_12-3_input.xlsx", {})  # without an answer
    (found,) = load_spreadsheetbench(tmp_path)
    assert (found.id, found.instruction, found.sheet, found.area) == ("12-3/1", "Multiply", "Sheet 1", "C2:C3")
    (task,) = suggestion_tasks([found])
    assert (task.cell.address, task.truth, len(task.removed)) == ("C2", "A2*B2", 2)


def test_nl2formula_gives_questions_over_a_table(tmp_path):
    table = [["Name", "Gold"], ["Ada", "3"], ["Ben", "5"]]
    pairs = [
        {"Question": "How many in all?", "Formula": "=old", "Formula2": "=SUM(B2:B3)", "Level": "simple"},
        {"Question": "", "Formula2": "=B2", "Level": "simple"},
    ]
    path = written(tmp_path / "test.json", [{"TableName": "t", "Table": table, "t5Formulas": pairs}])
    (found,) = load_nl2formula(path)
    assert (found.question, found.formula, found.table) == ("How many in all?", "SUM(B2:B3)", table)
    written(path, [{"t5Formulas": pairs}])
    with pytest.raises(TaskFileError, match="entry 0: there is no table"):
        load_nl2formula(path)


def test_prose_gives_pairs_and_completions(tmp_path):
    path = written(tmp_path / "benchmarks.json", [{"Buggy": "=SUM(A1", "GroundTruth": "=SUM(A1)"}])
    assert [(p.given, p.wanted) for p in load_prose(path)] == [("=SUM(A1", "=SUM(A1)")]
    rows = [
        {"Masked": "=SUM(A1<mask>", "Completion": "=SUM(A1:A9)"},
        {"Masked": "=SUM(B1<mask>", "Completion": ":B9)"},
        {"Masked": "=IF(<mask>,1,2)", "Completion": "=IF(A1,1,2)"},
        {"Masked": "=A1+<mask>", "Completion": "=A1+*"},
    ]
    pairs = load_prose(written(path, rows))
    assert completion_tasks(pairs) == [("=SUM(A1", "=SUM(A1:A9)"), ("=SUM(B1", "=SUM(B1:B9)")]
    written(path, [{"Wrong": "x"}])
    with pytest.raises(TaskFileError, match="neither Buggy"):
        load_prose(path)
